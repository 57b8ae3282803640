"""Arenas: shared memory without a name, one for each process that produces chunks, mapped by all.

An arena is made by the engine and inherited by descriptor, so nothing is left in /dev/shm, the size of /dev/shm
does not matter, and the memory goes with the last process that has it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import tempfile

import numpy as np
import numpy.typing as npt

# Linux' flag for a mapping that reserves no swap; arenas are sparse and far larger than what they hold.
_NORESERVE = 0x4000 if sys.platform == "linux" else 0

#: A file system in memory.
_SHARED_MEMORY = "/dev/shm"

Bytes = npt.NDArray[np.uint8]


def create(name: str, capacity_bytes: int) -> int:
    """Make an arena and return its file descriptor.

    Parameters
    ----------
    name : str
        Shown in /proc/<pid>/maps.
    capacity_bytes : int
        Most bytes that it can hold; pages are taken from the system when they are first written.
    """
    try:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    except (AttributeError, OSError):
        # macOS, or a sandbox that denies the call: a file without a name, gone with the last descriptor.
        with tempfile.TemporaryFile(prefix=name, dir=_directory(capacity_bytes)) as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, capacity_bytes)
    return descriptor


def _directory(capacity_bytes: int) -> str | None:
    """Return where a file in place of an arena is to lie; None for the directory of temporary files."""
    with contextlib.suppress(OSError):
        # Beyond the size of this file system a write would end the process.
        found = os.statvfs(_SHARED_MEMORY)
        if found.f_bavail * found.f_frsize >= capacity_bytes:
            return _SHARED_MEMORY
    return None


class Arena:
    """One process's view of one arena.

    Parameters
    ----------
    descriptor : int
        File descriptor of the arena; not closed by this class.
    capacity_bytes : int
        Its size.
    """

    def __init__(self, descriptor: int, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._map = mmap.mmap(descriptor, capacity_bytes, flags=mmap.MAP_SHARED | _NORESERVE)
        whole = np.frombuffer(self._map, dtype=np.uint8)
        #: Address of the first byte in this process.
        self.address = int(whole.__array_interface__["data"][0])

    def view(self, offset: int, size_bytes: int) -> Bytes:
        """Return bytes of the arena as an array that owns nothing but keeps the mapping alive.

        Each call makes a new base object, which all arrays made of it refer to: its reference count tells
        whether any of them is still alive.
        """
        return np.frombuffer(self._map, dtype=np.uint8, count=size_bytes, offset=offset)

    def give_back(self, offset: int, size_bytes: int) -> None:
        """Return the pages of a range to the system; reading them afterwards gives zeros."""
        if hasattr(mmap, "MADV_REMOVE") and size_bytes:
            # Where that is denied, or the file system cannot, the next block uses them again.
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_REMOVE, offset, size_bytes)

    def close(self) -> None:
        """Unmap, if no array refers to the mapping; otherwise it goes with the last of them."""
        with contextlib.suppress(BufferError):
            self._map.close()
