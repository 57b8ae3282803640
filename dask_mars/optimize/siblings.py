"""Siblings: reductions that read the same chunks become one chunk, whose value is the tuple of theirs.

The means of ``u * u``, ``v * v`` and ``u * v`` read each chunk of ``u`` and ``v`` twice, from memory or from disk,
and keep both until the last of them has run. Joined they read each once; and a chunk without other readers can be
fused with its readers, and is never stored.

Siblings are chunks whose inputs are among those of one of the group, and whose results are small compared with
their inputs. They no longer run in parallel, so there have to be enough groups.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

from tlz.functoolz import Compose

from dask_mars.graph.callables import called_by, module_of
from dask_mars.graph.chunks import DATA, ChunkGraph, Operand, Step
from dask_mars.optimize.compose import LONGEST, applied, count_uses, fixed_chunks
from dask_mars.optimize.folding import JoinedSteps
from dask_mars.optimize.order import renumbered
from dask_mars.optimize.programs import make_tuple

#: Maximum inputs of a chunk that is joined with others, and maximum groups to try for it.
_MOST_INPUTS, _MOST_GROUPS = 4, 8
#: Minimum ratio of the bytes read to the bytes of the results.
SMALL_SHARE = 4
#: Minimum bytes read by a chunk for joining to pay.
FEWEST_BYTES = 1 << 18
#: Packages whose functions count as reductions where their results are small.
_PACKAGES = ("dask.array.", "numpy", "xarray.", "flox.")


#: Returns the declared bytes of a chunk.
SizeOf = Callable[[int], "int | None"]


class Group(NamedTuple):
    """Chunks that become one.

    Attributes
    ----------
    members : list of int
        Chunks whose values are needed; the value of several is a tuple.
    inputs : tuple of int
        Inputs of the joined chunk.
    operand : Operand
        Its operand.
    literals : tuple
        Literals of this operand.
    place : int
        The chunk that becomes the joined one.
    kept : frozenset of int, optional
        Members that stay, as chunks that take their value from the tuple.
    """

    members: list[int]
    inputs: tuple[int, ...]
    operand: Operand
    literals: tuple[Any, ...]
    place: int
    kept: frozenset[int] = frozenset()


class _Siblings(NamedTuple):
    """Reductions that are joined, and the inputs of the one that has most."""

    inputs: frozenset[int]
    members: list[int]


def join_siblings(graph: ChunkGraph, fewest: int, unmergeable: Collection[int] = ()) -> ChunkGraph:
    """Join reductions that read the same chunks where at least `fewest` groups are equal; renumber depth-first."""
    if len(graph) < 3 * fewest:
        return graph
    groups = _groups(graph, unmergeable)
    patterns = [tuple([graph.operand_of[member] for member in group.members]) for group in groups]
    counts = Counter(patterns)
    groups = [group for group, alike in zip(groups, patterns, strict=True) if counts[alike] >= fewest]
    return join_groups(graph, _fused(graph, groups)) if groups else graph


# -- selection ----------------------------------------------------------------------------------------------------


def _groups(graph: ChunkGraph, unmergeable: Collection[int]) -> list[_Siblings]:
    """Return the groups of at least two reductions that could be joined."""
    uses = count_uses(graph)
    size_of = cache(graph.declared_bytes)
    candidates = _candidates(graph, uses, unmergeable, size_of)
    if len(candidates) < 2:
        return []
    levels = levels_of(graph.inputs)
    groups: list[_Siblings] = []
    of_input: dict[int, list[_Siblings]] = {}
    # Reductions with most inputs come first, and the others join them.
    for chunk in sorted(candidates, key=lambda chunk: (-len(set(graph.inputs[chunk])), chunk)):
        inputs = frozenset(graph.inputs[chunk])
        rarest = min(inputs, key=lambda source: (uses[source], source))
        for group in of_input.get(rarest, ())[:_MOST_GROUPS]:
            # Chunks of one level cannot depend on each other, whatever else is joined.
            if not inputs <= group.inputs or levels[group.members[0]] != levels[chunk]:
                continue
            if _is_room(graph, group, chunk, size_of):
                group.members.append(chunk)
                break
        else:
            group = _Siblings(inputs, [chunk])
            groups.append(group)
            for source in inputs:
                of_input.setdefault(source, []).append(group)
    found = [group for group in groups if len(group.members) > 1]
    for group in found:
        group.members.sort()
    return found


def _candidates(graph: ChunkGraph, uses: list[int], unmergeable: Collection[int], size_of: SizeOf) -> list[int]:
    """Return the reductions that share an input with others."""
    reducing = [is_reduction(operand) for operand in graph.operands]
    if not any(reducing):
        return []
    kept = fixed_chunks(graph).union(unmergeable, graph.outputs)
    found = []
    looked_at = bytearray(len(reducing))
    for chunk, (number, sources) in enumerate(zip(graph.operand_of, graph.inputs, strict=True)):
        if number == DATA or not reducing[number] or not 0 < len(sources) <= _MOST_INPUTS:
            continue
        if max([uses[source] for source in sources]) < 2 or chunk in kept:
            continue
        if not looked_at[number]:
            # The first chunk stands for all of its operand: checking each would cost more than it could save.
            looked_at[number] = 1
            if _total(size_of, set(sources)) < FEWEST_BYTES:
                reducing[number] = False
                continue
        size = size_of(chunk)
        if size is not None and SMALL_SHARE * size <= _total(size_of, set(sources)):
            found.append(chunk)
    in_client = graph.in_client | graph.chunks_for_client()
    if found and in_client:
        read_there = {source for chunk in in_client for source in graph.inputs[chunk]}
        found = [chunk for chunk in found if chunk not in read_there]
    return found


def is_reduction(operand: Operand) -> bool:
    """Return whether an operand ends with a function that is known to have no side effects."""
    if operand.in_client or not operand.input_count:
        return False
    return _is_of_packages(operand.functions[operand.steps[-1].function])


def _is_of_packages(function: Any) -> bool:
    function = called_by(function)
    if type(function) is Compose:
        # Dask concatenates and reduces by such compositions.
        return _is_of_packages(function.first) and all(map(_is_of_packages, function.funcs))
    return module_of(function).startswith(_PACKAGES)


def _is_room(graph: ChunkGraph, group: _Siblings, chunk: int, size_of: SizeOf) -> bool:
    """Return whether a group has room for one more chunk, in steps and in bytes of results."""
    members = [*group.members, chunk]
    if sum([len(graph.operands[graph.operand_of[member]].steps) for member in members]) > LONGEST:
        return False
    return SMALL_SHARE * _total(size_of, members) <= _total(size_of, group.inputs)


def _total(size_of: SizeOf, chunks: Iterable[int]) -> int:
    return sum([size_of(chunk) or 0 for chunk in chunks])


def levels_of(inputs: Sequence[Sequence[int]]) -> list[int]:
    """Return the longest distance of each chunk from a chunk without inputs."""
    levels: list[int] = []
    for sources in inputs:
        levels.append(1 + max([levels[source] for source in sources]) if sources else 0)
    return levels


# -- joining ------------------------------------------------------------------------------------------------------


def join_groups(graph: ChunkGraph, groups: list[Group]) -> ChunkGraph:
    """Return the graph with each group as one chunk, renumbered in depth-first order."""
    operands = list(graph.operands)
    operand_of, literals = list(graph.operand_of), list(graph.literals)
    inputs = list(graph.inputs)
    numbers: dict[int, int] = {}
    #: For each member: the chunk that replaces it, and its position in that chunk's tuple.
    place_of: dict[int, tuple[int, int]] = {}
    joined_bytes = {}
    for group in groups:
        if id(group.operand) not in numbers:
            numbers[id(group.operand)] = len(operands)
            operands.append(group.operand)
        for member in group.members:
            inputs[member] = ()
        operand_of[group.place], inputs[group.place] = numbers[id(group.operand)], group.inputs
        literals[group.place] = group.literals
        if len(group.members) > 1:
            place_of.update({member: (group.place, at) for at, member in enumerate(group.members)})
            joined_bytes[group.place] = _total(graph.declared_bytes, group.members)
    picks = [operator.itemgetter(place) for place in range(max(len(group.members) for group in groups))]
    picking: dict[tuple[int, tuple[int | None, ...]], int] = {}
    kept = {member: place_of.pop(member) for group in groups for member in group.kept}
    eager = bytearray(len(graph))
    for chunk, sources in enumerate(inputs):
        if not any(source in place_of for source in sources):
            continue
        found: list[tuple[int, int | None]] = [place_of.get(source, (source, None)) for source in sources]
        inputs[chunk] = tuple([source for source, _ in found])
        pattern = operand_of[chunk], tuple([place for _, place in found])
        if pattern not in picking:
            picking[pattern] = len(operands)
            calls = tuple([None if place is None else picks[place] for place in pattern[1]])
            operands.append(applied(operands[pattern[0]], calls))
        operand_of[chunk] = picking[pattern]
        eager[chunk] = all(place is not None for _, place in found)
    picked: dict[int, int] = {}
    for member, (place, at) in kept.items():
        if at not in picked:
            picked[at] = len(operands)
            operands.append(Operand("getitem", (picks[at],), (Step(0, (0,), ()),), 1, 0))
        operand_of[member], inputs[member], literals[member] = picked[at], (place,), ()
    return renumbered(graph, operand_of, literals, inputs, operands, eager, joined_bytes)


def _fused(graph: ChunkGraph, groups: list[_Siblings]) -> list[Group]:
    fused: dict[tuple[Any, ...], Operand] = {}
    found = []
    for group in groups:
        together = tuple(dict.fromkeys([source for member in group.members for source in graph.inputs[member]]))
        position = {source: at for at, source in enumerate(together)}
        members = tuple(
            [
                (graph.operand_of[member], tuple([position[source] for source in graph.inputs[member]]))
                for member in group.members
            ]
        )
        if members not in fused:
            fused[members] = _fuse([(graph.operands[number], at) for number, at in members], len(together))
        literals = tuple([literal for member in group.members for literal in graph.literals[member]])
        found.append(Group(group.members, together, fused[members], literals, group.members[-1]))
    return found


def _fuse(members: list[tuple[Operand, tuple[int, ...]]], input_count: int) -> Operand:
    """Return the operand that computes several, given the positions of each one's inputs."""
    literal_count = sum(operand.literal_count for operand, _ in members)
    joined, next_literal = JoinedSteps(input_count + literal_count), input_count
    results = []
    for operand, at in members:
        results.append(joined.append(operand, [*at, *range(next_literal, next_literal + operand.literal_count)]))
        next_literal += operand.literal_count
    joined.call(make_tuple, tuple(results))
    name = "-".join(dict.fromkeys([operand.name for operand, _ in members]))
    return joined.operand(name, input_count, literal_count)


__all__ = ["FEWEST_BYTES", "SMALL_SHARE", "Group", "is_reduction", "join_groups", "join_siblings", "levels_of"]
