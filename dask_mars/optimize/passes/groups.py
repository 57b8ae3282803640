"""Groups of chunks that become one chunk."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from tlz.functoolz import Compose

from dask_mars.graph.callables import called_by, full_name, module_of
from dask_mars.graph.chunks import ChunkGraph, Operand
from dask_mars.graph.splice import LONGEST, Part, call_of, splice, with_calls
from dask_mars.optimize.known import FRAME_REDUCTION, REDUCING_PACKAGES
from dask_mars.optimize.passes.compose import compose
from dask_mars.optimize.passes.edit import GraphEdit, Limits
from dask_mars.optimize.programs import make_tuple

#: Minimum ratio of the bytes read to the bytes of the results.
SMALL_SHARE = 4
#: Minimum bytes read by a chunk for fusing to pay.
FEWEST_BYTES = 1 << 18

#: Structure of a group, by operands and positions of their inputs: equal for groups that compute alike.
_Pattern = tuple[Any, ...]


class Group(NamedTuple):
    """Chunks that become one."""

    #: The chunks, inputs before their readers.
    members: list[int]
    #: Members whose values are needed; the value of several is a tuple.
    results: list[int]
    #: Inputs of the fused chunk.
    inputs: tuple[int, ...]
    #: The member that becomes the fused chunk.
    place: int
    #: Results that stay, as chunks that take their value from the tuple.
    kept: frozenset[int] = frozenset()


def is_reduction(operand: Operand) -> bool:
    """Return whether an operand ends with a function that is known to have no side effects."""
    if operand.in_client or not operand.input_count:
        return False
    return _is_of_packages(operand.functions[operand.steps[-1].function])


def reduces_frame(operand: Operand) -> bool:
    """Return whether an operand only reduces a frame's partition to a small result."""
    return len(operand.steps) == 1 and full_name(operand.functions[0]) == FRAME_REDUCTION


def _is_of_packages(function: Any) -> bool:
    function = called_by(function)
    if type(function) is Compose:
        # Dask concatenates and reduces by such compositions.
        return _is_of_packages(function.first) and all(map(_is_of_packages, function.funcs))
    return module_of(function).startswith(REDUCING_PACKAGES)


def fuse_groups(edit: GraphEdit, limits: Limits, groups: Iterable[Group]) -> None:
    """Let each group become one chunk where enough groups are equal, and compose the chains that this makes."""
    graph = edit.graph
    patterns = [(group, _pattern(graph, group)) for group in groups]
    counts = Counter([pattern for _, pattern in patterns])
    operands: dict[_Pattern, int | None] = {}
    chosen: list[tuple[Group, int]] = []
    for group, pattern in patterns:
        if counts[pattern] < (limits.fewest_groups or 1):
            continue
        if pattern not in operands:
            operand = _operand(graph, group)
            operands[pattern] = None if len(operand.steps) > LONGEST else edit.add_operand(operand)
        found = operands[pattern]
        if found is not None:
            chosen.append((group, found))
    if chosen:
        _replace(edit, chosen)
        compose(edit, limits)


def _pattern(graph: ChunkGraph, group: Group) -> _Pattern:
    place = {chunk: at for at, chunk in enumerate([*group.inputs, *group.members])}
    needs = tuple(
        [(graph.operand_of[chunk], *[place[at] for at in graph.inputs[chunk]]) for chunk in group.members]
    )
    return len(group.inputs), needs, tuple([place[chunk] for chunk in group.results])


def _operand(graph: ChunkGraph, group: Group) -> Operand:
    """Return the operand that computes members one after the other."""
    slots = {chunk: at for at, chunk in enumerate(group.inputs)}
    parts: list[Part] = []
    for chunk in group.members:
        parts.append((graph.operands[graph.operand_of[chunk]], [slots[at] for at in graph.inputs[chunk]]))
        slots[chunk] = ~(len(parts) - 1)
    if len(group.results) > 1:
        parts.append((call_of(make_tuple, len(group.results)), [slots[chunk] for chunk in group.results]))
    return splice(parts, len(group.inputs))


def _replace(edit: GraphEdit, groups: list[tuple[Group, int]]) -> None:
    """Replace groups by chunks with the given operands, and have readers pick their value from the tuples."""
    graph = edit.graph
    operand_of, literals, inputs = graph.operand_of, graph.literals, graph.inputs
    #: For each result: the chunk that replaces it, and its position in that chunk's tuple.
    place_of: dict[int, tuple[int, int]] = {}
    joined_bytes: dict[int, int] = {}
    for group, operand in groups:
        given = tuple([literal for member in group.members for literal in literals[member]])
        for member in group.results:
            inputs[member] = ()
        operand_of[group.place], inputs[group.place], literals[group.place] = operand, group.inputs, given
        if len(group.results) > 1:
            place_of.update({member: (group.place, at) for at, member in enumerate(group.results)})
            joined_bytes[group.place] = edit.total_bytes(group.results)
    picks = [operator.itemgetter(place) for place in range(max(len(group.results) for group, _ in groups))]
    picking: dict[tuple[int, tuple[int | None, ...]], int] = {}
    kept = {member: place_of.pop(member) for group, _ in groups for member in group.kept}
    eager = bytearray(len(graph))
    reads_none = place_of.keys().isdisjoint
    for chunk, sources in enumerate(inputs):
        if reads_none(sources):
            continue
        found: list[tuple[int, int | None]] = [place_of.get(source, (source, None)) for source in sources]
        inputs[chunk] = tuple([source for source, _ in found])
        pattern = operand_of[chunk], tuple([place for _, place in found])
        if pattern not in picking:
            calls = tuple([None if place is None else picks[place] for place in pattern[1]])
            picking[pattern] = edit.add_operand(with_calls(graph.operands[pattern[0]], calls))
        operand_of[chunk] = picking[pattern]
        eager[chunk] = all(place is not None for _, place in found)
    picked: dict[int, int] = {}
    for member, (place, at) in kept.items():
        if at not in picked:
            picked[at] = edit.add_operand(call_of(picks[at], name="getitem"))
        operand_of[member], inputs[member], literals[member] = picked[at], (place,), ()
    edit.reorder(eager, joined_bytes)
