"""Memory before execution: what the store may hold, what is promised to operands in hand, and what goes to disk.

Pure bookkeeping, and a part of the state machine. An operand is started when the bytes of its result, and of those
of its inputs that have to be read from disk, are free or can be made free. Results that are not needed for the
longest time go to disk first, since the schedule says when each is needed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

#: Of the limit: what is made free at least when something has to go to disk, so that it is not chunk by chunk.
_SHARE = 1 / 16


class GraphMemory:
    """What is known of the bytes of one graph's chunks.

    Parameters
    ----------
    operand_of : sequence of int
        Operand number of each chunk.
    declared_bytes : callable, optional
        Returns the bytes that a chunk's result is declared to take, or None.
    """

    __slots__ = (
        "_count",
        "_declared",
        "_expected",
        "_learned",
        "_operand_of",
        "_peaks",
        "_total_bytes",
        "announced",
        "loading",
        "sizes",
        "spilled",
        "spilling",
    )

    def __init__(self, operand_of: Sequence[int], declared_bytes: Callable[[int], int | None] | None) -> None:
        self._operand_of = operand_of
        self._declared = declared_bytes
        self._expected: dict[int, int] = {}
        #: Operands of which a result has been seen.
        self._learned: set[int] = set()
        #: Most bytes that operands were seen to take while they ran.
        self._peaks: dict[int, int] = {}
        #: Number of results that have been seen, and what they have added to the store.
        self._count = 0
        self._total_bytes = 0
        #: Bytes of each chunk that is in the store and may go to disk.
        self.sizes: dict[int, int] = {}
        #: Bytes of each chunk that is on disk.
        self.spilled: dict[int, int] = {}
        #: Chunks that are being written.
        self.spilling: set[int] = set()
        #: Chunks on disk that a worker is to put back into the store, and which worker.
        self.loading: dict[int, int] = {}
        #: Chunks on disk of which has been said that they are needed next.
        self.announced: set[int] = set()

    def expected(self, chunk: int) -> int:
        """Return the bytes that a chunk's result is thought to add to the store."""
        operand = self._operand_of[chunk]
        known = self._expected.get(operand)
        if known is None:
            declared = self._declared(chunk) if self._declared is not None else None
            if declared is None:
                # What results of this graph take as a rule is the best guess.
                return self._total_bytes // max(self._count, 1)
            # The first chunk speaks for all until one has been computed.
            known = self._expected[operand] = declared
        return known

    def need(self, chunk: int) -> int:
        """Return the bytes that a chunk is thought to take while it is computed, its result included."""
        return max(self.expected(chunk), self._peaks.get(self._operand_of[chunk], 0))

    def spilled_bytes(self, chunks: Iterable[int]) -> int:
        """Return the bytes of those of the chunks that are on disk."""
        return sum(self.spilled.get(chunk, 0) for chunk in chunks) if self.spilled else 0

    def bytes_of(self, chunk: int) -> int:
        """Return the bytes that a chunk takes, or is thought to take once it is computed."""
        size = self.sizes.get(chunk)
        return self.expected(chunk) if size is None else size

    def learn(
        self,
        chunks: Sequence[int],
        sizes: Mapping[int, int],
        fresh: Mapping[int, int],
        peaks: Mapping[int, int],
    ) -> set[int]:
        """Note what results have taken in the store, and operands while they ran.

        Parameters
        ----------
        chunks : sequence of int
            Those that were computed.
        sizes, fresh : mapping
            Bytes of those of them that are in the store, and how many of these were not there before; none of a
            chunk that is not among the keys.
        peaks : mapping
            Bytes of shared memory that operands took while they ran; of those only that took more than before.

        Returns
        -------
        set of int
            Operands of which more is known than before: what was promised to chunks of theirs may not be enough.
        """
        operand_of = self._operand_of
        self.sizes.update(sizes)
        self._count += len(chunks)
        self._total_bytes += sum(fresh.values())
        new = {operand_of[chunk] for chunk in chunks} - self._learned
        for operand in new:
            self._learned.add(operand)
            self._expected[operand] = 0
        for chunk, size in fresh.items():
            operand = operand_of[chunk]
            if size > self._expected[operand]:
                self._expected[operand] = size
        known = {operand for operand in new if self._expected[operand]}
        for operand, peak in peaks.items():
            if peak > self._peaks.get(operand, 0):
                self._peaks[operand] = peak
                known.add(operand)
        return known

    def hand_over(self, chunk: int, other: GraphMemory, number: int) -> None:
        """Have another graph answer for a chunk, under another number."""
        if chunk in self.sizes:
            other.sizes[number] = self.sizes.pop(chunk)
        if chunk in self.spilled:
            other.spilled[number] = self.spilled.pop(chunk)

    def forget(self, chunk: int) -> None:
        """Note that a chunk is needed no more."""
        self.sizes.pop(chunk, None)
        self.spilled.pop(chunk, None)
        self.loading.pop(chunk, None)
        self.announced.discard(chunk)

    def loaded(self, chunk: int) -> int:
        """Note that a chunk is in the store again; return its bytes."""
        self.loading.pop(chunk, None)
        self.announced.discard(chunk)
        size = self.sizes[chunk] = self.spilled.pop(chunk)
        return size

    def forget_worker(self, worker: int) -> None:
        """Note that a worker will not load what it was to load."""
        self.loading = {chunk: other for chunk, other in self.loading.items() if other != worker}


class _Graph(Protocol):
    """What `Memory` knows of the machine's graphs."""

    number: int
    memory: GraphMemory

    def inputs(self, chunk: int) -> tuple[int, ...]: ...

    def next_use(self, chunk: int) -> float: ...


class Memory:
    """The bytes of one engine's store.

    Parameters
    ----------
    limit_bytes : int or None
        What the store may hold; without a limit nothing is counted.
    hard_limit_bytes : int
        What it may hold if nothing else helps: an operand whose result is larger than the limit runs alone.

    Attributes
    ----------
    stored_bytes : int
        What the store holds. A fact, set from outside before each event.
    can_spill : bool
        Whether there is a disk to write to.
    """

    def __init__(self, limit_bytes: int | None, hard_limit_bytes: int) -> None:
        self.limited = limit_bytes is not None
        self.limit_bytes = limit_bytes or 0
        self.hard_limit_bytes = hard_limit_bytes
        self.stored_bytes = 0
        self.reserved_bytes = 0
        self.spilling_bytes = 0
        self.can_spill = True
        self._promised: dict[tuple[int, int], int] = {}

    def need(self, graph: _Graph, chunk: int) -> int:
        """Return the bytes that have to be free before a chunk is computed."""
        memory = graph.memory
        return memory.need(chunk) + memory.spilled_bytes(graph.inputs(chunk))

    def admits(self, need_bytes: int) -> bool:
        """Tell whether so many bytes may be promised now."""
        return self.stored_bytes + self.reserved_bytes + need_bytes <= self.limit_bytes

    def reserve(self, number: int, chunk: int, need_bytes: int) -> None:
        """Note that a chunk is in a worker's hands, or that more has become known of one that is."""
        self.reserved_bytes += need_bytes - self._promised.get((number, chunk), 0)
        self._promised[number, chunk] = need_bytes

    def release(self, number: int, chunks: Iterable[int]) -> None:
        """Note that chunks are in no worker's hands any more."""
        if self._promised:
            for chunk in chunks:
                self.reserved_bytes -= self._promised.pop((number, chunk), 0)

    def repay(self, number: int, chunk: int, size_bytes: int) -> None:
        """Note that so many bytes of those promised to a chunk are in the store now, and counted there."""
        promised = self._promised.get((number, chunk))
        if promised is not None:
            self.reserve(number, chunk, max(promised - size_bytes, 0))

    def missing_bytes(self, need_bytes: int) -> int:
        """Return how many bytes have to leave memory, besides those on their way, for so many to be free."""
        wanted = self.stored_bytes + self.reserved_bytes + need_bytes - self.limit_bytes - self.spilling_bytes
        return max(wanted, int(self.limit_bytes * _SHARE)) if wanted > 0 else 0

    def choose(
        self, graphs: Iterable[_Graph], missing_bytes: int, spared: set[tuple[int, int]]
    ) -> dict[int, list[int]]:
        """Choose what goes to disk: those chunks whose next use is furthest ahead.

        Parameters
        ----------
        graphs : iterable
            All graphs.
        missing_bytes : int
            How many bytes are to leave memory.
        spared : set of (int, int)
            Graph and chunk of those that must not.

        Returns
        -------
        dict
            Graph number to chunks, which are from now on being written.
        """
        if not self.can_spill:
            return {}
        candidates = []
        members = {}
        for graph in graphs:
            members[graph.number] = graph
            for chunk in graph.memory.sizes:
                if chunk not in graph.memory.spilling and (graph.number, chunk) not in spared:
                    candidates.append((-graph.next_use(chunk), graph.number, chunk))
        candidates.sort()
        chosen: dict[int, list[int]] = {}
        for _, number, chunk in candidates:
            if missing_bytes <= 0:
                break
            memory = members[number].memory
            memory.spilling.add(chunk)
            self.spilling_bytes += memory.sizes[chunk]
            missing_bytes -= memory.sizes[chunk]
            chosen.setdefault(number, []).append(chunk)
        return chosen

    def answered(self, size_bytes: int) -> None:
        """Note that so many bytes are not being written any more."""
        self.spilling_bytes -= size_bytes
