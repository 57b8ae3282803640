"""A cluster of agents on this machine."""

from __future__ import annotations

import asyncio
from typing import Any

from distributed import LocalCluster, Status

from dask_mars import config
from dask_mars.cluster.agent import MarsWorker


class LocalMarsCluster(LocalCluster):  # type: ignore[misc]
    """A `distributed.LocalCluster` of dask_mars's agents: for tests, and for Dask's dashboard.

    Its scheduler has our plugins. The agents live in this process, each with worker processes of its own.

    Parameters
    ----------
    name : str, optional
        Name of the cluster.
    n_workers : int, optional
        Number of agents. Default: one, as on a host.
    threads_per_worker : int, optional
        Worker processes of each agent. Default: the processors, divided among the agents.
    **options
        As for `distributed.LocalCluster`; unknown ones are for `MarsWorker`. Default of ``memory_limit``: that of
        dask-mars.memory-limit, divided among the agents.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_mars
    >>> from distributed import Client
    >>> with dask_mars.LocalMarsCluster(threads_per_worker=2, dashboard_address="127.0.0.1:0") as cluster:
    ...     with Client(cluster):
    ...         int(da.arange(10, chunks=5).sum().compute(scheduler=dask_mars.get))
    45
    """

    def __init__(
        self,
        name: str | None = None,
        n_workers: int | None = None,
        threads_per_worker: int | None = None,
        **options: Any,
    ) -> None:
        security = options.get("security")
        encrypted = security is True or getattr(security, "require_encryption", False)
        # Dask's inproc protocol passes objects unserialized, so that agents would get each other's stored results.
        options.setdefault("protocol", "tls" if encrypted else "tcp")
        options.setdefault("worker_class", MarsWorker)
        if "memory_limit" not in options:
            limit_bytes = config.parse_memory(config.get("memory-limit"), name="dask-mars.memory-limit")
            options["memory_limit"] = limit_bytes // max(1 if n_workers is None else n_workers, 1)
        of_scheduler = options.pop("scheduler_kwargs", None) or {}
        of_scheduler.setdefault("preload", ["dask_mars.scheduler"])
        super().__init__(
            name=name,
            n_workers=1 if n_workers is None else n_workers,
            threads_per_worker=threads_per_worker,
            processes=False,
            scheduler_kwargs=of_scheduler,
            **options,
        )

    def _update_worker_status(self, op: str, msg: Any) -> None:
        """Handle a message about a new or a lost worker."""
        if op == "remove":
            agent = self.workers.get(self.scheduler_info["workers"][msg]["name"])
            if isinstance(agent, MarsWorker):
                self._futures.add(asyncio.ensure_future(self._begin_anew(agent)))
        super()._update_worker_status(op, msg)

    async def _begin_anew(self, agent: MarsWorker) -> None:
        """Replace an agent that the scheduler has removed; these agents have no nannies."""
        await agent.finished()
        if agent.is_removed and self.status is Status.running and self.workers.get(agent.name) is agent:
            del self.workers[agent.name]
            await self._correct_state()
