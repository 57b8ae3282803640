"""What a cluster offers, and what of a graph goes where."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from distributed import Client, Future
from distributed.comm import get_address_host

from dask_mars import config
from dask_mars.cluster.plugin import MARK, names_in_hashes
from dask_mars.errors import NoHostAllowed
from dask_mars.graph import ChunkGraph, Restriction
from dask_mars.scheduler.events import GraphPlan
from dask_mars.scheduler.hosts import Hosts, place_on_hosts
from dask_mars.scheduler.subtasks import Subtask, cut, estimate_bytes


@dataclass(frozen=True, slots=True)
class Host:
    """An agent, as Dask's scheduler knows it.

    Attributes
    ----------
    address : str
        Of its worker.
    slots : int
        Subtasks that it computes at the same time.
    name : str
        That the user has given it; else the address.
    resources : mapping
        Amount of each of its resources.
    """

    address: str
    slots: int
    name: str
    resources: Mapping[str, float]

    def is_one_of(self, workers: Collection[str]) -> bool:
        """Say whether it is among workers that the user names by address, name or host, as Dask allows."""
        return not {self.address, self.name, get_address_host(self.address)}.isdisjoint(workers)


def find_hosts(client: Client) -> list[Host]:
    """Return the agents of a cluster, in the order of their addresses."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return [
        Host(address, told["nthreads"], str(told["name"]), told["resources"])
        for address, told in sorted(workers.items())
        if MARK in told and told["status"] == "running"
    ]


def futures_of(client: Client, graph: ChunkGraph) -> dict[int, Future]:
    """Return the chunks of a graph that are futures of a client's, which need not come here."""
    return {
        chunk: value
        for chunk, value in graph.values.items()
        if isinstance(value, Future) and value.client is client
    }


def held_by(client: Client, futures: Mapping[int, Future], hosts: Sequence[Host]) -> dict[int, dict[int, int]]:
    """Find out where futures lie.

    Parameters
    ----------
    client : Client
        Connected to the cluster.
    futures : mapping
        By chunk.
    hosts : sequence of Host
        Others do not count.

    Returns
    -------
    dict
        Of chunks that hosts have: bytes by host, which are known by their place in the list.
    """
    if not futures:
        return {}
    places = {host.address: number for number, host in enumerate(hosts)}
    workers = client.who_has(list(futures.values()))
    # Those that are still to be computed are not necessarily known, and of unknown keys sizes must not be asked.
    sizes = client.nbytes([key for key, there in workers.items() if there], summary=False)
    held = {}
    for chunk, future in futures.items():
        there = [places[address] for address in workers.get(future.key, ()) if address in places]
        if there:
            held[chunk] = dict.fromkeys(there, sizes.get(future.key, 0))
    return held


def cut_for(
    graph: ChunkGraph, hosts: Sequence[Host], here: Collection[int], held_bytes: Mapping[int, Mapping[int, int]]
) -> list[Subtask]:
    """Cut a graph into subtasks for hosts.

    Parameters
    ----------
    graph : ChunkGraph
        The graph.
    hosts : sequence of Host
        At least one. Subtasks know them by their place in it.
    here : collection of int
        Chunks that have to run in this process, besides those of which the graph says so.
    held_bytes : mapping
        As `held_by` returns it.

    Raises
    ------
    NoHostAllowed
        The user wants a chunk to be computed where there is nobody.
    """
    plan = GraphPlan(
        inputs=graph.inputs,
        outputs=graph.outputs,
        operand_of=graph.operand_of,
        in_client=frozenset(graph.chunks_for_client().union(graph.in_client, here)),
        declared_bytes=graph.declared_bytes,
    )
    slots = {number: host.slots for number, host in enumerate(hosts)}
    by_address = names_in_hashes({host.address: host.name for host in hosts})
    known = Hosts(slots, {number: by_address[host.address] for number, host in enumerate(hosts)})
    allowed, kinds = _restricted(graph, hosts)
    sizes = estimate_bytes(plan)
    key_of = graph.keys.__getitem__
    placed = place_on_hosts(plan, known, key_of, config.get("assignment"), allowed, held_bytes, sizes)
    return cut(plan, placed, slots, sizes=sizes, kinds=kinds)


def _restricted(graph: ChunkGraph, hosts: Sequence[Host]) -> tuple[dict[int, list[int]], dict[int, int]]:
    """Return the hosts that the user allows for chunks, and which of these chunks may share a subtask."""
    allowed: dict[int, list[int]] = {}
    kinds: dict[int, int] = {}
    kind_of: dict[Restriction | tuple[Restriction, int], int] = {}
    found: dict[Restriction, list[int]] = {}
    for chunk, restriction in graph.restrictions.items():
        if restriction not in found:
            found[restriction] = allowed_by(restriction, hosts)
        allowed[chunk] = found[restriction]
        # What takes resources takes them for as long as its subtask runs.
        kind = (restriction, chunk) if restriction.resources else restriction
        kinds[chunk] = kind_of.setdefault(kind, len(kind_of) + 1)
    return allowed, kinds


def allowed_by(restriction: Restriction, hosts: Sequence[Host]) -> list[int]:
    """Return hosts that the user allows, by their place; all if none of them is there and others will do."""
    everywhere = range(len(hosts))
    numbers = [
        number
        for number in everywhere
        if (not restriction.workers or hosts[number].is_one_of(restriction.workers))
        and all(hosts[number].resources.get(name, 0) >= amount for name, amount in restriction.resources)
    ]
    if not numbers and not restriction.loose:
        raise NoHostAllowed(restriction.workers, dict(restriction.resources), [host.name for host in hosts])
    return numbers or list(everywhere)


__all__ = ["Host", "allowed_by", "cut_for", "find_hosts", "futures_of", "held_by"]
