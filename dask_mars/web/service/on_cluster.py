"""A service that computes on the agents of a Dask scheduler: its backend, and its monitor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dask_mars.web import answers
from dask_mars.web.monitor import Json
from dask_mars.web.runtime_monitor import RuntimeMonitor

if TYPE_CHECKING:
    from dask_mars.client.backend import GraphBackend
    from dask_mars.cluster.runtime import ClusterRuntime
    from dask_mars.runtimes import Runtime


class ServiceClusterMonitor(RuntimeMonitor):
    """Monitor of this process's computations on a cluster, and of its agents."""

    def __init__(self, runtime: Runtime, address: str) -> None:
        super().__init__(runtime)
        self._address = address

    def backend(self) -> GraphBackend:
        """Return the backend for one graph on the current agents."""
        from dask_mars.cluster import backend

        return backend.cluster_of(backend.connect(self._address))

    def state(self) -> Json:
        """Return agents, their memory, and the number of computations in each state."""
        cluster = self._cluster()
        workers, memory = cluster.state()["workers"], cluster.memory()
        return {
            **super().state(),
            "workers": [
                # Process ids of other hosts mean nothing here.
                {"worker": worker_id, "label": worker["name"], "pid": 0, "running": None, "step": None}
                | {"dispatched": worker["dispatched"]}
                for worker_id, worker in enumerate(workers)
            ],
            "memory": {
                **{name: getattr(memory, name, 0) for name in answers.MemoryAnswer.__annotations__},
                "spilled_bytes": memory.on_disk_bytes,
            },
        }

    def explain(self, id: str | None, key: str | None) -> Json:
        """Return why a computation, all of them, or one chunk waits, as rows of text."""
        if id is None and key is None:
            return {"rows": self._cluster().explain().splitlines()}
        return super().explain(id, key)

    def _cluster(self) -> ClusterRuntime:
        from dask_mars.cluster.backend import connect
        from dask_mars.cluster.runtime import ClusterRuntime

        return ClusterRuntime(connect(self._address), self._runtime.records)
