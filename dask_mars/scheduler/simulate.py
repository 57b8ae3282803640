"""Simulates the state machine on a graph whose chunks all take equally long.

Because the decisions are the machine's own, a rehearsal stays true when its policies change.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

from dask_mars.scheduler.events import (
    CLIENT,
    ChunksFinished,
    Event,
    GraphPlan,
    GraphSubmitted,
    Run,
    WorkerStarted,
)
from dask_mars.scheduler.machine import Machine

#: The worker of a chunk whose value is known before anything runs.
NO_WORKER = -2

_GRAPH = 1
# Longer than any window of work that the machine hands out ahead: no chunk waits in a queue behind another.
_CHUNK_S = 1.0


class Simulation(NamedTuple):
    """Who would run what, and when.

    Attributes
    ----------
    workers : list of int
        The worker of each chunk, `CLIENT` for the user's process, `NO_WORKER` if there is nothing to run.
    order : list of int
        The chunks that run, in the order in which they are started.
    """

    workers: list[int]
    order: list[int]


def simulate(plan: GraphPlan, num_workers: int) -> Simulation:
    """Go through a graph with so many workers.

    Parameters
    ----------
    plan : GraphPlan
        The graph.
    num_workers : int
        Workers that are there from the beginning.
    """
    machine = Machine()
    workers = [NO_WORKER] * len(plan.inputs)
    order: list[int] = []
    # Heap of (end, number of the start, worker, chunk): what ends together is reported in the order of the starts.
    running: list[tuple[float, int, int, int]] = []
    # For each worker, when it will have done all that it has been given.
    free_at_s = [0.0] * num_workers

    def post(event: Event, now_s: float) -> None:
        for instruction in machine.handle(event, now_s):
            if not isinstance(instruction, Run):
                continue
            worker = instruction.worker
            for chunk in instruction.chunks:
                end_s = (now_s if worker == CLIENT else max(now_s, free_at_s[worker])) + _CHUNK_S
                if worker != CLIENT:
                    free_at_s[worker] = end_s
                workers[chunk] = worker
                heapq.heappush(running, (end_s, len(order), worker, chunk))
                order.append(chunk)

    for worker in range(num_workers):
        post(WorkerStarted(worker), 0.0)
    post(GraphSubmitted(_GRAPH, plan), 0.0)
    while running:
        now_s, _, worker, chunk = heapq.heappop(running)
        post(ChunksFinished(worker, _GRAPH, (chunk,), (_CHUNK_S,)), now_s)
    return Simulation(workers, order)
