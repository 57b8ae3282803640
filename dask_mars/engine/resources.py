"""Arenas, the control page and locks, which an engine and its workers share."""

from __future__ import annotations

import contextlib
import errno
import os

from dask_mars.config import Settings
from dask_mars.errors import DescriptorsTooFew, EngineStartFailed, WorkerStartFailed
from dask_mars.limits import descriptors
from dask_mars.locking import Lock
from dask_mars.protocol.control import ControlPage, page_bytes
from dask_mars.protocol.locks import InterprocessLock
from dask_mars.store import arena as arenas
from dask_mars.store.arena_capacity import not_mapped
from dask_mars.store.store import Store

#: Descriptors that the engine has for each worker, and for itself.
_FOR_EACH, _FOR_ALL = 3, 16


def too_few_descriptors(num_workers: int) -> DescriptorsTooFew:
    """Return the error for workers whose descriptors could not be opened."""
    return DescriptorsTooFew(num_workers, _FOR_EACH * num_workers + _FOR_ALL, *descriptors())


def not_started(reason: OSError, num_workers: int) -> EngineStartFailed:
    """Return the error for a worker process that the system has refused."""
    if reason.errno == errno.EMFILE:
        return too_few_descriptors(num_workers)
    return WorkerStartFailed(1, f"could not be run ({reason})")


class Resources:
    """The descriptors that workers inherit, and this process's views of them."""

    def __init__(self, settings: Settings, capacity_bytes: int) -> None:
        count = settings.num_workers
        error = too_few_descriptors(count)
        if error.opened + error.needed > error.limit:
            raise error
        #: Whether threads can compute until processes replace them: both have descriptors here then.
        self.allows_threads = error.opened + 2 * error.needed <= error.limit
        self.capacity_bytes = capacity_bytes
        self.control_bytes = page_bytes(count)
        sizes = [capacity_bytes] * (count + 1) + [self.control_bytes]
        files: list[int] = []
        try:
            for index, size in enumerate(sizes):
                files.append(arenas.create(f"dask-mars-{index}", size))
            *views, control = [arenas.Arena(*made) for made in zip(files, sizes, strict=True)]
            self.locks_file = _locks_file()
        except OSError as error:
            for descriptor in files:
                os.close(descriptor)
            raise not_mapped(error, settings.memory_limit, count, capacity_bytes) from error
        #: Descriptors of the arenas, one for each worker and the engine's own, and of the control page.
        *self.arena_files, self.control_file = files
        #: Shared page for the workers' notes on their running chunks, and for requests.
        self.control = ControlPage(control.memory())
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
