"""Regions: the steps of an operand that can be evaluated together, block by block.

A region is a connected set of elementwise steps, with the reductions that end it. All its steps run in one pass
over its inputs, so no step may depend on another through a step outside the region.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

from dask_mars.graph.chunks import Operand


class Kind(Enum):
    """The role of a step in a region."""

    #: Each element of the result depends on the same elements of the inputs.
    ELEMENTWISE = auto()
    #: Reduces its first argument; all others are parameters.
    REDUCTION = auto()
    #: Makes elements one after the other, as a region needs them.
    SOURCE = auto()
    #: Anything else.
    OPAQUE = auto()


#: Kinds whose elements a region can take block by block.
_BY_BLOCKS = frozenset({Kind.ELEMENTWISE, Kind.SOURCE})


class Region(NamedTuple):
    """Steps that are evaluated together."""

    #: Elementwise steps and reductions in order.
    steps: tuple[int, ...]
    #: Slots from outside, as `Step.slots` numbers them. Sources are outside.
    inputs: tuple[int, ...]
    #: Steps whose results are needed outside.
    outputs: tuple[int, ...]
    #: The regions that are evaluated together where their arrays are of one shape.
    parts: tuple[Region, ...] = ()


def find_regions(operand: Operand, kinds: Sequence[Kind]) -> list[Region]:
    """Return the regions of an operand: at least two steps, one that reads a source, or reductions alone."""
    before = operand.input_count + operand.literal_count
    levels = _levels(operand, kinds, before)
    leader = list(range(len(operand.steps)))

    def find(step: int) -> int:
        while leader[step] != step:
            leader[step] = step = leader[leader[step]]
        return step

    reductions: list[tuple[int, int]] = []
    # Reductions of slots outside regions, by the slot.
    alone: dict[int, list[int]] = {}
    for index, step in enumerate(operand.steps):
        if kinds[index] is Kind.ELEMENTWISE:
            for slot in step.slots:
                source = slot - before
                if source >= 0 and kinds[source] in _BY_BLOCKS and levels[source] == levels[index]:
                    leader[find(source)] = find(index)
        elif kinds[index] is Kind.REDUCTION and step.slots and all(slot < before for slot in step.slots[1:]):
            source = step.slots[0] - before
            if source >= 0 and kinds[source] in _BY_BLOCKS:
                reductions.append((source, index))
            else:
                alone.setdefault(source, []).append(index)
    members: dict[int, list[int]] = {}
    for index, kind in enumerate(kinds):
        if kind in _BY_BLOCKS:
            members.setdefault(find(index), []).append(index)
    for source, index in reductions:
        members[find(source)].append(index)
    inner = (sorted(index for index in steps if kinds[index] is not Kind.SOURCE) for steps in members.values())
    regions = [
        _region(operand, steps, before)
        for steps, group in zip(inner, members.values(), strict=True)
        if steps and len(group) > 1
    ]
    return _with_common_inputs(operand, regions, kinds, levels) + [
        _region(operand, steps, before) for steps in alone.values()
    ]


def _with_common_inputs(
    operand: Operand, regions: list[Region], kinds: Sequence[Kind], levels: list[int]
) -> list[Region]:
    """Join the regions that reduce the same inputs, so that these are read from memory once."""
    joined: list[Region] = []
    groups: list[tuple[list[Region], set[tuple[int, int]]]] = []
    for region in regions:
        if any(kinds[step] is not Kind.REDUCTION for step in region.outputs):
            # Together, results of the chunk's size would be in memory at once.
            joined.append(region)
            continue
        level = levels[region.steps[0]]
        group, inputs = [region], {(slot, level) for slot in region.inputs if slot < operand.input_count}
        for other in [other for other in groups if inputs & other[1]]:
            groups.remove(other)
            group, inputs = other[0] + group, other[1] | inputs
        groups.append((group, inputs))
    return joined + [_join(group) if len(group) > 1 else group[0] for group, _ in groups]


def _join(parts: list[Region]) -> Region:
    return Region(
        tuple(sorted(step for part in parts for step in part.steps)),
        tuple(dict.fromkeys(slot for part in parts for slot in part.inputs)),
        tuple(step for part in parts for step in part.outputs),
        tuple(parts),
    )


def _levels(operand: Operand, kinds: Sequence[Kind], before: int) -> list[int]:
    """Return how often the path to each step leaves a region: steps of one level cannot depend on each other."""
    levels: list[int] = []
    for index, step in enumerate(operand.steps):
        level = 0
        for slot in step.slots:
            if slot >= before:
                source = slot - before
                leaves = kinds[source] in _BY_BLOCKS and kinds[index] is not Kind.ELEMENTWISE
                level = max(level, levels[source] + leaves)
        levels.append(level)
    return levels


def _region(operand: Operand, steps: list[int], before: int) -> Region:
    inside = set(steps)
    inputs = dict.fromkeys(
        slot for index in steps for slot in operand.steps[index].slots if slot - before not in inside
    )
    last = len(operand.steps) - 1
    needed = {last} if last in inside else set()
    for index, step in enumerate(operand.steps):
        if index not in inside:
            needed.update(slot - before for slot in step.slots if slot - before in inside)
    return Region(tuple(steps), tuple(inputs), tuple(sorted(needed)))
