"""Which cluster a computation is for, and how it gets there."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from distributed import Client, Future, get_worker

from dask_mars.client.callbacks import Observer
from dask_mars.client.computation import compute_with, fold_from
from dask_mars.cluster.planning import Host, find_hosts
from dask_mars.cluster.requirements import Finder
from dask_mars.cluster.submission import run_on_cluster
from dask_mars.errors import NoAgents
from dask_mars.graph.chunks import ChunkGraph, Key

_lock = threading.Lock()
#: Clients that were made because the configuration names a scheduler, by its address.
_own: dict[str, Client] = {}


def connected(address: str) -> Client:
    """Return a client of the scheduler at an address; the first call connects it."""
    with _lock:
        client = _own.get(address)
        if client is None or client.status != "running":
            client = _own[address] = Client(address, set_as_default=False)
        return client


class Cluster(NamedTuple):
    """A cluster as a computation finds it.

    Attributes
    ----------
    client : Client
        Connected to it.
    hosts : list of Host
        Its agents; at least one.
    """

    client: Client
    hosts: list[Host]


def cluster_of(client: Client) -> Cluster:
    """Return the cluster that a client is connected to.

    Raises
    ------
    NoAgents
        There is no worker of ours.
    ValueError
        The client is asynchronous.
    """
    if client.asynchronous:
        raise ValueError("dask_mars.get waits for its result, and needs a Client that is not asynchronous")
    hosts = find_hosts(client)
    if not hosts:
        raise NoAgents(client.scheduler.address)
    return Cluster(client, hosts)


def current() -> Cluster | None:
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
    hosts = find_hosts(client)
    return Cluster(client, hosts) if hosts else None


def close() -> None:
    """Close the clients that `connected` has made."""
    with _lock:
        for client in _own.values():
            client.close()
        _own.clear()


def compute(
    cluster: Cluster,
    dsk: Any,
    keys: Any,
    retries: int | None = None,
    callbacks: Any = None,
    cache: Mapping[Key, Any] | None = None,
    keep: bool = False,
) -> Any:
    """Compute keys of a Dask graph on a cluster.

    Parameters
    ----------
    cluster : Cluster
        Which.
    dsk, keys
        As Dask calls a scheduler.
    retries : int, optional
        How often a task that raises is tried again.
    callbacks : iterable of tuple, optional
        In place of those registered with Dask.
    cache : mapping, optional
        Values of keys that are known already.
    keep : bool, optional
        Leave values on the cluster, and return nodes for graphs in their place, without waiting for them; no
        callbacks are called.

    Returns
    -------
    tuple or object
        As Dask's own schedulers.
    """
    client, hosts = cluster
    slots = sum([host.slots for host in hosts])
    requirements = Finder()

    def run(graph: ChunkGraph, observer: Observer | None) -> dict[int, Any]:
        return run_on_cluster(client, graph, hosts, requirements.of(graph), retries, keep, observer)

    def held(key: Key) -> Future | None:
        # Dask leaves futures out of some graphs, and counts on its own scheduler to know their keys.
        return Future(key, client) if key in client.futures else None

    # Nobody waits for what is kept, and would see the end.
    callbacks = () if keep else callbacks
    return compute_with(run, dsk, keys, fold_from(slots), callbacks, cache, keep, held, True, requirements.apart)


__all__ = ["Cluster", "close", "cluster_of", "compute", "connected", "current"]
