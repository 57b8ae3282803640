"""The shared objects of a service's handlers."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from dask_mars.web.service.monitor import ServiceMonitor
from dask_mars.web.service.store import ServiceStore
from dask_mars.web.service.supervisor import Supervisor

#: Bytes of bodies and results in memory, for each request.
PIECE_BYTES = 1 << 18


@dataclass(frozen=True)
class ServiceContext:
    """The shared objects of a service's handlers."""

    store: ServiceStore
    supervisor: Supervisor
    monitor: ServiceMonitor
    #: Threads for files, so that the event loop never waits for a slow disk.
    executor: Executor
    versions: dict[str, str]
    body_limit_bytes: int

    async def run(self, function: Any, *arguments: Any) -> Any:
        """Call a function that waits for the disk."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, function, *arguments)
