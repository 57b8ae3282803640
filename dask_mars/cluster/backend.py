"""The backend that computes on a cluster, and the choice of the cluster."""

from __future__ import annotations

import threading
from typing import Any

from distributed import Client, Future, get_worker
from distributed.client import FutureCancelledError

from dask_mars.backend import Options
from dask_mars.client.backend import GraphBackend
from dask_mars.client.callbacks import CallbackObserver
from dask_mars.client.records import Record, Records
from dask_mars.cluster.marks import CANCELLED_ON_PAGE
from dask_mars.cluster.planning import AgentInfo, find_agents
from dask_mars.cluster.requirements import RequirementsFinder
from dask_mars.cluster.runtime import ClusterRuntime
from dask_mars.cluster.submission import run_on_cluster
from dask_mars.errors import Cancelled, NoAgents
from dask_mars.graph.chunks import ChunkGraph, Key
from dask_mars.optimize.defaults import fold_from, remaking
from dask_mars.optimize.prepare import PrepareOptions

_lock = threading.Lock()
#: Clients that were made because the configuration names a scheduler, by its address.
_clients: dict[str, Client] = {}


def connect(address: str) -> Client:
    """Return a client of the scheduler at an address; the first call connects it."""
    with _lock:
        client = _clients.get(address)
        if client is None or client.status != "running":
            client = _clients[address] = Client(address, set_as_default=False)
        return client


class ClusterBackend(GraphBackend):
    """Computes on a cluster as this computation finds it.

    Parameters
    ----------
    client : Client
        Connected to it.
    hosts : list of AgentInfo
        Its agents; at least one.
    """

    is_remote = True

    def __init__(self, client: Client, hosts: list[AgentInfo]) -> None:
        self._client = client
        self._hosts = hosts
        self._requirements = RequirementsFinder()

    def compute(self, dsk: Any, keys: Any, options: Options, persist: bool = False) -> Any:
        """Compute keys of a Dask graph; see `Backend`. What is persisted is not waited for."""
        # Nobody waits for what is persisted, and would see the end.
        return super().compute(dsk, keys, options._replace(callbacks=()) if persist else options, persist)

    def prepare_options(self, options: Options) -> PrepareOptions:
        """Return what graphs are prepared for."""
        slots = sum([host.slots for host in self._hosts])
        return PrepareOptions(
            fold_from(slots),
            self._future,
            self._requirements.select_unmergeable,
            remaking=remaking(),
            workers=slots,
        )

    def runtime(self, records: Records) -> ClusterRuntime:
        """Return what tells of the cluster, and of the computations of this process."""
        return ClusterRuntime(self._client, records)

    def _future(self, key: Key) -> Future | None:
        # Dask leaves futures out of some graphs, and counts on its own scheduler to know their keys.
        return Future(key, self._client) if key in self._client.futures else None

    def run(
        self,
        graph: ChunkGraph,
        observer: CallbackObserver | None,
        options: Options,
        persist: bool,
        record: Record,
    ) -> dict[int, Any]:
        """Compute a graph, as `GraphBackend` says."""
        requirements = self._requirements.of(graph)
        try:
            return run_on_cluster(
                self._client, graph, self._hosts, requirements, options.retries, persist, observer, record
            )
        except FutureCancelledError as error:
            if CANCELLED_ON_PAGE in str(error):
                raise Cancelled(record.id) from None
            raise


def cluster_of(client: Client) -> ClusterBackend:
    """Return what computes on the cluster that a client is connected to.

    Raises
    ------
    NoAgents
        There is no worker of ours.
    TypeError
        It is no client.
    ValueError
        The client is asynchronous.
    """
    if not isinstance(client, Client):
        raise TypeError(f"'client' is a distributed.Client, and not {client!r}")
    if client.asynchronous:
        raise ValueError("dask_mars.get waits for its result, and needs a Client that is not asynchronous")
    hosts = find_agents(client)
    if not hosts:
        raise NoAgents(client.scheduler.address)
    return ClusterBackend(client, hosts)


def current_cluster() -> ClusterBackend | None:
    """Return the cluster of the user's current client, if that has agents and can be waited for here."""
    try:
        get_worker()
    except ValueError:
        pass
    else:
        # A task waits for nothing that its own worker may have to compute.
        return None
    try:
        client = Client.current()
    except ValueError:
        return None
    if client.status != "running" or client.asynchronous:
        return None
    hosts = find_agents(client)
    return ClusterBackend(client, hosts) if hosts else None


def close() -> None:
    """Close the clients that `connect` has made."""
    with _lock:
        for client in _clients.values():
            client.close()
        _clients.clear()


__all__ = ["ClusterBackend", "close", "cluster_of", "connect", "current_cluster"]
