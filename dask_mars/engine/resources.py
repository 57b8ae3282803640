"""Arenas, the control page and locks, which an engine and its workers share."""

from __future__ import annotations

import contextlib
import os

from dask_mars.config import Settings
from dask_mars.locking import Lock
from dask_mars.protocol.control import ControlPage, page_bytes
from dask_mars.protocol.locks import InterprocessLock
from dask_mars.store import arena as arenas
from dask_mars.store.arena_capacity import not_mapped
from dask_mars.store.store import Store


class Resources:
    """The descriptors that workers inherit, and this process's views of them."""

    def __init__(self, settings: Settings, capacity_bytes: int) -> None:
        count = settings.num_workers
        self.capacity_bytes = capacity_bytes
        self.control_bytes = page_bytes(count)
        sizes = [capacity_bytes] * (count + 1) + [self.control_bytes]
        descriptors: list[int] = []
        try:
            for index, size in enumerate(sizes):
                descriptors.append(arenas.create(f"dask-mars-{index}", size))
            *views, control = [arenas.Arena(*made) for made in zip(descriptors, sizes, strict=True)]
            self.locks_file = _locks_file()
        except OSError as error:
            for descriptor in descriptors:
                os.close(descriptor)
            raise not_mapped(error, settings.memory_limit, count, capacity_bytes) from error
        #: Descriptors of the arenas, one for each worker and the engine's own, and of the control page.
        *self.arena_files, self.control_file = descriptors
        #: Shared page for the workers' notes on their running chunks, and for requests.
        self.control = ControlPage(control.view(0, self.control_bytes).data)
        self.store = Store(views, count, inline_bytes=settings.inline_bytes)

    def close(self) -> None:
        """Close everything but the locks."""
        for descriptor in (*self.arena_files, self.control_file):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        for view in self.store.arenas:
            view.close()
        self.control.detach()


_locks_guard = Lock()


def _locks_file() -> int:
    """Return the descriptor of the file whose bytes serve as locks."""
    # All engines of a process share the file, so that one lock is the same in all. It stays open: closing a
    # descriptor of it would release every lock of the process.
    with _locks_guard:
        if InterprocessLock.descriptor is None:
            InterprocessLock.descriptor = arenas.create("dask-mars-locks", 4096)
        return InterprocessLock.descriptor
