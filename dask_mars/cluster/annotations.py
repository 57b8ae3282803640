"""Annotations of subtasks' tasks for Dask's scheduler: workers, priority, resources, retries."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

from dask_mars import config
from dask_mars.cluster.computation import ClusterComputation
from dask_mars.cluster.marks import MARK
from dask_mars.cluster.partition.subtasks import Subtask
from dask_mars.cluster.planning import allowed_by
from dask_mars.cluster.scheduler_plugin import SubtaskAnnotation
from dask_mars.dask_api.core import Task
from dask_mars.graph.chunks import Restriction
from dask_mars.scheduler.bookkeeping import Graph
from dask_mars.scheduler.events import GraphPlan
from dask_mars.scheduler.policies import POLICIES
from dask_mars.scheduler.policies.plugins import load_policy

#: Restriction of chunks that the user has not restricted.
_ANYWHERE = Restriction((), True, ())


class _Placement(NamedTuple):
    """The hosts of a task."""

    hosts: Sequence[int]
    others: bool = True
    #: Whether this is final. Otherwise only the plan has chosen the host, and the scheduler's plugin may choose a
    #: better one when hosts come or go.
    bound: bool = True


_LEFT_TO_DASK = _Placement(())


class TaskAnnotations:
    """Creates the annotations of a computation's tasks."""

    def __init__(self, computation: ClusterComputation, subtasks: Sequence[Subtask]) -> None:
        self._name = computation.name
        self._graph = computation.graph
        self._hosts = computation.hosts
        self._retries = computation.retries
        self._requirements = computation.requirements
        self._subtasks = subtasks
        self._shuffled = computation.shuffles.members()
        self._positions = positions(subtasks, str(config.get("policy")))
        #: Indices of subtasks after shuffles or threads, whose inputs only Dask can locate.
        self._unplaced = self._find_unplaced()

    def of_task(self, task: Task, index: int, computes: bool) -> dict[str, Any]:
        """Return the annotations of a task for Dask."""
        first, graph = self._subtasks[index].chunks[0], self._graph
        restriction = graph.restrictions.get(first, _ANYWHERE)
        highest, position = self._priority(index), self._positions[index]
        # A task that takes a result apart runs where the result is, even if the subtask was stolen.
        where = _LEFT_TO_DASK if task.func is operator.getitem else self._where(index, restriction)
        plan = SubtaskAnnotation(
            computation=self._name,
            subtask=index,
            chunks=len(self._subtasks[index].chunks) if computes else 0,
            priority=(-highest, position),
            bound=where.bound,
        )
        return {
            "workers": [self._hosts[host].address for host in where.hosts],
            "allow_other_workers": where.others,
            "resources": self._resources(restriction) if computes else {},
            "priority": highest * len(graph) - position,
            "retries": self._retries_of(index),
            MARK: plan._asdict() | {"in_thread": self.in_thread(index)},
        }

    def in_thread(self, index: int) -> bool:
        """Return whether a Dask thread must compute a subtask."""
        return self._subtasks[index].chunks[0] in self._requirements.threads

    def needs_files(self, index: int) -> bool:
        """Return whether a subtask needs files that are on its host."""
        return self._subtasks[index].chunks[0] in self._requirements.files

    def _resources(self, restriction: Restriction) -> dict[str, float]:
        """Return the resources of a subtask; none if no host has them and the user allows others."""
        if restriction.loose and not any(host.has(restriction.resources) for host in self._hosts):
            return {}
        return dict(restriction.resources)

    def _priority(self, index: int) -> float:
        of_user = self._graph.priorities
        return max([of_user.get(chunk, 0.0) for chunk in self._subtasks[index].chunks]) if of_user else 0.0

    def _where(self, index: int, restriction: Restriction) -> _Placement:
        """Return the hosts of a subtask."""
        host = self._subtasks[index].host
        if self.needs_files(index):
            return _Placement((host,), others=False)
        if self._subtasks[index].chunks[0] in self._shuffled:
            # Dask would distribute shuffled data among the workers named here, even lost ones.
            return _LEFT_TO_DASK
        if not restriction.loose:
            return _Placement(allowed_by(restriction, self._hosts), others=False)
        if index in self._unplaced:
            return _Placement(range(len(self._hosts)))
        return _Placement((host,), bound=False)

    def _find_unplaced(self) -> set[int]:
        made: set[int] = set()
        unplaced = set()
        for index, subtask in enumerate(self._subtasks):
            if self.in_thread(index) or not made.isdisjoint(subtask.inputs):
                made.update(subtask.outputs)
                if not self.needs_files(index):
                    unplaced.add(index)
        return unplaced

    def _retries_of(self, index: int) -> int:
        """Return Dask's retries of a subtask; engines retry chunks themselves."""
        chunk = self._subtasks[index].chunks[0]
        if not self.in_thread(index) or chunk in self._requirements.once:
            return 0
        return self._graph.retries.get(chunk, self._retries)


def positions(subtasks: Sequence[Subtask], policy: str) -> Sequence[int]:
    """Return the position of each subtask in a policy's order."""
    # The default policy decides as chunks end, which Dask's priorities cannot; they keep the graph's order, in
    # which early chunks free the memory of others.
    if policy in ("mars", "memory"):
        return [subtask.chunks[0] for subtask in subtasks]
    load_policy(policy)
    maker = {chunk: index for index, subtask in enumerate(subtasks) for chunk in subtask.outputs}
    inputs = [tuple(sorted({maker[chunk] for chunk in subtask.inputs if chunk in maker})) for subtask in subtasks]
    indices = range(len(subtasks))
    graph = Graph(0, GraphPlan(inputs, indices, [0] * len(subtasks)), POLICIES[policy])
    found = [0] * len(subtasks)
    for position, index in enumerate(sorted(indices, key=graph.queues.key_of)):
        found[index] = position
    graph.forget_policy()
    return found
