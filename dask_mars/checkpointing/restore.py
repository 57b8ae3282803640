"""A chunk graph minus saved chunks: these are read, and chunks that only they needed are left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dask_mars.graph.chunks import DATA, ChunkGraph, Operand, Step
from dask_mars.optimize.passes.edit import GraphEdit


def restored(
    graph: ChunkGraph, values: Mapping[int, Any], files: Mapping[int, Any], read: Callable[[Any], Any]
) -> ChunkGraph:
    """Return a graph in which saved chunks are read, and chunks that only they needed are missing."""
    if not values and not files:
        return graph
    edit = GraphEdit(graph)
    changed = edit.graph
    reading = edit.add_operand(Operand("restored", (read,), (Step(0, (0,), ()),), 0, 1))
    for chunk in (*values, *files):
        changed.operand_of[chunk] = DATA if chunk in values else reading
        changed.literals[chunk] = () if chunk in values else (files[chunk],)
        changed.inputs[chunk] = ()
    changed.values = {**graph.values, **values}
    # Saved values can be read anywhere.
    changed.in_client = graph.in_client.difference(values, files)
    edit.keep([chunk for chunk, is_needed in enumerate(_needed(changed)) if is_needed])
    return edit.graph


def _needed(graph: ChunkGraph) -> bytearray:
    """Return which chunks of a graph its outputs need."""
    kept = bytearray(len(graph))
    for chunk in graph.outputs:
        kept[chunk] = 1
    for chunk in range(len(graph) - 1, -1, -1):
        if kept[chunk]:
            for source in graph.inputs[chunk]:
                kept[source] = 1
    return kept
