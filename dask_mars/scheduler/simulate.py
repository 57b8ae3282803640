"""Simulates the state machine on a graph whose chunks all take equally long."""

from __future__ import annotations

from dask_mars.scheduler.assigner import Traversal
from dask_mars.scheduler.events import ChunksFinished, GraphPlan
from dask_mars.scheduler.machine import Parameters
from dask_mars.scheduler.virtual import GRAPH, VirtualRun

#: The worker of a chunk whose value is known before anything runs.
NO_WORKER = -2


class EqualSteps(VirtualRun):
    """A run in which each chunk takes 1."""

    def __init__(self, plan: GraphPlan, parameters: Parameters) -> None:
        super().__init__(plan, parameters)
        #: The worker of each chunk, `CLIENT` for the user's process, `NO_WORKER` if there is nothing to run.
        self.workers = [NO_WORKER] * len(plan.inputs)
        #: The chunks that run, in the order of their starts.
        self.order: list[int] = []

    def begin(self, worker: int, chunk: int, restores: list[int]) -> float:
        """Record the start."""
        self.order.append(chunk)
        self.workers[chunk] = worker
        return 1.0

    def end(self, worker: int, chunk: int, duration_s: float) -> ChunksFinished:
        """Report the end, without a size."""
        return ChunksFinished(worker, GRAPH, (chunk,), (duration_s,))

    def finish(self) -> None:
        """Compute the graph."""
        self.submit()
        while self.is_running and self.step():
            pass


def simulate(
    plan: GraphPlan, num_workers: int, policy: str = "mars", assignment: Traversal = "breadth-first"
) -> EqualSteps:
    """Simulate the computation of a graph."""
    run = EqualSteps(plan, Parameters(policy, assignment, num_workers=num_workers))
    run.finish()
    return run
