"""Assigns workers to the chunks that a graph begins with: Mars's heuristic, between balance and transfer.

Where the others run follows from where their inputs are. So chunks that meet again soon should begin at the same
worker, while each worker should have about as much to begin with as its slots are worth: take the workers in turn,
search the graph from an initial chunk on, over inputs and consumers alike, give the worker the initial chunks that
are met, and stop when it has its share.

Pure, and linear in the graph: a search does not enter what another has visited. Mars's own searches walked over it
anew for each worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from dask_mars.scheduler.events import GraphPlan

Traversal = Literal["breadth-first", "depth-first"]


@dataclass(frozen=True, slots=True)
class GraphProgress:
    """How far a graph has come when the rest of it is assigned.

    Attributes
    ----------
    finished : collection of int
        Chunks that are computed; those whose value is known anyway need not be among them.
    in_hand : mapping
        Workers of the chunks that are being computed or stand in queues, and stay there; what workers have that
        are gone is assigned anew.
    replica_bytes : mapping
        Of finished and known chunks: the bytes that workers hold of them, by worker.
    """

    finished: Collection[int] = ()
    in_hand: Mapping[int, int] = field(default_factory=dict)
    replica_bytes: Mapping[int, Mapping[int, int]] = field(default_factory=dict)


def assign(
    plan: GraphPlan,
    slots: Mapping[int, int],
    traversal: Traversal = "breadth-first",
    allowed: Mapping[int, Collection[int]] | None = None,
    progress: GraphProgress | None = None,
) -> dict[int, int]:
    """Choose a worker for each initial chunk: one that is to be computed, and all of whose inputs are there.

    When workers come or go, call it again with what has been done: it assigns what is left.

    Parameters
    ----------
    plan : GraphPlan
        The graph; each chunk's inputs have smaller ids than the chunk itself.
    slots : mapping
        How many chunks each worker computes at the same time, by worker. Shares are in proportion to that.
    traversal : {"breadth-first", "depth-first"}, optional
        In which order a search goes on from chunk to chunk.
    allowed : mapping, optional
        Workers that the user allows for a chunk, for chunks of which that was said. If none of these is there the
        chunk is not assigned.
    progress : GraphProgress, optional
        What has been done before.

    Returns
    -------
    dict
        Worker by chunk, in the order of the chunks.

    Notes
    -----
    A chunk goes to the worker that holds more than half of the bytes of its inputs, if there is one and it is
    allowed; such chunks count towards their worker's share. All others are divided so that no worker gets more
    than its share, rounded up, unless what the user allows or what workers have already leaves no choice.
    """
    if not slots or min(slots.values()) < 1:
        raise ValueError(f"assignment needs workers, each with at least one slot, not {dict(slots)}")
    return _Assignment(plan, slots, traversal, progress or GraphProgress()).run(allowed or {})


class _Assignment:
    """One run of the heuristic."""

    def __init__(
        self, plan: GraphPlan, slots: Mapping[int, int], traversal: Traversal, progress: GraphProgress
    ) -> None:
        self._inputs = plan.inputs
        self._slots = dict(sorted(slots.items()))
        self._take_last = traversal == "depth-first"
        self._replica_bytes = progress.replica_bytes
        self._in_hand = {chunk: worker for chunk, worker in progress.in_hand.items() if worker in slots}
        #: Chunks that no search enters: what was visited, what is fixed, and what needs no computing. Data lie on
        #: no way from one chunk to another: what many read would lead from everywhere to everywhere.
        self._closed = bytearray(operand < 0 for operand in plan.operand_of)
        for chunk in progress.finished:
            self._closed[chunk] = 1
        self._successors: list[list[int]] = [[] for _ in plan.inputs]
        #: By worker, chunks that are near to what it has: its searches begin there.
        self._seeds: dict[int, list[int]] = {worker: [] for worker in self._slots}
        self._initial = self._find_initial(plan.in_client)
        #: Chunks that each worker has, assigned or in hand.
        self._loads = dict.fromkeys(self._slots, 0)
        for chunk, worker in sorted(self._in_hand.items()):
            self._closed[chunk] = 1
            self._seeds[worker].append(chunk)
            self._loads[worker] += 1
        #: Of chunks that are to be given away by searches: the number of their kind.
        self._kind_of: dict[int, int] = {}
        self._assigned: dict[int, int] = {}

    def _find_initial(self, in_client: Collection[int]) -> list[int]:
        known, replica_bytes, successors = self._closed, self._replica_bytes, self._successors
        initial = []
        for chunk, inputs in enumerate(self._inputs):
            if known[chunk]:
                continue
            begins = True
            for source in inputs:
                if not known[source]:
                    successors[source].append(chunk)
                    begins = False
            if begins:
                if chunk not in self._in_hand and chunk not in in_client:
                    initial.append(chunk)
            elif replica_bytes:
                worker = _holder(replica_bytes, inputs)
                if worker in self._seeds:
                    self._seeds[worker].append(chunk)
        return initial

    def run(self, allowed: Mapping[int, Collection[int]]) -> dict[int, int]:
        """Assign all initial chunks."""
        # A kind of chunks is those that may go to the same workers.
        kinds: dict[tuple[int, ...], list[int]] = {}
        everywhere = tuple(self._slots)
        for chunk in self._initial:
            workers = everywhere
            if chunk in allowed:
                workers = tuple(sorted(self._slots.keys() & set(allowed[chunk])))
            if workers and not self._fix(chunk, allowed.get(chunk)):
                kinds.setdefault(workers, []).append(chunk)
        self._near = {worker: iter(chunks) for worker, chunks in self._seeds.items()}
        # Those with little choice come first, that the others can make up for it. The sort is stable.
        divided = sorted(kinds.items(), key=lambda entry: len(entry[0]))
        for kind, (_, chunks) in enumerate(divided):
            self._kind_of.update(dict.fromkeys(chunks, kind))
        for kind, (workers, chunks) in enumerate(divided):
            self._divide(workers, kind, chunks)
        return dict(sorted(self._assigned.items()))

    def _fix(self, chunk: int, allowed: Collection[int] | None) -> bool:
        """Give a chunk to the worker that holds more than half of the bytes of its inputs, if there is one."""
        if not self._replica_bytes or not self._inputs[chunk]:
            return False
        worker = _holder(self._replica_bytes, self._inputs[chunk])
        if worker not in self._slots or (allowed is not None and worker not in allowed):
            return False
        self._give(chunk, worker)
        self._closed[chunk] = 1
        self._seeds[worker].append(chunk)
        return True

    def _give(self, chunk: int, worker: int) -> None:
        self._assigned[chunk] = worker
        self._loads[worker] += 1

    def _divide(self, workers: tuple[int, ...], kind: int, chunks: list[int]) -> None:
        """Divide chunks of a kind among the workers that may have them."""
        left = shares(len(chunks), {worker: self._slots[worker] for worker in workers}, self._loads)
        starts = iter(chunks)
        for worker in workers:
            if left[worker]:
                self._search(worker, kind, left[worker], starts)

    def _search(self, worker: int, kind: int, share: int, starts: Iterator[int]) -> None:
        """Give a worker as many chunks of a kind as its share is, as a search meets them."""
        closed, kind_of, take_last = self._closed, self._kind_of, self._take_last
        queue: deque[int] = deque()
        while share:
            if not queue:
                queue.extend(self._begin(worker, starts))
            chunk = queue.pop() if take_last else queue.popleft()
            if closed[chunk]:
                continue
            own = kind_of.get(chunk)
            if own is not None:
                if own != kind:
                    # Another kind has searches of its own.
                    continue
                self._give(chunk, worker)
                share -= 1
            closed[chunk] = 1
            neighbours = self._neighbours(chunk)
            # What is put in last is taken first, and that should be the nearest in the graph's order.
            queue.extend(reversed(neighbours) if take_last else neighbours)

    def _begin(self, worker: int, starts: Iterator[int]) -> list[int]:
        """Return where a search goes on that has come to its end."""
        for chunk in self._near[worker]:
            begin = self._neighbours(chunk) if self._closed[chunk] else [chunk]
            if begin:
                return begin
        return [next(starts)]

    def _neighbours(self, chunk: int) -> list[int]:
        """Return inputs and consumers, the inputs first: they are what the chunk's consumers wait for."""
        closed = self._closed
        return [other for other in [*self._inputs[chunk], *self._successors[chunk]] if not closed[other]]


def _holder(replica_bytes: Mapping[int, Mapping[int, int]], inputs: Iterable[int]) -> int | None:
    """Return the worker that holds more than half of the bytes of a chunk's inputs."""
    total = 0
    by_worker: dict[int, int] = {}
    for source in dict.fromkeys(inputs):
        copies = replica_bytes.get(source)
        if copies:
            total += max(copies.values())
            for worker, size in copies.items():
                by_worker[worker] = by_worker.get(worker, 0) + size
    if not by_worker:
        return None
    # The id comes last so that equal holders always give the same answer.
    most, negative = max((size, -worker) for worker, size in by_worker.items())
    return -negative if 2 * most > total else None


def shares(count: int, slots: Mapping[int, int], loads: Mapping[int, int]) -> dict[int, int]:
    """Divide so many chunks that loads, with those that workers have already, come as near to slots as can be."""
    # Fill up as water does: who has most for its slots gets nothing, as long as the others have less.
    order = sorted(slots, key=lambda worker: (loads[worker] / slots[worker], worker))
    chosen: list[int] = []
    total, capacity = count, 0
    for worker in order:
        if chosen and loads[worker] * capacity >= total * slots[worker]:
            break
        chosen.append(worker)
        total += loads[worker]
        capacity += slots[worker]
    shares = dict.fromkeys(slots, 0)
    exact = {worker: total * slots[worker] for worker in chosen}
    for worker in chosen:
        shares[worker] = exact[worker] // capacity - loads[worker]
    # What rounding down has left goes to those who lost most by it.
    left = count - sum(shares.values())
    for worker in sorted(chosen, key=lambda worker: (-(exact[worker] % capacity), worker))[:left]:
        shares[worker] += 1
    return shares


__all__ = ["GraphProgress", "Traversal", "assign", "shares"]
