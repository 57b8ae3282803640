"""The public API called wrongly, on an engine that computes and keeps data: it goes on as if nothing had been."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dask_mars
from dask_mars import Runtime
from tests.background import in_background
from tests.conftest import eventually
from tests.tasks import wait_for

Get = Callable[..., Any]


class Spiteful:
    """A key that is like no other."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("not to be compared")


class Exits:
    """An object that ends whoever pickles it."""

    def __reduce__(self) -> Any:
        raise SystemExit(3)


class Computes:
    """An object that computes when it is pickled."""

    def __reduce__(self) -> Any:
        with dask.config.set(scheduler="mars"):
            return int, (int(da.ones(10, chunks=5).sum().compute()),)


CALLS: dict[str, tuple[Callable[[Runtime], Any], type[BaseException]]] = {
    "explain keys": (lambda runtime: runtime.explain(da.ones(4, chunks=2).__dask_keys__()), TypeError),
    "explain a dict": (lambda runtime: runtime.explain({}), TypeError),
    "explain an array": (lambda runtime: runtime.explain(np.ones(2)), TypeError),
    "explain what is like nothing": (lambda runtime: runtime.explain(Spiteful()), KeyError),
    "explain a collection": (lambda runtime: runtime.explain(da.ones(4)), Exception),
    "cancel a list": (lambda runtime: runtime.cancel([1]), TypeError),
    "get of nothing": (lambda runtime: runtime.get(None, "x"), Exception),
    "get of a number": (lambda runtime: runtime.get({"x": 1}, 7), KeyError),
    "get of a set": (lambda runtime: runtime.get({"x": 1}, {"x"}), TypeError),
    "no workers": (lambda runtime: runtime.get({"x": (int,)}, "x", num_workers=-1), ValueError),
    "a crowd of workers": (lambda runtime: runtime.get({"x": (int,)}, "x", num_workers="many"), Exception),
    "retries without end": (lambda runtime: runtime.get({"x": (int,)}, "x", retries=float("inf")), Exception),
    "callbacks that are none": (lambda runtime: runtime.get({"x": (int,)}, "x", callbacks=3), Exception),
    "persist nothing": (lambda runtime: runtime.persist(None), Exception),
    "persist a number": (lambda runtime: runtime.persist(3), Exception),
    "memory that is no number": (lambda runtime: Runtime(memory_limit=float("nan")), ValueError),
    "memory that is true": (lambda runtime: Runtime(memory_limit=True), ValueError),
    "a priority that is none": (lambda runtime: prioritised(runtime.get, "high"), Exception),
    "a priority of no kind": (lambda runtime: prioritised(runtime.get, [1]), Exception),
}


def prioritised(get: Get, priority: Any) -> Any:
    with dask.annotate(priority=priority):
        return da.ones(4, chunks=2).sum().compute(scheduler=get)


@pytest.fixture(scope="module")
def busy(private_tmp: Path) -> Iterator[tuple[Runtime, da.Array, Future[int]]]:
    """An engine with persisted data that computes meanwhile."""
    with Runtime(num_workers=2) as runtime:
        engine = runtime.engine()
        persisted = da.random.default_rng(0).random((100, 1000), chunks=(10, 1000)).persist(scheduler=runtime.get)
        path = private_tmp / "go on"
        task = dask.delayed(wait_for)(path, 7)
        computing = in_background(task.compute, scheduler=runtime.get)
        assert eventually(lambda: any(worker["running"] for worker in runtime.state()["workers"]), 10)
        yield runtime, persisted, computing
        path.touch()
        assert computing.result(100) == 7
        assert runtime.engine() is engine


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_raises_and_does_no_more(name: str, busy: tuple[Runtime, da.Array, Future[int]]) -> None:
    runtime, persisted, computing = busy
    call, error = CALLS[name]
    engine = runtime.engine()
    with pytest.raises(error):
        call(runtime)
    assert runtime.engine() is engine
    assert not computing.done()
    assert 0 < persisted.sum().compute(scheduler=runtime.get) < 100_000
    running = next(worker["running"] for worker in runtime.state()["workers"] if worker["running"])
    assert "dispatched to worker" in runtime.explain(running)


def test_cancelling_what_is_not_there(busy: tuple[Runtime, da.Array, Future[int]]) -> None:
    runtime, persisted, _ = busy
    of_persisted = next(iter(persisted.dask.values())).value.graph
    for number in (of_persisted, 10**6, -1, 2**70, True):
        assert runtime.cancel(number) is False
    assert np.isfinite(persisted.sum().compute(scheduler=runtime.get))


def test_objects_that_exit_when_they_are_pickled(get: Get) -> None:
    assert get({"x": (type, Exits())}, "x") is Exits
    exits = Exits()
    assert dask.delayed(lambda: type(exits).__name__)().compute(scheduler=get) == "Exits"
    assert isinstance(dask.delayed(lambda: [Exits()])().compute(scheduler=get)[0], Exits)


def test_objects_that_compute_when_they_are_pickled(get: Get) -> None:
    """The engine's thread pickles them, and would wait for itself."""
    assert get({"x": (str, Computes())}, "x") in ("10", str(Computes()))
    computes = Computes()
    assert dask.delayed(lambda: str(computes))().compute(scheduler=get) == "10"
    with dask.config.set(scheduler=dask_mars.get):
        assert dask.delayed(lambda: [Computes()])().compute() == [10]
