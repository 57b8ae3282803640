"""Finds the agents of a cluster, and cuts a graph into subtasks for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from distributed import Client, Future

from dask_mars import config
from dask_mars.cluster.admission import workers_of
from dask_mars.cluster.distributed_api import Status, get_address_host, most_workers, requested_workers
from dask_mars.cluster.map_outputs import Selections
from dask_mars.cluster.marks import IDENTITY, MARK, RECONNECTS
from dask_mars.cluster.partition.hosts import Hosts, place_on_hosts
from dask_mars.cluster.partition.subtasks import NO_HOST, Subtask, cut, estimate_bytes, estimate_seconds
from dask_mars.cluster.requirements import Requirements
from dask_mars.cluster.scheduler_plugin import LEAVING, has_resources
from dask_mars.cluster.shuffles import GraphShuffles
from dask_mars.cluster.versions import warn_of_other_versions
from dask_mars.errors import NoHostAllowed
from dask_mars.graph.chunks import ChunkGraph, DeclaredSizes, Restriction
from dask_mars.optimize.library_code import count_other_calls
from dask_mars.scheduler.events import GraphPlan

#: Slots that adaptive and other clusters are expected to grow to, if they may and have not half of them.
_ADAPTIVE_SLOTS, _EXPECTED_SLOTS = 32, 16
#: Estimated work that pays for the subtasks of one more slot, in seconds: each costs some milliseconds.
_WORK_OF_SLOT_S = 8.0
#: Assumed time of a call of the user's functions, in seconds. Dask assumes five times that.
_USERS_CALL_S = 0.1

#: Planned agent and estimated bytes of the futures that this process has persisted. Dask's scheduler knows neither
#: while they are pending, and a graph that reads them would be placed at random.
_expected: WeakKeyDictionary[Future, tuple[str, int]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """An agent, as Dask's scheduler knows it."""

    address: str
    #: Concurrent subtasks.
    slots: int
    #: The user's name for it, or its address.
    name: str
    resources: Mapping[str, float]
    #: Unique id: another agent may reuse the address.
    id: str = ""
    #: Its wait for a lost scheduler, in seconds; 0 for none.
    reconnect_s: float = 0.0

    def is_one_of(self, workers: Collection[str]) -> bool:
        """Return whether it is among workers named by address, name or IP address, as Dask allows."""
        known = {self.address, self.address.partition("://")[2], self.name, get_address_host(self.address)}
        return not known.isdisjoint(workers)

    def has(self, resources: Collection[tuple[str, float]]) -> bool:
        """Return whether it has enough of each resource."""
        return has_resources(self.resources, resources)


def find_agents(client: Client) -> list[AgentInfo]:
    """Return the agents of a cluster, in the order of their addresses."""
    # One that has just registered counts before it runs: the scheduler queues its tasks.
    return agents_among(workers_of(client))


def agents_among(workers: Mapping[str, Mapping[str, Any]]) -> list[AgentInfo]:
    """Return the agents among workers, given as `workers_of` returns them."""
    agents = {
        address: told
        for address, told in sorted(workers.items())
        if MARK in told and Status[told["status"]] not in LEAVING
    }
    warn_of_other_versions({told[MARK] for told in agents.values()})
    return [
        AgentInfo(
            address,
            told["nthreads"],
            str(told["name"]),
            told["resources"],
            told.get(IDENTITY, ""),
            told.get(RECONNECTS, 0.0),
        )
        for address, told in agents.items()
    ]


def futures_of(client: Client, graph: ChunkGraph) -> dict[int, Future]:
    """Return the chunks of a graph that are futures of a client, and are not copied here."""
    return {
        chunk: value
        for chunk, value in graph.values.items()
        if isinstance(value, Future) and value.client is client
    }


def find_replicas(
    client: Client, futures: Mapping[int, Future], hosts: Sequence[AgentInfo]
) -> dict[int, dict[int, int]]:
    """Return the hosts that hold futures, or that are expected to."""
    # The result has, for each chunk on a host, its bytes by host id.
    if not futures:
        return {}
    places = {host.address: index for index, host in enumerate(hosts)}
    workers = client.who_has(list(futures.values()))
    # The scheduler may not know futures that are still to be computed, and fails for unknown keys.
    sizes = client.nbytes([key for key, there in workers.items() if there], summary=False)
    held = {}
    for chunk, future in futures.items():
        there = [places[address] for address in workers.get(future.key, ()) if address in places]
        if there:
            held[chunk] = dict.fromkeys(there, sizes.get(future.key, 0))
        elif future in _expected and (expected := _expected[future])[0] in places:
            held[chunk] = {places[expected[0]]: expected[1]}
    return held


def expect(future: Future, host: AgentInfo, size_bytes: int) -> None:
    """Record where a pending future of ours will be."""
    _expected[future] = host.address, size_bytes


def slots_to_come(cluster: Any, hosts: Sequence[AgentInfo], work_s: float = 0.0) -> int:
    """Return the slots that a cluster may add during so much work."""
    slots = sum([host.slots for host in hosts])
    of_host = slots / max(len(hosts), 1)
    if adaptive := most_workers(cluster):
        # It asks for as many hosts as it sees tasks for.
        most = min(max(_ADAPTIVE_SLOTS, 2 * slots), adaptive * of_host)
    else:
        most = max(_EXPECTED_SLOTS, 2 * slots, requested_workers(cluster) * of_host)
        most = min(most, work_s / _WORK_OF_SLOT_S)
    return max(int(most) - slots, 0)


class Cut(NamedTuple):
    """A graph that has been cut into subtasks."""

    #: Each comes after its inputs.
    subtasks: list[Subtask]
    #: Estimated bytes of each chunk.
    sizes: list[int]


def cut_for(
    graph: ChunkGraph,
    hosts: Sequence[AgentInfo],
    unsendable: Collection[int],
    replica_bytes: Mapping[int, Mapping[int, int]],
    requirements: Requirements,
    shuffles: GraphShuffles,
    selections: Selections,
    task: int = 0,
    cluster: Any = None,
) -> Cut:
    """Cut a graph into subtasks for hosts, and as finely as for those that may join meanwhile."""
    in_client = graph.chunks_for_client().union(graph.in_client, unsendable)
    # Readers of files that are written in this process must run here too.
    makers = {requirements.files[chunk] for chunk in in_client if chunk in requirements.files}
    in_client |= {chunk for chunk, maker in requirements.files.items() if maker in makers}
    plan = GraphPlan(
        inputs=graph.inputs,
        outputs=graph.outputs,
        operand_of=graph.operand_of,
        in_client=frozenset(in_client),
        declared_bytes=DeclaredSizes(graph),
    )
    slots = {index: host.slots for index, host in enumerate(hosts)}
    by_address = names_in_hashes({host.address: host.name for host in hosts})
    known = Hosts(slots, {index: by_address[host.address] for index, host in enumerate(hosts)})
    allowed = _allowed(graph, hosts, requirements, shuffles)
    allowed.update({chunk: [host] for chunk, host in selections.host_of.items()})
    kinds = _kinds(graph, requirements, in_client)
    sizes = estimate_bytes(plan)
    key_of = graph.keys.__getitem__
    placed = place_on_hosts(plan, known, key_of, config.get("assignment"), allowed, replica_bytes, sizes)
    selections.route(graph, placed)
    seconds = _estimate_seconds(graph, plan, sizes)
    work_s = sum([spent for host, spent in zip(placed, seconds, strict=True) if host >= 0])
    slots[NO_HOST] = slots_to_come(cluster, hosts, work_s)
    return Cut(cut(plan, placed, slots, task, sizes=sizes, seconds=seconds, kinds=kinds), sizes)


def _estimate_seconds(graph: ChunkGraph, plan: GraphPlan, sizes: Sequence[int]) -> list[float]:
    """Return the estimated duration of each chunk; nothing is known of the user's functions."""
    calls = count_other_calls(graph)
    return [
        spent if operand < 0 else spent + _USERS_CALL_S * calls[operand]
        for operand, spent in zip(graph.operand_of, estimate_seconds(plan, sizes), strict=True)
    ]


def names_in_hashes(agents: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of agents for hashing, which stay the same when an agent leaves and rejoins."""
    # A name is the user's, else the host, or the address where several agents share that.
    names = {
        address: get_address_host(address) if name in (address, None) else str(name)
        for address, name in agents.items()
    }
    shared = Counter(names.values())
    return {address: name if shared[name] == 1 else address for address, name in names.items()}


def _allowed(
    graph: ChunkGraph, hosts: Sequence[AgentInfo], requirements: Requirements, shuffles: GraphShuffles
) -> dict[int, list[int]]:
    """Return the allowed hosts of restricted chunks."""
    allowed: dict[int, list[int]] = {}
    found: dict[Restriction, list[int]] = {}
    for chunk, restriction in graph.restrictions.items():
        if restriction not in found:
            found[restriction] = allowed_by(restriction, hosts)
        allowed[chunk] = found[restriction]
    for chunk, host in shuffles.host_indices(len(hosts)).items():
        allowed[chunk] = [host]
    home_of: dict[int, int] = {}
    for chunk, maker in requirements.files.items():
        if maker not in home_of:
            candidates = allowed.get(maker, range(len(hosts)))
            # All files of a shuffle are on one host. Shuffles take hosts in turn, so that none has all files.
            home_of[maker] = candidates[len(home_of) % len(candidates)]
        allowed[chunk] = [home_of[maker]]
    return allowed


def _kinds(graph: ChunkGraph, requirements: Requirements, in_client: Collection[int]) -> dict[int, int]:
    """Return the kinds of special chunks, which share subtasks only with their kind."""
    kinds: dict[int, int] = {}
    kind_of: dict[Hashable, int] = {}
    demanded = requirements.kinds()
    for chunk in sorted(graph.restrictions.keys() | demanded.keys()):
        restriction = graph.restrictions.get(chunk)
        # A subtask takes its resources for its whole run, so such a chunk is alone.
        taking = chunk if restriction is not None and restriction.resources else None
        kind = restriction, taking, None if chunk in in_client else demanded.get(chunk)
        if any(part is not None for part in kind):
            kinds[chunk] = kind_of.setdefault(kind, len(kind_of) + 1)
    return kinds


def allowed_by(restriction: Restriction, hosts: Sequence[AgentInfo]) -> list[int]:
    """Return the indices of allowed hosts; all if a loose restriction allows none."""
    everywhere = range(len(hosts))
    indices = [
        index
        for index in everywhere
        if (not restriction.workers or hosts[index].is_one_of(restriction.workers))
        and hosts[index].has(restriction.resources)
    ]
    if not indices and not restriction.loose:
        raise NoHostAllowed(restriction.workers, dict(restriction.resources), [host.name for host in hosts])
    return indices or list(everywhere)
