"""Takes pictures of the page: ``python -m tests.web.pictures`` those in the docs, with a directory all of them."""

from __future__ import annotations

import base64
import io
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from PIL import Image
from selenium.webdriver.support.ui import WebDriverWait

from .browser import ROOT, browsing, look, serving
from .scenes import identifier

ONE = identifier(1)
#: File, scene, address behind ``#``, what has to be there, width, height, whether dark.
PICTURES = (
    ("computations", "busy", "/", "main td", 1280, 760, False),
    ("layers", "busy", f"/c/{ONE}/layers", ".layers", 1280, 760, False),
    ("layers-dark", "busy", f"/c/{ONE}/layers", ".layers", 1280, 760, True),
    ("waiting", "busy", f"/c/{ONE}/waiting", ".rows", 1280, 760, False),
    ("timeline", "busy", f"/c/{ONE}/timeline", ".u-over", 1280, 1000, False),
    ("timeline-dark", "busy", f"/c/{ONE}/timeline", ".u-over", 1280, 1000, True),
    ("graph", "busy", f"/c/{ONE}/graph?layer=mean_chunk-2f1c04", ".blocks canvas", 1280, 1240, False),
    ("log", "failed", f"/c/{ONE}/log", ".traceback", 1280, 860, False),
    ("result", "finished", f"/c/{ONE}/result", ".code", 1280, 760, False),
    ("empty", "empty", "/", ".computations pre", 1280, 560, False),
    ("narrow", "busy", f"/c/{ONE}/layers", ".layers", 400, 800, False),
    ("computations-dark", "busy", "/", "main td", 1280, 760, True),
    ("graph-dark", "busy", f"/c/{ONE}/graph?layer=mean_chunk-2f1c04", ".blocks canvas", 1280, 1240, True),
    ("log-dark", "failed", f"/c/{ONE}/log", ".traceback", 1280, 860, True),
    ("narrow-graph", "busy", f"/c/{ONE}/graph?layer=mean_chunk-2f1c04", ".blocks canvas", 400, 1300, False),
    ("narrow-log-dark", "failed", f"/c/{ONE}/log", ".traceback", 400, 1200, True),
    ("narrow-waiting", "busy", f"/c/{ONE}/waiting", ".rows", 400, 1100, False),
    ("narrow-result-dark", "finished", f"/c/{ONE}/result", ".code", 400, 1000, True),
    ("narrow-computations", "busy", "/", "main td", 400, 1400, False),
    ("narrow-timeline-dark", "busy", f"/c/{ONE}/timeline", ".u-over", 400, 1000, True),
)
#: Those that the docs show.
SHOWN = ("computations", "layers", "waiting", "timeline-dark", "graph", "log", "result", "narrow")


def main(directory: Path, names: Iterable[str]) -> None:
    """Take some of them."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as files, serving() as server, browsing(Path(files)) as driver:
        for name, scene, address, wanted, width, height, dark in PICTURES:
            if name not in names:
                continue
            driver.get("about:blank")
            look(driver, width, height, dark)
            driver.get(f"{server.url}/{scene}/#{address}")
            WebDriverWait(driver, 10).until(lambda d, wanted=wanted: d.find_elements("css selector", wanted))
            # What is drawn is drawn in the frame after.
            driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
            picture = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
            # Small areas keep their colours too, and a file is a third of what it is without a palette.
            image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
            image.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
                directory / f"{name}.png", optimize=True
            )
            for line in driver.get_log("browser"):
                print(name, line["level"], line["message"], file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]), [name for name, *_ in PICTURES])
    else:
        main(ROOT / "docs" / "pictures", SHOWN)
