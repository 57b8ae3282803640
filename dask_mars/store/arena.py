"""Arenas: unnamed shared memory, one for each process that produces chunks, mapped by all.

The engine creates arenas, and workers inherit descriptors. So nothing is left in /dev/shm, whose size does not
matter, and the memory is freed with the last process that has it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import tempfile

import numpy as np
import numpy.typing as npt

# Linux' flag for a mapping that reserves no swap; arenas are sparse and far larger than their contents.
_NORESERVE = 0x4000 if sys.platform == "linux" else 0

#: A file system in memory.
_SHARED_MEMORY = "/dev/shm"

Bytes = npt.NDArray[np.uint8]


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


class Arena:
    """An arena as mapped by one process."""

    def __init__(self, descriptor: int, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._map = mmap.mmap(descriptor, capacity_bytes, flags=mmap.MAP_SHARED | _NORESERVE)
        whole = np.frombuffer(self._map, dtype=np.uint8)
        #: Address of the first byte in this process.
        self.address = int(whole.__array_interface__["data"][0])

    def view(self, offset: int, size_bytes: int) -> Bytes:
        """Return bytes of the arena as an array that keeps the mapping alive."""
        # Each call creates a new base object for all arrays made from it: its reference count shows whether any of
        # them is alive.
        return np.frombuffer(self._map, dtype=np.uint8, count=size_bytes, offset=offset)

    def give_back(self, offset: int, size_bytes: int) -> None:
        """Return the pages of a range to the system; later reads give zeros."""
        if hasattr(mmap, "MADV_REMOVE") and size_bytes:
            # Where the call is denied or unsupported, the next block reuses the pages.
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_REMOVE, offset, size_bytes)

    def close(self) -> None:
        """Unmap the arena if no array refers to it; otherwise it is unmapped with the last of them."""
        with contextlib.suppress(BufferError):
            self._map.close()
