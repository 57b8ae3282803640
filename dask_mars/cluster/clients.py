"""Which cluster a computation is for, and how it gets there."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from distributed import Client, Future, get_worker

from dask_mars.client import compute_with, fold_from
from dask_mars.cluster.demands import demanding
from dask_mars.cluster.planning import find_hosts
from dask_mars.cluster.submission import run_on_cluster
from dask_mars.errors import NoAgents
from dask_mars.graph import ChunkGraph, Key
from dask_mars.observer import Observer

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


def current() -> Client | None:
    """Return the user's current client, if it is one of a cluster with agents and can be waited for here."""
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
    usable = client.status == "running" and not client.asynchronous and find_hosts(client)
    return client if usable else None


def close() -> None:
    """Close the clients that `connected` has made."""
    with _lock:
        for client in _own.values():
            client.close()
        _own.clear()


def compute(
    client: Client,
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
    client : Client
        Connected to the cluster.
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
    slots = sum([host.slots for host in hosts])

    def run(graph: ChunkGraph, observer: Observer | None) -> dict[int, Any]:
        return run_on_cluster(client, graph, hosts, retries, keep, observer)

    def held(key: Key) -> Future | None:
        # Dask leaves futures out of some graphs, and counts on its own scheduler to know their keys.
        return Future(key, client) if key in client.futures else None

    # Nobody waits for what is kept, and would see the end.
    callbacks = () if keep else callbacks
    return compute_with(run, dsk, keys, fold_from(slots), callbacks, cache, keep, held, True, demanding)


__all__ = ["close", "compute", "connected", "current"]
