"""Estimates of the bytes that chunks of an operand take, declared and then measured.

Pure bookkeeping, and a part of the state machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class Estimates:
    """The bytes that chunks of one graph are thought to take.

    Parameters
    ----------
    operand_of : sequence of int
        Operand number of each chunk.
    declared_bytes : sequence of int or None, optional
        The bytes that each chunk's result is declared to take, None where nothing is said.
    credible_bytes : int or None, optional
        What is declared to take more than that says nothing; by default all is believed.
    """

    __slots__ = (
        "_asked",
        "_count",
        "_credible_bytes",
        "_declared",
        "_expected",
        "_learned",
        "_operand_of",
        "_peaks",
        "_private",
        "_total_bytes",
    )

    def __init__(
        self,
        operand_of: Sequence[int],
        declared_bytes: Sequence[int | None] | None,
        credible_bytes: int | None = None,
    ) -> None:
        self._operand_of = operand_of
        self._declared = declared_bytes
        self._credible_bytes = credible_bytes
        self._expected: dict[int, int] = {}
        #: Operands of which a result has been seen.
        self._learned: set[int] = set()
        #: Most bytes that operands were seen to take while they ran.
        self._peaks: dict[int, int] = {}
        #: Most bytes by which operands have asked to grow: they may have done with less.
        self._asked: dict[int, int] = {}
        #: Most bytes that operands were seen to take without asking.
        self._private: dict[int, int] = {}
        #: Number of results that have been seen, and what they have added to the store.
        self._count = 0
        self._total_bytes = 0

    def expected_bytes(self, chunk: int) -> int:
        """Return the bytes that a chunk's result is thought to add to the store."""
        operand = self._operand_of[chunk]
        known = self._expected.get(operand)
        if known is None:
            declared = self._declared[chunk] if self._declared is not None else None
            if declared is None or (self._credible_bytes is not None and declared > self._credible_bytes):
                # What results of this graph take as a rule is the best guess.
                return self._total_bytes // max(self._count, 1)
            # The first chunk speaks for all until one has been computed.
            known = self._expected[operand] = declared
        return known

    def required_bytes(self, chunk: int) -> int:
        """Return the bytes that a chunk is thought to take while it is computed, its result included."""
        operand = self._operand_of[chunk]
        asked_bytes = max(self._peaks.get(operand, 0), self._asked.get(operand, 0))
        return max(self.expected_bytes(chunk), asked_bytes) + self._private.get(operand, 0)

    def is_learned(self, chunk: int) -> bool:
        """Say whether some chunk of the same operand has run."""
        return self._operand_of[chunk] in self._learned

    def is_known(self, chunk: int) -> bool:
        """Say whether something is known of what a chunk's result takes: by others of its operand, or declared."""
        operand = self._operand_of[chunk]
        if operand in self._expected or operand in self._peaks or operand in self._asked:
            return True
        return self._declared is not None and self._declared[chunk] is not None

    def private_bytes(self, chunk: int) -> int:
        """Return the bytes that a chunk is thought to take without asking: NumPy asks, other libraries do not."""
        return self._private.get(self._operand_of[chunk], 0)

    @property
    def knows_private(self) -> bool:
        """Whether some operand was seen to take memory without asking."""
        return bool(self._private)

    def learn_private(self, chunk: int, growth_bytes: int) -> int:
        """Note what was taken without asking while a chunk ran; return by how much it is more than was known."""
        operand = self._operand_of[chunk]
        known_bytes = self._private.get(operand, 0)
        self._private[operand] = max(growth_bytes, known_bytes)
        return max(growth_bytes - known_bytes, 0)

    def learn_growth(self, chunk: int, growth_bytes: int) -> None:
        """Note by how much memory was to grow while a chunk ran."""
        operand = self._operand_of[chunk]
        self._asked[operand] = max(growth_bytes, self._asked.get(operand, 0))

    def learn(self, chunks: Sequence[int], fresh: Mapping[int, int], peaks: Mapping[int, int]) -> set[int]:
        """Note what results have taken in the store, and operands while they ran.

        Parameters
        ----------
        chunks : sequence of int
            Those that were computed.
        fresh : mapping
            Bytes of those of them that are in the store, as far as these were not there before.
        peaks : mapping
            Bytes of shared memory that operands took while they ran; of those only that took more than before.

        Returns
        -------
        set of int
            Operands of which more is known than before: what was reserved for chunks of theirs may not be enough.
        """
        operand_of = self._operand_of
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


__all__ = ["Estimates"]
