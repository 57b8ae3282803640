"""Chooses the chunks worth saving: those whose loss would cost many times their saving."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

#: Largest value in the journal, in bytes: larger ones are in shared memory, and get files.
INLINE_BYTES = 16 << 10


class Costs(NamedTuple):
    """Costs of saving a chunk, in seconds."""

    #: For a value that is small enough for the journal.
    record_s: float
    file_s: float
    byte_s: float

    def of(self, size_bytes: int) -> float:
        """Return the cost of saving a value."""
        return (self.record_s if size_bytes <= INLINE_BYTES else self.file_s) + size_bytes * self.byte_s


#: Costs before the first write, of a local disk.
ASSUMED = Costs(record_s=5e-5, file_s=5e-4, byte_s=2e-9)


class SavingPolicy:
    """Decides which computed chunks to save, and which saved ones are superseded."""

    # The risk of a chunk is the time that its loss would cost: its own duration, and its part of the risk of its
    # unsaved inputs. Each second of work is in the risk of one saved chunk at most, so that saving takes at most
    # the given share of the time.

    def __init__(
        self,
        inputs: Sequence[Sequence[int]],
        outputs: Iterable[int],
        share: float,
        exempt: bytearray,
        forced: frozenset[int] = frozenset(),
    ) -> None:
        self._inputs = inputs
        self._exempt = exempt
        self._forced = forced
        self._factor = 1.0 / share
        count = len(inputs)
        uses = array("l", [0]) * count
        for sources in inputs:
            for source in sources:
                uses[source] += 1
        self._uses = uses
        #: Risk of each computed chunk, divided by its number of readers; 0 once it is saved.
        self._parts = array("d", [0.0]) * count
        #: Number of each chunk's readers that would have to be computed again.
        self._open = array("l", uses)
        for output in outputs:
            # The user reads it too.
            self._open[output] += 1
        self._saved = bytearray(count)
        #: Chunks whose inputs would not be read for them: saved ones, and those that only such chunks read.
        self._closed = bytearray(count)
        #: The risk of each chunk to save.
        self._risks: dict[int, float] = {}
        #: Work so far, in seconds.
        self.work_s = 0.0

    def computed(
        self,
        chunks: Sequence[int],
        durations_s: Sequence[float],
        size_of: Callable[[int], int],
        costs: Costs,
    ) -> list[int]:
        """Record computed chunks, and return the positions of those to save."""
        inputs, parts, uses, exempt, forced = self._inputs, self._parts, self._uses, self._exempt, self._forced
        factor = self._factor
        # Most chunks of most graphs are below the cost of a record.
        least = factor * costs.record_s
        chosen: list[int] = []
        self.work_s += sum(durations_s)
        for position, chunk in enumerate(chunks):
            risk = durations_s[position]
            for source in inputs[chunk]:
                risk += parts[source]
            if (risk >= least or chunk in forced) and not exempt[chunk] and chunk not in self._risks:
                size_bytes = size_of(position)
                if chunk in forced or risk >= factor * costs.of(size_bytes):
                    chosen.append(position)
                    self._risks[chunk] = risk
                    parts[chunk] = 0.0
                    continue
            if used := uses[chunk]:
                parts[chunk] = risk / used
        return chosen

    def rejected(self, chunk: int) -> None:
        """Record that a chosen chunk was not saved: its loss would still cost its risk."""
        risk = self._risks.pop(chunk, 0.0)
        if used := self._uses[chunk]:
            self._parts[chunk] = risk / used

    def risk_of(self, chunk: int) -> float:
        """Return the risk of a chunk to save."""
        return self._risks.get(chunk, 0.0)

    def saved(self, chunks: Iterable[int]) -> list[int]:
        """Record saved chunks; return earlier ones that a restart would no longer read."""
        superseded: list[int] = []
        is_open, closed = self._open, self._closed
        for chunk in chunks:
            self._saved[chunk] = 1
            if not is_open[chunk]:
                superseded.append(chunk)
            stack = [chunk]
            while stack:
                other = stack.pop()
                if closed[other]:
                    continue
                closed[other] = 1
                for source in self._inputs[other]:
                    is_open[source] -= 1
                    if not is_open[source]:
                        if self._saved[source]:
                            superseded.append(source)
                        stack.append(source)
        return superseded
