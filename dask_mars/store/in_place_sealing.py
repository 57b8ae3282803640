"""Seals results in place: arrays that NumPy has built in this process's own arena.

A remaining reference to an array, in a cache of the task or a thread, could write to it after sealing. Instead of
searching for references, this checks whether NumPy has freed the memory once the value is gone. If not, the memory
is copied to a block without other references.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING

from dask_mars.errors import StoreFull
from dask_mars.extensions import has_extension
from dask_mars.lazy_numpy import np
from dask_mars.store.allocator import PAGE_BYTES
from dask_mars.store.arena import Arena

if TYPE_CHECKING:
    from dask_mars.store._arena import Heap, Quota

# Views below this share of their array are copied: the rest of the array is not needed.
_SHARE = 1 / 2


def has_quotas(threshold_bytes: int | None) -> bool:
    """Return whether workers count the memory of their arrays; the argument is as for `make_heap`."""
    return threshold_bytes is not None and has_extension("dask_mars.store._arena")


def has_object_quotas(threshold_bytes: int | None) -> bool:
    """Return whether workers count the memory of Python's objects as well, which Python's allocator decides."""
    if not has_quotas(threshold_bytes):
        return False
    from dask_mars.store import _arena

    return _arena.can_limit_objects()


def make_heap(arena: Arena, live: Collection[tuple[int, int]], threshold_bytes: int | None) -> Heap | None:
    """Build this thread's arrays in an arena, and return the arena's heap."""
    # Arrays smaller than the threshold get private memory; without a threshold all do.
    if threshold_bytes is None:
        return None
    try:
        from dask_mars.store import _arena
    except ImportError:
        return None
    heap = _arena.Heap(arena.memory(), live)
    # Unused pages that a dead process has left take memory.
    heap.trim()
    # Every array there takes a page at least.
    _arena.install(heap, max(threshold_bytes, PAGE_BYTES))
    return heap


def limit_memory(heap: Heap, threshold_bytes: int, page: memoryview, wake: int, signal_number: int) -> Quota:
    """Make arrays, and Python objects where possible, wait for the engine when their memory exceeds the quota."""
    # The signal is raised when small objects have exceeded the quota.
    from dask_mars.store import _arena

    quota = _arena.Quota(heap, page, wake, os.getppid())
    _arena.install(heap, max(threshold_bytes, PAGE_BYTES), quota)
    _arena.limit_objects(quota, signal_number)
    return quota


class InPlaceSealing:
    """Blocks that change their owner from arrays to the store."""

    def __init__(self, heap: Heap, arena: Arena, arena_id: int) -> None:
        self._heap = heap
        self._arena = arena
        self._arena_id = arena_id
        #: Needed part of each sealed block that arrays may still refer to.
        self._pending: dict[int, tuple[int, int]] = {}

    def is_array_memory(self, address: int) -> bool:
        """Return whether memory belongs to an array of this process."""
        return self._heap.array_block(address) is not None

    def seal_block(self, low: int, high: int, value_bytes: int) -> tuple[int, int, int] | None:
        """Seal the block around memory from `low` to `high`; return None if it must be copied instead."""
        array_block = self._heap.array_block(low)
        if array_block is None:
            return None
        offset, size = array_block
        start = self._arena.address + offset
        if high > start + size or min(high - low, value_bytes) < size * _SHARE:
            return None
        first, last = low - start, high - start
        if offset in self._pending:
            before = self._pending[offset]
            first, last = min(first, before[0]), max(last, before[1])
        else:
            self._heap.seal(offset)
        self._pending[offset] = (first, last)
        return (self._arena_id, offset, size)

    def abort(self) -> None:
        """Give the blocks of a value that could not be sealed back to their arrays."""
        for offset in self._pending:
            self._heap.free(offset)
        self._pending.clear()

    def finish(self) -> dict[int, tuple[int, int, int]]:
        """Copy blocks that something still refers to."""
        # The result has, for each copied block, offset and size of the copy, and the start of the copied part.
        heap, arena = self._heap, self._arena
        moved: dict[int, tuple[int, int, int]] = {}
        pending, self._pending = self._pending, {}
        for offset, (first, last) in pending.items():
            if not self.is_array_memory(arena.address + offset):
                continue
            copy = heap.allocate(last - first)
            if copy is None:
                for other, _, _ in moved.values():
                    heap.free(other)
                raise StoreFull(last - first, heap.largest_free_bytes, heap.capacity_bytes)
            np.copyto(arena.view(copy, last - first), arena.view(offset + first, last - first))
            moved[offset] = (copy, last - first, first)
        for offset in moved:
            heap.free(offset)
        return moved
