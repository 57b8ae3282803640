"""Chunks that are made again by each that reads them, because that takes less time than to keep them.

A chunk of random numbers is known by its seed, and what reads it element by element never needs it as an array.
Made anew by each reader it takes no memory, and its numbers about as much time as to read them from memory; so a
standardised array, which is read thrice, is made thrice and stored once. What the user asks for, or has persisted,
is kept all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from dask_mars.graph.chunks import DATA, ChunkGraph, Operand
from dask_mars.optimize.compose import LONGEST, fixed_chunks, without
from dask_mars.optimize.folding import fold

#: Nanoseconds to write eight bytes of a chunk into the store, and to read them, where pages are warm and the
#: processor's last cache holds a chunk. Fresh pages and larger chunks take longer.
WRITE_NS = 0.5
READ_NS = 0.25


class Remaking(NamedTuple):
    """What `remake` has to know of what is computed.

    Attributes
    ----------
    is_source : callable
        Takes an operand of one step without inputs. Returns whether its chunks may be of that kind.
    make_ns : callable
        Takes such an operand and the literals of one of its chunks. Returns the nanoseconds that an
        element of the chunk takes, where it is to be had without making an array of it; else None.
    never_stored : callable
        Takes an operand. Returns whether all that it makes in this way goes to where it is read, part by part.
    """

    is_source: Callable[[Operand], bool]
    make_ns: Callable[[Operand, tuple[Any, ...]], float | None]
    never_stored: Callable[[Operand], bool]


def is_cheaper(make_ns: float, readers: int) -> bool:
    """Say whether a chunk had better be made by each of its readers than be kept for them.

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
    """Have chunks made by those that read them where that is cheaper.

    Parameters
    ----------
    graph : ChunkGraph
        Composed. It is not changed, but shares its parts with the result.
    remaking : Remaking
        What is known of operands.
    unmergeable : collection of int, optional
        Chunks that stay as they are.

    Returns
    -------
    ChunkGraph
        Chunks keep their order and their keys.
    """
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
    """Return the chunks that are made again, and the chunks that read each of them."""
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
        """Say whether a chunk that makes a source by itself does without an array of it."""
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
    # With one reader nothing is saved that is worth making several chunks one after the other.
    return {
        source: found
        for source, found in readers.items()
        if len(found) > 1 and is_cheaper(costs[source], len(found))
    }
