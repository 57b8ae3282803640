"""The page in a browser, beside real runtimes and of a real service."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest

pytest.importorskip("tornado")
pytest.importorskip("selenium", reason="without selenium no browser is steered")


from tornado.web import Application

import dask_mars
from dask_mars.web.handlers import rules
from dask_mars.web.handling import Site
from tests.tasks import block_when_let, fail_on_block
from tests.web.browser import CHROMIUM, DRIVER, Viewer, look
from tests.web.services import running

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="there is no chromium, or no chromedriver"),
]


class Work:
    """Four chunks that end as they are let, and their whole, computed in a thread.

    Parameters
    ----------
    runtime : Runtime
        What computes.
    folder : Path
        For the files that let chunks end.
    """

    def __init__(self, runtime: Any, folder: Path) -> None:
        self._folder = folder
        self.raised: list[BaseException] = []
        blocks = da.map_blocks(
            block_when_let, folder=str(folder), chunks=((1,) * 4,), dtype=float, meta=np.empty(0), name="slow"
        )
        self._thread = threading.Thread(target=self._compute, args=(runtime, blocks))

    def _compute(self, runtime: Any, blocks: Any) -> None:
        try:
            blocks.compute(scheduler=runtime.get)
        except BaseException as error:
            self.raised.append(error)

    def let(self, *numbers: int) -> None:
        for number in numbers:
            (self._folder / str(number)).touch()

    def __enter__(self) -> Work:
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self.let(0, 1, 2, 3)
        self._thread.join(100)
        assert not self._thread.is_alive()


@pytest.fixture
def work(runtime: Any, tmp_path: Path) -> Iterator[Work]:
    with Work(runtime, tmp_path) as work:
        yield work


@pytest.fixture
def server(runtime: Any, viewer: Viewer) -> Iterator[Any]:
    with runtime.serve() as server:
        yield server
        viewer.leave()


RUNNING = ".computations li:has(.state.running) a"
PROGRESS = "document.querySelector('.progress [role=progressbar]')"
finished = f"Number({PROGRESS}?.getAttribute('aria-valuenow') ?? -1)"


def tab(name: str) -> str:
    return f"#tab-{name}"


def test_progress_moves_until_it_is_finished(viewer, server, work):
    # Times are by the clock of the service, and not by the browser's.
    back = "const now = Date.now; Date.now = () => now() - 7200e3;"
    added = viewer.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": back})
    try:
        viewer.open(server.link)
        assert "token" not in viewer.driver.current_url
        viewer.press(RUNNING)
        viewer.wait(lambda: viewer.value(finished) == 0)
        viewer.wait(lambda: re.search(r"Running for\n([1-9]\S*|\d\d\S*) s", viewer.text(".about")))
        work.let(0)
        viewer.wait(lambda: viewer.value(finished) == 1)
        assert "1 of 5 chunks" in viewer.text(".progress")
        work.let(1, 2, 3)
        viewer.wait(lambda: viewer.value(finished) == 5)
        viewer.reads("finished", ".about .state")
        assert not viewer.all("#cancel")
    finally:
        viewer.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


def test_views_of_what_runs(viewer, server, work):
    viewer.open(server.link)
    viewer.press(RUNNING)
    viewer.reads("slow", "table.layers")
    viewer.reads("puts the blocks of the result together", ".view.layers")
    viewer.press(tab("waiting"))
    viewer.wait(lambda: viewer.all(".rows li"))
    viewer.press("#key")
    viewer.type("('slow', 3)", "\ue007")
    viewer.reads("('slow', 3)", ".rows.chain")
    viewer.expected = ["status of 404"]
    viewer.press("#key")
    viewer.type("x", "\ue007")
    viewer.reads("No chunk has the key")
    viewer.press(tab("timeline"))
    viewer.wait(lambda: viewer.all(".view.timeline *"))
    # Canvases are painted in the colours of the scheme.
    painted = "import('./colours.js').then(({ colour }) => arguments[0](colour('--finished')))"
    for dark, colour in ((True, "rgb(79, 180, 135)"), (False, "rgb(63, 157, 115)")):
        look(viewer.driver, dark=dark)
        assert viewer.driver.execute_async_script(painted) == colour
    viewer.press(tab("graph"))
    viewer.press(".graph a.box")
    viewer.wait(lambda: viewer.all(".blocks canvas"))
    viewer.press(".blocks canvas")
    viewer.reads("('slow', ", ".blocks .told")
    viewer.press(".blocks .told a")
    viewer.wait(lambda: viewer.all(".rows.chain li"))
    viewer.press(tab("log"))
    viewer.reads("block 0 begins", ".view.log")


def test_the_keyboard_alone_cancels(viewer, server, work):
    viewer.open(server.link)
    viewer.wait(lambda: viewer.all(RUNNING))
    viewer.tab_to("one.matches('.computations li a')")
    viewer.type("\ue007")
    viewer.wait(lambda: viewer.all("#cancel"))
    viewer.tab_to("one.id === 'cancel'")
    viewer.type("\ue007")
    viewer.wait(lambda: viewer.value("document.querySelector('dialog').open"))
    viewer.tab_to("one.innerText === 'Cancel it'")
    viewer.type("\ue007")
    viewer.reads("cancelled", ".about .state")
    viewer.wait(lambda: work.raised)
    assert isinstance(work.raised[0], dask_mars.errors.Cancelled)


def test_below_the_address_of_a_proxy(viewer, runtime, work, monkeypatch):
    """As jupyter-server-proxy has it: no address in the page may lead past it."""
    below = "user/ada/proxy/8899/"

    def application(monitor: Any, security: Any, executor: Any) -> Any:
        return Application(rules(Site(monitor, security, executor), f"/{below.rstrip('/')}"))

    monkeypatch.setattr("dask_mars.web.server.make_application", application)
    with runtime.serve() as server:
        page = f"{server.url}{below}"
        viewer.open(f"{page}?token={server.token}")
        viewer.press(RUNNING)
        assert viewer.value("location.href.split('#')[0]") == page
        viewer.wait(lambda: viewer.value(finished) == 0)
        work.let(0)
        viewer.wait(lambda: viewer.value(finished) == 1)
        viewer.press("#cancel")
        viewer.press("dialog .danger")
        viewer.reads("cancelled", ".about .state")
        viewer.leave()


def test_a_failure_shows_its_traceback(viewer, runtime, server):
    with pytest.raises(ValueError, match="two"):
        da.arange(4, chunks=1).map_blocks(fail_on_block).compute(scheduler=runtime.get)
    viewer.open(server.link)
    viewer.press(".computations li:has(.state.failed) a")
    viewer.reads("two is not allowed here", ".about .banner")
    viewer.reads("fail_on_block", ".traceback")


def test_without_the_right_token_it_says_what_to_do(viewer, runtime, work):
    viewer.expected = ["status of 401", "ERR_"]
    with runtime.serve() as server:
        port = int(re.findall(r":(\d+)/", server.url)[0])
        viewer.open(f"{server.url}?token=wrong")
        viewer.reads("Runtime.serve returns a server whose link has it")
        viewer.press("#token")
        viewer.type(server.view_token, "\ue007")
        viewer.reads("of 2 busy")
        # Who may only look has no button for cancelling.
        viewer.press(RUNNING)
        viewer.wait(lambda: viewer.value(finished) == 0)
        assert not viewer.all("#cancel")
    viewer.reads("The service does not answer")
    with runtime.serve(port, token=server.token, view_token=server.view_token):
        viewer.wait(lambda: "does not answer" not in viewer.text())
    # The token of before leads to the question for the new one.
    with runtime.serve(port) as server:
        viewer.press("#token")
        viewer.type(server.token, "\ue007")
        viewer.press(RUNNING)
        viewer.wait(lambda: viewer.all("#cancel"))
        viewer.leave()


#: Of a phone and of a desk, in pixels.
WIDTHS = (400, 1280)
#: What draws, and has no name for those who do not see it.
UNNAMED = """
[...document.querySelectorAll('svg, canvas, [role=progressbar], [role=meter], button, input, select, main a')]
  .filter((one) => !one.closest('[aria-hidden=true]') && one.checkVisibility())
  .filter((one) => !(one.getAttribute('aria-label') || one.getAttribute('aria-labelledby') || one.innerText
    || one.labels?.length || one.closest('[role=img]')))
  .map((one) => one.outerHTML.slice(0, 200))
"""
UNROLED = """
[...document.querySelectorAll('svg, canvas')]
  .filter((one) => !one.closest('[aria-hidden=true], [role=img], [role=group], [role=application], [role=grid]'))
  .map((one) => one.outerHTML.slice(0, 200))
"""


def test_each_view_fits_and_has_names(viewer, driver, runtime, server):
    x = da.random.default_rng(1).random((40, 40), chunks=10)
    (x + x.T).sum().compute(scheduler=runtime.get)
    look(driver, WIDTHS[0])
    viewer.open(server.link)

    def fits(name: str) -> None:
        for width in WIDTHS:
            look(driver, width)
            viewer.wait(lambda width=width: viewer.value("innerWidth") == width)
            viewer.wait(lambda: not viewer.all(".view [aria-busy=true]"))
            assert viewer.value("document.documentElement.scrollWidth") <= width, (name, width)
            assert not viewer.value(UNNAMED), (name, width)
            assert not viewer.value(UNROLED), (name, width)

    viewer.wait(lambda: viewer.all(".computations li a"))
    fits("computations")
    viewer.press(".computations li a")
    for name in ("layers", "waiting", "timeline", "graph", "log"):
        viewer.press(tab(name))
        viewer.wait(lambda name=name: viewer.all(f".view.{name} *") and not viewer.all(".view [aria-busy=true]"))
        if name == "graph":
            viewer.press(".graph a.box")
            viewer.wait(lambda: viewer.all(".blocks canvas"))
        fits(name)


# -- the service ----------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return bound.getsockname()[1]


def link(service: Any) -> str:
    facts = json.loads((service.directory / "connection.json").read_text())
    return f"{facts['url']}?token={facts['token']}"


def test_history_and_results_of_a_service(viewer, driver, tmp_path):
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    viewer.expected = ["ERR_", "status of 401"]
    with running(tmp_path / "d", "--port", str(free_port())) as service:
        viewer.open(link(service))
        viewer.reads("Nothing has been submitted yet")
        with service.connect() as client:
            computation = client.submit(da.arange(12, chunks=4) * 2, name="doubled")
            assert computation.wait(100)
        viewer.reads("doubled", ".computations")
        driver.refresh()
        viewer.reads("doubled", ".computations")
        service.stop()
        viewer.reads("does not answer")
        service.start()
        viewer.open(link(service))
        viewer.press(".computations li a")
        viewer.press(tab("result"))
        viewer.reads("(12)", ".view.result")
        assert computation.id in viewer.text(".view.result .code")
        told = {"behavior": "allow", "downloadPath": str(downloads)}
        driver.execute_cdp_cmd("Browser.setDownloadBehavior", told)
        viewer.press("a[download]")
        (file,) = viewer.wait(lambda: list(downloads.glob("*.npy")))
        assert np.load(file).tolist() == list(range(0, 24, 2))
        viewer.leave()
