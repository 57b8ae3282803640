"""A cluster of agents on this machine."""

from __future__ import annotations

import asyncio
from typing import Any

from distributed import LocalCluster, Status

from dask_mars.cluster.agent import MarsWorker


class LocalMarsCluster(LocalCluster):  # type: ignore[misc]
    """A `distributed.LocalCluster` whose workers are dask_mars's agents: for tests, and for Dask's dashboard.

    Its scheduler has our plugin. The agents live in this process, each with worker processes of its own.

    Parameters
    ----------
    name : str, optional
        Of the cluster.
    n_workers : int, optional
        Agents. Default: one, as there is for a host.
    threads_per_worker : int, optional
        Worker processes of each. Default: the processors, divided among the agents.
    **options
        As for `distributed.LocalCluster`; those that it does not know are for `MarsWorker`.

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
        # Within a process Dask passes objects on as they are, and agents would get each other's stand-ins.
        options.setdefault("protocol", "tls" if encrypted else "tcp")
        options.setdefault("worker_class", MarsWorker)
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
        """Hear of workers that have come or gone."""
        if op == "remove":
            agent = self.workers.get(self.scheduler_info["workers"][msg]["name"])
            if isinstance(agent, MarsWorker):
                self._futures.add(asyncio.ensure_future(self._begin_anew(agent)))
        super()._update_worker_status(op, msg)

    async def _begin_anew(self, agent: MarsWorker) -> None:
        """Put another in the place of an agent that the scheduler has removed: agents here have no nannies."""
        await agent.finished()
        if agent.is_removed and self.status is Status.running and self.workers.get(agent.name) is agent:
            del self.workers[agent.name]
            await self._correct_state()


__all__ = ["LocalMarsCluster"]
