"""Forecasts a graph's memory: a simulation of the state machine with limits, and a disk.

Chunks take time in proportion to the bytes they read and write. All decisions are the machine's own: which chunk
is next, what it spills, and what returns to memory.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

from dask_mars.scheduler.events import (
    CLIENT,
    ChunksFinished,
    ChunksRestored,
    Event,
    FailGraph,
    Free,
    GraphPlan,
    GraphSubmitted,
    MemoryMeasured,
    ObjectSpilled,
    Refuse,
    Run,
    Spill,
    TimePassed,
    UseSpilled,
    WorkerStarted,
)
from dask_mars.scheduler.machine import Machine, Parameters

_GRAPH = 1
#: Seconds of every chunk, and of each of its bytes. Only their ratio matters.
_CHUNK_S, _BYTE_S = 1e-4, 1e-9


class ChunkSize(NamedTuple):
    """Memory of one chunk.

    Attributes
    ----------
    stored_bytes : int
        Size of its result in the store; 0 for small ones, which travel in messages.
    working_bytes : int
        Memory besides the result while it runs.
    owner : int or None
        The input whose memory its result is a view of; None if it has memory of its own.
    """

    stored_bytes: int
    working_bytes: int = 0
    owner: int | None = None

    @property
    def fresh_bytes(self) -> int:
        """Return the new memory that its result takes."""
        return self.stored_bytes if self.owner is None else 0


class Forecast(NamedTuple):
    """The memory that a graph will take.

    Attributes
    ----------
    results_bytes : int
        Peak of results and temporaries together.
    shared_bytes : int
        Peak of shared memory: a worker keeps freed memory for its next results.
    spilled_bytes : int
        Bytes written to disk.
    spilled_by : dict
        Bytes written to disk, by the chunk that made them.
    refused : int or None
        The first chunk for which there is never enough memory.
    """

    results_bytes: int
    shared_bytes: int
    spilled_bytes: int
    spilled_by: dict[int, int]
    refused: int | None


def forecast(
    plan: GraphPlan,
    size_of: Callable[[int], ChunkSize],
    num_workers: int,
    store_limit: int,
    memory_limit: int,
    policy: str = "memory",
) -> Forecast:
    """Simulate the computation of a graph.

    Parameters
    ----------
    plan : GraphPlan
        The graph.
    size_of : callable
        Returns the memory of a chunk.
    num_workers : int
        Number of workers, all from the start.
    store_limit, memory_limit : int
        Limit of results in memory, and of all memory, in bytes.
    policy : str, optional
        Name of a scheduling policy in `policies.POLICIES`.
    """
    return _Course(plan, size_of, num_workers, store_limit, memory_limit, policy).run()


class _Course:
    """One simulation."""

    def __init__(
        self,
        plan: GraphPlan,
        size_of: Callable[[int], ChunkSize],
        num_workers: int,
        store_limit: int,
        memory_limit: int,
        policy: str,
    ) -> None:
        self._plan = plan
        self._size_of = size_of
        parameters = Parameters(
            policy, num_workers=num_workers, store_limit=store_limit, memory_limit=memory_limit
        )
        self._machine = Machine(parameters)
        self._now_s = 0.0
        self._queues: dict[int, deque[tuple[int, frozenset[int]]]] = {}
        self._running: list[tuple[float, int, int, float]] = []
        self._spills: deque[tuple[tuple[int, int], int]] = deque()
        #: Worker and bytes of each result in memory.
        self._held: dict[int, tuple[int, int]] = {}
        #: Owner of each view's memory. A view that returns from disk has memory of its own.
        self._owners: dict[int, int] = {}
        #: Number of views of each result; and results that only their views keep.
        self._views: Counter[int] = Counter()
        self._outlived: set[int] = set()
        #: Present and peak bytes of each worker's arena.
        self._used: dict[int, int] = {}
        self._most_used: dict[int, int] = {}
        self._now_bytes = self._most_bytes = 0
        #: Bytes of results, and the value last passed to the machine.
        self._stored_bytes = self._told_bytes = 0
        self._limits = store_limit, memory_limit
        self._written: dict[int, int] = {}
        self._refused: int | None = None
        for worker in range(num_workers):
            self._post(WorkerStarted(worker))

    def run(self) -> Forecast:
        """Run the simulation to its end."""
        for chunk, size_bytes in self._plan.copied_bytes.items():
            self._add(chunk, CLIENT, size_bytes)
        self._post(GraphSubmitted(_GRAPH, self._plan))
        while (self._running or self._spills or self._machine.next_due_s() is not None) and self._refused is None:
            self._step()
            # The machine has forgotten a graph that it has refused.
            if self._refused is not None or self._machine.is_done(_GRAPH):
                break
        spilled = sum(self._written.values())
        return Forecast(self._most_bytes, sum(self._most_used.values()), spilled, self._written, self._refused)

    def _step(self) -> None:
        if self._spills:
            # Writing is quick compared with computing, and one thread does it.
            object, size_bytes = self._spills.popleft()
            self._written.setdefault(object[1], size_bytes)
            self._post(ObjectSpilled(object, size_bytes))
            return
        if not self._running:
            self._now_s = max(self._now_s, self._machine.next_due_s() or 0.0)
            self._post(TimePassed())
            return
        self._now_s, worker, chunk, duration_s = heapq.heappop(self._running)
        size = self._size_of(chunk)
        self._take(worker, -size.working_bytes)
        self._stored_bytes += size.fresh_bytes
        stored, fresh = size.stored_bytes, size.fresh_bytes
        sizes, freshly = ({chunk: stored}, {chunk: fresh}) if stored else ({}, {})
        peaks = {chunk: size.working_bytes + fresh} if size.working_bytes else {}
        queue = self._queues[worker]
        queue.popleft()
        if queue:
            self._start(worker)
        self._post(ChunksFinished(worker, _GRAPH, (chunk,), (duration_s,), sizes, freshly, peaks))

    def _post(self, event: Event) -> None:
        if self._stored_bytes != self._told_bytes:
            self._told_bytes = self._stored_bytes
            self._obey(MemoryMeasured(self._stored_bytes, *self._limits))
        self._obey(event)

    def _obey(self, event: Event) -> None:
        for instruction in self._machine.handle(event, self._now_s):
            if isinstance(instruction, Run):
                self._enqueue(instruction)
            elif isinstance(instruction, Free):
                for chunk in instruction.chunks:
                    self._drop(chunk)
            elif isinstance(instruction, Spill):
                self._spills += [(id, self._size_of(id[1]).stored_bytes) for id in instruction.objects]
            elif isinstance(instruction, UseSpilled):
                self._drop(instruction.object[1])
            elif isinstance(instruction, FailGraph | Refuse):
                self._refused = instruction.chunk

    def _enqueue(self, run: Run) -> None:
        queue = self._queues.setdefault(run.worker, deque())
        is_idle = not queue
        restores = frozenset(run.restores)
        queue.extend([(chunk, restores.intersection(self._plan.inputs[chunk])) for chunk in run.chunks])
        if is_idle:
            self._start(run.worker)

    def _start(self, worker: int) -> None:
        chunk, restores = self._queues[worker][0]
        size = self._size_of(chunk)
        read = sum([self._size_of(source).stored_bytes for source in set(self._plan.inputs[chunk])])
        duration_s = _CHUNK_S + _BYTE_S * (read + size.fresh_bytes + size.working_bytes)
        heapq.heappush(self._running, (self._now_s + duration_s, worker, chunk, duration_s))
        for source in restores:
            self._add(source, worker, self._size_of(source).stored_bytes)
        if restores:
            self._post(ChunksRestored(worker, _GRAPH, sorted(restores)))
        if size.owner is None:
            self._add(chunk, worker, size.stored_bytes, is_begun=True)
        else:
            self._owners[chunk] = size.owner
            self._views[size.owner] += 1
        self._take(worker, size.working_bytes)

    # -- memory -----------------------------------------------------------------------------------------------

    def _add(self, chunk: int, worker: int, size_bytes: int, is_begun: bool = False) -> None:
        if size_bytes and chunk not in self._held:
            self._held[chunk] = worker, size_bytes
            self._take(worker, size_bytes)
            # A chunk in progress is reserved, not stored.
            if not is_begun:
                self._stored_bytes += size_bytes

    def _drop(self, chunk: int) -> None:
        if self._views[chunk]:
            self._outlived.add(chunk)
            return
        worker, size_bytes = self._held.pop(chunk, (CLIENT, 0))
        self._take(worker, -size_bytes)
        self._stored_bytes -= size_bytes
        owner = self._owners.pop(chunk, None)
        if owner is not None:
            self._views[owner] -= 1
            if not self._views[owner] and owner in self._outlived:
                self._outlived.discard(owner)
                self._drop(owner)

    def _take(self, worker: int, size_bytes: int) -> None:
        if size_bytes:
            used = self._used[worker] = self._used.get(worker, 0) + size_bytes
            self._most_used[worker] = max(used, self._most_used.get(worker, 0))
            self._now_bytes += size_bytes
            self._most_bytes = max(self._most_bytes, self._now_bytes)


__all__ = ["ChunkSize", "Forecast", "forecast"]
