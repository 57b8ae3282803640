"""Results that are sealed where they were made: arrays that NumPy has built in this process's own arena.

Whoever still refers to an array could write into it after it was sealed: a cache of the task's, a thread. Rather
than look for such references, we look whether NumPy has freed the memory once the value is gone. If not, the
memory is copied to where nobody else knows of it.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from dask_mars.errors import StoreFull
from dask_mars.store.allocator import PAGE_BYTES
from dask_mars.store.arena import Arena

if TYPE_CHECKING:
    from dask_mars.store._arena import Heap, Quota

# A view smaller than this share of the array it belongs to is copied out: nobody else needs the rest.
_SHARE = 1 / 2


def has_quotas(threshold_bytes: int | None) -> bool:
    """Say whether workers count the memory of their arrays; the argument is as for `make_heap`."""
    if threshold_bytes is None:
        return False
    try:
        from dask_mars.store import _arena  # noqa: F401
    except ImportError:
        return False
    return True


def has_object_quotas(threshold_bytes: int | None) -> bool:
    """Return whether workers count the memory of Python's objects as well, which Python's allocator decides."""
    if not has_quotas(threshold_bytes):
        return False
    from dask_mars.store import _arena

    return _arena.can_limit_objects()


def make_heap(arena: Arena, live: Collection[tuple[int, int]], threshold_bytes: int | None) -> Heap | None:
    """Have this thread's arrays built in an arena, and return what hands out its blocks.

    Parameters
    ----------
    arena : Arena
        The process's own.
    live : collection of (int, int)
        Offset and size of blocks that are in use already.
    threshold_bytes : int or None
        Smaller arrays get private memory; if it is None, all do.

    Returns
    -------
    Heap or None
        None if arrays are not to be built there, or cannot be, because the extension was not compiled.
    """
    if threshold_bytes is None:
        return None
    try:
        from dask_mars.store import _arena
    except ImportError:
        return None
    heap = _arena.Heap(arena.view(0, arena.capacity_bytes).data, live)
    # What a process that died has left in it belongs to nobody, and takes memory.
    heap.trim()
    # Every array there takes a page at least.
    _arena.install(heap, max(threshold_bytes, PAGE_BYTES))
    return heap


def limit_memory(heap: Heap, threshold_bytes: int, page: memoryview, wake: int, signal_number: int) -> Quota:
    """Have arrays wait for the engine where their memory would grow beyond the quota, and objects if they can.

    Parameters
    ----------
    heap : Heap
        As `make_heap` returns it.
    threshold_bytes : int
        As for `make_heap`.
    page : memoryview
        This process's part of the control page, where it has its quota.
    wake : int
        Descriptor by which the engine, which is the parent of this process, is woken.
    signal_number : int
        Raised where small objects have taken memory that was refused.
    """
    from dask_mars.store import _arena

    quota = _arena.Quota(heap, page, wake, os.getppid())
    _arena.install(heap, max(threshold_bytes, PAGE_BYTES), quota)
    _arena.limit_objects(quota, signal_number)
    return quota


class InPlaceSealing:
    """Blocks that arrays own, on their way to belonging to the store alone.

    Parameters
    ----------
    heap : Heap
        Of the own arena.
    arena : Arena
        The own arena.
    number : int
        Its number.
    """

    def __init__(self, heap: Heap, arena: Arena, number: int) -> None:
        self._heap = heap
        self._arena = arena
        self._number = number
        #: Of each block that is sealed and that arrays may refer to: the part of it that is needed.
        self._pending: dict[int, tuple[int, int]] = {}

    def is_array_memory(self, address: int) -> bool:
        """Say whether an array of this process owns the memory."""
        return self._heap.array_block(address) is not None

    def seal_block(self, low: int, high: int, value_bytes: int) -> tuple[int, int, int] | None:
        """Seal the block that memory from `low` to `high` lies in; None if it has to be copied instead.

        Parameters
        ----------
        low, high : int
            Addresses.
        value_bytes : int
            Size of a copy of it.
        """
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
        return (self._number, offset, size)

    def abort(self) -> None:
        """Leave all blocks whose value could not be sealed to the arrays."""
        for offset in self._pending:
            self._heap.free(offset)
        self._pending.clear()

    def finish(self) -> dict[int, tuple[int, int, int]]:
        """Copy what something still refers to.

        Returns
        -------
        dict
            Of each block that was copied: offset of the copy, its size, and what of the block it starts with.

        Raises
        ------
        StoreFull
            There is no room for a copy; what was adopted is for the caller to free.
        """
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
