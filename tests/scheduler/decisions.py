"""What decides, under the default policy, which chunk a worker takes."""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import dask
import dask.array as da
import pytest

from dask_mars.scheduler.bookkeeping import READY, Graph
from dask_mars.scheduler.dispatch import Dispatcher
from dask_mars.scheduler.policies.mars import MarsPolicy
from dask_mars.scheduler.replay import Replay, replay

REASONS = frozenset({"assignment", "input bytes", "frees memory", "depth", "demand", "size", "order"})
#: Which of these decide in every run of an engine; for the others, chunks have to end at times that are chance.
CERTAIN = frozenset({"frees memory", "demand", "order"})


@contextlib.contextmanager
def counted_decisions() -> Iterator[Counter[str]]:
    """Count what decides for each chunk that a worker takes in place of the next best one."""
    if not inspect.isfunction(Dispatcher._hand_over):
        pytest.skip("mypyc has compiled the method to replace")
    counts: Counter[str] = Counter()
    hand_over = Dispatcher._hand_over

    def counted(self: Dispatcher, worker: Any, graph: Graph, chunk: int, cost_s: float) -> Any:
        if graph.state[chunk] == READY:
            counts[_reason(graph, chunk, worker.id)] += 1
        return hand_over(self, worker, graph, chunk, cost_s)

    with mock.patch.object(Dispatcher, "_hand_over", counted):
        yield counts


def decisions(lines: Iterable[str]) -> tuple[Counter[str], Replay]:
    """Replay a log of the scheduler; return what decided, and the replay."""
    with counted_decisions() as counts:
        outcome = replay(lines)
    return counts, outcome


def fields() -> list[list[Any]]:
    """Return computations in which each of the rules and each choice of workers decides somewhere."""
    x = da.random.default_rng(1).random((1000, 1000), chunks=250)
    pieces = x.rechunk((250, (50, 950))).map_blocks(lambda block: block + 1, dtype=float).sum()
    edges = da.overlap.overlap(x, depth=25, boundary="reflect").sum()
    means = [(x + x.T).sum(axis=0), (x - x.mean(axis=0)).std(), pieces]
    return [means, [(x @ x).sum(), x.std(axis=0)], [edges, x.T.mean()]]


def decide(compute: Callable[[], Any], logs: Path, tries: int = 8) -> Counter[str]:
    """Compute, with logs in a directory, until each reason of `CERTAIN` has decided; return the counts."""
    counts: Counter[str] = Counter()
    instructions: Counter[str] = Counter()
    for _ in range(tries):
        with dask.config.set({"dask-mars.scheduler-log": str(logs / "{engine}.log")}):
            compute()
        for path in logs.iterdir():
            with path.open(encoding="utf-8") as lines:
                found, outcome = decisions(lines)
            assert outcome.difference is None
            counts += found
            instructions += outcome.instructions
            path.unlink()
        if counts.keys() >= CERTAIN and instructions["Offer"] and instructions["WithdrawOffer"]:
            return counts
    raise AssertionError(f"not decided: {CERTAIN - counts.keys()}, {instructions}")


def _reason(graph: Graph, chunk: int, worker: int) -> str:
    policy = graph.queues.policy
    assert type(policy) is MarsPolicy
    others = [other for other, state in enumerate(graph.state) if state == READY and other != chunk]
    if not others:
        return "nothing else"
    other = min(others, key=policy.key_of)
    if policy.key_of(other) < policy.key_of(chunk):
        assert worker not in graph.queues.offered_to(other)
        return "input bytes" if graph.plan.inputs[other] else "assignment"
    for (reason, mine), (_, theirs) in zip(_criteria(policy, chunk), _criteria(policy, other), strict=False):
        if mine != theirs:
            return reason
    raise AssertionError("two chunks with one key")


def _criteria(policy: MarsPolicy, chunk: int) -> list[tuple[str, int]]:
    place = policy._places.get(chunk)
    if not policy._depth:
        return [("frees memory", 1), ("order", chunk)]
    depth, demand = policy._depth[chunk], policy._demand[chunk]
    if place is None:
        return [("frees memory", 1), ("demand", max(depth, demand)), ("order", chunk)]
    rules = [("depth", depth), ("demand", demand), ("size", policy._declared_size(chunk))]
    return [("frees memory", 0), ("order", place), *rules, ("order", chunk)]
