"""Estimates of the bytes and seconds that chunks of an operand take, declared and then measured.

Pure bookkeeping, and a part of the state machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def moved_mean(mean: float | None, measured: float) -> float:
    """Return a mean in which the newest measurement has a weight of one quarter."""
    return measured if mean is None else mean + 0.25 * (measured - mean)


class Estimates:
    """Estimated bytes and seconds of the chunks of one graph."""

    def __init__(
        self,
        operand_of: Sequence[int],
        declared_bytes: Sequence[int | None] | None,
        credible_bytes: int | None = None,
    ) -> None:
        self._operand_of = operand_of
        self._declared = declared_bytes
        #: Larger declarations are ignored; None if none are.
        self._credible_bytes = credible_bytes
        self._expected: dict[int, int] = {}
        #: Operands with at least one finished chunk.
        self._learned: set[int] = set()
        #: Largest number of bytes that each operand took while it ran.
        self._peaks: dict[int, int] = {}
        #: Largest growth that each operand has requested; it may have made do with less.
        self._asked: dict[int, int] = {}
        #: Largest number of bytes that each operand took without asking.
        self._private: dict[int, int] = {}
        #: Number of finished chunks, and the bytes that they have added to the store.
        self._count = 0
        self._total_bytes = 0
        #: Mean seconds of the chunks of each operand, and of all, the guess for new operands.
        self._durations_s: dict[int, float] = {}
        self._mean_s: float | None = None

    def expected_bytes(self, chunk: int) -> int:
        """Return the estimated bytes that a chunk's result adds to the store."""
        operand = self._operand_of[chunk]
        known = self._expected.get(operand)
        if known is None:
            declared = self._declared[chunk] if self._declared is not None else None
            if declared is None or (self._credible_bytes is not None and declared > self._credible_bytes):
                # The mean result of this graph is the best guess.
                return self._total_bytes // max(self._count, 1)
            # The first chunk stands for all until one has been computed.
            known = self._expected[operand] = declared
        return known

    def required_bytes(self, chunk: int) -> int:
        """Return the estimated bytes that a chunk takes while it runs, its result included."""
        operand = self._operand_of[chunk]
        asked_bytes = max(self._peaks.get(operand, 0), self._asked.get(operand, 0))
        return max(self.expected_bytes(chunk), asked_bytes) + self._private.get(operand, 0)

    def is_learned(self, chunk: int) -> bool:
        """Return whether some chunk of the same operand has run."""
        return self._operand_of[chunk] in self._learned

    def is_known(self, chunk: int) -> bool:
        """Return whether a chunk's size is known, from others of its operand or by declaration."""
        operand = self._operand_of[chunk]
        if operand in self._expected or operand in self._peaks or operand in self._asked:
            return True
        return self._declared is not None and self._declared[chunk] is not None

    def private_bytes(self, chunk: int) -> int:
        """Return the estimated bytes that a chunk takes without asking: NumPy asks, other libraries do not."""
        return self._private.get(self._operand_of[chunk], 0)

    @property
    def knows_private(self) -> bool:
        """Return whether some operand has taken memory without asking."""
        return bool(self._private)

    def learn_private(self, chunk: int, growth_bytes: int) -> int:
        """Record bytes taken without asking while a chunk ran; return the increase of the estimate."""
        operand = self._operand_of[chunk]
        known_bytes = self._private.get(operand, 0)
        self._private[operand] = max(growth_bytes, known_bytes)
        return max(growth_bytes - known_bytes, 0)

    def learn_growth(self, chunk: int, growth_bytes: int) -> None:
        """Record a request for growth while a chunk ran."""
        operand = self._operand_of[chunk]
        self._asked[operand] = max(growth_bytes, self._asked.get(operand, 0))

    def learn_durations(self, chunks: Iterable[int], durations_s: Iterable[float]) -> None:
        """Update the mean durations of operands."""
        durations, operand_of, mean_s = self._durations_s, self._operand_of, self._mean_s
        for chunk, duration_s in zip(chunks, durations_s, strict=True):
            operand = operand_of[chunk]
            durations[operand] = moved_mean(durations.get(operand), duration_s)
            mean_s = moved_mean(mean_s, duration_s)
        self._mean_s = mean_s

    def duration_s(self, chunk: int, window_s: float) -> float:
        """Return the estimated seconds of a chunk, given the window of a worker's queue."""
        known_s = self._durations_s.get(self._operand_of[chunk])
        if known_s is not None:
            return known_s
        # A new operand may be slow: without any measurement its chunks run alone, then a few share a queue.
        return window_s if self._mean_s is None else max(self._mean_s, window_s / 8)

    def learn(self, chunks: Sequence[int], fresh: Mapping[int, int], peaks: Mapping[int, int]) -> set[int]:
        """Record the bytes of results in the store, and of operands while they ran."""
        operand_of = self._operand_of
        self._count += len(chunks)
        new = []
        for chunk in chunks:
            operand = operand_of[chunk]
            if operand not in self._learned:
                self._learned.add(operand)
                self._expected[operand] = 0
                new.append(operand)
        for chunk, size in fresh.items():
            self._total_bytes += size
            operand = operand_of[chunk]
            if size > self._expected[operand]:
                self._expected[operand] = size
        known = {operand for operand in new if self._expected[operand]} if new else set()
        for operand, peak in peaks.items():
            if peak > self._peaks.get(operand, 0):
                self._peaks[operand] = peak
                known.add(operand)
        return known
