"""Forecasts a graph's memory: a simulation of the state machine with limits, and a disk.

Chunks take time in proportion to the bytes they read and write. All decisions are the machine's own: which chunk
is next, what it spills, and what returns to memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from dask_mars.scheduler import events
from dask_mars.scheduler.machine import Parameters
from dask_mars.scheduler.objects import ObjectId
from dask_mars.scheduler.virtual import GRAPH, VirtualRun

#: Seconds of every chunk, and of each of its bytes. Only their ratio matters.
_CHUNK_S, _BYTE_S = 1e-4, 1e-9


class ChunkSize(NamedTuple):
    """Memory of one chunk."""

    #: Size of its result in the store; 0 for small ones, which travel in messages.
    stored_bytes: int
    #: Memory besides the result while it runs.
    working_bytes: int = 0
    #: The input whose memory its result is a view of; None if it has memory of its own.
    owner: int | None = None

    @property
    def fresh_bytes(self) -> int:
        """Return the new memory that its result takes."""
        return self.stored_bytes if self.owner is None else 0


class Forecast(NamedTuple):
    """The memory that a graph will take."""

    #: Peak of results and temporaries together.
    results_bytes: int
    #: Peak of shared memory: a worker keeps freed memory for its next results.
    shared_bytes: int
    spilled_bytes: int
    #: Bytes written to disk, by the chunk that made them.
    spilled_by: dict[int, int]
    #: The first chunk for which there is never enough memory.
    refused: int | None


def forecast(
    plan: events.GraphPlan,
    size_of: Callable[[int], ChunkSize],
    num_workers: int,
    store_limit: int,
    memory_limit: int,
    policy: str = "mars",
) -> Forecast:
    """Simulate the computation of a graph."""
    parameters = Parameters(policy, num_workers=num_workers, store_limit=store_limit, memory_limit=memory_limit)
    return _Course(plan, size_of, parameters).run()


class _Course(VirtualRun):
    """One simulation with memory."""

    def __init__(
        self, plan: events.GraphPlan, size_of: Callable[[int], ChunkSize], parameters: Parameters
    ) -> None:
        super().__init__(plan, parameters)
        self._size_of = size_of
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
        self._written: dict[int, int] = {}
        self._refused: int | None = None

    def run(self) -> Forecast:
        """Run the simulation to its end."""
        for chunk, size_bytes in self.plan.copied_bytes.items():
            self._add(chunk, events.CLIENT, size_bytes)
        self.submit()
        # The machine has forgotten a graph that it has refused.
        while self._refused is None and not self.machine.is_done(GRAPH) and self.step():
            pass
        spilled = sum(self._written.values())
        return Forecast(self._most_bytes, sum(self._most_used.values()), spilled, self._written, self._refused)

    def write(self, object: ObjectId) -> events.ObjectSpilled:
        size_bytes = self._size_of(object[1]).stored_bytes
        self._written.setdefault(object[1], size_bytes)
        return events.ObjectSpilled(object, size_bytes)

    def begin(self, worker: int, chunk: int, restores: list[int]) -> float:
        size = self._size_of(chunk)
        for source in restores:
            self._add(source, worker, self._size_of(source).stored_bytes)
        if restores:
            self.post(events.ChunksRestored(worker, GRAPH, restores))
        if size.owner is None:
            self._add(chunk, worker, size.stored_bytes, is_begun=True)
        else:
            self._owners[chunk] = size.owner
            self._views[size.owner] += 1
        self._take(worker, size.working_bytes)
        read = sum([self._size_of(source).stored_bytes for source in set(self.plan.inputs[chunk])])
        return _CHUNK_S + _BYTE_S * (read + size.fresh_bytes + size.working_bytes)

    def end(self, worker: int, chunk: int, duration_s: float) -> events.ChunksFinished:
        size = self._size_of(chunk)
        self._take(worker, -size.working_bytes)
        self.stored_bytes += size.fresh_bytes
        stored, fresh = size.stored_bytes, size.fresh_bytes
        sizes, freshly = ({chunk: stored}, {chunk: fresh}) if stored else ({}, {})
        peaks = {chunk: size.working_bytes + fresh} if size.working_bytes else {}
        return events.ChunksFinished(worker, GRAPH, (chunk,), (duration_s,), sizes, freshly, peaks)

    def carry_out(self, instruction: events.Instruction) -> None:
        super().carry_out(instruction)
        if isinstance(instruction, events.Free):
            for chunk in instruction.chunks:
                self._drop(chunk)
        elif isinstance(instruction, events.UseSpilled):
            self._drop(instruction.object[1])
        elif isinstance(instruction, events.FailGraph | events.Refuse):
            self._refused = instruction.chunk

    # -- memory -----------------------------------------------------------------------------------------------

    def _add(self, chunk: int, worker: int, size_bytes: int, is_begun: bool = False) -> None:
        if size_bytes and chunk not in self._held:
            self._held[chunk] = worker, size_bytes
            self._take(worker, size_bytes)
            # A chunk in progress is reserved, not stored.
            if not is_begun:
                self.stored_bytes += size_bytes

    def _drop(self, chunk: int) -> None:
        if self._views[chunk]:
            self._outlived.add(chunk)
            return
        worker, size_bytes = self._held.pop(chunk, (events.CLIENT, 0))
        self._take(worker, -size_bytes)
        self.stored_bytes -= size_bytes
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
