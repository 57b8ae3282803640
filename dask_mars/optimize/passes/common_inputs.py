"""Chunks with the same inputs are fused.

An example: three colours are slices of a picture, brightness and mask are computed from them, and sums of all
these follow. Mars's rule of chains merges none of it, as chunks with several consumers or inputs stay apart so
that branches may run in parallel; every intermediate goes to the store and is read from there. Fused they need
only the picture's chunk, while other chunks keep the other workers busy; and the steps run over blocks that stay
in the processor's cache.

Groups consist of elementwise chunks and reductions. A group returns one chunk, or several that are all small
compared with its inputs: a large one in a tuple would stay in the store until the whole tuple is released. Inputs
have to be of one depth, the number of chunks before them: otherwise, in sums that run from chunk to chunk, the
next chunk would wait for everything computed from this one.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

from dask_mars.dask_api.loaded import arrays
from dask_mars.graph.chunks import DATA, ChunkGraph, Operand
from dask_mars.graph.ids import depths_of
from dask_mars.import_locks import is_loaded
from dask_mars.optimize.passes.edit import GraphEdit, Limits
from dask_mars.optimize.passes.groups import FEWEST_BYTES, SMALL_SHARE, Group, fuse_groups, is_reduction

#: Maximum number of inputs of a group.
_MOST_INPUTS = 4


def fuse_common_inputs(edit: GraphEdit, limits: Limits) -> None:
    """Fuse chunks with the same inputs where enough groups are equal."""
    fewest = limits.fewest_groups
    if fewest is None or len(edit) < 3 * fewest or not is_loaded("dask.array"):
        return
    joinable = _joinable(edit)
    if sum(joinable) >= 2 * fewest:
        fuse_groups(edit, limits, _groups(edit, joinable))


def _groups(edit: GraphEdit, joinable: list[bool]) -> Iterator[Group]:
    graph = edit.graph
    consumers, kept = _consumers(graph, joinable), _kept(graph)
    slices = {id for id, operand in enumerate(graph.operands) if all(map(_is_item, operand.functions))}
    members: dict[frozenset[int], list[int]] = {}
    for chunk, sources in _sources_of(edit, joinable, consumers).items():
        members.setdefault(sources, []).append(chunk)
    depths = depths_of(graph.inputs)
    for sources, found in members.items():
        if (
            len(found) < 2
            or len({depths[source] for source in sources}) > 1
            or all(graph.operand_of[chunk] in slices for chunk in found)
        ):
            continue
        inside = set(found)
        inputs = tuple(dict.fromkeys(at for chunk in found for at in graph.inputs[chunk] if at not in inside))
        results = [chunk for chunk in found if chunk in kept or not inside.issuperset(consumers[chunk])]
        # The result of another group would be an additional input.
        if not sources.issuperset(inputs):
            continue
        if len(results) > 1 and SMALL_SHARE * edit.total_bytes(results) > edit.total_bytes(inputs):
            continue
        stay = kept.intersection(results) if len(results) > 1 else frozenset()
        place = next((chunk for chunk in reversed(found) if chunk not in stay), None)
        if place is not None:
            yield Group(found, results, inputs, place, stay)


def _joinable(edit: GraphEdit) -> list[bool]:
    """Return for each chunk whether it may be fused: it is elementwise, or a reduction to a small result."""
    graph, size_of = edit.graph, edit.size_of
    elementwise_ones = [_is_elementwise(operand) for operand in graph.operands]
    reductions = [is_reduction(operand) for operand in graph.operands]
    joinable = [False] * len(graph)
    if not any(elementwise_ones):
        return joinable
    is_checked = bytearray(len(graph.operands))
    for chunk, (operand, sources) in enumerate(zip(graph.operand_of, graph.inputs, strict=True)):
        if operand == DATA or not sources:
            continue
        if not is_checked[operand]:
            # The first chunk stands for all of its operand: checking each would cost more than it could save.
            is_checked[operand] = 1
            if edit.total_bytes({chunk, *sources}) < FEWEST_BYTES:
                elementwise_ones[operand] = reductions[operand] = False
        if elementwise_ones[operand]:
            joinable[chunk] = size_of(chunk) is not None
        elif reductions[operand] and len(sources) <= _MOST_INPUTS:
            size = size_of(chunk)
            joinable[chunk] = size is not None and SMALL_SHARE * size <= edit.total_bytes(set(sources))
    for chunk in edit.fixed:
        joinable[chunk] = False
    return joinable


def _kept(graph: ChunkGraph) -> frozenset[int]:
    """Return the chunks that must remain separate values for the user or the user's process."""
    in_client = graph.chunks_for_client()
    return frozenset(graph.outputs).union(source for chunk in in_client for source in graph.inputs[chunk])


def _is_elementwise(operand: Operand) -> bool:
    """Return whether an operand with inputs consists of elementwise functions and slices."""
    if operand.in_client or not operand.input_count:
        return False
    return all(_is_known(operand.functions[step.function], step.keywords) for step in operand.steps)


def _is_item(function: Any) -> bool:
    return function is operator.getitem or function is arrays.getitem


def _is_known(function: Any, keywords: tuple[str, ...]) -> bool:
    # Graphs without arrays do not wait for this import.
    from dask_mars.expressions.functions import elementwise

    return _is_item(function) or elementwise(function, keywords) is not None


def _consumers(graph: ChunkGraph, joinable: list[bool]) -> list[list[int]]:
    consumers: list[list[int]] = [[] for _ in range(len(graph))]
    for chunk, sources in enumerate(graph.inputs):
        for source in sources:
            if joinable[source]:
                consumers[source].append(chunk)
    return consumers


def _sources_of(edit: GraphEdit, joinable: list[bool], consumers: list[list[int]]) -> Mapping[int, frozenset[int]]:
    """Return the inputs of the group that each chunk belongs to."""
    # These are its own inputs. If all consumers of a chunk belong to one group, the chunk joins it even if it
    # needs fewer; but not if it is smaller than its inputs, which would wait in its place.
    sources_of: dict[int, frozenset[int]] = {}
    shared: dict[int, frozenset[int]] = {}
    for chunk, sources in enumerate(edit.graph.inputs):
        if not joinable[chunk]:
            continue
        found: frozenset[int] = frozenset()
        for source in sources:
            found |= sources_of.get(source) or shared.setdefault(source, frozenset([source]))
        if len(found) <= _MOST_INPUTS:
            sources_of[chunk] = found
    for chunk in reversed(sources_of):
        groups = {sources_of.get(consumer) for consumer in consumers[chunk]}
        group = groups.pop() if len(groups) == 1 else None
        if group is None or group == (own := sources_of[chunk]):
            continue
        needed = [edit.size_of(source) for source in own]
        if None not in needed and sum(filter(None, needed)) <= (edit.size_of(chunk) or 0):
            sources_of[chunk] = group
    return sources_of
