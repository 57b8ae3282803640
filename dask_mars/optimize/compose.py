"""Composing: chunks that form a single chain become one chunk.

Mars's rule: two operands are merged if the first has one consumer and the second one input, so that no branch
leaves or enters between them. ``(a + b).sum()`` becomes one operand of ADD and SUM, and the operands that make
``a`` and ``b`` stay apart. A requested chunk ends its chain.

Programs are joined once for each pair of operands, that is, for each pair of layers; a chunk costs one look-up. If
a chain begins by reading a slice of a source and slices the result again, the two slices become one, so that no
more is read than necessary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import accumulate, compress
from typing import Any, NamedTuple

from dask_mars.graph.chunks import DATA, ChunkGraph, Operand, Step

#: Maximum steps of a composed operand. A chain of ten thousand would be joined ten thousand times, each time
#: longer.
LONGEST = 100

#: Combines the literals of a reading and of a slicing step, or returns None where they cannot be combined.
Slicer = Callable[[tuple[Any, ...], tuple[Any, ...]], "tuple[Any, ...] | None"]
#: Returns, for the operands of a pair, the joined operand and its slicer if their slices may become one.
JoinSlices = Callable[[Operand, Operand], "tuple[Operand, Slicer] | None"]


class _Joined(NamedTuple):
    """The result of joining a pair of operands."""

    operand: int
    #: The operand with slices combined, and the function for its literals.
    sliced: tuple[int, Slicer] | None


def compose(
    graph: ChunkGraph, join_slices: JoinSlices | None = None, unmergeable: Collection[int] = ()
) -> ChunkGraph:
    """Merge the single chains of a graph; a merged chunk has the key of its chain's last."""
    uses = count_uses(graph)
    for chunk in graph.outputs:
        # One use more than consumers, because the chunk is a result.
        uses[chunk] += 1
    operand_of, literals = list(graph.operand_of), list(graph.literals)
    inputs, operands = list(graph.inputs), list(graph.operands)
    joined: dict[tuple[int, int], _Joined] = {}
    absorbed = bytearray(len(graph))
    fixed = fixed_chunks(graph).union(unmergeable)
    for chunk, sources in enumerate(graph.inputs):
        if len(sources) != 1:
            continue
        source = sources[0]
        first, second = operand_of[source], operand_of[chunk]
        if uses[source] != 1 or first == DATA or (fixed and (source in fixed or chunk in fixed)):
            continue
        pair = joined.get((first, second))
        if pair is None:
            if operands[first].in_client or operands[second].in_client:
                continue
            if len(operands[first].steps) + len(operands[second].steps) > LONGEST:
                continue
            pair = joined[first, second] = _join(operands, first, second, join_slices)
        together = None
        if pair.sliced is not None:
            together = pair.sliced[1](literals[source], literals[chunk])
            if together is not None:
                operand_of[chunk] = pair.sliced[0]
        if together is None:
            together = literals[source] + literals[chunk]
            operand_of[chunk] = pair.operand
        literals[chunk] = together
        inputs[chunk] = inputs[source]
        absorbed[source] = 1
    if not any(absorbed):
        return graph
    return without(graph, absorbed, operand_of, literals, inputs, operands)


def count_uses(graph: ChunkGraph) -> list[int]:
    """Return how often each chunk is an input."""
    uses = [0] * len(graph)
    for sources in graph.inputs:
        for source in sources:
            uses[source] += 1
    return uses


def fixed_chunks(graph: ChunkGraph) -> set[int]:
    """Return chunks with annotations or requirements that must not spread to others by merging."""
    annotated = graph.retries.keys() | graph.priorities.keys() | graph.restrictions.keys() | graph.saves.keys()
    return graph.in_client | annotated


def _join(operands: list[Operand], first: int, second: int, join_slices: JoinSlices | None) -> _Joined:
    operand = len(operands)
    operands.append(join(operands[first], operands[second]))
    found = join_slices(operands[first], operands[second]) if join_slices is not None else None
    if found is None:
        return _Joined(operand, None)
    operands.append(found[0])
    return _Joined(operand, (operand + 1, found[1]))


def join(first: Operand, second: Operand) -> Operand:
    """Return the operand that computes `first` and passes its result to `second` as the only input."""
    function_places = {id(function): place for place, function in enumerate(first.functions)}
    functions = list(first.functions)
    new_places = []
    for function in second.functions:
        place = function_places.setdefault(id(function), len(functions))
        if place == len(functions):
            functions.append(function)
        new_places.append(place)
    literal_count = first.literal_count + second.literal_count
    before = first.input_count + first.literal_count
    result = first.input_count + literal_count + len(first.steps) - 1

    def first_slot(slot: int) -> int:
        return slot if slot < before else slot + second.literal_count

    def second_slot(slot: int) -> int:
        if slot == 0:
            return result
        if slot <= second.literal_count:
            return before + slot - 1
        return result + slot - second.literal_count

    steps = [Step(step.function, tuple(map(first_slot, step.slots)), step.keywords) for step in first.steps]
    steps += [
        Step(new_places[step.function], tuple(map(second_slot, step.slots)), step.keywords)
        for step in second.steps
    ]
    name = f"{first.name}-{second.name}"
    return Operand(name, tuple(functions), tuple(steps), first.input_count, literal_count)


def applied(operand: Operand, calls: Sequence[Callable[[Any], Any] | None]) -> Operand:
    """Return an operand that calls functions with its inputs, except for None, and continues with the results."""
    before = operand.input_count + operand.literal_count
    count = len(calls) - calls.count(None)
    functions: list[Any] = list(operand.functions)
    steps: list[Step] = []
    slots = list(range(before))
    place_of: dict[int, int] = {}
    for at, call in enumerate(calls):
        if call is not None:
            place = place_of.setdefault(id(call), len(functions))
            if place == len(functions):
                functions.append(call)
            slots[at] = before + len(steps)
            steps.append(Step(place, (at,), ()))
    for step in operand.steps:
        taken = tuple([slots[slot] if slot < before else slot + count for slot in step.slots])
        steps.append(step._replace(slots=taken))
    return Operand(
        operand.name, tuple(functions), tuple(steps), operand.input_count, operand.literal_count, operand.in_client
    )


def without(
    graph: ChunkGraph,
    absorbed: bytearray,
    operand_of: list[int],
    literals: list[tuple[Any, ...]],
    inputs: list[tuple[int, ...]],
    operands: list[Operand],
) -> ChunkGraph:
    """Return the graph without its absorbed chunks and unused operands."""
    kept = [not gone for gone in absorbed]
    # Number of kept chunks before each.
    new_id = list(accumulate(kept, initial=0))
    keys = list(compress(graph.keys, kept))
    old_operands = list(compress(operand_of, kept))
    used = list(dict.fromkeys(old_operands))
    if DATA in used:
        used.remove(DATA)
    places = {DATA: DATA, **{operand: place for place, operand in enumerate(used)}}
    if len(graph.ids) == len(graph):
        ids = dict(zip(keys, range(len(keys)), strict=True))
    else:
        # Some keys are aliases.
        ids = {key: new_id[chunk] for key, chunk in graph.ids.items() if kept[chunk]}
    found = ChunkGraph(
        keys=keys,
        operand_of=[places[operand] for operand in old_operands],
        literals=list(compress(literals, kept)),
        inputs=[tuple([new_id[at] for at in sources]) if sources else () for sources in compress(inputs, kept)],
        operands=[operands[operand] for operand in used],
        ids=ids,
        declared=graph.declared,
    )
    found.take_over(graph, new_id)
    found.joined_bytes = {new_id[chunk]: size for chunk, size in graph.joined_bytes.items() if kept[chunk]}
    return found
