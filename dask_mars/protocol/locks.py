"""Dask's `SerializableLock` as a lock across the processes of one engine.

Dask gives `da.store(lock=True)`, `to_zarr` and `to_hdf` a lock within one process. Where such a lock travels to a
worker, or a task in the client uses it beside workers, an `InterprocessLock` with the same token replaces it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
import zlib
from collections.abc import Hashable
from typing import Any, ClassVar

from dask.utils import SerializableLock

from dask_mars.locking import Lock

_POLL_FIRST_S = 0.0005
_POLL_LIMIT_S = 0.02


class InterprocessLock:
    """A lock shared by all processes of an engine, identified by its token."""

    # It locks one byte of an inherited file. The system releases the lock of a dead process.

    #: Descriptor of the file with a byte per lock; None outside an engine, in a single process.
    descriptor: ClassVar[int | None] = None
    _guard: ClassVar[Lock] = Lock()
    # The system's byte locks belong to the process, so the threads of a process need a lock of their own for each
    # byte.
    _threads: ClassVar[dict[int, threading.Lock]] = {}

    def __init__(self, token: Hashable) -> None:
        self.token = token
        self._offset = zlib.crc32(repr(token).encode()) & 0x7FFFFFFF
        with self._guard:
            self._thread_lock = self._threads.setdefault(self._offset, threading.Lock())

    def __reduce__(self) -> tuple[Any, ...]:
        return InterprocessLock, (self.token,)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock; return whether it worked, as `threading.Lock.acquire` does."""
        deadline = None if timeout < 0 else time.monotonic() + timeout
        if not self._thread_lock.acquire(blocking, timeout):
            return False
        if self.descriptor is None:
            return True
        pause = _POLL_FIRST_S
        try:
            while not self._try_byte(self.descriptor):
                if not blocking or (deadline is not None and time.monotonic() >= deadline):
                    self._thread_lock.release()
                    return False
                time.sleep(pause)
                pause = min(pause * 2, _POLL_LIMIT_S)
        except BaseException:
            self._thread_lock.release()
            raise
        return True

    def _try_byte(self, descriptor: int) -> bool:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._offset, os.SEEK_SET)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise
        return True

    def release(self) -> None:
        """Release the lock."""
        if self.descriptor is not None:
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN, 1, self._offset, os.SEEK_SET)
        self._thread_lock.release()

    def locked(self) -> bool:
        """Return whether a thread of this process holds it."""
        return self._thread_lock.locked()

    def __enter__(self) -> InterprocessLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<InterprocessLock {self.token!r}>"


def interprocess(value: Any) -> Any:
    """Return an interprocess lock for Dask's process-local one; other values unchanged."""
    return InterprocessLock(value.token) if type(value) is SerializableLock else value
