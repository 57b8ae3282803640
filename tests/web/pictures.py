"""Takes the pictures of the page that the docs show: ``python -m tests.web.pictures [DIRECTORY]``."""

from __future__ import annotations

import base64
import io
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from PIL import Image

from tests.web.browser import ROOT, Viewer, browsing, look
from tests.web.services import running

#: Sizes of a desk's and of a phone's window, in pixels; a picture is at most so high.
DESK, PHONE, MOST_HIGH = (1280, 760), (400, 800), 1600
#: Of each picture: the computation, the view, what it has to show, the size of the window, and whether it is dark.
PICTURES = {
    "computations": ("", "", "main td", DESK, False),
    "layers": ("climatology", "layers", ".layers", DESK, False),
    "layers-narrow": ("climatology", "layers", ".layers", PHONE, False),
    "waiting": ("climatology", "waiting", ".rows", DESK, False),
    "timeline-dark": ("climatology", "timeline", ".u-over", DESK, True),
    "graph": ("climatology", "graph", ".blocks canvas", DESK, False),
    "log": ("satellite index", "log", ".traceback", DESK, False),
    "result": ("daily means", "result", ".code", DESK, False),
}


def clip(block: np.ndarray[Any, Any], folder: Path, block_id: tuple[int, ...] = ()) -> np.ndarray[Any, Any]:
    """Take a while, print, and wait at the later blocks for a file, so that the pictures show one moment."""
    time.sleep(0.3)
    if not block_id[1]:
        print(f"month {block_id[0] + 1}: {len(block)} rows")
    while block_id[1] > 4 and not (folder / "go").exists():
        time.sleep(0.05)
    return np.clip(block, 0.1, 0.9)


def fail(block: np.ndarray[Any, Any], block_id: tuple[int, ...] = ()) -> np.ndarray[Any, Any]:
    print("looking for tile", block_id)
    raise KeyError(block_id)


def submit(service: Any, folder: Path) -> dict[str, str]:
    """Submit the computations, wait until they are as the pictures show them, and return their ids by name."""
    x = da.random.default_rng(3).random((6000, 4000), chunks=500)
    clipped = x.map_blocks(clip, folder=folder, meta=np.empty((0, 0)))
    done = service.submit(x.mean(axis=0), name="daily means")
    failed = service.submit(x.map_blocks(fail, meta=np.empty((0, 0))), name="satellite index")
    assert done.wait(60)
    assert failed.wait(60)
    found = [done, failed, service.submit(((clipped - clipped.mean(axis=0)) ** 2).sum(), name="climatology")]
    while found[2].progress < 0.3:
        time.sleep(0.1)
    return {one.name: one.id for one in found}


def take(viewer: Viewer, address: str, view: str, wanted: str, size: tuple[int, int], dark: bool) -> Image.Image:
    """Return a picture of a view, as high as it needs to be, with its 256 most frequent colours."""
    viewer.leave()
    look(viewer.driver, *size, dark)
    viewer.open(address)
    if view == "graph":
        viewer.press(".graph a.box")
    viewer.wait(lambda: viewer.all(wanted))
    look(
        viewer.driver,
        size[0],
        min(max(viewer.value("document.documentElement.scrollHeight"), size[1]), MOST_HIGH),
        dark,
    )
    # What is drawn is drawn in the frame after.
    viewer.driver.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0], 200))")
    data = viewer.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
    image = Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")
    # A file is a third of what it is without a palette.
    return image.quantize(256, dither=Image.Dither.NONE)


def main(directory: Path) -> None:
    """Take all pictures of a service that computes."""
    directory.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as files,
        running(Path(files) / "d", "--port", "0", "--num-workers", "4") as served,
        served.connect() as service,
        browsing(Path(files)) as driver,
    ):
        ids = submit(service, Path(files))
        facts = json.loads((served.directory / "connection.json").read_text(encoding="utf-8"))
        viewer = Viewer(driver)
        viewer.open(f"{facts['url']}?token={facts['token']}")
        for name, (computation, view, *shown) in PICTURES.items():
            path = f"c/{ids[computation]}/{view}" if computation else ""
            take(viewer, f"{facts['url']}#/{path}", view, *shown).save(directory / f"{name}.png", optimize=True)
        (Path(files) / "go").touch()
        print(*viewer.complaints(), sep="\n", file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures")
