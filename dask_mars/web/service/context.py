"""What the handlers of a service share."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from dask_mars.web.service.monitor import ServiceMonitor
from dask_mars.web.service.store import Store
from dask_mars.web.service.supervisor import Supervisor

#: Bytes of bodies and results that are in memory at once, for each request.
PIECE_BYTES = 1 << 18


@dataclass(frozen=True)
class Service:
    """What the handlers here share.

    Attributes
    ----------
    store : Store
        The records.
    supervisor : Supervisor
        Who has the runner.
    monitor : ServiceMonitor
        What is shown.
    executor : Executor
        Where files are read and written, so that a slow disk is waited for there.
    versions : dict
        Those that submissions must have been made with.
    body_limit_bytes : int
        Of a submission.
    """

    store: Store
    supervisor: Supervisor
    monitor: ServiceMonitor
    executor: Executor
    versions: dict[str, str]
    body_limit_bytes: int

    async def run(self, function: Any, *arguments: Any) -> Any:
        """Call what waits for the disk."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, function, *arguments)
