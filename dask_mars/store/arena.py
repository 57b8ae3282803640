"""Arenas: unnamed shared memory, one for each process that produces chunks, mapped by all.

The engine creates arenas, and workers inherit descriptors. So nothing is left in /dev/shm, whose size does not
matter, and the memory is freed with the last process that has it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import sys
import tempfile
from typing import Any, TypeAlias

from dask_mars.lazy_numpy import np

# Linux' flag for a mapping that reserves no swap; arenas are sparse and far larger than their contents.
_NORESERVE = 0x4000 if sys.platform == "linux" else 0

#: A file system in memory.
_SHARED_MEMORY = "/dev/shm"

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_FAILED = ctypes.c_void_p(-1).value

Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"


def create(name: str, capacity_bytes: int) -> int:
    """Create an arena and return its file descriptor."""
    # The name is shown in /proc/<pid>/maps; the system allocates pages on first write.
    try:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    except (AttributeError, OSError):
        # macOS, or a sandbox that denies the call: an unnamed file, gone with the last descriptor.
        with tempfile.TemporaryFile(prefix=name, dir=_directory(capacity_bytes)) as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, capacity_bytes)
    return descriptor


def _directory(capacity_bytes: int) -> str | None:
    """Return the directory for a file in place of an arena; None for the one of temporary files."""
    with contextlib.suppress(OSError):
        # Beyond the size of this file system a write would kill the process.
        found = os.statvfs(_SHARED_MEMORY)
        if found.f_bavail * found.f_frsize >= capacity_bytes:
            return _SHARED_MEMORY
    return None


@functools.lru_cache(maxsize=8)
def _mapping_of(size_bytes: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    """Return the type of mappings of a size, which are unmapped with their last reference."""

    class Mapping(ctypes.c_ubyte * size_bytes):  # type: ignore[misc]
        # At the end of the interpreter the module's names are gone.
        def __del__(self, unmap: Any = _libc.munmap, address_of: Any = ctypes.addressof) -> None:
            unmap(address_of(self), size_bytes)

    return Mapping


def _map(descriptor: int, size_bytes: int) -> ctypes.Array[ctypes.c_ubyte]:
    # Python's `mmap` would keep a descriptor of its own for each arena.
    flags = mmap.MAP_SHARED | _NORESERVE
    address = _libc.mmap(None, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, descriptor, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return _mapping_of(size_bytes).from_address(address)


class Arena:
    """An arena as mapped by one process, which may close the descriptor then."""

    def __init__(self, descriptor: int, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        mapping = _map(descriptor, capacity_bytes)
        #: None once it is closed.
        self._mapping: Any = mapping
        #: Address of the first byte in this process.
        self.address = ctypes.addressof(mapping)

    def view(self, offset: int, size_bytes: int) -> Bytes:
        """Return bytes of the arena as an array that keeps the mapping alive."""
        # Each call creates a new base object for all arrays made from it: its reference count shows whether any of
        # them is alive.
        return np.frombuffer(self._mapping, dtype=np.uint8, count=size_bytes, offset=offset)

    def memory(self) -> memoryview:
        """Return all of it, as memory that keeps the mapping alive."""
        return memoryview(self._mapping).cast("B")

    def give_back(self, offset: int, size_bytes: int) -> None:
        """Return the pages of a range to the system; later reads give zeros."""
        mapping = self._mapping
        if hasattr(mmap, "MADV_REMOVE") and size_bytes and mapping is not None:
            # Where the call is denied or unsupported, the next block reuses the pages.
            _libc.madvise(ctypes.addressof(mapping) + offset, size_bytes, mmap.MADV_REMOVE)

    def close(self) -> None:
        """Unmap the arena if no array refers to it; otherwise it is unmapped with the last of them."""
        self._mapping = None
