"""Common sources: chunks with the same inputs are fused.

An example: three colours are slices of a picture, brightness and mask are computed from them, and sums of all
these follow. Mars's rule of chains merges none of it, as chunks with several consumers or inputs stay apart so
that branches may run in parallel; every intermediate goes to the store and is read from there. Fused they need
only the picture's chunk, while other chunks keep the other workers busy; and the steps run over blocks that stay
in the processor's cache.

Groups consist of elementwise chunks and reductions. A group returns one chunk, or several that are all small
compared with its inputs: a large one in a tuple would stay in the store until the whole tuple is released. Sources
have to be of one level, the number of chunks before them: otherwise, in sums that run from chunk to chunk, the
next chunk would wait for everything computed from this one.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any

from dask_mars.dask_api.arrays import getitem
from dask_mars.expressions.functions import elementwise
from dask_mars.graph.chunks import DATA, ChunkGraph, Operand
from dask_mars.optimize.compose import LONGEST, fixed_chunks
from dask_mars.optimize.folding import JoinedSteps
from dask_mars.optimize.programs import make_tuple
from dask_mars.optimize.siblings import FEWEST_BYTES, SMALL_SHARE, Group, is_reduction, join_groups, levels_of

#: Maximum number of sources of a group.
_MOST_SOURCES = 4
_ITEMS = (operator.getitem, getitem)

#: Returns the declared bytes of a chunk.
SizeOf = Callable[[int], "int | None"]
#: Structure of a group, by operands and positions of their inputs: equal for groups that compute alike.
_Pattern = tuple[Any, ...]


def join_common_sources(graph: ChunkGraph, fewest: int, unmergeable: Collection[int] = ()) -> ChunkGraph:
    """Join chunks with the same sources where at least `fewest` groups are equal; renumber depth-first."""
    if len(graph) < 3 * fewest:
        return graph
    size_of = cache(graph.declared_bytes)
    joinable = _joinable(graph, unmergeable, size_of)
    if sum(joinable) < 2 * fewest:
        return graph
    consumers, kept = _consumers(graph, joinable), _kept(graph)
    group_of = _group_of(graph, joinable, consumers, size_of)
    slices = {number for number, operand in enumerate(graph.operands) if all(map(_is_item, operand.functions))}
    members: dict[frozenset[int], list[int]] = {}
    for chunk, sources in group_of.items():
        members.setdefault(sources, []).append(chunk)
    groups: list[Group] = []
    patterns: list[_Pattern] = []
    operand_for: dict[_Pattern, Operand | None] = {}
    levels = levels_of(graph.inputs)
    for sources, found in members.items():
        if (
            len(found) < 2
            or len({levels[source] for source in sources}) > 1
            or all(graph.operand_of[chunk] in slices for chunk in found)
        ):
            continue
        inside = set(found)
        inputs = tuple(dict.fromkeys(at for chunk in found for at in graph.inputs[chunk] if at not in inside))
        leaving = [chunk for chunk in found if chunk in kept or not inside.issuperset(consumers[chunk])]
        # The result of another group would be an additional input.
        if not sources.issuperset(inputs) or not _may_leave(leaving, inputs, size_of):
            continue
        pattern = _pattern(graph, found, inputs, leaving)
        if pattern not in operand_for:
            operand_for[pattern] = _operand(graph, found, inputs, leaving)
        operand = operand_for[pattern]
        if operand is not None:
            literals = tuple([literal for chunk in found for literal in graph.literals[chunk]])
            stay = kept.intersection(leaving) if len(leaving) > 1 else frozenset()
            place = next((chunk for chunk in reversed(found) if chunk not in stay), None)
            if place is not None:
                groups.append(Group(leaving, inputs, operand, literals, place, stay))
                patterns.append(pattern)
    counts = Counter(patterns)
    groups = [group for group, pattern in zip(groups, patterns, strict=True) if counts[pattern] >= fewest]
    return join_groups(graph, groups) if groups else graph


# -- selection ----------------------------------------------------------------------------------------------------


def _joinable(graph: ChunkGraph, unmergeable: Collection[int], size_of: SizeOf) -> list[bool]:
    """Return for each chunk whether it may be joined: it is elementwise, or a reduction to a small result."""
    elementwise_ones = [_is_elementwise(operand) for operand in graph.operands]
    reductions = [is_reduction(operand) for operand in graph.operands]
    joinable = [False] * len(graph)
    if not any(elementwise_ones):
        return joinable
    looked_at = bytearray(len(graph.operands))
    for chunk, (number, sources) in enumerate(zip(graph.operand_of, graph.inputs, strict=True)):
        if number == DATA or not sources:
            continue
        if not looked_at[number]:
            # The first chunk stands for all of its operand: checking each would cost more than it could save.
            looked_at[number] = 1
            if sum(size_of(at) or 0 for at in {chunk, *sources}) < FEWEST_BYTES:
                elementwise_ones[number] = reductions[number] = False
        if elementwise_ones[number]:
            joinable[chunk] = size_of(chunk) is not None
        elif reductions[number] and len(sources) <= _MOST_SOURCES:
            size = size_of(chunk)
            joinable[chunk] = size is not None and SMALL_SHARE * size <= sum(
                size_of(at) or 0 for at in set(sources)
            )
    for chunk in fixed_chunks(graph).union(unmergeable):
        joinable[chunk] = False
    return joinable


def _kept(graph: ChunkGraph) -> frozenset[int]:
    """Return the chunks that must remain separate values for the user or the user's process."""
    in_client = graph.in_client | graph.chunks_for_client()
    return frozenset(graph.outputs).union(source for chunk in in_client for source in graph.inputs[chunk])


def _is_elementwise(operand: Operand) -> bool:
    """Return whether an operand with inputs consists of elementwise functions and slices."""
    if operand.in_client or not operand.input_count:
        return False
    return all(_is_known(operand.functions[step.function], step.keywords) for step in operand.steps)


def _is_item(function: Any) -> bool:
    return any(function is item for item in _ITEMS)


def _is_known(function: Any, keywords: tuple[str, ...]) -> bool:
    return _is_item(function) or elementwise(function, keywords) is not None


def _consumers(graph: ChunkGraph, joinable: list[bool]) -> list[list[int]]:
    consumers: list[list[int]] = [[] for _ in range(len(graph))]
    for chunk, sources in enumerate(graph.inputs):
        for source in sources:
            if joinable[source]:
                consumers[source].append(chunk)
    return consumers


def _group_of(
    graph: ChunkGraph, joinable: list[bool], consumers: list[list[int]], size_of: SizeOf
) -> Mapping[int, frozenset[int]]:
    """Return the sources of the group that each chunk belongs to.

    These are its own sources. If all consumers of a chunk belong to one group, the chunk joins it even if it needs
    fewer sources; but not if it is smaller than its inputs, which would wait in its place.
    """
    sources_of: dict[int, frozenset[int]] = {}
    shared: dict[int, frozenset[int]] = {}
    for chunk, sources in enumerate(graph.inputs):
        if not joinable[chunk]:
            continue
        found: frozenset[int] = frozenset()
        for source in sources:
            found |= sources_of.get(source) or shared.setdefault(source, frozenset([source]))
        if len(found) <= _MOST_SOURCES:
            sources_of[chunk] = found
    for chunk in reversed(sources_of):
        groups = {sources_of.get(consumer) for consumer in consumers[chunk]}
        group = groups.pop() if len(groups) == 1 else None
        if group is None or group == (own := sources_of[chunk]):
            continue
        needed = [size_of(source) for source in own]
        if None not in needed and sum(filter(None, needed)) <= (size_of(chunk) or 0):
            sources_of[chunk] = group
    return sources_of


def _may_leave(leaving: list[int], inputs: tuple[int, ...], size_of: SizeOf) -> bool:
    if len(leaving) == 1:
        return True
    return SMALL_SHARE * sum(size_of(chunk) or 0 for chunk in leaving) <= sum(
        size_of(chunk) or 0 for chunk in inputs
    )


# -- joining ------------------------------------------------------------------------------------------------------


def _pattern(graph: ChunkGraph, members: list[int], inputs: tuple[int, ...], leaving: list[int]) -> _Pattern:
    place = {chunk: at for at, chunk in enumerate([*inputs, *members])}
    needs = tuple([(graph.operand_of[chunk], *[place[at] for at in graph.inputs[chunk]]) for chunk in members])
    return len(inputs), needs, tuple([place[chunk] for chunk in leaving])


def _operand(graph: ChunkGraph, members: list[int], inputs: tuple[int, ...], leaving: list[int]) -> Operand | None:
    """Return the operand that computes members one after the other; None if it would be too long."""
    operands = [graph.operands[graph.operand_of[chunk]] for chunk in members]
    if sum(len(operand.steps) for operand in operands) > LONGEST:
        return None
    literal_count = sum(operand.literal_count for operand in operands)
    joined, next_literal = JoinedSteps(len(inputs) + literal_count), len(inputs)
    slots = {chunk: at for at, chunk in enumerate(inputs)}
    for chunk, operand in zip(members, operands, strict=True):
        given = range(next_literal, next_literal + operand.literal_count)
        slots[chunk] = joined.append(operand, [*[slots[at] for at in graph.inputs[chunk]], *given])
        next_literal += operand.literal_count
    if len(leaving) > 1:
        joined.call(make_tuple, tuple([slots[chunk] for chunk in leaving]))
    name = "-".join(dict.fromkeys([operand.name for operand in operands]))
    return joined.operand(name, len(inputs), literal_count)


__all__ = ["join_common_sources"]
