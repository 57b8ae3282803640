"""Idle engines: due times for returning free memory and ending workers, and workers that are ending."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from dask_mars.engine.worker_handle import WorkerHandle
from dask_mars.protocol.channel import UnreadableStream
from dask_mars.protocol.messages import Exit

#: Poll interval for ending workers, in seconds.
_LOOK_S = 0.02


class IdleClock:
    """Determines what an idle engine gives back, from the time for which it has had no work."""

    def __init__(self, trim_s: float, timeout_s: float | None) -> None:
        self._trim_s = trim_s
        self._timeout_s = timeout_s
        #: Time at which the work ended, None while there is some.
        self._since_s: float | None = None

    def note(self, has_work: bool, now_s: float) -> None:
        """Record whether there is work."""
        if has_work:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now_s

    def is_trim_due(self, now_s: float) -> bool:
        """Return whether free memory should go back to the system."""
        return self._since_s is not None and now_s >= self._since_s + self._trim_s

    def is_end_due(self, now_s: float) -> bool:
        """Return whether the worker processes should end."""
        if self._since_s is None or self._timeout_s is None:
            return False
        return now_s >= self._since_s + self._timeout_s

    def next_s(self, is_trimmed: bool, has_workers: bool) -> float | None:
        """Return the next due time, None if nothing will be due."""
        if self._since_s is None:
            return None
        delays_s = []
        if not is_trimmed:
            delays_s.append(self._trim_s)
        if has_workers and self._timeout_s is not None:
            delays_s.append(self._timeout_s)
        return self._since_s + min(delays_s) if delays_s else None


class EndingWorkers:
    """Workers that are ending: processes may run exit handlers, threads may finish a chunk."""

    # While such a worker lives it may take blocks of its arena, so the engine starts none in its place.

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        #: By id, each with the time at which it is killed.
        self._handles: dict[int, tuple[WorkerHandle, float]] = {}

    def __contains__(self, worker_id: int) -> bool:
        return worker_id in self._handles

    def __len__(self) -> int:
        return len(self._handles)

    def __iter__(self) -> Iterator[WorkerHandle]:
        return iter([handle for handle, _ in self._handles.values()])

    def add(self, handle: WorkerHandle) -> None:
        """Ask an idle worker to exit."""
        handle.send(Exit())
        handle.write()
        self.await_end(handle)

    def await_end(self, handle: WorkerHandle) -> None:
        """Record that a worker is about to end by itself."""
        self._handles[handle.id] = handle, time.monotonic() + self._grace_s

    def collect(self, now_s: float) -> list[WorkerHandle]:
        """Return the workers that have ended, with their descriptors closed."""
        ended = []
        for worker_id, (handle, end_s) in list(self._handles.items()):
            handle.write()
            # Read its last messages, or it would block on a full socket.
            with contextlib.suppress(OSError, UnreadableStream):
                handle.read()
            if handle.has_ended() or (handle.is_process and now_s >= end_s):
                handle.close()
                del self._handles[worker_id]
                ended.append(handle)
        return ended

    def next_s(self, now_s: float) -> float | None:
        """Return when to poll next, None without ending workers."""
        return now_s + _LOOK_S if self._handles else None
