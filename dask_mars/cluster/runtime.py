"""A cluster in the user's process, with the interface of `Runtime`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from distributed import Client

from dask_mars import units
from dask_mars.client.observed import Observed
from dask_mars.client.records import RUNNING, Records
from dask_mars.client.showing import Explanation, memory_in_words, runtime_as_html
from dask_mars.cluster.admission import workers_of
from dask_mars.cluster.marks import MARK
from dask_mars.cluster.metrics import memory_of
from dask_mars.engine.memory_account import MemoryAccount
from dask_mars.graph.chunks import refuse_unhashable
from dask_mars.observe.profile import Profile, profile_of
from dask_mars.runtime_state import RuntimeState

#: States of subtasks that are dispatched to an agent.
_DISPATCHED = ("ready", "constrained", "executing", "long-running")


class ClusterRuntime(Observed):
    """The cluster that `dask_mars.get` computes on, for observation; see `Runtime`."""

    def __init__(self, client: Client, records: Records) -> None:
        self._client = client
        self.records = records

    def state(self) -> RuntimeState:
        """Return the agents and their memory, as last reported to the scheduler.

        Returns
        -------
        RuntimeState
            A dict, whose entries are attributes as well; printed, and in notebooks, it is a table. ``workers``:
            for each agent its ``address``, ``name``, the ``threads`` that compute subtasks, its number of subtasks
            ``dispatched``, and ``memory_bytes``. ``store``: total ``stored_bytes`` and ``limit_bytes``.
        """
        workers, agents = [], self._agents()
        for address, told in agents.items():
            metrics = told.get("metrics", {})
            workers.append(
                {
                    "address": address,
                    "name": str(told["name"]),
                    "threads": told["nthreads"],
                    "dispatched": sum([metrics.get("task_counts", {}).get(state, 0) for state in _DISPATCHED]),
                    "memory_bytes": metrics.get("memory", 0),
                }
            )
        memory = _memory_of(agents)
        store = {"stored_bytes": memory.store_bytes, "limit_bytes": memory.store_limit_bytes}
        return RuntimeState(workers=workers, store=store)

    def memory(self) -> MemoryAccount:
        """Return the memory of all agents together, as last reported to the scheduler."""
        return _memory_of(self._agents())

    def profile(self) -> Profile:
        """Return the number of computed chunks by layer, for each computation's id; agents report no times."""
        return Profile(
            {record.id: profile_of(record.layers()) for record in self.records if record.source is not None}
        )

    def explain(self, key: Any = None) -> str:
        """Explain what this process's computations on the cluster wait for; see `Runtime.explain`."""
        running = [record for record in self.records if record.state == RUNNING]
        if key is not None:
            refuse_unhashable(key)
            for record in running:
                try:
                    return Explanation(record.explain(key))
                except KeyError:
                    continue
            raise KeyError(key)
        lines = [f"{record.name or record.id}: {record.explain()}" for record in running]
        agents = [
            f"agent {worker['name']} at {worker['address']} has "
            f"{units.plural(worker['dispatched'], 'dispatched subtask')}"
            for worker in self.state()["workers"]
        ]
        reason = "the cluster has no agents" if self._client.status == "running" else "the client is closed"
        return Explanation("\n".join([*lines, *(agents or [reason])]))

    def serve(self, *args: Any, **options: Any) -> NoReturn:
        """Raise an error that names the page of the cluster's scheduler."""
        link = str(self._client.dashboard_link or "").removesuffix("/status")
        raise NotImplementedError(
            f"what a cluster does its scheduler shows, at {link or '<its dashboard>'}/mars/: start it as "
            f"dask scheduler --preload dask_mars.scheduler"
        )

    def _agents(self) -> dict[str, Any]:
        if self._client.status != "running":
            return {}
        return {address: told for address, told in sorted(workers_of(self._client).items()) if MARK in told}

    def __repr__(self) -> str:
        if self._client.status != "running":
            return "<ClusterRuntime closed>"
        return f"<ClusterRuntime {self._client.scheduler.address} agents={len(self._agents())}>"

    def _repr_html_(self) -> str:
        if self._client.status != "running":
            return runtime_as_html("dask_mars on a cluster, closed", [], self.records)
        agents = units.plural(len(self._agents()), "agent")
        facts = [
            f"{agents} at {self._client.scheduler.address}",
            memory_in_words(self.memory(), "the stores have"),
        ]
        return runtime_as_html("dask_mars on a cluster", facts, self.records)


def _memory_of(agents: Mapping[str, Any]) -> MemoryAccount:
    return MemoryAccount(**memory_of([told.get("metrics", {}) for told in agents.values()]))
