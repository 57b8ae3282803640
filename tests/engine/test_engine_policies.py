"""Scheduling policies of running engines: what ran where, and in which order."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

from dask_mars import Runtime
from dask_mars.diagnostics import Listener, add_listener, remove_listener
from dask_mars.scheduler.events import ChunksFinished, GraphSubmitted
from tests.conftest import eventually
from tests.scheduler.decisions import decide, fields


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
    with Runtime(2, policy="mars-strict") as runtime:
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
    # Ids are the graph's own order: the short chain, of chunks 0 and 1, comes first there.
    for each in (mars, runtime):
        assert each.get(CHAINS, ["s1", "d3"], num_workers=1) == (2, 4)
        assert [chunk for _, chunk in order.ran] == [2, 3, 4, 5, 0, 1]


def test_mars_rules_and_choices_of_workers_decide_by_default(tmp_path: Path) -> None:
    def compute() -> None:
        with Runtime(2) as runtime:
            warm_up(runtime)
            for collections in fields():
                dask.compute(*collections, scheduler=runtime.get)

    decide(compute, tmp_path)


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
