"""The display of progress: what it shows, that it leaves terminals clean, and that it slows nothing down."""

from __future__ import annotations

import importlib.util
import io
import time
from array import array
from collections.abc import Callable
from operator import add
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import pytest
from dask.callbacks import Callback
from dask.diagnostics import ProgressBar

from dask_mars import Runtime, errors, units
from dask_mars.diagnostics import Progress
from dask_mars.engine import graph_run as client_messages
from dask_mars.engine.listeners import listeners
from dask_mars.observe.layers import LayerIndex
from dask_mars.observe.tally import Tally
from dask_mars.observe.terminal import LinesDisplay
from tests.background import in_background
from tests.conftest import eventually
from tests.tasks import die_first, fail_first, wait_for

Console = pytest.importorskip("rich.console").Console

pytestmark = pytest.mark.timeout(300)

Get = Callable[..., Any]

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


class Screen:
    """A terminal of a hundred columns, and what was drawn there."""

    def __init__(self, terminal: bool = True) -> None:
        self.file = io.StringIO()
        self.console = Console(file=self.file, force_terminal=terminal, width=100, color_system=None)

    @property
    def text(self) -> str:
        return self.file.getvalue()

    @property
    def last(self) -> list[str]:
        """The lines that are left, without bars."""
        text = self.text.rsplit(HIDE, 1)[-1].rsplit("\x1b[2K", 1)[-1].replace(SHOW, "")
        return [" ".join(line.replace("━", "").split()) for line in text.splitlines() if line.strip()]

    def assert_clean(self) -> None:
        assert self.text.count(HIDE) == self.text.count(SHOW)
        assert self.text.rindex(SHOW) > self.text.rindex(HIDE)
        assert listeners.active == ()
        assert not Callback.active


def without(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Have a module not be installed."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == module else find_spec(name, *rest)
    )


GRAPH = {**{("leaf", n): (abs, n) for n in range(6)}, "sum": (sum, [("leaf", n) for n in range(6)])}


# -- under our scheduler ----------------------------------------------------------------------------------------


def test_a_bar_for_each_layer_and_the_whole(runtime: Runtime, get: Get):
    screen = Screen()
    with Progress(console=screen.console):
        assert get(GRAPH, "sum") == 15
    *bars, whole, memory = screen.last
    assert bars == ["leaf 6/6", "sum 1/1"]
    assert whole.startswith("finished: 7 of 7 tasks in ")
    # Before it is a bar, of which little is filled.
    assert memory.startswith("memory ")
    assert " at most " in memory
    assert memory.endswith(f" of {units.size(runtime.settings.memory_limit)} in use · 0 B spilled")
    screen.assert_clean()


def test_while_it_runs(runtime: Runtime, get: Get, tmp_path: Path):
    screen = Screen()
    graph = {("quick", 0): (abs, -1), ("slow", 0): (wait_for, tmp_path / "go", ("quick", 0))}

    def watch() -> None:
        eventually(lambda: "running: 1 of 2 tasks in " in screen.text and "1 of 2 workers busy" in screen.text, 10)
        (tmp_path / "go").touch()

    watcher = in_background(watch)
    with Progress(console=screen.console):
        assert get(graph, ("slow", 0)) == 1
    watcher.result(100)
    assert "running: 1 of 2 tasks in " in screen.text
    assert "1 of 2 workers busy" in screen.text
    in_use = f" of {units.size(runtime.settings.memory_limit)} in use · 0 B on disk · 0 B spilled"
    assert in_use in screen.text
    assert "1 running" in screen.text
    assert screen.last[-2].startswith("finished: 2 of 2 tasks")


def test_failures_are_counted_until_a_retry_succeeds(get: Get, tmp_path: Path):
    screen = Screen()
    with Progress(console=screen.console), pytest.raises(ZeroDivisionError):
        get({"a": (divmod, 1, 0)}, "a")
    assert screen.last == ["a 0/1 1 failed", *screen.last[-2:]]
    assert screen.last[-2].startswith("failed: 0 of 1 tasks in ")
    screen.assert_clean()
    with Progress(console=screen.console):
        assert get({"b": (fail_first, tmp_path / "failed", 1, 5)}, "b", retries=1) == 5
    assert screen.last[0] == "b 1/1"
    screen.assert_clean()


@pytest.mark.slow
def test_a_killed_worker_s_task_is_counted_once(get: Get, tmp_path: Path):
    screen = Screen()
    with Progress(console=screen.console):
        assert get({"a": (die_first, tmp_path / "died", 1, 5)}, "a") == 5
    assert screen.last[0] == "a 1/1"


def test_a_cancelled_graph(runtime: Runtime, tmp_path: Path):
    screen = Screen()

    def compute() -> None:
        with Progress(console=screen.console):
            runtime.get({"a": (wait_for, tmp_path / "go")}, "a")

    computing = in_background(compute)
    assert eventually(lambda: any(worker["running"] for worker in runtime.state()["workers"]))
    assert runtime.cancel(runtime.state()["graphs"][0]["graph"])
    assert isinstance(computing.exception(100), errors.Cancelled)
    (tmp_path / "go").touch()
    assert screen.last[-2].startswith("cancelled: 0 of 1 tasks")
    screen.assert_clean()


def test_a_computation_within_another(get: Get):
    screen = Screen()

    class Inner:
        """Cannot be pickled, so that its task runs in the user's process."""

        def __reduce__(self) -> Any:
            raise TypeError

        def __call__(self, x: int) -> Any:
            return get({"inner": (add, x, 1)}, "inner")

    with Progress(console=screen.console):
        assert get({"outer": (Inner(), 1)}, "outer") == 2
    bars = [line for line in screen.last if "tasks" not in line and "memory" not in line]
    assert bars == ["outer 1/1", "inner 1/1"]
    screen.assert_clean()


def test_where_nothing_has_to_be_computed(get: Get):
    screen = Screen()
    with Progress(console=screen.console):
        assert get({"a": 1}, "a") == 1
    assert screen.last == []
    screen.assert_clean()


def tally_of(keys: list[Any], running: Any = (), failed: Any = ()) -> tuple[Tally, array[float]]:
    durations_s = array("f", [-1.0]) * len(keys)
    index = LayerIndex(keys, range(len(keys)))
    return Tally(index, durations_s, lambda: running, lambda: failed), durations_s


def test_a_file_has_a_line_now_and_then_for_what_takes_long(get: Get, tmp_path: Path):
    screen = Screen(terminal=False)
    display = LinesDisplay(screen.console, first_s=0.01)
    tally, durations_s = tally_of(["a", "b"], [0])
    display.start()
    display.shown.append(tally)
    assert eventually(lambda: screen.text.count("running: 0 of 2 tasks in ") >= 2, 10)
    durations_s[:] = array("f", [0.5, 0.5])
    tally.end("finished")
    display.stop()
    lines = screen.text.splitlines()
    assert lines[-1].startswith("finished: 2 of 2 tasks in ")
    assert {line[:9] for line in lines[:-1]} == {"running: "}


def test_what_is_left_is_reckoned_by_layers(monkeypatch: pytest.MonkeyPatch):
    keys = [("quick", n) for n in range(4)] + [("slow", n) for n in range(4)]
    tally, durations_s = tally_of(keys)
    tally.began_s, now_s = 100.0, 102.0
    assert tally.remaining_s(101.0) is None
    durations_s[:5] = array("f", [0.1] * 4 + [3.6])
    monkeypatch.setattr(tally, "_good_until_s", 0.0)
    # Two workers have been at it for 4 s together; the three slow ones that are left take 10.8 of that.
    assert tally.remaining_s(now_s) == pytest.approx(5.4)
    assert ", about 5 s left" in tally.headline(now_s)
    tally.end("cancelled")
    assert tally.remaining_s(104.0) is None


def test_where_somebody_else_draws(get: Get):
    from rich.live import Live

    screen = Screen()
    with Live("theirs", console=screen.console, auto_refresh=False), Progress(console=screen.console):
        get(GRAPH, "sum")
    assert "finished: 7 of 7 tasks in " in screen.text
    screen.assert_clean()


def test_registered_for_good(get: Get):
    screen = Screen(terminal=False)
    progress = Progress(console=screen.console)
    progress.register()
    try:
        for _ in range(2):
            get(GRAPH, "sum")
    finally:
        progress.unregister()
    assert [line[:24] for line in screen.text.splitlines()] == ["finished: 7 of 7 tasks i"] * 2
    assert listeners.active == ()


# -- the fast path ----------------------------------------------------------------------------------------------


def test_it_is_told_of_no_single_task_and_needs_no_tasks_of_dask_s(get: Get, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the slow path")

    monkeypatch.setattr("dask_mars.optimize.prepare.low_level_graph", refuse)
    monkeypatch.setattr("dask_mars.client.backend.as_tasks", refuse)
    monkeypatch.setattr(client_messages, "Started", refuse)
    monkeypatch.setattr(client_messages, "Done", refuse)
    screen = Screen()
    with Progress(console=screen.console):
        assert (da.ones((40, 40), chunks=10) + 1).sum().compute(scheduler=get) == 3200
    assert any(line.endswith("16/16") for line in screen.last)
    assert screen.last[-2].startswith("finished: ")


def test_beside_others(get: Get):
    screen, out = Screen(terminal=False), io.StringIO()
    keys: list[Any] = []
    with Progress(console=screen.console), ProgressBar(out=out):
        get(GRAPH, "sum")
    with Progress(console=screen.console), Callback(posttask=lambda key, *_: keys.append(key)):
        get(GRAPH, "sum")
    assert "100% Completed" in out.getvalue()
    assert set(keys) == set(GRAPH)
    assert screen.text.count("finished: 7 of 7 tasks") == 2


def test_a_subclass_may_look_at_single_tasks(get: Get):
    class Noting(Progress):
        def _posttask(self, key: Any, *rest: Any) -> None:
            keys.append(key)

    screen = Screen()
    keys: list[Any] = []
    with Noting(console=screen.console):
        get(GRAPH, "sum")
    assert set(keys) == set(GRAPH)
    assert screen.last[:-2] == ["leaf 6/6", "sum 1/1"]


# -- elsewhere --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_under_dask_s_own_schedulers(scheduler: str):
    screen = Screen()
    x = (da.ones((40, 40), chunks=10) + 1).sum()
    with Progress(console=screen.console):
        assert x.compute(scheduler=scheduler) == 3200
    assert any(line.endswith("16/16") for line in screen.last)
    assert screen.last[-1].startswith("finished: ")
    assert "in use" not in screen.last[-1]
    with Progress(console=screen.console), pytest.raises(ZeroDivisionError):
        dask.delayed(divmod)(1, 0).compute(scheduler=scheduler)
    assert screen.last[-1].startswith("failed: 0 of 1 tasks")
    screen.assert_clean()


def test_without_rich(monkeypatch: pytest.MonkeyPatch):
    without(monkeypatch, "rich")
    with pytest.raises(ImportError, match=r"pip install 'dask-mars\[progress\]'"):
        Progress()


# -- counting ---------------------------------------------------------------------------------------------------


def test_the_largest_layers_have_rows_and_the_others_share_one():
    sizes = {"a": 1, "b": 5, "c": 2, "d": 4, "e": 1}
    keys = [(layer, n) for layer, size in sizes.items() for n in range(size)]
    at = {key: number for number, key in enumerate(keys)}
    failed = [at["d", 0], at["c", 0]]
    tally, durations_s = tally_of(keys, [at["b", 4], at["a", 0]], failed)
    for key in (("b", 0), ("c", 1)):
        durations_s[at[key]] = 0.0
    shown = [(row.name, row.finished, row.running, row.failed, row.total) for row in tally.rows(3)]
    assert shown == [("b", 1, 1, 0, 5), ("d", 0, 0, 1, 4), ("3 other layers", 1, 1, 1, 4)]
    assert [row.name for row in tally.rows(5)] == list(sizes)
    assert tally.headline(time.monotonic()).startswith("running: 2 of 13 tasks in ")
    durations_s[at["d", 0]] = 0.0
    tally.end("finished")
    tally.end("cancelled")
    headline = tally.headline(time.monotonic())
    assert headline.startswith("finished: 3 of 13 tasks in ")
    assert headline.endswith("1 failed")
