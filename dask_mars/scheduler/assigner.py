"""Assigns workers to the initial chunks of a graph: Mars's heuristic, between balance and transfer.

The locations of inputs determine where later chunks run. So chunks that meet again soon should begin at the same
worker, while each worker should begin with as many chunks as its slots are worth. The heuristic takes the workers
in turn, searches the graph from an initial chunk, over inputs and consumers alike, and gives the worker the
initial chunks it meets until the worker has its share.

Pure, and linear in the graph: a search does not enter visited chunks. Mars's own searches began again for each
worker.
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
    """The progress of a graph whose remaining chunks are assigned."""

    #: Computed chunks; chunks with known values may be left out.
    finished: Collection[int] = ()
    #: Workers of the chunks that are running or queued, and stay there. Chunks of absent workers are assigned
    #: again.
    dispatched: Mapping[int, int] = field(default_factory=dict)
    #: For finished and known chunks: the bytes that workers hold of them, by worker.
    replica_bytes: Mapping[int, Mapping[int, int]] = field(default_factory=dict)


def assign(
    plan: GraphPlan,
    slots: Mapping[int, int],
    traversal: Traversal = "breadth-first",
    allowed: Mapping[int, Collection[int]] | None = None,
    progress: GraphProgress | None = None,
) -> dict[int, int]:
    """Choose a worker for each initial chunk: a chunk to compute whose inputs are all available."""
    # After changes of workers, call it again with the progress: it assigns the remaining chunks.
    # A chunk goes to the worker that holds more than half of the bytes of its inputs, if there is one and it is
    # allowed; such chunks count towards the worker's share. The others are divided so that no worker gets more
    # than its share, rounded up, unless restrictions or present loads leave no choice.
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
        self._dispatched = {chunk: worker for chunk, worker in progress.dispatched.items() if worker in slots}
        #: Chunks that searches do not enter: visited ones, fixed ones and those not computed. Data are not links:
        #: widely read data would connect everything.
        self._closed = bytearray(operand < 0 for operand in plan.operand_of)
        for chunk in progress.finished:
            self._closed[chunk] = 1
        self._successors: list[list[int]] = [[] for _ in plan.inputs]
        #: By worker, chunks near to its own: its searches begin there.
        self._seeds: dict[int, list[int]] = {worker: [] for worker in self._slots}
        self._initial = self._find_initial(plan.in_client)
        #: Number of chunks that each worker has, assigned or dispatched.
        self._loads = dict.fromkeys(self._slots, 0)
        for chunk, worker in sorted(self._dispatched.items()):
            self._closed[chunk] = 1
            self._seeds[worker].append(chunk)
            self._loads[worker] += 1
        #: Kind of each chunk that searches assign.
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
                if chunk not in self._dispatched and chunk not in in_client:
                    initial.append(chunk)
            elif replica_bytes:
                worker = _holder(replica_bytes, inputs)
                if worker in self._seeds:
                    self._seeds[worker].append(chunk)
        return initial

    def run(self, allowed: Mapping[int, Collection[int]]) -> dict[int, int]:
        """Assign all initial chunks."""
        # Chunks of one kind may go to the same workers.
        kinds: dict[tuple[int, ...], list[int]] = {}
        everywhere = tuple(self._slots)
        for chunk in self._initial:
            workers = everywhere
            if chunk in allowed:
                workers = tuple(sorted(self._slots.keys() & set(allowed[chunk])))
            if workers and not self._fix(chunk, allowed.get(chunk)):
                kinds.setdefault(workers, []).append(chunk)
        self._near = {worker: iter(chunks) for worker, chunks in self._seeds.items()}
        # Chunks with little choice come first, so that the others can balance them. The sort is stable.
        divided = sorted(kinds.items(), key=lambda entry: len(entry[0]))
        for kind, (_, chunks) in enumerate(divided):
            self._kind_of.update(dict.fromkeys(chunks, kind))
        for kind, (workers, chunks) in enumerate(divided):
            self._divide(workers, kind, chunks)
        return dict(sorted(self._assigned.items()))

    def _fix(self, chunk: int, allowed: Collection[int] | None) -> bool:
        """Give a chunk to the worker with more than half of its inputs' bytes; return whether there is one."""
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
        """Divide chunks of a kind among their allowed workers."""
        left = shares(len(chunks), {worker: self._slots[worker] for worker in workers}, self._loads)
        starts = iter(chunks)
        for worker in workers:
            if left[worker]:
                self._search(worker, kind, left[worker], starts)

    def _search(self, worker: int, kind: int, share: int, starts: Iterator[int]) -> None:
        """Give a worker its share of the chunks of a kind, in the order of a search."""
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
            # The last entry is taken first, and should be the nearest in the graph's order.
            queue.extend(reversed(neighbours) if take_last else neighbours)

    def _begin(self, worker: int, starts: Iterator[int]) -> list[int]:
        """Return the chunks with which an exhausted search continues."""
        for chunk in self._near[worker]:
            begin = self._neighbours(chunk) if self._closed[chunk] else [chunk]
            if begin:
                return begin
        return [next(starts)]

    def _neighbours(self, chunk: int) -> list[int]:
        """Return inputs and consumers. Inputs come first, as the chunk's consumers wait for them."""
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
    # The id comes last, so that equal holders always give the same answer.
    most, negative = max((size, -worker) for worker, size in by_worker.items())
    return -negative if 2 * most > total else None


def shares(count: int, slots: Mapping[int, int], loads: Mapping[int, int]) -> dict[int, int]:
    """Divide `count` chunks so that total loads are as close to the proportion of slots as possible."""
    # Water filling: workers with the most load per slot get nothing while others have less.
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
    # The remainder goes to the workers that lost most by rounding down.
    left = count - sum(shares.values())
    for worker in sorted(chosen, key=lambda worker: (-(exact[worker] % capacity), worker))[:left]:
        shares[worker] += 1
    return shares
