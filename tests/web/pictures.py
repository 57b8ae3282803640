"""Takes pictures of the page: ``python -m tests.web.pictures`` those in the docs, with a directory all of them."""

from __future__ import annotations

import base64
import io
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image
from selenium.webdriver import ActionChains
from selenium.webdriver.support.ui import WebDriverWait

from .browser import ROOT, browsing, look, serving
from .scenes import identifier

#: Widths of windows by what they add to the names of pictures, and how high they are at least.
WIDTHS = {"": (1280, 760), "-narrow": (400, 800)}
#: A picture is no higher.
MOST_HIGH = 1600
#: Those that the docs show.
SHOWN = ("computations", "layers", "layers-narrow", "waiting", "timeline-dark", "graph", "log", "result")


class View(NamedTuple):
    """Something to take a picture of.

    Attributes
    ----------
    scene, address : str
        Where it is, the second behind ``#``.
    wanted : str
        What has to be there.
    press : str, optional
        What to click at first.
    tabs : int, optional
        How often to press the tab key.
    """

    scene: str
    address: str
    wanted: str
    press: str = ""
    tabs: int = 0


def _of(number: int, view: str) -> str:
    return f"/c/{identifier(number)}/{view}"


VIEWS = {
    "computations": View("busy", "/", "main td"),
    "layers": View("busy", _of(1, "layers"), ".layers"),
    "waiting": View("busy", _of(1, "waiting"), ".rows"),
    "timeline": View("busy", _of(1, "timeline"), ".u-over"),
    "graph": View("busy", _of(1, "graph?layer=mean_chunk-2f1c04"), ".blocks canvas"),
    "log": View("failed", _of(1, "log"), ".traceback"),
    "result": View("finished", _of(1, "result"), ".code"),
    # How the same looks in other states, which the docs do not show.
    "empty": View("empty", "/", ".computations pre"),
    "preparing": View("busy", _of(2, "layers"), ".view .nothing"),
    "queued": View("busy", _of(3, "waiting"), ".view *"),
    "failed-layers": View("failed", _of(1, "layers"), ".layers"),
    "failed-graph": View("failed", _of(1, "graph?layer=clip-1f1c04"), ".blocks canvas"),
    "cancelled": View("busy", _of(14, "layers"), ".layers"),
    "cancelled-log": View("busy", _of(14, "log"), ".view .nothing"),
    "finished-timeline": View("finished", _of(1, "timeline"), ".u-over"),
    "finished-waiting": View("finished", _of(1, "waiting"), ".view .rows"),
    "evicted": View("busy", _of(10, "result"), ".view .nothing"),
    "unknown": View("busy", "/c/nothing", "main .nothing"),
    "locked": View("locked", "/", "#token"),
    "cancel": View("busy", _of(1, "layers"), "dialog[open]", "#cancel"),
    "focus-list": View("busy", _of(1, "layers"), ".layers", tabs=5),
    "focus-button": View("busy", _of(1, "layers"), ".layers", tabs=16),
    "key": View("busy", _of(1, "waiting?key=('subtract-4f1c04', 2, 5, 1)"), ".chain"),
    "many": View("large", "/", ".pages"),
}


def names() -> Iterator[tuple[str, View, tuple[int, int], bool]]:
    """Yield of each picture its name, what it shows, the least size of the window, and whether it is dark."""
    for name, view in VIEWS.items():
        for narrow, size in WIDTHS.items():
            for dark in (False, True):
                yield f"{name}{narrow}{'-dark' if dark else ''}", view, size, dark


def take(driver: Any, url: str, view: View, size: tuple[int, int], dark: bool) -> Image.Image:
    """Return a picture of a view, as high as it needs to be."""
    width, height = size
    driver.get("about:blank")
    look(driver, width, height, dark)
    driver.get(f"{url}/{view.scene}/#{view.address}")
    wait = WebDriverWait(driver, 10)
    if view.press:
        wait.until(lambda d: d.find_elements("css selector", view.press))[0].click()
    wait.until(lambda d: d.find_elements("css selector", view.wanted))
    for _ in range(view.tabs):
        ActionChains(driver).send_keys("\ue004").perform()
    high = driver.execute_script("return document.documentElement.scrollHeight")
    look(driver, width, min(max(high, height), MOST_HIGH), dark)
    # What is drawn is drawn in the frame after.
    driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    driver.execute_async_script("setTimeout(arguments[0], 150)")
    picture = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
    return Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")


def with_palette(image: Image.Image) -> Image.Image:
    """Return a picture with 256 colours: those that it has most of, so that areas keep theirs to the bit."""
    # A file is a third of what it is without a palette.
    found = sorted(image.getcolors(image.width * image.height), reverse=True)[:256]
    palette = Image.new("P", (1, 1))
    palette.putpalette([value for _, colour in found for value in colour])
    return image.quantize(len(found), palette=palette, dither=Image.Dither.NONE)


def main(directory: Path, are_all: bool) -> None:
    """Take all pictures, or those that the docs show."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as files, serving() as server, browsing(Path(files)) as driver:
        for name, view, size, dark in names():
            if not (are_all or name in SHOWN):
                continue
            with_palette(take(driver, server.url, view, size, dark)).save(directory / f"{name}.png", optimize=True)
            for line in driver.get_log("browser"):
                print(name, line["level"], line["message"], file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]), are_all=True)
    else:
        main(ROOT / "docs" / "pictures", are_all=False)
