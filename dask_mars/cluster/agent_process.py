"""Starts an agent in a process of its own, and lets nannies of stock workers do so; they need to import only this.

A nanny lives as long as its host's agent and only waits, so this module imports no computing code.
"""

from __future__ import annotations

import logging
import math
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distributed import Nanny, NannyPlugin, Status, Worker

from dask_mars import config
from dask_mars.cluster.marks import TAKE_OVER
from dask_mars.worker.preload import load_dask_array

if TYPE_CHECKING:
    from dask_mars.cluster.agent import MarsWorker

logger = logging.getLogger("distributed.dask_mars")

#: Longest time for a nanny to replace its worker, in seconds.
_RESTART_S = 120.0


def start_agent(*args: Any, **options: Any) -> MarsWorker:
    """Return an agent. A nanny treats it as the worker class, and calls it in the worker's process."""
    load_dask_array()
    from dask_mars.cluster.agent import MarsWorker

    return MarsWorker(*args, **options)


def start_taken_agent(*args: Any, **options: Any) -> MarsWorker:
    """Return an agent in the place of a stock worker, which Ctrl-C at a `LocalCluster` does not end for good."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return start_agent(*args, **options)


class StartAgents(NannyPlugin):  # type: ignore[misc]
    """Has nannies start agents in the place of stock workers, now and after each restart.

    It keeps all options of the workers. An agent may take what its nanny allows, but at most its part of what
    ``dask-mars.memory-limit`` gives the agents of a host.
    """

    name = TAKE_OVER
    #: A second client finds the agents of the first.
    idempotent = True

    def __init__(self, nannies_of: Mapping[str, int]) -> None:
        #: Number of nannies by host, and on a host that joins later.
        self._nannies_of = dict(nannies_of)
        self._of_others = max(nannies_of.values(), default=1)
        #: The nanny's memory limit and its share at which it ends a worker, while its worker is an agent.
        self._before: tuple[int | None, float | bool] | None = None

    async def setup(self, nanny: Nanny) -> None:
        """Restart the worker of a nanny as an agent, unless its class is not the stock one."""
        if nanny.Worker is start_agent:
            return
        if nanny.Worker is not Worker:
            logger.warning("%s has workers of its own class, %r, which stay", nanny.address, nanny.Worker)
            return
        memory = nanny.memory_manager
        self._before = memory.memory_limit, memory.memory_terminate_fraction
        of_host = config.parse_memory(config.get("memory-limit"), name="dask-mars.memory-limit")
        limit = of_host // self._nannies_of.get(nanny.ip, self._of_others)
        # The nanny would count shared memory that the agent has read as the agent's own.
        memory.memory_terminate_fraction = math.inf
        await _restart(nanny, start_taken_agent, min(memory.memory_limit or limit, limit))

    async def teardown(self, nanny: Nanny) -> None:
        """Restart the agent of a nanny as a stock worker, unless the nanny closes."""
        if self._before is not None:
            limit, nanny.memory_manager.memory_terminate_fraction = self._before
            self._before = None
            await _restart(nanny, Worker, limit)


async def _restart(nanny: Nanny, worker_class: Any, memory_limit: int | None) -> None:
    """Let a nanny start another class of worker, and restart its worker if it has one."""
    nanny.Worker, nanny.memory_manager.memory_limit = worker_class, memory_limit
    process = nanny.process
    if process is None or nanny.status is not Status.running:
        return
    # The nanny keeps what describes its process over restarts.
    process.Worker, process.worker_kwargs["memory_limit"] = worker_class, memory_limit
    outcome = await nanny.restart(timeout=_RESTART_S, reason=TAKE_OVER)
    if outcome != "OK":
        said = outcome.get("exception_text", outcome) if isinstance(outcome, dict) else outcome
        raise RuntimeError(f"the worker of {nanny.address} could not be restarted: {said}")
