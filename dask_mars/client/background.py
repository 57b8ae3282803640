"""Threads for submitted computations; none while there is nothing to do."""

from __future__ import annotations

import atexit
import contextvars
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from dask_mars.client.records import Record
from dask_mars.errors import EngineStopped
from dask_mars.locking import Lock

#: Maximum number of computations at a time; others wait. Each holds its graph, and all share the same workers.
_MOST_AT_ONCE = 16
#: Longest wait for the threads at the interpreter's end, in seconds.
_END_S = 5.0


class _Job(NamedTuple):
    record: Record
    work: Callable[[], None]
    context: contextvars.Context


class Background:
    """Calls functions in threads, first come, first served."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, as in a forked process: the threads stay with the parent."""
        atexit.unregister(self.close)
        self._lock = Lock()
        self._jobs: deque[_Job] = deque()
        self._threads: set[threading.Thread] = set()
        self._records: set[Record] = set()
        self._is_registered = False

    def start(self, record: Record, work: Callable[[], None]) -> None:
        """Queue a function that computes a record's computation, in the caller's context."""
        with self._lock:
            if not self._is_registered:
                self._is_registered = True
                atexit.register(self.close)
            self._jobs.append(_Job(record, work, contextvars.copy_context()))
            self._records.add(record)
            if len(self._threads) < _MOST_AT_ONCE:
                # Daemon: the interpreter's end must not wait for computations; `close` cancels them.
                thread = threading.Thread(target=self._serve, name="dask-mars-submitted", daemon=True)
                self._threads.add(thread)
                try:
                    thread.start()
                except BaseException:
                    self._threads.discard(thread)
                    raise

    def remove(self, record: Record) -> bool:
        """Remove a computation from the queue; return False if it has begun."""
        with self._lock:
            job = next((job for job in self._jobs if job.record is record), None)
            if job is not None:
                self._jobs.remove(job)
                self._records.discard(record)
            return job is not None

    def _serve(self) -> None:
        while (job := self._next()) is not None:
            try:
                job.context.run(job.work)
            finally:
                with self._lock:
                    self._records.discard(job.record)
                # The job must not stay alive while this thread waits.
                del job

    def _next(self) -> _Job | None:
        with self._lock:
            if self._jobs:
                return self._jobs.popleft()
            self._threads.discard(threading.current_thread())
            return None

    def close(self) -> None:
        """Cancel all computations, and wait a while for the threads to end."""
        deadline_s = time.monotonic() + _END_S
        with self._lock:
            records, threads = list(self._records), list(self._threads)
        for record in records:
            try:
                record.cancel(EngineStopped())
            except Exception:
                # The engine or client has ended before; the computation will notice.
                continue
        for thread in threads:
            thread.join(max(deadline_s - time.monotonic(), 0.0))


#: The queue of this process.
background = Background()

os.register_at_fork(after_in_child=background.forget)
