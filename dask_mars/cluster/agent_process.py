"""Starts an agent in a process of its own, has nannies of stock workers do so, or starts it beside a stock worker.

A nanny lives as long as its host's agent and only waits, so this module imports no computing code.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import weakref
from collections.abc import Mapping
from pathlib import Path
from pickle import dumps
from typing import TYPE_CHECKING, Any

from distributed import Nanny, NannyPlugin, Status, Worker, WorkerPlugin

from dask_mars import config
from dask_mars.cluster.marks import ATTACH, TAKE_OVER
from dask_mars.worker.preload import load_dask_array

if TYPE_CHECKING:
    from dask_mars.cluster.agent import MarsWorker

logger = logging.getLogger("distributed.dask_mars")

#: Longest time for a nanny to replace its worker, in seconds.
_RESTART_S = 120.0
#: Time for a worker to end once its scheduler has told it, or its nanny, to do so, in seconds.
_HEARD_S = 3.0
#: Statuses of a worker that does not close.
_STAYS = (Status.running, Status.paused)
#: Nannies of agents that were stock workers, their memory limits, and shares at which they would end a worker.
_before: weakref.WeakKeyDictionary[Nanny, tuple[int | None, float | bool]] = weakref.WeakKeyDictionary()


def start_agent(*args: Any, **options: Any) -> MarsWorker:
    """Return an agent. A nanny treats it as the worker class, and calls it in the worker's process."""
    load_dask_array()
    from dask_mars.cluster.agent import MarsWorker

    return MarsWorker(*args, **options)


def start_taken_agent(*args: Any, **options: Any) -> MarsWorker:
    """Return an agent in the place of a stock worker, which Ctrl-C at a `LocalCluster` does not end for good."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return start_agent(*args, plugins=[_GoBack()], **options)


def _memory_limit(workers_of: Mapping[str, int], host: str, limit: int | None) -> int:
    """Return the limit of an agent: that of its worker, but at most its part of the host's."""
    of_host = config.parse_memory(config.get("memory-limit"), name="dask-mars.memory-limit")
    # A host that joined later counts as the one with most workers.
    share = of_host // workers_of.get(host, max(workers_of.values(), default=1))
    return min(limit or share, share)


class StartAgents(NannyPlugin):  # type: ignore[misc]
    """Has nannies start agents in the place of stock workers, now and after each restart.

    It keeps all options of the workers. An agent may take what its nanny allows, but at most its part of what
    ``dask-mars.memory-limit`` gives the agents of a host.
    """

    name = TAKE_OVER
    #: A second client finds the agents of the first.
    idempotent = True

    def __init__(self, workers_of: Mapping[str, int]) -> None:
        self._workers_of = dict(workers_of)

    async def setup(self, nanny: Nanny) -> None:
        """Restart the worker of a nanny as an agent, unless its class is not the stock one."""
        if nanny.Worker in (start_agent, start_taken_agent):
            return
        if nanny.Worker is not Worker:
            logger.warning("%s has workers of its own class, %r, which stay", nanny.address, nanny.Worker)
            return
        memory = nanny.memory_manager
        _before[nanny] = memory.memory_limit, memory.memory_terminate_fraction
        limit = _memory_limit(self._workers_of, nanny.ip, memory.memory_limit)
        # The nanny would count shared memory that the agent has read as the agent's own.
        memory.memory_terminate_fraction = math.inf
        await _restart(nanny, start_taken_agent, limit)

    async def teardown(self, nanny: Nanny) -> None:
        """Restart the agent of a nanny as a stock worker, unless the nanny closes."""
        if (before := _before.pop(nanny, None)) is not None:
            limit, nanny.memory_manager.memory_terminate_fraction = before
            await _restart(nanny, Worker, limit)


class _GoBack(WorkerPlugin):  # type: ignore[misc]
    """Has the nanny of a taken agent restart it as a stock worker if its cluster was given back meanwhile.

    The scheduler tells only nannies whose workers it knows, and not one whose worker has died and restarts.
    """

    def setup(self, worker: Worker) -> None:
        """Look once the agent has the plugins of its scheduler."""
        worker.loop.add_callback(_ask_nanny, worker, False, "run", function=dumps(_go_back))


async def _go_back(dask_worker: Nanny) -> None:
    # The nanny may have heard of it by now.
    if TAKE_OVER in dask_worker.plugins:
        await dask_worker.plugin_remove(name=TAKE_OVER)


class AttachAgents(WorkerPlugin):  # type: ignore[misc]
    """Starts an agent beside each stock worker without a nanny, in its process, until the worker closes.

    It starts another if that one ends: an adaptive cluster counts both, and may retire only the agent.

    The worker goes on with what goes Dask's way, but for its resources, which the agent takes. Registered as long
    as a cluster is taken over: before `StartAgents`, and removed before it.
    """

    name = ATTACH
    idempotent = True

    def __init__(self, workers_of: Mapping[str, int]) -> None:
        self._workers_of = dict(workers_of)
        self._agent: MarsWorker | None = None
        self._resources: dict[str, float] = {}

    async def setup(self, worker: Worker) -> None:
        """Start the agent of a worker, unless that has a nanny or a class of its own."""
        if type(worker) is not Worker:
            return
        if worker.nanny:
            # The nanny has not heard of the cluster's take-over if its former worker had just died.
            worker.loop.add_callback(
                _ask_nanny, worker, True, "plugin_add", plugin=dumps(StartAgents(self._workers_of))
            )
            return
        self._resources = dict(worker.state.total_resources)
        await self._start(worker)

    async def _start(self, worker: Worker) -> None:
        # Agents would get each other's results unserialized.
        is_in_process = worker.address.startswith("inproc")
        self._agent = agent = start_agent(
            worker.scheduler.address,
            name=agent_name(worker.name),
            nthreads=worker.state.nthreads,
            memory_limit=_memory_limit(self._workers_of, worker.ip, worker.memory_manager.memory_limit),
            resources=self._resources,
            local_directory=str(Path(worker.local_directory).parent),
            security=worker.security,
            host="127.0.0.1" if is_in_process else worker.ip,
            protocol="tcp" if is_in_process else worker.address.partition("://")[0],
            dashboard=False,
        )
        await agent
        if self._resources:
            await worker.set_resources(**dict.fromkeys(self._resources, 0))
        worker.loop.add_callback(self._start_another, worker, agent)

    async def _start_another(self, worker: Worker, agent: MarsWorker) -> None:
        await agent.finished()
        # The worker may close just after its agent, as when their scheduler ends.
        for wait_s in (0, _HEARD_S):
            await asyncio.sleep(wait_s)
            if worker.plugins.get(ATTACH) is not self or worker.status not in _STAYS:
                return
        await self._start(worker)

    async def teardown(self, worker: Worker) -> None:
        """End the agent, after its results have moved to other workers."""
        if self._agent is not None:
            # Dask gives up the request if another worker closes meanwhile.
            await asyncio.shield(asyncio.ensure_future(self._leave(self._agent, worker)))

    async def _leave(self, agent: MarsWorker, worker: Worker) -> None:
        await agent.leave(ATTACH)
        if self._resources and worker.status in _STAYS:
            await worker.set_resources(**self._resources)


def agent_name(worker: Any) -> str:
    """Return the name of the agent beside a worker, given that one's name."""
    return f"{worker}-mars"


async def _ask_nanny(worker: Worker, is_taken: bool, operation: str, **arguments: Any) -> None:
    """Send a request to a worker's nanny, which ends the worker, if the cluster is, or is not, taken over."""
    # Until it has its plugins.
    await worker
    # If the nanny has heard of it from the scheduler, the worker ends before this.
    await asyncio.sleep(_HEARD_S)
    if (ATTACH in worker.plugins) is is_taken and worker.status in _STAYS:
        with contextlib.suppress(OSError):
            async with worker.rpc(worker.nanny) as nanny:
                await getattr(nanny, operation)(**arguments)


async def _restart(nanny: Nanny, worker_class: Any, memory_limit: int | None) -> None:
    """Let a nanny start another class of worker, and restart its worker if it has one."""
    nanny.Worker, nanny.memory_manager.memory_limit = worker_class, memory_limit
    process = nanny.process
    if process is None or nanny.status is not Status.running:
        return
    # The nanny keeps what describes its process over restarts.
    process.Worker, process.worker_kwargs["memory_limit"] = worker_class, memory_limit
    try:
        # The nanny cancels requests when it closes.
        await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(_replace_worker(nanny))), _RESTART_S)
    except Exception as error:
        raise RuntimeError(f"the worker of {nanny.address} could not be restarted: {error!r}") from error


async def _replace_worker(nanny: Nanny) -> None:
    """End a nanny's worker, and start another unless the nanny closes; `Nanny.restart` would leave one behind."""
    await nanny.kill(reason=TAKE_OVER)
    if nanny.status is Status.running:
        await nanny.instantiate()
