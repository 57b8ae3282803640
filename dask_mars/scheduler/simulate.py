"""Simulates the state machine on a graph whose chunks all take equally long."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dask_mars.scheduler.assigner import Traversal
from dask_mars.scheduler.events import ChunksFinished, GraphPlan
from dask_mars.scheduler.machine import Parameters
from dask_mars.scheduler.virtual import GRAPH, VirtualRun

#: The worker of a chunk whose value is known before anything runs.
NO_WORKER = -2
#: Sequence of starts and ends: a chunk, and whether it ends.
Steps = list[tuple[int, bool]]
# An unreachable limit: with a limit, the machine records sizes.
_FAR = 1 << 60


class Simulation(NamedTuple):
    """A simulated schedule."""

    #: The worker of each chunk, `CLIENT` for the user's process, `NO_WORKER` if there is nothing to run.
    workers: list[int]
    #: Sequence of starts and ends: a chunk, and whether it ends.
    steps: Steps
    #: End of the last chunk, where each chunk takes 1.
    length: int

    @property
    def order(self) -> list[int]:
        """Return the chunks that run, in the order of their starts."""
        return [chunk for chunk, ends in self.steps if not ends]


def simulate(
    plan: GraphPlan,
    num_workers: int,
    policy: str = "mars",
    assignment: Traversal = "breadth-first",
    sizes_of: Callable[[int], tuple[int, int]] | None = None,
) -> Simulation:
    """Simulate the computation of a graph."""
    limit = None if sizes_of is None else _FAR
    parameters = Parameters(
        policy, assignment, num_workers=num_workers, store_limit=limit, memory_limit=limit or 0
    )
    course = _EqualSteps(plan, parameters, sizes_of)
    course.submit()
    while course.is_running and course.step():
        pass
    return Simulation(course.workers, course.steps, int(course.now_s))


class _EqualSteps(VirtualRun):
    """A run in which each chunk takes 1."""

    def __init__(
        self, plan: GraphPlan, parameters: Parameters, sizes_of: Callable[[int], tuple[int, int]] | None
    ) -> None:
        super().__init__(plan, parameters)
        self._sizes_of = sizes_of
        self.workers = [NO_WORKER] * len(plan.inputs)
        self.steps: Steps = []

    def begin(self, worker: int, chunk: int, restores: list[int]) -> float:
        self.steps.append((chunk, False))
        self.workers[chunk] = worker
        return 1.0

    def end(self, worker: int, chunk: int, duration_s: float) -> ChunksFinished:
        self.steps.append((chunk, True))
        sizes, fresh = {}, {}
        if self._sizes_of is not None:
            sizes[chunk], fresh[chunk] = self._sizes_of(chunk)
        return ChunksFinished(worker, GRAPH, (chunk,), (duration_s,), sizes, fresh)
