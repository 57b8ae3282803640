"""Which chunks are worth saving: those whose loss would cost many times what it takes to save them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple


class Costs(NamedTuple):
    """What it takes to save a chunk, in seconds.

    Attributes
    ----------
    record_s : float
        For a value that is small enough to stand in the journal.
    file_s : float
        For a file, whatever its size.
    byte_s : float
        For each byte.
    """

    record_s: float
    file_s: float
    byte_s: float

    def of(self, size_bytes: int, is_inline: bool) -> float:
        """Return what it takes to save a value."""
        return (self.record_s if is_inline else self.file_s) + size_bytes * self.byte_s


#: What is assumed until it has been measured: no disk should be slower, so that too little is saved at first.
ASSUMED = Costs(record_s=1e-4, file_s=2e-3, byte_s=5e-9)


class Policy:
    """Decides which of the chunks that are computed are saved, and which saved ones are of no use any more.

    The risk of a chunk is the time that its loss would cost: what it took, and its part of the risk of its inputs,
    as far as these are not saved. Each second of work is at most in one chunk's risk that is saved, so that saving
    takes at most the share of the time that is given.

    Parameters
    ----------
    inputs : sequence of sequence of int
        Each chunk's inputs; all have smaller ids.
    outputs : iterable of int
        The chunks that are asked for.
    share : float
        Of the time, what saving may take.
    exempt : bytearray
        Which chunks are never saved.
    forced : frozenset of int
        Those that are saved whatever it costs.
    """

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
        #: Of each computed chunk: its risk, divided by how often it is read; 0 once it is saved.
        self._parts = array("d", [0.0]) * count
        #: How often each chunk is read by chunks that would have to be computed again.
        self._open = array("l", uses)
        for output in outputs:
            # Whoever has asked for it reads it too.
            self._open[output] += 1
        self._saved = bytearray(count)
        #: Whose inputs nobody would read for them: saved, or only read by such.
        self._closed = bytearray(count)
        #: The risk of each chunk that is to be saved.
        self._risks: dict[int, float] = {}
        #: Seconds of work that have been seen.
        self.work_s = 0.0

    def computed(
        self,
        chunks: Sequence[int],
        durations_s: Sequence[float],
        size_of: Callable[[int], int],
        inline_bytes: int,
        costs: Costs,
    ) -> list[int]:
        """Take note that chunks were computed, and return the positions of those that are to be saved.

        Parameters
        ----------
        chunks : sequence of int
            In the order in which they were computed.
        durations_s : sequence of float
            What each took.
        size_of : callable
            Returns the bytes of the value at a position. Few are asked for.
        inline_bytes : int
            Up to how many bytes values stand in the journal.
        costs : Costs
            Of saving.
        """
        inputs, parts, uses, exempt, forced = self._inputs, self._parts, self._uses, self._exempt, self._forced
        factor = self._factor
        # Most chunks of most graphs are below what the least of records costs.
        least = factor * costs.record_s
        chosen: list[int] = []
        self.work_s += sum(durations_s)
        for position, chunk in enumerate(chunks):
            risk = durations_s[position]
            for source in inputs[chunk]:
                risk += parts[source]
            if (risk >= least or chunk in forced) and not exempt[chunk] and chunk not in self._risks:
                size_bytes = size_of(position)
                if chunk in forced or risk >= factor * costs.of(size_bytes, size_bytes <= inline_bytes):
                    chosen.append(position)
                    self._risks[chunk] = risk
                    parts[chunk] = 0.0
                    continue
            if used := uses[chunk]:
                parts[chunk] = risk / used
        return chosen

    def rejected(self, chunk: int) -> None:
        """Take note that a chunk is not saved after all: its loss would cost as much as before."""
        risk = self._risks.pop(chunk, 0.0)
        if used := self._uses[chunk]:
            self._parts[chunk] = risk / used

    def risk_of(self, chunk: int) -> float:
        """Return the risk of a chunk that is to be saved."""
        return self._risks.get(chunk, 0.0)

    def saved(self, chunks: Iterable[int]) -> list[int]:
        """Take note that chunks are saved; return those saved earlier that would not be read any more."""
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


__all__ = ["ASSUMED", "Costs", "Policy"]
