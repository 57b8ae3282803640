"""Packs operands and chunks for messages from the engine to a worker, in few bytes and few objects.

A worker gets an operand once for each graph: its program as plain tuples, its functions as ids. Chunks travel in
columns: a column of numbers is one object to pickle, records would be one object per chunk.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any

from dask_mars.graph.chunks import Operand, Step
from dask_mars.graph.functions import FunctionRegistry

#: Name, function ids (None for functions that travel by value), steps, number of inputs and of literals, and the
#: packed functions that travel by value.
PackedOperand = tuple[
    str, tuple[int | None, ...], list[tuple[int, tuple[int, ...], tuple[str, ...]]], int, int, Any
]
#: One byte per number, or eight in a tuple.
PackedNumbers = bytes | tuple[bytes]
#: Operand ids, inputs, literals; None for a column that is empty in every chunk.
PackedChunks = tuple[PackedNumbers, list[tuple[int, ...]] | None, Any]


def pack_operand(
    operand: Operand, mapping: FunctionRegistry, by_value: Callable[[list[Callable[..., Any]]], Any]
) -> PackedOperand:
    """Pack an operand for a message."""
    function_ids = tuple([mapping.function_id(function) for function in operand.functions])
    nameless = [
        function
        for function, function_id in zip(operand.functions, function_ids, strict=True)
        if function_id is None
    ]
    return (
        operand.name,
        function_ids,
        [(step.function, step.slots, step.keywords) for step in operand.steps],
        operand.input_count,
        operand.literal_count,
        by_value(nameless) if nameless else None,
    )


def function_ids_of(packed: PackedOperand) -> list[int]:
    """Return the function ids of a packed operand."""
    _, function_ids, *_ = packed
    return [function_id for function_id in function_ids if function_id is not None]


def unpack_operand(
    packed: PackedOperand, mapping: FunctionRegistry, by_value: Callable[[Any], Iterable[Callable[..., Any]]]
) -> Operand:
    """Return the operand, importing its functions."""
    name, function_ids, steps, input_count, literal_count, rest = packed
    nameless = iter(() if rest is None else by_value(rest))
    functions = tuple(
        [next(nameless) if function_id is None else mapping[function_id] for function_id in function_ids]
    )
    return Operand(name, functions, tuple(map(Step._make, steps)), input_count, literal_count)


def pack_chunks(
    operands: list[int],
    inputs: list[tuple[int, ...]],
    literals: list[tuple[Any, ...]],
    by_value: Callable[[list[tuple[Any, ...]]], Any],
) -> PackedChunks:
    """Pack the columns of some chunks for a message; `by_value` packs their literals."""
    return (pack_numbers(operands), inputs if any(inputs) else None, by_value(literals) if any(literals) else None)


def unpack_chunks(
    packed: PackedChunks, by_value: Callable[[Any], Iterable[tuple[Any, ...]]]
) -> tuple[Iterable[int], Iterable[tuple[int, ...]], Iterable[tuple[Any, ...]]]:
    """Return the columns: operand ids, inputs and literals. The last two may be endless."""
    operands, inputs, literals = packed
    return (
        unpack_numbers(operands),
        repeat(()) if inputs is None else inputs,
        repeat(()) if literals is None else by_value(literals),
    )


def pack_numbers(numbers: list[int]) -> PackedNumbers:
    """Return natural numbers, those below 256 in a byte each."""
    try:
        return bytes(numbers)
    except ValueError:
        return (array("Q", numbers).tobytes(),)


def unpack_numbers(packed: PackedNumbers) -> Sequence[int]:
    """Return the numbers."""
    if isinstance(packed, bytes):
        return packed
    numbers = array("Q")
    numbers.frombytes(packed[0])
    return numbers
