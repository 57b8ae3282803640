"""A chunk graph minus saved chunks: these are read, and chunks that only they needed are left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dask_mars.graph.chunks import DATA, ChunkGraph, Operand, Step


def restored(
    graph: ChunkGraph, values: Mapping[int, Any], files: Mapping[int, Any], read: Callable[[Any], Any]
) -> ChunkGraph:
    """Return a graph in which saved chunks are read, and chunks that only they needed are missing."""
    if not values and not files:
        return graph
    kept = needed(graph, values.keys() | files.keys())
    new = [-1] * len(graph)
    chunks = [chunk for chunk in range(len(graph)) if kept[chunk]]
    for new_id, chunk in enumerate(chunks):
        new[chunk] = new_id
    used = {graph.operand_of[chunk] for chunk in chunks if chunk not in values and chunk not in files} - {DATA}
    places = {operand: place for place, operand in enumerate(sorted(used))}
    places[DATA] = DATA
    operands = [graph.operands[operand] for operand in sorted(used)]
    reading = len(operands)
    if any(kept[chunk] for chunk in files):
        operands.append(Operand("restored", (read,), (Step(0, (0,), ()),), 0, 1))
    found = ChunkGraph(operands=operands, declared=graph.declared)
    found.take_over(graph, new)
    for chunk in chunks:
        found.keys.append(graph.keys[chunk])
        if chunk in values:
            found.operand_of.append(DATA)
            found.literals.append(())
            found.inputs.append(())
            found.values[new[chunk]] = values[chunk]
        elif chunk in files:
            found.operand_of.append(reading)
            found.literals.append((files[chunk],))
            found.inputs.append(())
        else:
            found.operand_of.append(places[graph.operand_of[chunk]])
            found.literals.append(graph.literals[chunk])
            found.inputs.append(tuple([new[source] for source in graph.inputs[chunk]]))
    found.ids = {key: new[chunk] for key, chunk in graph.ids.items() if new[chunk] >= 0}
    _forget_those_left_out(found)
    # Saved values can be read anywhere.
    found.in_client -= {new[chunk] for chunk in (*values, *files)}
    return found


def needed(graph: ChunkGraph, saved: Mapping[int, Any] | set[int]) -> bytearray:
    """Return which chunks of a graph are computed or read, given the saved ones."""
    kept = bytearray(len(graph))
    for chunk in graph.outputs:
        kept[chunk] = 1
    inputs = graph.inputs
    for chunk in range(len(graph) - 1, -1, -1):
        if kept[chunk] and chunk not in saved:
            for source in inputs[chunk]:
                kept[source] = 1
    return kept


def _forget_those_left_out(graph: ChunkGraph) -> None:
    """Remove facts about left-out chunks, all of which are under the id -1."""
    for facts in (
        graph.values,
        graph.retries,
        graph.priorities,
        graph.restrictions,
        graph.joined_bytes,
        graph.saves,
    ):
        facts.pop(-1, None)
    graph.in_client.discard(-1)
