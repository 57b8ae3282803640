"""Size of arenas: that of the memory limit, where every process has the addresses to map all of them."""

from __future__ import annotations

import errno

from dask_mars.errors import AddressSpaceTooSmall, SharedMemoryDenied
from dask_mars.limits import AddressSpace, address_space
from dask_mars.store.allocator import PAGE_BYTES

#: Smallest arena, in bytes, unless a worker's share of the memory limit is less: one chunk of Dask's usual size.
LEAST_BYTES = 128 << 20
#: Largest arena, in bytes: a heap counts its pages in 32 bits.
MOST_BYTES = PAGE_BYTES * ((1 << 32) - 2)
#: Divisor of the arena's size: maximum addresses for the heap's tables, in the arena's own process.
_TABLES_SHARE = 128
#: Divisor of the free addresses that stay free for private memory, such as temporaries and values read from disk.
#: No process needs more than the memory limit for that.
_PRIVATE_SHARE = 4


def arena_capacity(memory_limit: int, num_workers: int, addresses: AddressSpace) -> int:
    """Return the size of each arena."""
    # Every process maps the arenas of all workers and of the client. All have the same size, because any worker
    # may compute the largest result.
    free = addresses.free_bytes
    shared = free - min(memory_limit, free // _PRIVATE_SHARE)
    capacity = shared * _TABLES_SHARE // ((num_workers + 1) * _TABLES_SHARE + 1)
    least = min(memory_limit // num_workers, LEAST_BYTES)
    if capacity < least:
        needed = _addresses_for(least, memory_limit, num_workers)
        raise AddressSpaceTooSmall(memory_limit, num_workers, needed, free, addresses.limit_bytes)
    if min(capacity, MOST_BYTES) >= memory_limit:
        return memory_limit
    capacity = min(capacity, MOST_BYTES)
    return capacity - capacity % PAGE_BYTES


def _addresses_for(capacity: int, memory_limit: int, num_workers: int) -> int:
    """Return the free addresses that arenas of a size need."""
    shared = (num_workers + 1) * capacity + capacity // _TABLES_SHARE + num_workers + 2
    return min(shared + memory_limit, -(-shared * _PRIVATE_SHARE // (_PRIVATE_SHARE - 1)) + 1)


def not_mapped(
    reason: OSError | MemoryError, memory_limit: int, num_workers: int, capacity_bytes: int
) -> AddressSpaceTooSmall | SharedMemoryDenied:
    """Return the error for arenas that the system refused to create or map although there seemed to be room."""
    if isinstance(reason, OSError) and reason.errno != errno.ENOMEM:
        return SharedMemoryDenied(str(reason))
    free, limit = address_space()
    return AddressSpaceTooSmall(memory_limit, num_workers, (num_workers + 1) * capacity_bytes, free, limit)
