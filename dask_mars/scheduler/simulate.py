"""Simulates the state machine on a graph whose chunks all take equally long.

As the decisions are the machine's own, a simulation stays true when its policies change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from dask_mars.scheduler.assigner import Traversal
from dask_mars.scheduler.events import (
    CLIENT,
    ChunksFinished,
    Event,
    GraphPlan,
    GraphSubmitted,
    Run,
    WorkerStarted,
)
from dask_mars.scheduler.machine import Machine, Parameters

#: The worker of a chunk whose value is known before anything runs.
NO_WORKER = -2
#: Sequence of starts and ends: a chunk, and whether it ends.
Steps = list[tuple[int, bool]]

_GRAPH = 1
# An unreachable limit: with a limit, the machine records sizes.
_FAR = 1 << 60


class Simulation(NamedTuple):
    """A simulated schedule.

    Attributes
    ----------
    workers : list of int
        The worker of each chunk, `CLIENT` for the user's process, `NO_WORKER` if there is nothing to run.
    steps : list of (int, bool)
        Sequence of starts and ends: a chunk, and whether it ends.
    length : int
        End of the last chunk, where each chunk takes 1.
    """

    workers: list[int]
    steps: Steps
    length: int

    @property
    def order(self) -> list[int]:
        """Return the chunks that run, in the order of their starts."""
        return [chunk for chunk, ends in self.steps if not ends]


def simulate(
    plan: GraphPlan,
    num_workers: int,
    policy: str = "memory",
    assignment: Traversal = "breadth-first",
    sizes_of: Callable[[int], tuple[int, int]] | None = None,
) -> Simulation:
    """Simulate the computation of a graph.

    Parameters
    ----------
    plan : GraphPlan
        The graph.
    num_workers : int
        Number of workers, all from the start.
    policy : str, optional
        Name of a scheduling policy in `policies.POLICIES`.
    assignment : {"breadth-first", "depth-first"}, optional
        Search order for dividing initial chunks among workers, if the policy does that.
    sizes_of : callable, optional
        Returns the bytes of a chunk's result, and the part that its inputs do not hold. Without it the machine
        learns no sizes.
    """
    limit = None if sizes_of is None else _FAR
    machine = Machine(
        Parameters(policy, assignment, num_workers=num_workers, store_limit=limit, memory_limit=limit or 0)
    )
    queues: list[deque[int]] = [deque() for _ in range(num_workers)]
    # All chunks take equally long, so they end in the order of their starts.
    running: deque[tuple[int, int, int]] = deque()
    workers = [NO_WORKER] * len(plan.inputs)
    steps: Steps = []
    now = 0

    def start(worker: int, chunk: int) -> None:
        running.append((now + 1, worker, chunk))
        steps.append((chunk, False))
        workers[chunk] = worker

    def post(event: Event) -> None:
        for instruction in machine.handle(event, float(now)):
            if not isinstance(instruction, Run):
                continue
            if instruction.worker == CLIENT:
                for chunk in instruction.chunks:
                    start(CLIENT, chunk)
                continue
            queue = queues[instruction.worker]
            is_idle = not queue
            queue.extend(instruction.chunks)
            if is_idle:
                start(instruction.worker, queue[0])

    for worker in range(num_workers):
        post(WorkerStarted(worker))
    post(GraphSubmitted(_GRAPH, plan))
    while running:
        now, worker, chunk = running.popleft()
        steps.append((chunk, True))
        if worker != CLIENT:
            queue = queues[worker]
            queue.popleft()
            if queue:
                start(worker, queue[0])
        sizes, fresh = {}, {}
        if sizes_of is not None:
            sizes[chunk], fresh[chunk] = sizes_of(chunk)
        post(ChunksFinished(worker, _GRAPH, (chunk,), (1.0,), sizes, fresh))
    return Simulation(workers, steps, now)
