"""Chunks that each reader computes again, because that is faster than keeping them.

A chunk of random numbers is defined by its seed, and elementwise readers never need it as an array. Recomputed by
each reader it takes no memory, and about as much time as reading it; so a standardised array, which is read
thrice, is made thrice and stored once. Chunks that the user requested or persisted are kept all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from dask_mars.graph.chunks import DATA, ChunkGraph, Operand
from dask_mars.optimize.compose import LONGEST, fixed_chunks, without
from dask_mars.optimize.folding import fold

#: Nanoseconds to write eight bytes of a chunk into the store, and to read them. Both hold for warm pages and
#: chunks that fit the processor's last cache; others take longer.
WRITE_NS = 0.5
READ_NS = 0.25


class Remaking(NamedTuple):
    """Functions that describe operands to `remake`.

    Attributes
    ----------
    is_source : callable
        Takes an operand of one step without inputs. Returns whether its chunks may be remade.
    make_ns : callable
        Takes such an operand and the literals of one of its chunks. Returns the nanoseconds per element where an
        expression can make the elements without an array; otherwise None.
    never_stored : callable
        Takes an operand. Returns whether it consumes all remade elements block by block, without an array.
    """

    is_source: Callable[[Operand], bool]
    make_ns: Callable[[Operand, tuple[Any, ...]], float | None]
    never_stored: Callable[[Operand], bool]


def is_cheaper(make_ns: float, readers: int) -> bool:
    """Return whether recomputing a chunk in each reader is cheaper than storing it.

    Parameters
    ----------
    make_ns : float
        Nanoseconds that making takes for each eight bytes.
    readers : int
        How many read it.

    Examples
    --------
    >>> is_cheaper(0.25, 10), is_cheaper(0.9, 2), is_cheaper(0.9, 3)
    (True, True, False)
    """
    return readers * make_ns < make_ns + WRITE_NS + readers * READ_NS


def remake(graph: ChunkGraph, remaking: Remaking, unmergeable: Collection[int] = ()) -> ChunkGraph:
    """Let readers recompute chunks where that is cheaper; chunks keep their order and their keys."""
    readers = _readers(graph, remaking, unmergeable)
    if not readers:
        return graph
    operand_of, literals = list(graph.operand_of), list(graph.literals)
    inputs, operands = list(graph.inputs), list(graph.operands)
    absorbed = bytearray(len(graph))
    folded: dict[tuple[int | None, ...], int] = {}
    for source in readers:
        absorbed[source] = 1
    for chunk in dict.fromkeys(chunk for found in readers.values() for chunk in found):
        remade = [source in readers for source in inputs[chunk]]
        initial = [operand_of[at] if again else None for at, again in zip(inputs[chunk], remade, strict=True)]
        pattern = (operand_of[chunk], *initial)
        if pattern not in folded:
            folded[pattern] = len(operands)
            operands.append(_folded(operands, operand_of[chunk], initial))
        operand_of[chunk] = folded[pattern]
        given = [
            literal for at, again in zip(inputs[chunk], remade, strict=True) if again for literal in literals[at]
        ]
        literals[chunk] = (*given, *literals[chunk])
        inputs[chunk] = tuple([at for at, again in zip(inputs[chunk], remade, strict=True) if not again])
    return without(graph, absorbed, operand_of, literals, inputs, operands)


def _folded(operands: Sequence[Operand], consumer: int, initial: Sequence[int | None]) -> Operand:
    return fold(operands[consumer], tuple([None if number is None else operands[number] for number in initial]))


def _readers(graph: ChunkGraph, remaking: Remaking, unmergeable: Collection[int]) -> Mapping[int, list[int]]:
    """Return the chunks to recompute, and the readers of each."""
    operands = {
        number
        for number, operand in enumerate(graph.operands)
        if not (operand.in_client or operand.input_count)
        and len(operand.steps) == 1
        and remaking.is_source(operand)
    }
    if not operands:
        return {}
    never_stored: dict[tuple[int, int, int], bool] = {}

    def reads_parts(chunk: int, source: int) -> bool:
        """Return whether a reader that makes a source itself needs no array of it."""
        consumer, number = graph.operand_of[chunk], graph.operand_of[source]
        if consumer == DATA or graph.operands[consumer].in_client:
            return False
        sources = graph.inputs[chunk]
        if sources.count(source) > 1 or len(graph.operands[consumer].steps) + len(sources) > LONGEST:
            return False
        key = (consumer, sources.index(source), number)
        if key not in never_stored:
            initial = [number if at == source else None for at in sources]
            never_stored[key] = remaking.never_stored(_folded(graph.operands, consumer, initial))
        return never_stored[key]

    fixed = fixed_chunks(graph).union(unmergeable)
    kept = fixed.union(graph.outputs)
    readers: dict[int, list[int]] = {}
    costs: dict[int, float] = {}
    for source, number in enumerate(graph.operand_of):
        if number in operands and source not in kept:
            make_ns = remaking.make_ns(graph.operands[number], graph.literals[source])
            if make_ns is not None:
                readers[source], costs[source] = [], make_ns
    if not readers:
        return readers
    for chunk, sources in enumerate(graph.inputs):
        for source in sources:
            if source in readers:
                if chunk in fixed or not reads_parts(chunk, source):
                    del readers[source]
                else:
                    readers[source].append(chunk)
    # With a single reader, fusing several chunks into one task saves too little.
    return {
        source: found
        for source, found in readers.items()
        if len(found) > 1 and is_cheaper(costs[source], len(found))
    }
