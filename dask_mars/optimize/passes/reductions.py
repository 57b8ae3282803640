"""Reductions that read the same chunks become one chunk, whose value is the tuple of theirs.

The means of ``u * u``, ``v * v`` and ``u * v`` read each chunk of ``u`` and ``v`` twice, from memory or from disk,
and keep both until the last of them has run. Fused they read each once; and a chunk without other readers can be
composed with its readers, and is never stored.

In each group one reduction reads all inputs of the others, and results are small compared with inputs. Members of
a group no longer run in parallel, so there have to be enough groups. Frames do not declare sizes, and have few
partitions: a mean of filtered rows would store the rows of each for their sum and their count.
"""

from __future__ import annotations

from typing import NamedTuple

from dask_mars.graph.chunks import DATA
from dask_mars.graph.ids import depths_of
from dask_mars.graph.splice import LONGEST
from dask_mars.optimize.passes.edit import GraphEdit, Limits
from dask_mars.optimize.passes.groups import (
    FEWEST_BYTES,
    SMALL_SHARE,
    Group,
    fuse_groups,
    is_reduction,
    reduces_frame,
)

#: Maximum inputs of a chunk that is fused with others, and maximum groups to try for it.
_MOST_INPUTS, _MOST_GROUPS = 4, 8


class _Readers(NamedTuple):
    """Reductions that are fused, and the inputs of the one that has most."""

    inputs: frozenset[int]
    members: list[int]


def fuse_reductions(edit: GraphEdit, limits: Limits) -> None:
    """Fuse reductions that read the same chunks where enough groups are equal."""
    of_frames = [reduces_frame(operand) for operand in edit.graph.operands]
    if any(of_frames):
        limits = limits._replace(groups_per_worker=1)
    if limits.fewest_groups is None or len(edit) < 3 * limits.fewest_groups:
        return
    groups = []
    for found in _groups(edit, of_frames):
        members = sorted(found.members)
        inputs = tuple(dict.fromkeys([source for member in members for source in edit.graph.inputs[member]]))
        groups.append(Group(members, members, inputs, members[-1]))
    fuse_groups(edit, limits, groups)


def _groups(edit: GraphEdit, of_frames: list[bool]) -> list[_Readers]:
    """Return the groups of at least two reductions that could be fused."""
    inputs_of, uses = edit.graph.inputs, edit.count_uses()
    candidates = _candidates(edit, uses, of_frames)
    if len(candidates) < 2:
        return []
    depths = depths_of(inputs_of)
    distinct = {chunk: frozenset(inputs_of[chunk]) for chunk in candidates}
    groups: list[_Readers] = []
    of_input: dict[int, list[_Readers]] = {}
    # Reductions with most inputs come first, and the others join them.
    for chunk in sorted(candidates, key=lambda chunk: -len(distinct[chunk])):
        inputs = distinct[chunk]
        rarest = min(inputs, key=lambda source: (uses[source], source)) if len(inputs) > 1 else next(iter(inputs))
        for group in of_input.get(rarest, ())[:_MOST_GROUPS]:
            # Chunks of one depth cannot depend on each other, whatever else is fused.
            if not inputs <= group.inputs or depths[group.members[0]] != depths[chunk]:
                continue
            if _is_room(edit, group, chunk):
                group.members.append(chunk)
                break
        else:
            group = _Readers(inputs, [chunk])
            groups.append(group)
            for source in inputs:
                of_input.setdefault(source, []).append(group)
    return [group for group in groups if len(group.members) > 1]


def _candidates(edit: GraphEdit, uses: list[int], of_frames: list[bool]) -> list[int]:
    """Return the reductions that share an input with others."""
    graph, size_of = edit.graph, edit.size_of
    reducing = [known or is_reduction(operand) for known, operand in zip(of_frames, graph.operands, strict=True)]
    if not any(reducing):
        return []
    kept = edit.fixed.union(graph.outputs)
    found = []
    is_checked = bytearray(len(reducing))
    for chunk, (operand, sources) in enumerate(zip(graph.operand_of, graph.inputs, strict=True)):
        if operand == DATA or not reducing[operand] or not 0 < len(sources) <= _MOST_INPUTS:
            continue
        if max([uses[source] for source in sources]) < 2 or chunk in kept:
            continue
        if of_frames[operand]:
            found.append(chunk)
            continue
        if not is_checked[operand]:
            # The first chunk stands for all of its operand: checking each would cost more than it could save.
            is_checked[operand] = 1
            if edit.total_bytes(set(sources)) < FEWEST_BYTES:
                reducing[operand] = False
                continue
        size = size_of(chunk)
        if size is not None and SMALL_SHARE * size <= edit.total_bytes(set(sources)):
            found.append(chunk)
    in_client = graph.chunks_for_client() if found else set()
    read_there = {source for chunk in in_client for source in graph.inputs[chunk]}
    return [chunk for chunk in found if chunk not in read_there]


def _is_room(edit: GraphEdit, group: _Readers, chunk: int) -> bool:
    """Return whether a group has room for one more chunk, in steps and in bytes of results."""
    members = [*group.members, chunk]
    if sum([len(edit.graph.operands[edit.graph.operand_of[member]].steps) for member in members]) >= LONGEST:
        return False
    return SMALL_SHARE * edit.total_bytes(members) <= edit.total_bytes(group.inputs)
