"""Finish callbacks: each chunk is told once, whatever happens to workers."""

from __future__ import annotations

import operator
from collections import Counter
from typing import Any

import dask
import dask.array as da
import pytest
from distributed import Client

import dask_mars
from dask_mars import Runtime
from dask_mars.diagnostics import FinishCallback, decode_subtask_id
from tests.conftest import eventually
from tests.tasks import die_first, fail_first

Told = list[tuple[Any, str]]


@pytest.fixture
def told() -> Told:
    return []


def note_in(told: Told) -> Any:
    return lambda key, worker: told.append((key, worker))


def test_each_chunk_is_told_once(told, tmp_path):
    """Seed 003, execution: a finish callback is called when the result is stored."""
    other: Told = []
    graph = {
        "a": (die_first, str(tmp_path / "died"), 1, 1),
        "b": (fail_first, str(tmp_path / "failed"), 2, 2),
        "c": (operator.add, "a", "b"),
        **{("d", number): (operator.add, "c", number) for number in range(50)},
    }
    with Runtime(2) as runtime, FinishCallback(note_in(told)), FinishCallback(note_in(other)):
        keys = ["c", *[("d", number) for number in range(50)]]
        assert runtime.get(graph, keys, retries=2) == (3, *range(3, 53))
        assert runtime.get({"e": (operator.neg, 1)}, "e") == -1
    for heard in (told, other):
        assert Counter(key for key, _ in heard) == Counter(["a", "b", *keys, "e"])
        assert all(worker.startswith("worker ") for _, worker in heard)
    # Inputs first.
    order = [key for key, _ in told]
    assert order.index("a") < order.index("c") < order.index(("d", 7))


def test_what_the_users_process_computes_is_told_too(told):
    target: dict[str, int] = {}
    with Runtime(1) as runtime, FinishCallback(note_in(told)):
        x = da.ones(4, chunks=2)
        stored = da.store([x], [Target(target)], compute=False)
        stored.compute(scheduler=runtime.get)
    assert target == {"0": 2, "2": 2}
    assert "your process" in {worker for _, worker in told}


class Target:
    """Takes what is stored, in the user's process."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self.sizes = sizes

    def __setitem__(self, where: tuple[slice, ...], value: Any) -> None:
        self.sizes[str(where[0].start)] = len(value)


def test_one_that_raises_is_not_called_again(get, told, nothing_left_behind):
    def fails(key: Any, worker: str) -> None:
        told.append((key, worker))
        raise ValueError("no")

    with FinishCallback(fails):
        assert get({"x": (operator.add, 1, 2), "y": (operator.add, "x", 3)}, "y") == 6
    assert len(told) == 1
    assert "told nothing more" in nothing_left_behind.pop()


# -- on clusters ----------------------------------------------------------------------------------------------


def test_other_hosts_hear_of_subtasks(cluster, told):
    with Client(cluster, set_as_default=False) as other, Client(cluster) as client:
        again: Told = []
        with FinishCallback(note_in(told), client=other), FinishCallback(note_in(again), client=other):
            x = da.random.default_rng(0).random((400, 400), chunks=100)
            (x @ x.T).sum().compute(scheduler=dask_mars.get)
            count = len(told)
            # The last one is told before the result is there, on another way.
            assert eventually(lambda: count < len(told) == len(again) or count == len(told) > 0, 5)
            assert client.submit(operator.add, 1, 2).result() == 3
        assert told == again
        assert max(Counter(key for key, _ in told).values()) == 1
        addresses = {agent.address for agent in cluster.workers.values()}
        assert {worker for _, worker in told} <= addresses
        # They are named after their layers, and together after their computation.
        assert len({name.rpartition("-")[2] for (name, _), _ in told}) == 1
        assert {decode_subtask_id(bytes.fromhex(id)).number for (_, id), _ in told} == set(range(len(told)))
        before = len(told)
        dask.delayed(operator.add)(1, 2).compute(scheduler=dask_mars.get)
        assert len(told) == before


def test_one_of_a_cluster_that_raises_is_not_called_again(cluster, told, nothing_left_behind):
    def fails(key: Any, worker: str) -> None:
        told.append((key, worker))
        raise ValueError("no")

    heard: Told = []
    with (
        Client(cluster) as client,
        FinishCallback(fails, client=client),
        FinishCallback(note_in(heard), client=client),
    ):
        for _ in range(3):
            dask.delayed(operator.add)(1, 2).compute(scheduler=dask_mars.get)
        assert eventually(lambda: len(heard) == 3, 5)
    assert len(told) == 1
    assert "told nothing more" in nothing_left_behind.pop()
