"""Folding: initial chunks with a single consumer are computed with it, even where it has other inputs.

Composing leaves such chunks apart, because a branch enters at their consumer. Folded in, they need no operand, no
object in the store and no message of their own, but they no longer run in parallel. So folding needs many equal
consumers: a sum over 20,000 chunks becomes a quarter as many operands, a sum over four stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

from dask_mars.graph.chunks import DATA, ChunkGraph, Operand, Step
from dask_mars.optimize.compose import LONGEST, count_uses, fixed_chunks, without

#: The operands of the inputs that are folded in, by position; None for inputs that stay.
Initial = tuple["int | None", ...]


def fold_initial(
    graph: ChunkGraph, fewest: int, unmergeable: Collection[int] = (), among: Collection[int] | None = None
) -> ChunkGraph:
    """Fold initial chunks into their only consumers where at least `fewest` of these are equal."""
    if len(graph) < 2 * fewest:
        return graph
    patterns = _patterns(graph, unmergeable, range(len(graph)) if among is None else sorted(among))
    counts = Counter(patterns.values())
    operand_of, literals = list(graph.operand_of), list(graph.literals)
    inputs, operands = list(graph.inputs), list(graph.operands)
    absorbed = bytearray(len(graph))
    folded: dict[tuple[int, Initial], int | None] = {}
    for chunk, pattern in patterns.items():
        if counts[pattern] < fewest:
            continue
        if pattern not in folded:
            folded[pattern] = _fold(operands, *pattern)
        operand = folded[pattern]
        if operand is None:
            continue
        together: list[Any] = []
        for source, initial in zip(inputs[chunk], pattern[1], strict=True):
            if initial is not None:
                together += literals[source]
                absorbed[source] = 1
        literals[chunk] = (*together, *literals[chunk])
        kept = [source for source, initial in zip(inputs[chunk], pattern[1], strict=True) if initial is None]
        inputs[chunk] = tuple(kept)
        operand_of[chunk] = operand
    if not any(absorbed):
        return graph
    return without(graph, absorbed, operand_of, literals, inputs, operands)


def _patterns(
    graph: ChunkGraph, unmergeable: Collection[int], among: Iterable[int]
) -> dict[int, tuple[int, Initial]]:
    """Return, for every chunk that others could be folded into, its operand and theirs."""
    uses = count_uses(graph)
    for chunk in graph.outputs:
        # One use more than consumers, because the chunk is a result.
        uses[chunk] += 1
    fixed = fixed_chunks(graph).union(unmergeable)
    operand_of = graph.operand_of
    client_operands = {number for number, operand in enumerate(graph.operands) if operand.in_client}
    initial = [
        number if not sources and used == 1 and number != DATA else None
        for number, sources, used in zip(operand_of, graph.inputs, uses, strict=True)
    ]
    for chunk in fixed:
        initial[chunk] = None
    patterns = {}
    for chunk in among:
        sources = graph.inputs[chunk]
        if len(sources) < 2 or operand_of[chunk] in client_operands or (fixed and chunk in fixed):
            continue
        found = tuple([initial[source] for source in sources])
        if found.count(None) < len(found) and client_operands.isdisjoint(found):
            patterns[chunk] = (operand_of[chunk], found)
    return patterns


def _fold(operands: list[Operand], consumer: int, initial: Initial) -> int | None:
    """Add the operand of a consumer and its folded inputs; return its number, None if it would be too long."""
    length = sum(len(operands[number].steps) for number in initial if number is not None)
    if length + len(operands[consumer].steps) > LONGEST:
        return None
    operands.append(
        fold(operands[consumer], tuple([None if number is None else operands[number] for number in initial]))
    )
    return len(operands) - 1


def fold(consumer: Operand, initial: tuple[Operand | None, ...]) -> Operand:
    """Return the operand that computes initial operands and passes their results to a consumer.

    Its literals are those of the operands folded in, in order, and then the consumer's.
    """
    members = [operand for operand in initial if operand is not None]
    input_count = initial.count(None)
    literal_count = sum(operand.literal_count for operand in members) + consumer.literal_count
    joined = JoinedSteps(input_count + literal_count)
    #: Slots of the consumer's inputs and literals, in order.
    slots: list[int] = []
    next_literal, next_input = input_count, 0
    for operand in initial:
        if operand is None:
            slots.append(next_input)
            next_input += 1
            continue
        slots.append(joined.append(operand, range(next_literal, next_literal + operand.literal_count)))
        next_literal += operand.literal_count
    slots += range(next_literal, next_literal + consumer.literal_count)
    joined.append(consumer, slots)
    names = dict.fromkeys(operand.name for operand in members)
    return joined.operand("-".join([*names, consumer.name]), input_count, literal_count)


class JoinedSteps:
    """The steps of several operands, one after the other, with each function once.

    Parameters
    ----------
    first_step : int
        The slot of the first of all steps.
    """

    def __init__(self, first_step: int) -> None:
        self._first_step = first_step
        self._steps: list[Step] = []
        self._functions: list[Any] = []
        self._places: dict[int, int] = {}

    def append(self, operand: Operand, slots: Iterable[int]) -> int:
        """Append an operand's steps, given the slots of its inputs and literals; return the slot of its result."""
        known = [*slots]
        for step in operand.steps:
            taken = tuple([known[slot] for slot in step.slots])
            known.append(self.call(operand.functions[step.function], taken, step.keywords))
        return known[-1]

    def call(self, function: Any, slots: tuple[int, ...], keywords: tuple[str, ...] = ()) -> int:
        """Append the call of a function; return the slot of its result."""
        place = self._places.setdefault(id(function), len(self._functions))
        if place == len(self._functions):
            self._functions.append(function)
        self._steps.append(Step(place, slots, keywords))
        return self._first_step + len(self._steps) - 1

    def operand(self, name: str, input_count: int, literal_count: int) -> Operand:
        """Return all steps as one operand."""
        return Operand(name, tuple(self._functions), tuple(self._steps), input_count, literal_count)
