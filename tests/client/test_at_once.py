"""Small graphs of library code are computed in the calling thread."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.callbacks import Callback

from dask_mars import Runtime
from dask_mars.client import at_once, backend
from dask_mars.client.computation import GraphComputation
from dask_mars.engine.listeners import Listener, listeners
from dask_mars.optimize import library_code
from tests.conftest import shared_runtime

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
    monkeypatch.setattr(backend, "FRAMES_LIMIT_BYTES", 0)
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


def test_what_was_slow_three_times_goes_to_the_engine(
    runtime: Runtime, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(at_once, "_SLOW_S", -1.0)
    for _ in range(4):
        (array() + 1).compute(scheduler=runtime.get)
    assert len(sent) == 1
    at_once._slow.clear()
    monkeypatch.setattr(at_once, "_SLOW_S", 60.0)
    for _ in range(4):
        (array() + 1).compute(scheduler=runtime.get)
    assert len(sent) == 1


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


def test_a_task_that_writes_into_the_users_array_does_so_once(runtime: Runtime, sent: list[int]) -> None:
    values = VALUES.copy()
    added = dask.delayed(operator.iadd, pure=False)(dask.delayed(values), 1.0).compute(scheduler=runtime.get)
    assert (added == VALUES + 1).all()
    assert (values == VALUES + 1).all()


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
