"""Which host computes which chunks of a graph.

Within a host any worker will do, but between hosts data travel. Chunks whose inputs lie at hosts follow these. All
others are divided into parts whose chunks meet again soon, and parts go to hosts by consistent hashing: so the
same data are at the same host when a computation is repeated, and little moves when a host has come or gone. Where
neighbouring parts exchange much, as in a rechunk, that would cost more than it is worth: there each host gets one
large part.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

from dask_mars.scheduler.assigner import Progress, Traversal, assign
from dask_mars.scheduler.events import GraphPlan
from dask_mars.scheduler.hashing import share_out
from dask_mars.scheduler.subtasks import BYTES_PER_S, estimate_bytes, estimate_seconds, moved_bytes, place

#: There are at least so many parts, so that small clusters of any size have the same ones, and for larger clusters
#: so many for the slowest host, so that shares can be in proportion to slots.
MIN_PARTS = 64
PARTS_PER_HOST = 8
#: At most so many are there at all: each is scored by each host.
MAX_PARTS = 4096
#: Hashing may move so many times the bytes that one large part for each host would, and as many more as are moved
#: in this share of the time that the graph takes one slot.
_MORE_BYTES = 1.1
_SHARE_OF_TIME = 0.005


@dataclass(frozen=True, slots=True)
class Hosts:
    """Where chunks can be computed.

    Attributes
    ----------
    slots : mapping
        How many subtasks each host computes at the same time, by host.
    names : mapping
        By host, what stands for it in hashes: the same each time that the host joins a cluster.
    """

    slots: Mapping[int, int]
    names: Mapping[int, str]


def place_on_hosts(
    plan: GraphPlan,
    hosts: Hosts,
    key_of: Callable[[int], Hashable],
    traversal: Traversal = "breadth-first",
    allowed: Mapping[int, Collection[int]] | None = None,
    held_bytes: Mapping[int, Mapping[int, int]] | None = None,
    sizes: Sequence[int] | None = None,
) -> list[int]:
    """Choose a host for each chunk.

    Parameters
    ----------
    plan : GraphPlan
        The graph; each chunk's inputs have smaller ids than the chunk itself.
    hosts : Hosts
        At least one.
    key_of : callable
        Returns the key of a chunk.
    traversal : {"breadth-first", "depth-first"}, optional
        In which order chunks are searched that meet again soon.
    allowed : mapping, optional
        Hosts that the user allows for a chunk, at least one, for chunks of which that was said.
    held_bytes : mapping, optional
        Of known chunks: the bytes that hosts hold of them, by host.
    sizes : sequence of int, optional
        Bytes of each chunk; by default what `estimate_bytes` says.

    Returns
    -------
    list of int
        By chunk, as `place` returns them.

    Notes
    -----
    The number of parts is mostly the same before and after a host comes or goes. Parts are known by the place of
    their first chunk in its collection, and not by its name: so the blocks of one array go to the same hosts in
    all computations that begin with them, whatever is made of them.
    """
    sizes = estimate_bytes(plan) if sizes is None else sizes
    slots = hosts.slots
    at_large = assign(plan, slots, traversal, allowed, Progress(held_bytes=held_bytes or {}))
    placed = place(plan, at_large, slots, sizes, allowed, held_bytes)
    if held_bytes or len(slots) == 1:
        return placed
    by_hash = place(plan, _hashed(plan, hosts, key_of, traversal, at_large, allowed or {}), slots, sizes, allowed)
    seconds = sum(estimate_seconds(plan, sizes))
    fair = _MORE_BYTES * moved_bytes(plan, placed, sizes) + _SHARE_OF_TIME * seconds * BYTES_PER_S
    return by_hash if moved_bytes(plan, by_hash, sizes) <= fair else placed


def _hashed(
    plan: GraphPlan,
    hosts: Hosts,
    key_of: Callable[[int], Hashable],
    traversal: Traversal,
    at_large: Mapping[int, int],
    allowed: Mapping[int, Collection[int]],
) -> dict[int, int]:
    """Give initial chunks to hosts by the hash of their part; where the user has said something, as at large."""
    assigned = {chunk: host for chunk, host in at_large.items() if chunk in allowed}
    count = _part_count(hosts.slots)
    parts: dict[int, list[int]] = {}
    for chunk, part in assign(plan, dict.fromkeys(range(count), 1), traversal, dict.fromkeys(allowed, ())).items():
        parts.setdefault(part, []).append(chunk)
    keys = [place_in_collection(key_of(chunks[0])) for chunks in parts.values()]
    for chunks, host in zip(parts.values(), share_out(keys, hosts.names, hosts.slots), strict=True):
        assigned.update(dict.fromkeys(chunks, host))
    return assigned


def _part_count(slots: Mapping[int, int]) -> int:
    wanted = PARTS_PER_HOST * sum(slots.values()) / min(slots.values())
    count = MIN_PARTS
    while count < min(wanted, MAX_PARTS):
        count *= 2
    return count


def place_in_collection(key: Hashable) -> str:
    """Return what a key says besides the name of its collection; all of it where there is nothing else."""
    return repr(key[1:] if isinstance(key, tuple) and len(key) > 1 else key)


__all__ = ["Hosts", "place_in_collection", "place_on_hosts"]
