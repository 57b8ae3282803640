"""Blocks of a process's own arena, and the memory that its operands take."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dask_mars.errors import StoreFull
from dask_mars.protocol.object_ref import Block
from dask_mars.store.allocator import Allocator
from dask_mars.store.arena import Arena, create
from dask_mars.store.in_place_sealing import InPlaceSealing
from dask_mars.store.reader import StoreReader

if TYPE_CHECKING:
    from dask_mars.store._arena import Heap, Quota


class StoreAllocator(StoreReader):
    """Allocates and frees blocks of the own arena."""

    def __init__(
        self,
        arenas: list[Arena],
        own: int,
        live: Iterable[tuple[int, int]] = (),
        heap: Heap | None = None,
        quota: Quota | None = None,
    ) -> None:
        super().__init__(arenas)
        self.own = own
        self.allocator: Allocator | Heap = heap or Allocator(arenas[own].capacity_bytes, live)
        self._heap = heap
        self._quota = quota
        self._in_place_sealing = None if heap is None else InPlaceSealing(heap, arenas[own], own)
        #: Whether values without room in the own arena get a temporary one.
        self._is_overflowing = False
        #: Whether no block was released since `trim`. Arrays release blocks by themselves.
        self.is_trimmed = True

    # -- blocks -----------------------------------------------------------------------------------------------

    def _allocate(self, size_bytes: int) -> Block:
        # The quota has already recorded why the request was refused.
        admitted = self._quota is None or self._quota.admit(size_bytes)
        offset = self.allocator.allocate(size_bytes) if admitted else None
        if offset is None:
            if self._is_overflowing:
                return self._allocate_overflow(size_bytes)
            if self._in_place_sealing is not None:
                self._in_place_sealing.abort()
            raise StoreFull(size_bytes, self.allocator.largest_free_bytes, self.allocator.capacity_bytes)
        return (self.own, offset, size_bytes)

    def _allocate_overflow(self, size_bytes: int) -> Block:
        """Return a block in a temporary arena of this process, which lasts while a value is sealed."""
        try:
            descriptor = create("dask-mars-overflow", size_bytes)
            try:
                self.arenas.append(Arena(descriptor, size_bytes))
            finally:
                os.close(descriptor)
        except OSError as error:
            free, capacity = self.allocator.largest_free_bytes, self.allocator.capacity_bytes
            raise StoreFull(size_bytes, free, capacity) from error
        return (len(self.arenas) - 1, 0, size_bytes)

    # -- what operands need -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start measuring the growth of this process's memory for an operand."""
        if self._quota is not None:
            self._quota.begin()

    @property
    def refusal(self) -> tuple[int, int]:
        """The reason for refused growth since the operand began (see `protocol.control`) or 0, and the bytes."""
        return (0, 0) if self._quota is None else self._quota.refusal

    def raise_exceeded(self) -> bool:
        """Return, once, whether small objects have exceeded the quota since the operand began."""
        # The caller must raise an error.
        return self._quota is not None and self._quota.raise_exceeded()

    def mark(self) -> None:
        """Start recording the peak use of the own arena."""
        if self._heap is not None:
            self._heap.mark()

    @property
    def peak_bytes(self) -> int:
        """Peak growth of the used bytes since the mark; 0 where arrays are not built in the arena."""
        return 0 if self._heap is None else self._heap.peak_bytes

    # -- freeing ----------------------------------------------------------------------------------------------

    def release(self, offset: int) -> None:
        """Free a block of the own arena."""
        self.allocator.free(offset)
        self.is_trimmed = False

    def trim(self) -> None:
        """Return the pages of all free blocks of the own arena to the system."""
        self.is_trimmed = True
        if self._heap is not None:
            # Arrays may allocate blocks meanwhile.
            self._heap.trim()
            return
        arena = self.arenas[self.own]
        for offset, size in self.allocator.free_ranges():
            arena.give_back(offset, size)

    def trim_arena(self, arena_id: int, live: Iterable[tuple[int, int]]) -> None:
        """Return the free pages of an arena that no process allocates from to the system."""
        arena = self.arenas[arena_id]
        for offset, size_bytes in Allocator(arena.capacity_bytes, live).free_ranges():
            arena.give_back(offset, size_bytes)
