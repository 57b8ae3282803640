"""Callbacks of Dask: progress bars, profilers, caches, and the users' own, as under Dask's own schedulers."""

from __future__ import annotations

import io
import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from operator import add
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.threaded
import numpy as np
import pytest
from dask.cache import Cache
from dask.callbacks import Callback
from dask.diagnostics import CacheProfiler, Profiler, ProgressBar, ResourceProfiler

from dask_mars.optimize import prepare
from tests.tasks import die_first, fail_first, large_array, noted, notes

pytestmark = pytest.mark.timeout(300)

Get = Callable[..., Any]


class Recorder(Callback):
    """Notes every call of every hook, and whether the state makes sense."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.values: dict[Any, Any] = {}
        self.workers: set[Any] = set()
        self.graph: Any = None
        self.states: list[dict[str, int]] = []

    def _start(self, dsk: Any) -> None:
        self.calls.append(("start", frozenset(dsk)))

    def _start_state(self, dsk: Any, state: Any) -> None:
        self.calls.append(("start_state", frozenset(state["ready"]), frozenset(state["waiting"])))
        self.graph = dict(dsk)

    def _pretask(self, key: Any, dsk: Any, state: Any) -> None:
        assert key in dsk
        assert key in state["running"]
        assert key not in state["ready"]
        assert key not in state["waiting"]
        assert all(
            dependency in state["finished"] or dependency in state["cache"] for dependency in dsk[key].dependencies
        )
        self.calls.append(("pretask", key))

    def _posttask(self, key: Any, value: Any, dsk: Any, state: Any, worker: Any) -> None:
        assert key in state["finished"]
        assert key not in state["running"]
        self.calls.append(("posttask", key))
        self.values[key] = value
        self.workers.add(worker)

    def _finish(self, dsk: Any, state: Any, failed: bool) -> None:
        self.calls.append(("finish", failed))
        self.states.append({name: len(state[name]) for name in ("ready", "waiting", "running") if name in state})


GRAPHS: list[tuple[Any, Any]] = [
    ({"a": 1, "b": 2}, ["a", "b"]),
    ({"a": 1, "b": (add, "a", 1), "c": (add, "b", 1)}, "c"),
    ({"a": (add, 1, 1), "b": "a", "c": (add, "b", 1)}, ["b", "c"]),
    ({**{("leaf", n): (add, n, 1) for n in range(20)}, "sum": (sum, [("leaf", n) for n in range(20)])}, "sum"),
    ({"a": (add, 1, 1), "b": (add, "a", 1), "c": (add, 2, 2)}, "b"),
]


def recorded(get: Get, graph: Any, keys: Any) -> Recorder:
    with Recorder() as recorder:
        get(graph, keys)
    return recorder


def test_hooks_are_called_as_under_threads(get: Get) -> None:
    for graph, keys in GRAPHS:
        ours, theirs = recorded(get, graph, keys), recorded(dask.threaded.get, graph, keys)
        assert Counter(ours.calls) == Counter(theirs.calls)
        assert [call[0] for call in ours.calls[:2]] == [call[0] for call in theirs.calls[:2]]
        assert ours.calls[-1] == theirs.calls[-1] == ("finish", False)
        assert ours.values == theirs.values
        assert ours.states == theirs.states


def test_values_have_their_own_memory_and_workers_are_told_apart(get: Get) -> None:
    graph = {"a": (large_array, 1, 3.0), "b": (np.sum, "a"), "pid": (os.getpid,)}
    recorder = recorded(get, graph, ["b", "pid"])
    recorder.values["a"][:] = 0
    assert recorder.values["b"] == 3 << 17
    assert recorder.values["pid"] in recorder.workers


def test_callbacks_as_functions_in_the_call_and_registered(get: Get) -> None:
    seen: list[Any] = []
    with Callback(pretask=lambda key, dsk, state: seen.append(key)):
        get({"a": (abs, -1)}, "a")
    assert seen == ["a"]
    callback = Callback(posttask=lambda key, value, dsk, state, worker: seen.append(value))
    assert dask.delayed(abs)(-5).compute(scheduler=get, callbacks=[callback._callback]) == 5
    assert seen == ["a", 5]
    recorder = Recorder()
    recorder.register()
    try:
        get({"a": (abs, -1)}, "a")
    finally:
        recorder.unregister()
    get({"a": (abs, -1)}, "a")
    assert [call[0] for call in recorder.calls] == ["start", "start_state", "pretask", "posttask", "finish"]


def test_errors_are_told(get: Get) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    # The second runs in the user's process.
    for task in ((fail, "a"), (fail, "a", threading.Lock())):
        with pytest.raises(ZeroDivisionError), Recorder() as recorder:
            get({"a": (abs, -1), "b": task}, "b")
        assert recorder.calls[-1] == ("finish", True)
        assert ("posttask", "b") not in recorder.calls
    with pytest.raises(KeyError), Recorder() as recorder:
        get({"a": (abs, -1)}, "c")
    assert recorder.calls[-1] == ("finish", True)


def test_callbacks_that_raise(get: Get) -> None:
    class OurError(Exception):
        pass

    def fail(*_: Any) -> None:
        raise OurError

    graph = {("a", number): (time.sleep, 0.001) for number in range(50)}
    for hook in ("start", "start_state", "pretask", "posttask", "finish"):
        finished: list[bool] = []
        other = Callback(finish=lambda dsk, state, failed, finished=finished: finished.append(failed))
        with other, Callback(**{hook: fail}), pytest.raises(OurError):
            get(graph, list(graph))
        if hook in ("start_state", "pretask", "posttask"):
            assert finished == [True]
        assert get({"a": (abs, -1)}, "a") == 1


def test_inner_computations_are_nobody_elses_business(get: Get) -> None:
    def inner() -> int:
        return int(da.arange(10, chunks=2).sum().compute())

    with Recorder() as recorder:
        assert get({"a": (inner,), "b": (add, "a", 1)}, "b") == 46
    assert [call for call in recorder.calls if call[0] == "pretask"] == [("pretask", "a"), ("pretask", "b")]
    assert [call[0] for call in recorder.calls].count("start") == 1


def test_tasks_that_fail_or_die_once_and_those_of_the_users_process(tmp_path: Path, get: Get) -> None:
    with Recorder() as recorder:
        assert get({"a": (fail_first, tmp_path / "calls", 1, 3)}, "a", retries=1) == 3
    assert [call[0] for call in recorder.calls] == ["start", "start_state", "pretask", "posttask", "finish"]
    graph = {"a": (die_first, tmp_path / "deaths", 1, 3), "b": (add, "a", 1)}
    ours = recorded(get, graph, "b")
    assert Counter(ours.calls) == Counter(recorded(dask.threaded.get, graph, "b").calls)

    def work(lock: Any, value: int) -> int:
        return value

    lock = threading.Lock()
    graph = {("a", number): (work, lock, number) for number in range(5)}
    graph["sum"] = (sum, list(graph))
    ours = recorded(get, graph, "sum")
    assert Counter(ours.calls) == Counter(recorded(dask.threaded.get, graph, "sum").calls)
    assert {ours.values["a", number] for number in range(5)} == set(range(5))


# -- what Dask brings along -----------------------------------------------------------------------------------


def test_progress_bar(get: Get) -> None:
    out = io.StringIO()
    with ProgressBar(out=out, dt=0.01):
        dask.compute([dask.delayed(time.sleep)(0.02) for _ in range(6)], scheduler=get)
    lines = out.getvalue().replace("\r", "\n").splitlines()
    shares = [int(line.split("|")[1].split("%")[0]) for line in lines if "% Completed" in line]
    assert shares[-1] == 100
    assert shares == sorted(shares)
    assert len(set(shares)) > 2
    array = da.ones((300, 300), chunks=100).rechunk(150)
    for compute in (array.sum().compute, array.persist, lambda scheduler: scheduler({"a": 1}, "a")):
        out = io.StringIO()
        with ProgressBar(out=out):
            compute(scheduler=get)
        assert out.getvalue().rstrip().split("\r")[-1].startswith(f"[{'#' * 40}] | 100%")
    out = io.StringIO()
    with ProgressBar(out=out), pytest.raises(ZeroDivisionError):
        dask.compute(dask.delayed(divmod)(1, 0), dask.delayed(time.sleep)(0.01), scheduler=get)
    assert "100%" not in out.getvalue()


class Loud(ProgressBar):
    """A bar that looks at more than numbers."""

    def _posttask(self, key: Any, value: Any, dsk: Any, state: Any, worker: Any) -> None:
        assert dsk[key].dependencies <= state["dependencies"][key]
        assert value is not None


class Bare(ProgressBar):
    """A bar that may look at the state whenever it is drawn."""


def test_bars_that_only_count_have_no_tasks_made(get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    original = prepare.convert
    monkeypatch.setattr(
        prepare, "convert", lambda dsk, *rest, **options: made.append(len(dsk)) or original(dsk, *rest, **options)
    )
    array = (da.ones(1000, chunks=5) * 2 + 1).sum(split_every=400)
    for bar in (ProgressBar, Loud, Bare):
        made.clear()
        out = io.StringIO()
        with bar(out=out):
            assert array.compute(scheduler=get) == 3000
        assert "| 100% Completed" in out.getvalue()
        assert len(made) == 1
        assert (made[0] < 10) is (bar is ProgressBar)
    # Beside a callback that looks at tasks.
    made.clear()
    with ProgressBar(out=out), Profiler() as profiler, Recorder() as recorder:
        assert da.ones(1000, chunks=5).sum().compute(scheduler=get) == 1000
    assert made[0] > 200
    assert len(recorder.values) == made[0]
    keys = {key for kind, key, *_ in recorder.calls if kind == "posttask"}
    assert {result.key for result in profiler.results} == keys


class Watched(io.StringIO):
    """What a bar writes to, once for each task: takes down the numbers of its state."""

    def __init__(self) -> None:
        super().__init__()
        self.bar: Any = None
        self.counts: list[tuple[int, ...]] = []

    def flush(self) -> None:
        state = self.bar._state
        if state and len(state["running"]):
            self.counts.append(tuple(len(state[name]) for name in ("ready", "waiting", "running", "finished")))


@pytest.mark.parametrize(
    "make",
    [
        lambda: (da.ones(100, chunks=5) + 1).sum(),
        lambda: dask.delayed(sum)([dask.delayed(abs)(number) for number in range(20)]),
        lambda: da.from_array(np.ones(100), chunks=5) + 1,
    ],
    ids=["blockwise", "delayed", "data"],
)
def test_counts_of_a_bar(make: Any, get: Get) -> None:
    out = Watched()
    with ProgressBar(out=out, minimum=100, dt=0.01) as out.bar:
        make().compute(scheduler=get)
    totals = {sum(counts) for counts in out.counts}
    assert len(totals) == 1
    (total,) = totals
    assert 20 < total < 60
    finished = [counts[-1] for counts in out.counts]
    assert finished == sorted(finished)
    state = out.bar._state
    assert [len(state[name]) for name in ("ready", "waiting", "running", "finished")] == [0, 0, 0, total]


def test_tqdm(get: Get) -> None:
    tqdm_dask = pytest.importorskip("tqdm.dask")
    out = io.StringIO()
    with tqdm_dask.TqdmCallback(file=out) as callback:
        (da.ones(1000, chunks=5) + 1).sum(split_every=400).compute(scheduler=get)
    # Each block with its part of the sum, then the sum of the parts, and its way into the user's hands.
    assert callback.pbar.n == callback.pbar.total == 202
    assert "100%" in out.getvalue()


def test_profiler(get: Get) -> None:
    with Profiler() as profiler:
        dask.compute([dask.delayed(time.sleep)(0.02, dask_key_name=f"nap{n}") for n in range(4)], scheduler=get)
    results = {result.key: result for result in profiler.results}
    assert set(results) >= {f"nap{n}" for n in range(4)}
    for number in range(4):
        result = results[f"nap{number}"]
        assert 0.01 < result.end_time - result.start_time < 5
        assert result.worker_id != os.getpid()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_resource_profiler(get: Get) -> None:
    method = multiprocessing.get_start_method()
    # The server of `forkserver`, the default from Python 3.14 on, would stay.
    multiprocessing.set_start_method("spawn" if method == "forkserver" else method, force=True)
    try:
        with ResourceProfiler(dt=0.02) as profiler:
            dask.compute([dask.delayed(time.sleep)(0.1) for _ in range(4)], scheduler=get)
    finally:
        multiprocessing.set_start_method(method, force=True)
    assert profiler.results
    assert all(result.mem > 0 for result in profiler.results)


def test_cache_profiler(get: Get) -> None:
    pytest.importorskip("cachey")
    from cachey import nbytes

    with CacheProfiler(metric=nbytes) as profiler:
        get({"a": (large_array, 1), "b": (np.sum, "a")}, "b")
    sizes = {result.key: result.metric for result in profiler.results}
    assert sizes["a"] == 1 << 20
    assert set(sizes) == {"a", "b"}


def test_cache(tmp_path: Path, get: Get) -> None:
    pytest.importorskip("cachey")
    source = dask.delayed(noted)(tmp_path / "calls", 5, dask_key_name="source")
    with Cache(1 << 30, limit=0):
        assert (source + 1).compute(scheduler=get) == 6
        assert len(notes(tmp_path / "calls")) == 1
        assert (source + 1).compute(scheduler=get) == 6
        assert (source + 2).compute(scheduler=get) == 7
        assert len(notes(tmp_path / "calls")) == 1
    assert (source + 1).compute(scheduler=get) == 6
    assert len(notes(tmp_path / "calls")) == 2
