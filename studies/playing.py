"""Plays a graph through with the state machine: no worker, no data, and chunks that all take equally long."""

from __future__ import annotations

from typing import NamedTuple

from dask_mars.scheduler.events import ChunksFinished, Event, GraphSubmitted, Run, WorkerStarted
from dask_mars.scheduler.machine import Machine, Parameters
from studies.graphs import SizedGraph

#: What happens in turn: a chunk, and whether that is when it ends.
Steps = list[tuple[int, bool]]


class Played(NamedTuple):
    """What a policy makes of a graph.

    Attributes
    ----------
    steps : list of (int, bool)
        What happens in turn: a chunk, and whether that is when it ends.
    workers : dict
        Worker of each chunk.
    length : int
        When the last chunk ends, where each takes 1.
    """

    steps: Steps
    workers: dict[int, int]
    length: int


def play(sized: SizedGraph, workers: int, policy: str = "memory") -> Played:
    """Let the state machine say what is next.

    Parameters
    ----------
    sized
        The graph.
    workers
        How many there are.
    policy
        By name.
    """
    # With a limit, however far, it takes note of sizes.
    parameters = Parameters(policy=policy, num_workers=workers, store_limit=1 << 60, memory_limit=1 << 60)
    machine = Machine(parameters)
    hands: list[list[int]] = [[] for _ in range(workers)]
    # When all chunks take equally long, the end of the earliest start comes first.
    running: list[tuple[int, int, int]] = []
    played = Played([], {}, 0)
    now = 0

    def begin(worker: int) -> None:
        chunk = hands[worker][0]
        running.append((now + 1, worker, chunk))
        played.steps.append((chunk, False))
        played.workers[chunk] = worker

    def post(event: Event) -> None:
        for instruction in machine.handle(event, float(now)):
            if isinstance(instruction, Run):
                idle = not hands[instruction.worker]
                hands[instruction.worker].extend(instruction.chunks)
                if idle:
                    begin(instruction.worker)

    for worker in range(workers):
        post(WorkerStarted(worker))
    post(GraphSubmitted(1, sized.plan()))
    while running:
        now, worker, chunk = running.pop(0)
        hands[worker].pop(0)
        played.steps.append((chunk, True))
        if hands[worker]:
            begin(worker)
        size = sized.sizes[chunk]
        fresh = size if sized.blocks[chunk] == chunk else 0
        post(ChunksFinished(worker, 1, [chunk], [1.0], {chunk: size}, {chunk: fresh}))
    return played._replace(length=now)
