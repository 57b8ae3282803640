"""Bounds the memory of tasks that threads of an agent compute: as in Dask's workers they pause, and end with it.

Dask's own measure includes shared memory that the agent has read, and would pause and end agents for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import AsyncIterator

from dask_mars.limits import anonymous_bytes

logger = logging.getLogger(__name__)

#: Shares of the memory limit above which such tasks run one at a time, and the agent ends: Dask's defaults.
_PAUSE_SHARE, _TERMINATE_SHARE = 0.8, 0.95
#: Poll interval of a paused task, and its longest pause: another one may wait for its result. In seconds.
_POLL_S, _PAUSE_S = 0.1, 10.0


class ForeignTasks:
    """Running tasks of Dask's in the process of an agent with a nanny, which starts another one after its end."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._running = 0

    @contextlib.asynccontextmanager
    async def admit(self) -> AsyncIterator[None]:
        """Run a task in the block, once there is memory or no other one runs."""
        end_s = time.monotonic() + _PAUSE_S
        while self._running and self._takes(_PAUSE_SHARE) and time.monotonic() < end_s:
            await asyncio.sleep(_POLL_S)
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def end_if_full(self) -> None:
        """End the process if its tasks have taken the whole limit."""
        if self._running and self._takes(_TERMINATE_SHARE):
            logger.error(
                "Tasks outside of the engine take more than %d%% of the memory limit of %d bytes. Restarting.",
                _TERMINATE_SHARE * 100,
                self._limit_bytes,
            )
            os.kill(os.getpid(), signal.SIGKILL)

    def _takes(self, share: float) -> bool:
        return anonymous_bytes(os.getpid()) > share * self._limit_bytes
