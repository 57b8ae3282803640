"""Workers that are threads of the user's process, as the engine sees them."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from typing import ClassVar

from dask_mars.engine.worker_handle import WorkerHandle, connected

logger = logging.getLogger(__name__)


class ThreadHandle(WorkerHandle):
    """One worker that is a thread. Nothing ends it but its own end, and nothing interrupts what it computes.

    Parameters
    ----------
    number : int
        Its number.
    serve : callable
        Takes the worker's end of the connection, and returns when the engine has said EXIT or is gone; what it
        returns becomes `pinned`.

    Attributes
    ----------
    is_leaving : bool
        Whether it was told to end.
    pinned : list of (int, int)
        Once it has ended: offset and size in bytes of blocks of its arena that this process has still.
    """

    is_process: ClassVar[bool] = False

    def __init__(self, number: int, serve: Callable[[socket.socket], list[tuple[int, int]]]) -> None:
        ours, theirs = connected()
        super().__init__(number, ours)
        self.is_loaded = True
        self.is_leaving = False
        self.pinned: list[tuple[int, int]] = []
        self._serve = serve
        self._thread = threading.Thread(
            target=self._run, args=(theirs,), name=f"dask-mars-worker-{number}", daemon=True
        )
        self._thread.start()
        self.pid = self._thread.native_id or 0

    def _run(self, connection: socket.socket) -> None:
        try:
            self.pinned = self._serve(connection)
        except Exception:
            # The engine learns it from the end of the stream.
            if not self.is_closed:
                logger.warning("a thread that computes has failed", exc_info=True)
        finally:
            connection.close()

    def interrupt(self) -> None:
        """Do nothing: what is queued it gives back when it is told so, and library code comes to an end."""

    def kill(self) -> None:
        """Do nothing but close the connection: it ends after what it computes now."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def has_ended(self) -> bool:
        """Say whether the thread has ended."""
        return not self._thread.is_alive()

    def close(self) -> int:
        """Close the connection, after which the thread ends as soon as it can."""
        self.close_descriptors()
        return 0


__all__ = ["ThreadHandle"]
