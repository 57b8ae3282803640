"""Returns memory and descriptors that a worker does not need to the system."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys

from dask_mars.store.store import Store


class Trimmer:
    """Trims a worker process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: Whether blocks may have been freed since the last time.
        self.is_due = False
        #: Open descriptors when this worker last had no graph.
        self._open_descriptors = _open_descriptors()

    def trim(self) -> None:
        """Return free memory to the system."""
        self.is_due = False
        self._store.trim()
        # Arrow has its own allocator, which keeps the memory of pandas' strings.
        arrow = sys.modules.get("pyarrow")
        if arrow is not None:
            # Its import may have failed half way.
            with contextlib.suppress(Exception):
                arrow.default_memory_pool().release_unused()
        # Only glibc has this function.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)

    def collect_garbage(self) -> None:
        """Collect exceptions and their frames, which form cycles; an idle process would not."""
        gc.collect()

    def close_garbage(self) -> None:
        """Close files that only garbage refers to."""
        if _open_descriptors() > self._open_descriptors:
            self.collect_garbage()
        self._open_descriptors = _open_descriptors()


def _open_descriptors() -> int:
    # Systems without this directory have no Unix sockets either.
    return len(os.listdir("/dev/fd"))  # noqa: PTH208 (a third of the time)
