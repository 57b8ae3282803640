"""Workers that are threads of the user's process, as the engine sees them."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import os
import socket
import threading
from functools import partial
from typing import Any, ClassVar

from dask_mars.engine.worker_handle import WorkerHandle, connected

logger = logging.getLogger(__name__)


class ThreadHandle(WorkerHandle):
    """One worker that is a thread. Nothing can end or interrupt it from outside."""

    is_process: ClassVar[bool] = False

    def __init__(self, id: int, **options: Any) -> None:
        # Graphs for processes do not wait for what this imports. The options are those of `serve`.
        from dask_mars.worker.thread import IdleTime, serve

        ours, theirs = connected()
        super().__init__(id, ours)
        self.is_loaded = True
        self.is_leaving = False
        #: After its end: offset and size in bytes of blocks of its arena that this process still uses.
        self.pinned: list[tuple[int, int]] = []
        self._serve = partial(serve, **options)
        self._idle_time = IdleTime()
        #: Descriptor of the system's scheduling counters; None before the first use, -1 if unavailable.
        self._counts: int | None = None
        self._thread = threading.Thread(
            target=self._run, args=(theirs,), name=f"dask-mars-worker-{id}", daemon=True
        )
        self._thread.start()
        self.pid = self._thread.native_id or 0

    def _run(self, connection: socket.socket) -> None:
        try:
            # From Python 3.14 on an ended thread keeps its context, with the arena that NumPy allocates in.
            self.pinned = contextvars.copy_context().run(self._serve, connection, self._idle_time)
        except Exception:
            # The engine learns of it from the end of the stream.
            if not self.is_closed:
                logger.warning("a thread that computes has failed", exc_info=True)
        finally:
            connection.close()

    def idle_s(self, now_s: float) -> float:
        """Return the seconds for which it has had no work until now."""
        return self._idle_time.until(now_s)

    def queued_s(self) -> float | None:
        """Return the seconds for which it was ready without a processor; None if the system does not report it."""
        if self._counts is None:
            try:
                self._counts = os.open(f"/proc/self/task/{self.pid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._counts = -1
        if self._counts < 0:
            return None
        try:
            return int(os.pread(self._counts, 64, 0).split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            # It has just ended.
            return None

    def interrupt(self) -> None:
        """Do nothing: it returns queued chunks on request, and library code ends."""

    def kill(self) -> None:
        """Only close the connection: the thread ends after its present chunk."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def has_ended(self) -> bool:
        """Return whether the thread has ended."""
        return not self._thread.is_alive()

    def close_descriptors(self) -> None:
        """Close the connection and the descriptor for the thread's times."""
        super().close_descriptors()
        if self._counts is not None and self._counts >= 0:
            os.close(self._counts)
        self._counts = -1

    def close(self) -> int:
        """Close the connection, after which the thread ends as soon as it can."""
        self.close_descriptors()
        return 0
