"""Scheduling policies of running engines: what ran where, and in which order."""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import numpy as np
import pytest

from dask_mars import Runtime
from dask_mars.diagnostics import Listener, add_listener, remove_listener
from dask_mars.scheduler.events import ChunksFinished, GraphSubmitted
from tests.conftest import eventually


class Order(Listener):
    """Notes worker and chunk of all that is computed."""

    def __init__(self) -> None:
        self.ran: list[tuple[int, int]] = []
        self.inputs: Any = ()
        #: By chunk, and in the order in which they ended.
        self.bytes_of: dict[int, int] = {}
        self.stored: list[int] = []

    def on_event(self, engine: Any, event: Any) -> None:
        if isinstance(event, GraphSubmitted):
            self.ran.clear()
            self.bytes_of.clear()
            self.stored.clear()
            self.inputs = event.plan.inputs
        elif isinstance(event, ChunksFinished):
            self.ran += [(event.worker, chunk) for chunk in event.chunks]
            self.bytes_of |= event.sizes
            self.stored += [event.sizes.get(chunk, 0) for chunk in event.chunks]


@pytest.fixture
def order() -> Iterator[Order]:
    listener = Order()
    add_listener(listener)
    yield listener
    remove_listener(listener)


@pytest.fixture(scope="module")
def mars() -> Iterator[Runtime]:
    with Runtime(2, policy="mars") as runtime:
        warm_up(runtime)
        yield runtime


def warm_up(runtime: Runtime) -> None:
    """Wait until both workers have computed something."""
    tasks = {f"task-{number}": (slow_pid, number) for number in range(4)}
    assert eventually(lambda: len(set(runtime.get(tasks, list(tasks)))) == 2, 20)


def slow_pid(value: int) -> int:
    time.sleep(0.02)
    return os.getpid()


def slow(value: int, *others: int) -> int:
    time.sleep(0.05)
    return value + 1


#: Two chains, of two steps and of four.
CHAINS = {
    "s0": (slow, 0),
    "s1": (slow, "s0"),
    "d0": (slow, 0),
    "d1": (slow, "d0"),
    "d2": (slow, "d1"),
    "d3": (slow, "d2"),
}


def test_what_deeper_ones_rely_upon_runs_first(mars: Runtime, runtime: Runtime, order: Order) -> None:
    """Seed 001, selection policy for operands."""
    assert mars.get(CHAINS, ["s1", "d3"], num_workers=1) == (2, 4)
    by_mars = [chunk for _, chunk in order.ran]
    assert runtime.get(CHAINS, ["s1", "d3"], num_workers=1) == (2, 4)
    by_memory = [chunk for _, chunk in order.ran]
    # Ids are the graph's own order: the short chain comes first there.
    assert by_memory == sorted(by_memory)
    assert by_mars == [chunk for chunk in by_memory if chunk > 1] + by_memory[:2]


def test_what_meets_again_begins_at_the_same_worker(mars: Runtime, order: Order) -> None:
    """Seed 001, allocating an initial worker; seed 003, worker selection by input bytes."""

    def made(seed: int) -> Any:
        return np.full(50_000, float(seed))

    def added(left: Any, right: Any) -> Any:
        time.sleep(0.02)
        return left + right

    leaves = {f"leaf-{number}": (made, number) for number in range(4)}
    sums = {"a": (added, "leaf-0", "leaf-2"), "b": (added, "leaf-1", "leaf-3")}
    for found, expected in zip(mars.get({**leaves, **sums}, ["a", "b"]), (2.0, 4.0), strict=True):
        assert (found == expected).all()
    where = {chunk: worker for worker, chunk in order.ran}
    assert set(where.values()) == {0, 1}
    for chunk, inputs in enumerate(order.inputs):
        assert {where[source] for source in inputs} <= {where[chunk]}


def test_deeper_ones_run_first(mars: Runtime, order: Order) -> None:
    """Seed 001, rule 1: what was begun is ended before anything else is begun."""
    chains = {f"{name}{step}": (slow, f"{name}{step - 1}" if step else 0) for name in "abc" for step in range(2)}
    assert mars.get(chains, ["a1", "b1", "c1"], num_workers=1) == (2, 2, 2)
    ran = [chunk for _, chunk in order.ran]
    for first, second in zip(ran[::2], ran[1::2], strict=True):
        assert order.inputs[second] == (first,)


def test_those_with_smaller_results_run_first(mars: Runtime, order: Order) -> None:
    """Seed 001, rule 3: the rest being equal, what leaves fewer bytes runs first."""
    blocks = da.ones(60_000, chunks=((30_000, 10_000, 20_000),)).map_blocks(slow_copy, dtype=float)
    assert blocks.compute(scheduler=mars.get, num_workers=1).sum() == 60_000
    # The last is the whole array.
    assert [size for size in order.stored if size] == [80_000, 160_000, 240_000, 480_000]


def slow_copy(block: Any) -> Any:
    time.sleep(0.05)
    return block + 0


@pytest.fixture(scope="module")
def depth_first() -> Iterator[Runtime]:
    with dask.config.set({"dask-mars.assignment": "depth-first"}):
        runtime = Runtime(2, policy="mars")
    with runtime:
        warm_up(runtime)
        yield runtime


def test_initial_chunks_are_shared_out_evenly(mars: Runtime, depth_first: Runtime, order: Order) -> None:
    """Seeds 000 and 003: each worker begins with as many as any other, and with what meets again."""
    leaves = {f"leaf-{number}": (slow, number) for number in range(8)}
    sums = {f"sum-{number}": (slow, f"leaf-{number}", f"leaf-{number + 4}") for number in range(4)}
    for runtime in (mars, depth_first):
        runtime.get({**leaves, **sums}, list(sums))
        where = {chunk: worker for worker, chunk in order.ran}
        initial = [where[chunk] for chunk, inputs in enumerate(order.inputs) if not inputs]
        assert initial.count(0) == initial.count(1) == 4
        for chunk, inputs in enumerate(order.inputs):
            assert len({where[source] for source in inputs}) <= 1, (chunk, where)


def test_the_worker_with_most_bytes_of_the_inputs_is_chosen(mars: Runtime, order: Order) -> None:
    """Seed 003, Worker 选择策略: bytes count, not how many inputs a worker has made."""
    # Each of two sums takes two small inputs that begin at one worker, and a large one.
    graph: dict[str, Any] = {}
    for name in "ab":
        graph[f"{name}-large"] = (zeros_slowly, 400_000)
        graph[f"{name}-sum"] = (total_slowly, f"{name}-large", f"{name}-small-0", f"{name}-small-1")
        graph |= {f"{name}-small-{number}": (zeros_slowly, 3_000) for number in range(2)}
    assert mars.get(graph, ["a-sum", "b-sum"]) == (0.0, 0.0)
    where = {chunk: worker for worker, chunk in order.ran}
    for chunk, inputs in enumerate(order.inputs):
        if inputs:
            largest = max(inputs, key=order.bytes_of.__getitem__)
            assert where[chunk] == where[largest]


def test_of_several_workers_the_first_one_free_takes_it(mars: Runtime, order: Order) -> None:
    """Seed 003: a READY operand is offered to all workers that do equally well; who is busy does not keep it."""
    graph: dict[str, Any] = {
        "a-leaf": (zeros_slowly, 50_000),
        "b-leaf": (zeros_after, 50_000, 0.2),
        # Where the one leaf was made another chunk is computed for long.
        "a-long": (total_after, 1.0, "a-leaf"),
        "joined": (total_slowly, "a-leaf", "b-leaf"),
    }
    assert mars.get(graph, ["joined", "a-long"]) == (0.0, 0.0)
    where = {chunk: worker for worker, chunk in order.ran}
    (joined,) = [chunk for chunk, inputs in enumerate(order.inputs) if len(inputs) == 2]
    (long,) = [chunk for chunk, inputs in enumerate(order.inputs) if len(inputs) == 1]
    assert {where[source] for source in order.inputs[joined]} == {0, 1}
    assert where[long] == where[order.inputs[long][0]]
    assert where[joined] != where[long]


def zeros_after(length: int, seconds: float) -> Any:
    time.sleep(seconds)
    return np.zeros(length)


def total_after(seconds: float, array: Any) -> float:
    time.sleep(seconds)
    return float(array.sum())


def zeros_slowly(length: int) -> Any:
    time.sleep(0.02)
    return np.zeros(length)


def total_slowly(*arrays: Any) -> float:
    time.sleep(0.02)
    return float(sum(array.sum() for array in arrays))


def test_everything_is_computed(mars: Runtime) -> None:
    x = da.random.default_rng(0).random((300, 200), chunks=(50, 40))
    bag = db.range(100, npartitions=5).map(operator.neg)
    wanted = [x.T @ x, (x + 1).sum(axis=0), x.rechunk((70, 30))[3:5], da.linalg.svd_compressed(x, 3, seed=1)[1]]
    expected = dask.compute(*wanted, bag, scheduler="sync")
    for ours, theirs in zip(dask.compute(*wanted, bag, scheduler=mars.get), expected, strict=True):
        np.testing.assert_allclose(ours, theirs)
    with dask.annotate(priority=3):
        first = dask.delayed(slow)(1)
    assert dask.compute(first, dask.delayed(slow)(2), scheduler=mars.get) == (2, 3)
    persisted = x.persist(scheduler=mars.get)
    np.testing.assert_allclose(persisted.mean().compute(scheduler=mars.get), x.mean().compute())


def test_a_small_store_is_enough(order: Order) -> None:
    x = da.random.default_rng(0).random((500, 500), chunks=100)
    with dask.config.set({"dask-mars.store-limit": "1 MiB"}), Runtime(2, policy="mars") as runtime:
        got = (x @ x.T).sum().compute(scheduler=runtime.get)
    np.testing.assert_allclose(got, (x @ x.T).sum().compute(scheduler="sync"))
