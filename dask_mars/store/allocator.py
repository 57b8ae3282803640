"""Allocates blocks of an arena: pure accounting of offsets and sizes, without memory."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

#: Alignment and granularity of blocks, in bytes, so that freed pages can be returned whole.
PAGE_BYTES = 4096


class Allocator:
    """Allocates non-overlapping blocks of ``[0, capacity_bytes)``."""

    # It chooses the smallest free block that fits, and among equal ones the one freed last, whose pages are warm:
    # touching a fresh page of shared memory costs several times the copy that fills it. Free neighbours merge.

    def __init__(self, capacity_bytes: int, live: Iterable[tuple[int, int]] = ()) -> None:
        # Blocks are whole pages, so a last partial page is of no use.
        capacity_bytes -= capacity_bytes % PAGE_BYTES
        self.capacity_bytes = capacity_bytes
        #: Size in bytes of each block in use, by its offset.
        self.used: dict[int, int] = {}
        self.used_bytes = 0
        # Free blocks three times: by offset, by the offset of their end, and sorted by (size, newest first).
        self._free: dict[int, tuple[int, int]] = {}
        self._free_ends: dict[int, int] = {}
        self._by_size: list[tuple[int, int, int]] = []
        self._clock = 0
        end = 0
        for offset, size in sorted(live):
            size = _round_up(size)
            if offset > end:
                self._add_free(end, offset - end)
            self.used[offset] = size
            self.used_bytes += size
            end = offset + size
        if end < capacity_bytes:
            self._add_free(end, capacity_bytes - end)

    def allocate(self, size_bytes: int) -> int | None:
        """Return the offset of a new block, or None if no free block is large enough."""
        size = _round_up(size_bytes)
        position = bisect_left(self._by_size, (size,))
        if position == len(self._by_size):
            return None
        found, _, offset = self._by_size[position]
        self._take_free(offset)
        if found > size:
            self._add_free(offset + size, found - size)
        self.used[offset] = size
        self.used_bytes += size
        return offset

    def free(self, offset: int) -> None:
        """Free a block. Raises KeyError if no block starts at the offset."""
        size = self.used.pop(offset)
        self.used_bytes -= size
        before = self._free_ends.get(offset)
        if before is not None:
            size += self._take_free(before)
            offset = before
        after = self._free.get(offset + size)
        if after is not None:
            size += self._take_free(offset + size)
        self._add_free(offset, size)

    @property
    def largest_free_bytes(self) -> int:
        """Size of the largest block that is available now."""
        return self._by_size[-1][0] if self._by_size else 0

    def free_ranges(self) -> list[tuple[int, int]]:
        """Return offset and size of every free block, in order of their offsets."""
        return sorted((offset, size) for offset, (size, _) in self._free.items())

    def _add_free(self, offset: int, size: int) -> None:
        self._clock -= 1
        self._free[offset] = (size, self._clock)
        self._free_ends[offset + size] = offset
        insort(self._by_size, (size, self._clock, offset))

    def _take_free(self, offset: int) -> int:
        size, clock = self._free.pop(offset)
        del self._free_ends[offset + size]
        del self._by_size[bisect_left(self._by_size, (size, clock, offset))]
        return size


def _round_up(size_bytes: int) -> int:
    return max(-(-size_bytes // PAGE_BYTES) * PAGE_BYTES, PAGE_BYTES)
