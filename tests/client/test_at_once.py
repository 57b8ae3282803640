"""Small graphs of library code are computed by one thread."""

from __future__ import annotations

import operator
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.callbacks import Callback

from dask_mars import Runtime
from dask_mars.client import at_once, backend, lending
from dask_mars.client.computation import GraphComputation
from dask_mars.engine.listeners import Listener, listeners
from dask_mars.optimize import library_code
from tests.conftest import PATIENCE_S, shared_runtime

VALUES = np.arange(400.0).reshape(20, 20)


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    """Yield a runtime with processes."""
    with shared_runtime(num_workers=2) as runtime:
        yield runtime


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of chunks of each graph that goes to the engine."""
    counts: list[int] = []

    class Noting(GraphComputation):
        def __init__(self, engine: Any, graph: Any, *arguments: Any, **options: Any) -> None:
            counts.append(sum(operand >= 0 for operand in graph.operand_of))
            super().__init__(engine, graph, *arguments, **options)

    monkeypatch.setattr(backend, "GraphComputation", Noting)
    monkeypatch.setattr(lending, "FRAMES_LIMIT_BYTES", 0)
    monkeypatch.setattr(at_once, "_slow", {})
    monkeypatch.setattr(at_once, "_MOST_CHUNKS", 64)
    # Tests of a busy machine may take long.
    monkeypatch.setattr(at_once, "_TIME_S", 60.0)
    return counts


def array() -> Any:
    return da.from_array(VALUES, chunks=10)


def test_arrays(runtime: Runtime, sent: list[int]) -> None:
    x = array()
    ours = ((x - x.mean(axis=0)) @ x.T).max(axis=1)
    found = ours.compute(scheduler=runtime.get)
    np.testing.assert_array_equal(found, ours.compute(scheduler="sync"))
    assert sent == []


def test_frames(runtime: Runtime, sent: list[int]) -> None:
    pandas, frames = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    frame = pandas.DataFrame({"key": np.arange(60) % 3, "value": np.arange(60.0)})
    ours = frames.from_pandas(frame, npartitions=4).groupby("key").value.sum()
    pandas.testing.assert_series_equal(ours.compute(scheduler=runtime.get), ours.compute(scheduler="sync"))
    assert sent == ([] if int(pandas.__version__[0]) >= 3 else [9])


def test_what_is_left_when_time_is_up_goes_to_the_engine(
    runtime: Runtime, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = iter(range(1_000))
    monkeypatch.setattr(at_once, "_TIME_S", 3.5)
    monkeypatch.setattr(at_once.time, "perf_counter", lambda: next(now_s))
    ours = (array() + 1).sum(axis=0)
    found = ours.compute(scheduler=runtime.get)
    np.testing.assert_array_equal(found, ours.compute(scheduler="sync"))
    (count,) = sent
    assert 0 < count < 8


def test_what_was_slow_goes_to_the_engine_until_it_is_quick(
    runtime: Runtime, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(at_once, "_SLOW_S", -1.0)
    tried = []
    for _ in range(20):
        sent.clear()
        (array() + 1).compute(scheduler=runtime.get)
        tried.append(not sent)
    assert [count for count, is_tried in enumerate(tried) if is_tried] == [0, 1, 2, 4, 8, 16]
    # The machine is no longer busy.
    monkeypatch.setattr(at_once, "_SLOW_S", 60.0)
    for _ in range(13):
        (array() + 1).compute(scheduler=runtime.get)
    sent.clear()
    (array() + 1).compute(scheduler=runtime.get)
    assert sent == []
    assert at_once._slow == {}


def test_nothing_is_left_over_that_no_chunk_reads(
    runtime: Runtime, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, graphs = iter(range(1_000)), []
    monkeypatch.setattr(at_once, "_TIME_S", 7.5)
    monkeypatch.setattr(at_once.time, "perf_counter", lambda: next(now_s))
    results = GraphComputation.results

    def noting(self: GraphComputation, *arguments: Any) -> dict[int, Any]:
        graphs.append(self._graph)
        return results(self, *arguments)

    monkeypatch.setattr(GraphComputation, "results", noting)
    x = array()
    ours = [(x + 1).sum(axis=0), (x * 2).max(axis=1)]
    for found, expected in zip(
        dask.compute(ours, scheduler=runtime.get)[0], dask.compute(ours, scheduler="sync")[0], strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    (graph,) = graphs
    read = {source for sources in graph.inputs for source in sources}
    assert set(range(len(graph))) == read | set(graph.outputs)


def begin_and_wait(block: Any, begun: threading.Event, end: threading.Event) -> Any:
    begun.set()
    end.wait(PATIENCE_S)
    return block


def test_ctrl_c_does_not_wait_for_a_chunk(
    runtime: Runtime, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, end = threading.Event(), threading.Event()
    add = at_once.Lent.run_reading
    monkeypatch.setattr(at_once.Lent, "run_reading", lambda *given: begin_and_wait(add(*given), begun, end))

    def press() -> None:
        begun.wait(PATIENCE_S)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            (array() + 1).compute(scheduler=runtime.get)
        assert not end.is_set()
    finally:
        end.set()
        pressing.join()
    assert (array() + 1).sum().compute(scheduler=runtime.get) == VALUES.sum() + VALUES.size
    assert sent == []


def test_programs_compute_while_they_end() -> None:
    code = """
import atexit
import dask.array as da, numpy as np, dask_mars
x = da.from_array(np.ones(4), chunks=2)
if __name__ == "__main__":
    atexit.register(lambda: print(x.sum().compute(scheduler=dask_mars.get)))
    print(x.sum().compute(scheduler=dask_mars.get))
"""
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split() == ["4.0"] * 2
    )


@pytest.mark.parametrize(
    "ours",
    [
        lambda: array().map_blocks(lambda block: block + os.getpid()),
        lambda: da.ones(4, chunks=2) + 1,
        lambda: da.from_array(np.zeros(1 << 19), chunks=1 << 18) + 1,
        lambda: da.from_array(np.array([1, 2], dtype=object), chunks=1) * 2,
        lambda: da.from_array(np.ones(1 << 11), chunks=-1)[:, None] * np.ones(1 << 11),
        lambda: da.from_array(np.ones(1 << 11), chunks=256)[:, None] * np.ones(1 << 11),
    ],
    ids=["the user's function", "sources", "large arrays", "objects", "large results", "many results"],
)
def test_other_graphs_go_to_the_engine(ours: Any, runtime: Runtime, sent: list[int]) -> None:
    ours().compute(scheduler=runtime.get)
    assert len(sent) == 1


def test_little_memory_is_for_the_engine_to_account_for(sent: list[int]) -> None:
    with Runtime(num_workers=1, memory_limit="1 GiB") as runtime:
        assert (array() + 1).sum().compute(scheduler=runtime.get) == VALUES.sum() + VALUES.size
    assert len(sent) == 1


def test_results_are_the_users_to_write_to(runtime: Runtime, sent: list[int]) -> None:
    values = VALUES.copy()
    whole = dask.delayed(operator.getitem)(dask.delayed(values), slice(8)).compute(scheduler=runtime.get)
    whole[:] = 0
    assert (values == VALUES).all()
    assert sent == []
    pair, _ = dask.delayed([array(), 1]).compute(scheduler=runtime.get)
    pair[:] = 0


def of_values(function: Any, *arguments: Any, values: np.ndarray = VALUES) -> Any:
    return dask.delayed(function)(dask.delayed(values), *arguments)


@pytest.mark.parametrize(
    "ours",
    [
        lambda: of_values(np.asarray, values=np.asfortranarray(VALUES)),
        lambda: of_values(np.transpose),
        lambda: of_values(np.broadcast_to, (3, 20, 20)),
        lambda: of_values(np.ma.masked_greater, 9),
        lambda: of_values(np.shape),
        lambda: of_values(operator.getitem, 0, values=np.array([(1, 2.0)], dtype="i4, f8")),
    ],
    ids=["Fortran order", "transposed", "broadcast", "masked", "a tuple", "a structured scalar"],
)
def test_results_are_those_of_dasks_threads(ours: Any, runtime: Runtime, sent: list[int]) -> None:
    expected = ours().compute(scheduler="threads")
    found = ours().compute(scheduler=runtime.get)
    assert type(found) is type(expected)
    np.testing.assert_array_equal(found, expected)
    if isinstance(found, np.ndarray | np.void):
        assert found.flags.f_contiguous == expected.flags.f_contiguous
        assert found.flags.writeable == expected.flags.writeable
        assert not np.shares_memory(found, VALUES)
    assert sent == []


def test_warnings_come_once(runtime: Runtime, sent: list[int]) -> None:
    with pytest.warns(PendingDeprecationWarning) as caught:
        assert type(of_values(np.asmatrix).compute(scheduler=runtime.get)) is np.matrix
    assert len(caught) == 1
    assert sent == []


def test_errors_about_read_only_arrays_are_those_of_dasks_threads(runtime: Runtime, sent: list[int]) -> None:
    values = VALUES.copy()
    values.flags.writeable = False
    for ours in (
        of_values(operator.iadd, 1, values=values),
        dask.delayed(np.copyto)(of_values(np.broadcast_to, (3, 20, 20)), 1.0),
    ):
        with pytest.raises(ValueError, match="read-only") as caught:
            ours.compute(scheduler=runtime.get)
        assert caught.value.__context__ is None
    assert len(sent) == 2
    pair = of_values(np.broadcast_arrays, VALUES)
    quotient, rest = dask.delayed(np.divmod)(dask.delayed(VALUES), 2, out=pair).compute(scheduler=runtime.get)
    np.testing.assert_array_equal(quotient * 2 + rest, VALUES)


def test_a_task_that_writes_into_the_users_array_does_so_once(runtime: Runtime, sent: list[int]) -> None:
    values = VALUES.copy()
    added = dask.delayed(operator.iadd, pure=False)(dask.delayed(values), 1.0).compute(scheduler=runtime.get)
    assert (added == VALUES + 1).all()
    assert (values == VALUES + 1).all()
    assert len(sent) == 1


def fail(block: Any) -> Any:
    raise KeyError("no such block")


def test_errors_are_those_of_dasks_threads(
    runtime: Runtime, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_code, "LIBRARIES", library_code.LIBRARIES | {"tests"})
    with pytest.raises(KeyError, match="no such block") as caught:
        array().map_blocks(fail, meta=VALUES[:0, :0]).compute(scheduler=runtime.get)
    assert any("raised by task" in note for note in caught.value.__notes__)
    assert sent == []


def test_those_who_look_see_the_chunks(runtime: Runtime, sent: list[int]) -> None:
    seen = []

    class Look(Callback):
        def _posttask(self, key: Any, *others: Any) -> None:
            seen.append(key)

    with Look():
        (array() + 1).compute(scheduler=runtime.get)
    assert len(seen) >= 4

    class Heard(Listener):
        def on_event(self, engine: Any, event: Any) -> None:
            seen.append(event)

    seen.clear()
    heard = Heard()
    listeners.add(heard)
    (array() + 1).compute(scheduler=runtime.get)
    listeners.remove(heard)
    assert seen
    assert len(sent) == 2
    (array() + 1).persist(scheduler=runtime.get)
    assert len(sent) == 3
