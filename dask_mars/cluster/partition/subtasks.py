"""Cuts a chunk graph into subtasks, each for one host.

A host computes a subtask without communication: it gets the subtask's inputs and returns its outputs. So subtasks
must never depend on each other in a cycle. Each chunk has a *level*: that of its inputs, plus one where an input
is on another host or its subtask has no room for the chunk. A dependent of a subtask is therefore on the same
level only if it is part of the subtask, and chunks of the same host and level may share a subtask.

Pure, and linear in the graph, except for the paths in disjoint sets, which are practically constant.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from dask_mars.graph.ids import STAGE_LIMIT, subtask_id
from dask_mars.scheduler.events import CLIENT, GraphPlan

#: Host of chunks with known values.
NO_HOST = -2

#: Fewest subtasks for each slot, given enough chunks: a slot then has work while others take longer than
#: estimated, or data travel. There may be twice as many, since subtasks are rarely full.
SUBTASKS_PER_SLOT = 4
#: Fixed cost of a chunk in seconds, and rate for its bytes. Without a time limit only ratios matter.
_CHUNK_S = 0.0005
BYTES_PER_S = 1e9
#: Size of each chunk of a graph without declared sizes, in bytes: small enough for a message, and cheap to move.
#: Subtasks go by real sizes once these are known.
_UNKNOWN_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class Subtask:
    """A region of a chunk graph that one host computes in one go."""

    #: Twelve bytes: the computation, the level as its stage, and the number of the subtask in the computation.
    id: bytes
    #: The host to run it; `CLIENT` for the user's own process.
    host: int
    #: Chunks that it computes, in the order of the graph.
    chunks: tuple[int, ...]
    #: Chunks that it reads and does not compute, known ones included, in the order of the graph.
    inputs: tuple[int, ...]
    #: Its chunks that others read or that the user requested, in the order of the graph.
    outputs: tuple[int, ...]


def place(
    plan: GraphPlan,
    initial: Mapping[int, int],
    hosts: Collection[int],
    sizes: Sequence[int] | None = None,
    allowed: Mapping[int, Collection[int]] | None = None,
    replica_bytes: Mapping[int, Mapping[int, int]] | None = None,
) -> list[int]:
    """Choose a host for each chunk."""
    sizes = estimate_bytes(plan) if sizes is None else sizes
    # Counts only chunks with a choice of host; others follow their inputs.
    loads = dict.fromkeys(sorted(hosts), 0)
    allowed, replica_bytes = allowed or {}, replica_bytes or {}
    placed: list[int] = []
    for chunk, inputs in enumerate(plan.inputs):
        if plan.operand_of[chunk] < 0:
            placed.append(NO_HOST)
        elif chunk in plan.in_client:
            placed.append(CLIENT)
        else:
            host = initial.get(chunk)
            if host is None:
                held = _input_bytes_by_host(inputs, placed, sizes, replica_bytes)
                host = _most_bytes(held, loads, allowed.get(chunk, loads))
                if len(held) != 1:
                    loads[host] += 1
            placed.append(host)
    return placed


def _input_bytes_by_host(
    inputs: Sequence[int], placed: list[int], sizes: Sequence[int], replica_bytes: Mapping[int, Mapping[int, int]]
) -> dict[int, int]:
    """Return the bytes of a chunk's inputs on each host."""
    held: dict[int, int] = {}
    for source in inputs if len(inputs) < 2 else dict.fromkeys(inputs):
        host = placed[source]
        if host >= 0:
            held[host] = held.get(host, 0) + sizes[source]
        elif source in replica_bytes:
            for host, size in replica_bytes[source].items():
                held[host] = held.get(host, 0) + size
    return held


def _most_bytes(held: Mapping[int, int], loads: Mapping[int, int], allowed: Collection[int]) -> int:
    """Return the host with most bytes of a chunk's inputs, among equals the one that was chosen least often."""
    if len(held) == 1:
        host = next(iter(held))
        if host in allowed:
            return host
    candidates = [host for host in held if host in allowed] or allowed
    # The id comes last so that equal hosts always give the same answer.
    return min(candidates, key=lambda host: (-held.get(host, 0), loads[host], host))


def moved_bytes(plan: GraphPlan, placed: Sequence[int], sizes: Sequence[int]) -> int:
    """Return the bytes that travel between hosts, each chunk once to each host that reads it."""
    journeys = {
        (source, host)
        for host, inputs in zip(placed, plan.inputs, strict=True)
        if host >= 0
        for source in inputs
        if placed[source] >= 0 and placed[source] != host
    }
    return sum([sizes[source] for source, _ in journeys])


def estimate_bytes(plan: GraphPlan) -> list[int]:
    """Return the declared or estimated bytes of each chunk.

    A chunk without a declared size, as a piece of a rechunk, counts as its inputs, each divided among its readers.
    One without inputs counts as the mean of the declared sizes. Without any declared size all chunks count the
    same.
    """
    count = len(plan.inputs)
    declared: Sequence[int | None] = [None] * count if plan.declared_bytes is None else plan.declared_bytes
    known = [size for size in map(declared.__getitem__, range(count)) if size is not None]
    if not known:
        return [_UNKNOWN_BYTES] * count
    usual = sum(known) // len(known)
    readers = [0] * count
    for inputs in plan.inputs:
        for source in inputs:
            readers[source] += 1
    found: list[int] = []
    for chunk, inputs in enumerate(plan.inputs):
        size = declared[chunk]
        if size is None:
            size = sum([found[source] // readers[source] for source in inputs]) if inputs else usual
        found.append(size)
    return found


def estimate_seconds(plan: GraphPlan, sizes: Sequence[int]) -> list[float]:
    """Return the estimated duration of each chunk, by the bytes it reads and writes; 0 for known values."""
    return [
        0.0 if operand < 0 else _CHUNK_S + (size + sum([sizes[source] for source in inputs])) / BYTES_PER_S
        for operand, size, inputs in zip(plan.operand_of, sizes, plan.inputs, strict=True)
    ]


def cut(
    plan: GraphPlan,
    placed: Sequence[int],
    slots: Mapping[int, int],
    task: int = 0,
    sizes: Sequence[int] | None = None,
    seconds: Sequence[float] | None = None,
    kinds: Mapping[int, int] | None = None,
) -> list[Subtask]:
    """Cut a graph into subtasks without cycles between them."""
    sizes = estimate_bytes(plan) if sizes is None else sizes
    seconds = estimate_seconds(plan, sizes) if seconds is None else seconds
    regions = _Regions(plan, placed, seconds, _capacity_s(placed, seconds, slots), kinds or {})
    regions.grow()
    return _make_subtasks(plan, regions.bundle(), placed, regions.levels, task)


def _capacity_s(placed: Sequence[int], seconds: Sequence[float], slots: Mapping[int, int]) -> float:
    """Return the maximum time that the chunks of one subtask may take."""
    total = sum([spent for host, spent in zip(placed, seconds, strict=True) if host >= 0])
    count = SUBTASKS_PER_SLOT * max(sum(slots.values()), 1)
    # Slightly more than the share: rounding must not exclude the last of equally large chunks.
    return total / count * (1 + 1e-9)


class _Regions:
    """Disjoint sets of chunks of the same host, kind and level."""

    def __init__(
        self,
        plan: GraphPlan,
        placed: Sequence[int],
        seconds: Sequence[float],
        capacity_s: float,
        kinds: Mapping[int, int],
    ) -> None:
        self._inputs = plan.inputs
        self._placed = placed
        self._kinds = kinds
        self._capacity_s = capacity_s
        #: Parent of each chunk on the path to its region's representative.
        self._parents = list(range(len(plan.inputs)))
        #: Contents of regions, by representative.
        self._counts = [1] * len(plan.inputs)
        self._seconds = list(seconds)
        self.levels = [0] * len(plan.inputs)

    def grow(self) -> None:
        """Join each chunk to its inputs on its host with the highest level, if all fit."""
        placed, levels, inputs_of, found = self._placed, self.levels, self._inputs, self._find
        kinds = self._kinds
        for chunk, host in enumerate(placed):
            if host == NO_HOST:
                continue
            level = 0
            near: list[int] = []
            kind = kinds.get(chunk, 0) if kinds else 0
            for source in inputs_of[chunk]:
                other = placed[source]
                if other == NO_HOST:
                    continue
                apart = other != host or (bool(kinds) and kinds.get(source, 0) != kind)
                reached = levels[source] + apart
                if reached > level:
                    level = reached
                    near.clear()
                if reached == level and not apart:
                    near.append(source)
            if near:
                regions = {found(source) for source in near}
                if self._fits(chunk, regions, host):
                    self._join({chunk, *regions})
                else:
                    level += 1
            levels[chunk] = level

    def _find(self, chunk: int) -> int:
        parents = self._parents
        while parents[chunk] != chunk:
            parents[chunk] = chunk = parents[parents[chunk]]
        return chunk

    def _fits(self, chunk: int, regions: Collection[int], host: int) -> bool:
        # The user's process is a single one: its work is not divided.
        if host == CLIENT:
            return True
        return self._seconds[chunk] + sum([self._seconds[region] for region in regions]) <= self._capacity_s

    def _join(self, regions: Collection[int]) -> None:
        # Smaller regions join the largest, which keeps paths short.
        largest = max(regions, key=lambda region: (self._counts[region], -region))
        for region in sorted(regions):
            if region != largest:
                self._parents[region] = largest
                self._counts[largest] += self._counts[region]
                self._seconds[largest] += self._seconds[region]

    def bundle(self) -> list[list[int]]:
        """Return the chunks of each subtask: small regions of a host, level and kind together, in order."""
        placed, levels = self._placed, self.levels
        #: Time and number of the newest subtask, by host, level and kind.
        open_ones: dict[tuple[int, int, int], tuple[float, int]] = {}
        index_of: dict[int, int] = {}
        bundles: list[list[int]] = []
        for chunk, host in enumerate(placed):
            if host == NO_HOST:
                continue
            region = self._find(chunk)
            index = index_of.get(region)
            if index is None:
                kind = host, levels[chunk], self._kinds.get(chunk, 0)
                seconds = self._seconds[region]
                newest = open_ones.get(kind)
                if newest is not None and (host == CLIENT or seconds + newest[0] <= self._capacity_s):
                    seconds, index = seconds + newest[0], newest[1]
                else:
                    index = len(bundles)
                    bundles.append([])
                open_ones[kind] = seconds, index
                index_of[region] = index
            bundles[index].append(chunk)
        return bundles


def _make_subtasks(
    plan: GraphPlan, bundles: list[list[int]], placed: Sequence[int], levels: Sequence[int], task: int
) -> list[Subtask]:
    bundles.sort(key=lambda chunks: (levels[chunks[0]], chunks[0]))
    place_of = [-1] * len(plan.inputs)
    for index, chunks in enumerate(bundles):
        for chunk in chunks:
            place_of[chunk] = index
    needed = bytearray(len(plan.inputs))
    for chunk in plan.outputs:
        needed[chunk] = 1
    inputs_of: list[tuple[int, ...]] = []
    for index, chunks in enumerate(bundles):
        read = {source for chunk in chunks for source in plan.inputs[chunk] if place_of[source] != index}
        for source in read:
            needed[source] = 1
        inputs_of.append(tuple(sorted(read)))
    return [
        Subtask(
            # Two bytes suffice, except for a graph that alternates between hosts extremely often.
            subtask_id(task, min(levels[chunks[0]], STAGE_LIMIT - 1), index),
            placed[chunks[0]],
            tuple(chunks),
            inputs_of[index],
            tuple([chunk for chunk in chunks if needed[chunk]]),
        )
        for index, chunks in enumerate(bundles)
    ]
