"""Drives the state machine through one graph in virtual time.

All decisions are the machine's own, so what is derived from them stays true when policies change. A driver derives
from `VirtualRun`, and gives the duration of each chunk and the bytes that it leaves in the store.
"""

from __future__ import annotations

import heapq
from collections import deque

from dask_mars.scheduler import events
from dask_mars.scheduler.machine import Machine, Parameters
from dask_mars.scheduler.objects import ObjectId

GRAPH = 1


class VirtualRun:
    """The computation of one graph by workers that are there from the start."""

    def __init__(self, plan: events.GraphPlan, parameters: Parameters) -> None:
        self.plan = plan
        self.parameters = parameters
        self.machine = Machine(parameters)
        self.now_s = 0.0
        #: Bytes of results in memory.
        self.stored_bytes = 0
        self._told_bytes = 0
        #: Chunks of each worker, the running one first, each with the inputs that it puts back into the store.
        self._queues: dict[int, deque[tuple[int, list[int]]]] = {}
        # Heap of (end, start's sequence number, worker, chunk, duration).
        self._running: list[tuple[float, int, int, int, float]] = []
        self._starts = 0
        self._spills: deque[ObjectId] = deque()

    def begin(self, worker: int, chunk: int, restores: list[int]) -> float:
        """Begin a chunk; return its duration in seconds. For the derived class."""
        raise NotImplementedError

    def end(self, worker: int, chunk: int, duration_s: float) -> events.Event:
        """End a chunk; return the worker's report. For the derived class."""
        raise NotImplementedError

    def write(self, object: ObjectId) -> events.ObjectSpilled:
        """Write an object; return the disk's report. For derived classes with limits."""
        raise NotImplementedError

    def submit(self) -> None:
        """Start the workers and submit the graph."""
        for worker in range(self.parameters.num_workers):
            self.post(events.WorkerStarted(worker))
        self.post(events.GraphSubmitted(GRAPH, self.plan))

    @property
    def is_running(self) -> bool:
        """Return whether some chunk runs."""
        return bool(self._running)

    def step(self) -> bool:
        """Advance to the next write, end of a chunk or due time; return whether there is one."""
        due_s = None if self._spills or self._running else self.machine.next_due_s()
        if self._spills:
            # Writing is quick compared with computing, and one thread does it.
            self.post(self.write(self._spills.popleft()))
        elif self._running:
            self.now_s, _, worker, chunk, duration_s = heapq.heappop(self._running)
            report = self.end(worker, chunk, duration_s)
            if worker != events.CLIENT:
                self._continue(worker)
            self.post(report)
        elif due_s is not None:
            self.now_s = max(self.now_s, due_s)
            self.post(events.TimePassed())
        else:
            return False
        return True

    @property
    def busy(self) -> list[int]:
        """Return the workers that run a chunk."""
        return sorted([entry[2] for entry in self._running])

    def stop(self, worker: int, drops_queue: bool = False) -> int:
        """Take its running chunk from a worker, or all of its chunks; return the running one."""
        entry = next(entry for entry in self._running if entry[2] == worker)
        self._running.remove(entry)
        heapq.heapify(self._running)
        if drops_queue:
            self._queues[worker].clear()
        else:
            self._continue(worker)
        return entry[3]

    def post(self, event: events.Event) -> None:
        """Have the machine handle an event, and carry out its instructions."""
        if self.stored_bytes != self._told_bytes:
            self._told_bytes, parameters = self.stored_bytes, self.parameters
            limit = parameters.store_limit or 0
            self.machine.handle(
                events.MemoryMeasured(self.stored_bytes, limit, parameters.memory_limit), self.now_s
            )
        for instruction in self.machine.handle(event, self.now_s):
            self.carry_out(instruction)

    def carry_out(self, instruction: events.Instruction) -> None:
        """Carry out one instruction."""
        if isinstance(instruction, events.Run):
            restores = set(instruction.restores)
            queue = self._queues.setdefault(instruction.worker, deque())
            for chunk in instruction.chunks:
                entry = chunk, sorted(restores.intersection(self.plan.inputs[chunk]))
                if instruction.worker == events.CLIENT:
                    self._start(events.CLIENT, *entry)
                    continue
                queue.append(entry)
                if len(queue) == 1:
                    self._start(instruction.worker, *entry)
        elif isinstance(instruction, events.Spill):
            self._spills += instruction.objects

    def _continue(self, worker: int) -> None:
        """Begin the next chunk of a worker's queue, if there is one."""
        queue = self._queues[worker]
        queue.popleft()
        if queue:
            self._start(worker, *queue[0])

    def _start(self, worker: int, chunk: int, restores: list[int]) -> None:
        self._starts += 1
        duration_s = self.begin(worker, chunk, restores)
        heapq.heappush(self._running, (self.now_s + duration_s, self._starts, worker, chunk, duration_s))
