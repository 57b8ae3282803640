"""Policies of placement: Mars's, with several ways to begin, and Dask's as its source has it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from dask_mars.scheduler.assigner import Traversal, assign
from dask_mars.scheduler.events import GraphPlan
from studies.graphs import dask_order
from studies.simulation.cluster import Cluster, Job, Policy, Simulation


class MarsPolicy:
    """Chunks go to where most bytes of their inputs are; those that a graph begins with, to where they were told.

    Parameters
    ----------
    job
        The graph.
    assigned
        Worker of each chunk that the graph begins with.
    """

    def __init__(self, job: Job, assigned: dict[int, int]) -> None:
        self._count = len(job.inputs)
        self._assigned = assigned

    def priorities(self) -> Sequence[int]:
        """Return the graph's own order."""
        return range(self._count)

    def choose(self, chunk: int, now: Simulation) -> int | None:
        """Return the worker with most input bytes, and among equals the one with least to do."""
        worker = self._assigned.get(chunk)
        if worker is not None:
            return worker
        held: dict[int, int] = {}
        for source in now.job.inputs[chunk]:
            for holder in now.holders[source]:
                held[holder] = held.get(holder, 0) + now.job.sizes[source]
        return min(held, key=lambda holder: (-held[holder], now.occupancy_s[holder], holder))


class DaskPolicy:
    """What `distributed.scheduler` decides, with the durations known that it has to estimate.

    Parameters
    ----------
    job, cluster
        What runs, and where.
    saturation
        ``distributed.scheduler.worker-saturation``: how many root tasks a worker is given for each of its threads.
        Without limit those that follow each other in Dask's order are given to the same worker.
    """

    def __init__(self, job: Job, cluster: Cluster, saturation: float) -> None:
        self._job, self._cluster, self._saturation = job, cluster, saturation
        self._group_sizes: dict[int, int] = {}
        needs: dict[int, set[int]] = {}
        for chunk, inputs in enumerate(job.inputs):
            group = job.groups[chunk]
            self._group_sizes[group] = self._group_sizes.get(group, 0) + 1
            needs.setdefault(group, set()).update(job.groups[source] for source in inputs)
        threads = cluster.workers * cluster.slots
        # As `SchedulerState.is_rootish`, with its thresholds.
        self._rootish = {
            group
            for group, others in needs.items()
            if self._group_sizes[group] > 2 * threads
            and len(others) < 5
            and sum(self._group_sizes[other] for other in others) < 5
        }
        #: The worker that got the last root task of a group, and how many more it is to get.
        self._last: dict[int, tuple[int, int]] = {}
        self._turn = 0

    def priorities(self) -> Sequence[int]:
        """Return Dask's own order."""
        return dask_order(self._job.inputs, self._job.absent)

    def choose(self, chunk: int, now: Simulation) -> int | None:
        """Return what `_transition_waiting_processing` would."""
        if self._job.groups[chunk] in self._rootish:
            return self._together(chunk, now) if math.isinf(self._saturation) else self._least_busy(now)
        candidates = {holder for source in self._job.inputs[chunk] for holder in now.holders[source]}
        if candidates:
            return min(candidates, key=lambda worker: (*self._objective(chunk, worker, now), worker))
        return self._any(now)

    def _least_busy(self, now: Simulation) -> int | None:
        limit = max(math.ceil(self._saturation * self._cluster.slots), 1)
        given = now.given
        least = min(given)
        return None if least >= limit else given.index(least)

    def _together(self, chunk: int, now: Simulation) -> int:
        group = self._job.groups[chunk]
        worker, left = self._last.get(group, (0, 0))
        if not left:
            workers = range(self._cluster.workers)
            idle = [one for one in workers if now.given[one] < self._cluster.slots]
            worker = min(idle or workers, key=lambda one: (*self._objective(chunk, one, now), one))
            left = math.floor(self._group_sizes[group] / self._cluster.workers)
        self._last[group] = worker, left - 1
        return worker

    def _any(self, now: Simulation) -> int:
        """Choose for tasks without dependencies of small groups: whoever has nothing to do, in turn."""
        workers = self._cluster.workers
        self._turn += 1
        if workers < 20:
            turn = [(self._turn + number) % workers for number in range(workers)]
            return min(turn, key=now.occupancy_s.__getitem__)
        return self._turn % workers

    def _objective(self, chunk: int, worker: int, now: Simulation) -> tuple[float, int]:
        wait_s = now.occupancy_s[worker] / self._cluster.slots
        return wait_s + now.transfer_s(chunk, worker), now.stored_bytes[worker]


def _mars(traversal: Traversal) -> Callable[[Job, Cluster, int], Policy]:
    def make(job: Job, cluster: Cluster, seed: int) -> Policy:
        slots = dict.fromkeys(range(cluster.workers), cluster.slots)
        return MarsPolicy(job, assign(_plan(job), slots, traversal))

    return make


def _at_random(job: Job, cluster: Cluster, seed: int) -> Policy:
    chance = random.Random(seed)
    begin = [chunk for chunk, inputs in enumerate(job.inputs) if not inputs and chunk not in job.absent]
    return MarsPolicy(job, {chunk: chance.randrange(cluster.workers) for chunk in begin})


def _dask(saturation: float) -> Callable[[Job, Cluster, int], Policy]:
    return lambda job, cluster, seed: DaskPolicy(job, cluster, saturation)


def _plan(job: Job) -> GraphPlan:
    operand_of = [-1 if chunk in job.absent else group for chunk, group in enumerate(job.groups)]
    return GraphPlan(inputs=job.inputs, outputs=(), operand_of=operand_of)


#: By name, what makes a policy of a job, a cluster and a seed for those that leave things to chance.
POLICIES: dict[str, Callable[[Job, Cluster, int], Policy]] = {
    "breadth-first": _mars("breadth-first"),
    "depth-first": _mars("depth-first"),
    "random": _at_random,
    "dask": _dask(1.1),
    "dask-unbounded": _dask(math.inf),
}
