"""Assigns the chunks of a graph to hosts.

Within a host any worker will do, but between hosts data travel. Chunks with inputs on hosts follow these. All
others are divided into parts whose chunks soon have common readers, and parts go to hosts by consistent hashing: a
repeated computation finds the same data on the same hosts, and little moves when a host comes or goes. Where
neighbouring parts exchange much data, as in a rechunk, hashing would cost too much: there each host gets one large
part.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

from dask_mars.cluster.partition.hashing import share_out
from dask_mars.cluster.partition.subtasks import (
    BYTES_PER_S,
    NO_HOST,
    estimate_bytes,
    estimate_seconds,
    moved_bytes,
    place,
)
from dask_mars.scheduler.assigner import GraphProgress, Traversal, assign
from dask_mars.scheduler.events import CLIENT, GraphPlan

#: Fewest parts, so that small clusters of any size have the same ones; and fewest parts of the slowest host, so
#: that shares can be in proportion to slots.
MIN_PARTS = 64
PARTS_PER_HOST = 8
#: Maximum number of parts: each host scores each of them.
MAX_PARTS = 4096
#: Allowed transfer of hashing: this multiple of the bytes for one large part per host, plus the bytes that travel
#: in this share of the graph's time on one slot.
_MORE_BYTES = 1.1
_SHARE_OF_TIME = 0.005
#: Hashing may transfer more if it shortens the computation to this share of its time.
_FASTER = 0.8
#: Number of pieces of a chunk of unknown size that count as larger than the chunk.
_MANY_PIECES = 8


@dataclass(frozen=True, slots=True)
class Hosts:
    """Slots and names of hosts."""

    #: Concurrent subtasks of each host.
    slots: Mapping[int, int]
    #: Name of each host for hashing: the same each time that the host joins a cluster.
    names: Mapping[int, str]


def place_on_hosts(
    plan: GraphPlan,
    hosts: Hosts,
    key_of: Callable[[int], Hashable],
    traversal: Traversal = "breadth-first",
    allowed: Mapping[int, Collection[int]] | None = None,
    replica_bytes: Mapping[int, Mapping[int, int]] | None = None,
    sizes: Sequence[int] | None = None,
) -> list[int]:
    """Choose a host for each chunk."""
    sizes = estimate_bytes(plan) if sizes is None else sizes
    slots = hosts.slots
    at_large = assign(plan, slots, traversal, allowed, GraphProgress(replica_bytes=replica_bytes or {}))
    placed = place(plan, at_large, slots, sizes, allowed, replica_bytes)
    if replica_bytes or len(slots) == 1:
        return placed
    by_hash = place(plan, _hashed(plan, hosts, key_of, traversal, at_large, allowed or {}), slots, sizes, allowed)
    placed, by_hash = (_with_pieces_near(plan, found, sizes, allowed or {}) for found in (placed, by_hash))
    seconds = estimate_seconds(plan, sizes)
    moved, moved_by_hash = moved_bytes(plan, placed, sizes), moved_bytes(plan, by_hash, sizes)
    fair = _MORE_BYTES * moved + _SHARE_OF_TIME * sum(seconds) * BYTES_PER_S
    if moved_by_hash <= fair:
        return by_hash
    # Parts with equally many initial chunks may lead to unequal work.
    faster = _slowest_s(by_hash, seconds, slots) + moved_by_hash / BYTES_PER_S
    return by_hash if faster < _FASTER * (_slowest_s(placed, seconds, slots) + moved / BYTES_PER_S) else placed


def _slowest_s(placed: Sequence[int], seconds: Sequence[float], slots: Mapping[int, int]) -> float:
    """Return the time of the host with the most work for its slots."""
    loads = dict.fromkeys(slots, 0.0)
    for host, spent in zip(placed, seconds, strict=True):
        if host >= 0:
            loads[host] += spent
    return max([load / slots[host] for host, load in loads.items()])


def _hashed(
    plan: GraphPlan,
    hosts: Hosts,
    key_of: Callable[[int], Hashable],
    traversal: Traversal,
    at_large: Mapping[int, int],
    allowed: Mapping[int, Collection[int]],
) -> dict[int, int]:
    """Assign initial chunks to hosts by the hash of their part; restricted ones keep their host."""
    assigned = {chunk: host for chunk, host in at_large.items() if chunk in allowed}
    count = _part_count(hosts.slots)
    parts: dict[int, list[int]] = {}
    for chunk, part in assign(plan, dict.fromkeys(range(count), 1), traversal, dict.fromkeys(allowed, ())).items():
        parts.setdefault(part, []).append(chunk)
    keys = [place_in_collection(key_of(chunks[0])) for chunks in parts.values()]
    for chunks, host in zip(parts.values(), share_out(keys, hosts.names, hosts.slots), strict=True):
        assigned.update(dict.fromkeys(chunks, host))
    return assigned


def _with_pieces_near(
    plan: GraphPlan, placed: Sequence[int], sizes: Sequence[int], allowed: Collection[int]
) -> list[int]:
    """Move pieces of a chunk to their readers' host, if sending the whole chunk is estimated to be cheaper.

    A piece of a chunk of unknown size may be as large as the chunk, such as a monthly mean for each day; many
    pieces count as more than the chunk.
    """
    declared = plan.declared_bytes
    wanted_at = [NO_HOST] * len(placed)
    for chunk in plan.outputs:
        wanted_at[chunk] = CLIENT
    for reader, host in enumerate(placed):
        for source in plan.inputs[reader]:
            if wanted_at[source] != host:
                wanted_at[source] = host if wanted_at[source] == NO_HOST else CLIENT
    pieces: dict[tuple[int, int], list[int]] = {}
    for chunk, host in enumerate(wanted_at):
        if host >= 0 and placed[chunk] >= 0 and host != placed[chunk] and chunk not in allowed:
            sources = set(plan.inputs[chunk])
            if len(sources) == 1 and placed[source := sources.pop()] >= 0:
                pieces.setdefault((source, host), []).append(chunk)
    found = list(placed)
    for (source, host), chunks in pieces.items():
        known = declared is not None and declared[source] is not None
        if sum([sizes[chunk] for chunk in chunks]) > sizes[source] or (not known and len(chunks) >= _MANY_PIECES):
            for chunk in chunks:
                found[chunk] = host
    return found


def _part_count(slots: Mapping[int, int]) -> int:
    enough = PARTS_PER_HOST * sum(slots.values()) / min(slots.values())
    count = MIN_PARTS
    while count < min(enough, MAX_PARTS):
        count *= 2
    return count


def place_in_collection(key: Hashable) -> str:
    """Return a key without the name of its collection, or a key of one element as it is."""
    return repr(key[1:] if isinstance(key, tuple) and len(key) > 1 else key)
