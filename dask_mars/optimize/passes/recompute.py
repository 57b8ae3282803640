"""Chunks that each reader computes again, because that is faster than keeping them.

A chunk of random numbers is defined by its seed, and elementwise readers never need it as an array. Recomputed by
each reader it takes no memory, and about as much time as reading it; so a standardised array, which is read
thrice, is made thrice and stored once. Chunks that the user requested or persisted are stored in any case.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask_mars import config
from dask_mars.graph.callables import module_of
from dask_mars.graph.chunks import DATA, Operand
from dask_mars.graph.splice import LONGEST
from dask_mars.optimize.passes.edit import GraphEdit, Limits
from dask_mars.optimize.passes.folding import Folder, folded

#: Nanoseconds to write eight bytes of a chunk into the store, and to read them. Both hold for warm pages and
#: chunks that fit the processor's last cache; others take longer.
WRITE_NS = 0.5
READ_NS = 0.25


def is_source(operand: Operand) -> bool:
    """Return whether chunks of an operand of one step without inputs may be recomputed."""
    return module_of(operand.functions[0]) == "dask.array.random"


def make_ns(operand: Operand, literals: tuple[Any, ...]) -> float | None:
    """Return the nanoseconds per element of a chunk, None if no expression makes them without an array."""
    # This imports Dask's arrays, which graphs of random numbers have imported already.
    from dask_mars.expressions import rewrite

    return rewrite.make_ns(operand, literals)


def never_stored(operand: Operand) -> bool:
    """Return whether an operand consumes all recomputed elements block by block, without an array."""
    from dask_mars.expressions import rewrite

    return rewrite.never_stored(operand, bool(config.get("expressions.reductions")))


def is_cheaper(cost: float, readers: int) -> bool:
    """Return whether recomputing a chunk in each reader is cheaper than storing it."""
    return readers * cost < cost + WRITE_NS + readers * READ_NS


def recompute(edit: GraphEdit, limits: Limits) -> None:
    """Let readers recompute chunks where that is cheaper."""
    if not limits.recomputes:
        return
    readers = _readers(edit)
    folder, operand_of = Folder(edit), edit.graph.operand_of
    for chunk in dict.fromkeys(chunk for found in readers.values() for chunk in found):
        sources = edit.graph.inputs[chunk]
        folder.fold(chunk, tuple([operand_of[source] if source in readers else None for source in sources]))
    for source in readers:
        edit.remove(source)


def _readers(edit: GraphEdit) -> Mapping[int, list[int]]:
    """Return the chunks to recompute, and the readers of each."""
    graph = edit.graph
    source_operands = {
        operand_id
        for operand_id, operand in enumerate(graph.operands)
        if not (operand.in_client or operand.input_count) and len(operand.steps) == 1 and is_source(operand)
    }
    if not source_operands:
        return {}
    kept = edit.fixed.union(graph.outputs)
    readers: dict[int, list[int]] = {}
    costs: dict[int, float] = {}
    for source, operand in enumerate(graph.operand_of):
        if operand in source_operands and source not in kept:
            cost = make_ns(graph.operands[operand], graph.literals[source])
            if cost is not None:
                readers[source], costs[source] = [], cost
    known: dict[tuple[int, int, int], bool] = {}

    def reads_parts(chunk: int, source: int) -> bool:
        """Return whether a reader that recomputes a source can do so block by block, without the whole array."""
        consumer, operand = graph.operand_of[chunk], graph.operand_of[source]
        if chunk in edit.fixed or consumer == DATA or graph.operands[consumer].in_client:
            return False
        sources = graph.inputs[chunk]
        if sources.count(source) > 1 or len(graph.operands[consumer].steps) + len(sources) > LONGEST:
            return False
        key = (consumer, sources.index(source), operand)
        if key not in known:
            initial = tuple([operand if at == source else None for at in sources])
            known[key] = never_stored(folded(graph.operands, consumer, initial))
        return known[key]

    for chunk, sources in enumerate(graph.inputs) if readers else ():
        for source in sources:
            if source in readers:
                if reads_parts(chunk, source):
                    readers[source].append(chunk)
                else:
                    del readers[source]
    # With a single reader, fusing several chunks into one task saves too little.
    return {
        source: found
        for source, found in readers.items()
        if len(found) > 1 and is_cheaper(costs[source], len(found))
    }
