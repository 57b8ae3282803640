"""Splices operands: one operand that runs the steps of several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dask_mars.graph.chunks import Operand, Step

#: Maximum steps of a spliced operand. A chain of ten thousand would be spliced ten thousand times, each time
#: longer.
LONGEST = 100

#: An operand, and for each of its inputs an input of the whole, or ``~k`` for the result of part k.
Part = tuple[Operand, Sequence[int]]


def splice(parts: Sequence[Part], input_count: int, name: str | None = None) -> Operand:
    """Return the operand that runs parts one after the other; its literals are those of the parts, in order."""
    literal_count = sum([operand.literal_count for operand, _ in parts])
    first_step, next_literal = input_count + literal_count, input_count
    functions: list[Any] = []
    places: dict[int, int] = {}
    steps: list[Step] = []
    results: list[int] = []
    for operand, inputs in parts:
        slots = [at if at >= 0 else results[~at] for at in inputs]
        slots += range(next_literal, next_literal + operand.literal_count)
        next_literal += operand.literal_count
        for step in operand.steps:
            function = operand.functions[step.function]
            place = places.setdefault(id(function), len(functions))
            if place == len(functions):
                functions.append(function)
            slots.append(first_step + len(steps))
            steps.append(Step(place, tuple([slots[slot] for slot in step.slots]), step.keywords))
        results.append(slots[-1])
    if name is None:
        name = "-".join(dict.fromkeys([operand.name for operand, _ in parts if operand.name]))
    in_client = any(operand.in_client for operand, _ in parts)
    return Operand(name, tuple(functions), tuple(steps), input_count, literal_count, in_client)


def call_of(function: Callable[..., Any], input_count: int = 1, name: str = "") -> Operand:
    """Return the operand that calls a function with its inputs."""
    return Operand(name, (function,), (Step(0, tuple(range(input_count)), ()),), input_count, 0)


def with_calls(operand: Operand, calls: Sequence[Callable[[Any], Any] | None]) -> Operand:
    """Return an operand that calls functions with its inputs, except for None, and continues with the results."""
    return with_makers(operand, [None if call is None else call_of(call) for call in calls], operand.name)


def with_makers(operand: Operand, makers: Sequence[Operand | None], name: str | None = None) -> Operand:
    """Return an operand that computes its inputs by other operands, except for None, and continues with them."""
    parts: list[Part] = []
    inputs: list[int] = []
    input_count = 0
    for maker in makers:
        own = range(input_count, input_count + (1 if maker is None else maker.input_count))
        inputs.append(own.start if maker is None else ~len(parts))
        if maker is not None:
            parts.append((maker, own))
        input_count = own.stop
    return splice([*parts, (operand, inputs)], input_count, name)
