"""Reports: one page about what was computed, and errors before anything is."""

from __future__ import annotations

import html.parser
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import pytest
from dask.callbacks import Callback

from dask_mars import Runtime
from dask_mars.diagnostics import report
from dask_mars.engine.listeners import listeners
from dask_mars.observe import report_page
from dask_mars.observe.recorded import Recorded
from dask_mars.observe.recording import Happening, LayerCosts, MemoryPoint
from tests.tasks import die_first, fail_first

pytestmark = pytest.mark.timeout(300)

Get = Callable[..., Any]


class Page(html.parser.HTMLParser):
    """What stands on a page, and what it would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        if tag not in ("meta",):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self._open and data.strip():
            self.words.append(data.strip())


def read(path: Path) -> Page:
    text = path.read_text(encoding="utf-8")
    found = Page(text)
    assert found.fetched == []
    assert "script" not in found.tags
    assert "link" not in found.tags
    assert "url(" not in text
    assert "@import" not in text
    return found


def test_what_was_computed(runtime: Runtime, get: Get, tmp_path: Path):
    file = tmp_path / "report.html"
    with report(file, title="<Sums>") as opened:
        assert "not finished yet" in file.read_text()
        assert (da.ones((200, 200), chunks=50) + 1).sum().compute(scheduler=get) == 80_000
    found = read(file)
    assert "<Sums>" in found.words
    assert "finished" in found.words
    for heading in ("Timeline", "Memory", "Layers", "Computations", "Versions", "Settings", "What stands out"):
        assert heading in found.words
    assert "sum" in found.words
    assert "dask-mars.memory-limit" in found.words
    assert opened.recorded is not None
    assert opened.recorded.chunks > 16
    assert {one.outcome for one in opened.recorded.computations} == {"finished"}
    assert opened.recorded.limit_bytes == runtime.settings.memory_limit
    assert opened.recorded.length_s > 0
    assert all(0 <= start <= end <= opened.recorded.length_s for _, start, end, _, _ in opened.recorded.rows)
    assert listeners.active == ()
    assert os.listdir(tmp_path) == ["report.html"]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~umask


def test_failures_retries_and_deaths(get: Get, tmp_path: Path):
    graph = {
        "mended": (fail_first, tmp_path / "failed", 1, 5),
        "lost": (die_first, tmp_path / "died", 1, 5),
        "bad": (divmod, "mended", 0),
    }
    opened = report(tmp_path / "report.html")

    def compute() -> None:
        with opened:
            assert get(graph, ["mended", "lost"], retries=1) == (5, 5)
            get(graph, "bad")

    with pytest.raises(ZeroDivisionError):
        compute()
    words = " ".join(read(tmp_path / "report.html").words)
    assert "ended by ZeroDivisionError" in words
    assert "worker died" in words
    assert "task failed" in words
    assert "ZeroDivisionError" in words
    assert opened.recorded.retried == 2
    assert [one.outcome for one in opened.recorded.computations] == ["finished", "failed"]


def test_as_a_callback(get: Get, tmp_path: Path):
    graph = {"a": (abs, -1), "b": (abs, "a")}
    assert get(graph, "b", callbacks=[report(tmp_path / "one.html")._callback]) == 1
    assert "2" in read(tmp_path / "one.html").words
    registered = report(tmp_path / "all.html")
    registered.register()
    try:
        get(graph, "a")
        get(graph, "b")
    finally:
        registered.unregister()
    assert registered.recorded.computations[0].chunks == 2
    assert len(registered.recorded.computations) == 1
    assert not Callback.active


def test_a_file_that_cannot_be_written_is_an_error_before_anything_runs(tmp_path: Path):
    (tmp_path / "file").touch()
    for where in ("missing/report.html", ".", "file/report.html"):
        with pytest.raises(OSError, match="the report cannot be written to"), report(tmp_path / where):
            pytest.fail("it began")
    assert listeners.active == ()


def test_one_that_cannot_be_written_any_more(get: Get, tmp_path: Path):
    (tmp_path / "place").mkdir()

    def compute(*, fail: bool) -> None:
        with report(tmp_path / "place" / "report.html"):
            (tmp_path / "place" / "report.html").unlink()
            (tmp_path / "place").rmdir()
            get({"a": (divmod, 1, 0 if fail else 1)}, "a")

    with pytest.raises(FileNotFoundError, match="the report cannot be written to"):
        compute(fail=False)
    (tmp_path / "place").mkdir()
    with pytest.raises(ZeroDivisionError):
        compute(fail=True)
    assert listeners.active == ()


def test_nothing_was_computed_and_no_secret_is_told(tmp_path: Path):
    with dask.config.set({"dask-mars.web.token": "abc123"}), report(tmp_path / "report-{pid}.html") as opened:
        pass
    assert opened.path == tmp_path / f"report-{os.getpid()}.html"
    assert "Nothing was computed." in read(opened.path).words
    assert repr(opened).endswith("0 chunks in 0 s>")
    assert "abc123" not in opened.path.read_text()


def test_what_stands_out():
    recorded = Recorded(
        length_s=10.0,
        rows=[(0, 0.0, 2.0, 0, 1), (1, 8.0, 10.0, 0, 1)],
        layers={"read-zarr-1": LayerCosts(2, 3.0, 1.0, 0.0, 1 << 20, failed=2)},
        happenings=[Happening(3.0, "death", "worker 1 died", 4, 1)],
        memory=[MemoryPoint(0.0, 95, 50, 0, 0), MemoryPoint(10.0, 96, 50, 0, 200)],
        limit_bytes=100,
        peak_bytes=96,
        spilled_bytes=200,
        retried=1,
    )
    assert recorded.remarks() == [
        "read-zarr took 100 % of the workers' time, 4.00 s.",
        "Inputs took 75 % of the time to read, most of it from disk.",
        "Workers were busy for 20 % of the time; else they waited for inputs or room.",
        "Memory reached 96 % of the limit.",
        "200 B went to disk for want of memory.",
        "1 worker died, and was replaced.",
        "2 attempts failed.",
        "1 task succeeded when tried again.",
    ]
    Page(report_page.as_html(recorded, "t", "now", "finished", {"Versions": {"a": "1"}, "Settings": {"b": "<2>"}}))
