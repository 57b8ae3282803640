"""Depth-first orders of chunks that have been changed: an id is the rank of its chunk."""

from __future__ import annotations

from typing import Any

from dask_mars.graph.chunks import DATA, ChunkGraph, Operand


def renumbered(
    graph: ChunkGraph,
    operand_of: list[int],
    literals: list[tuple[Any, ...]],
    inputs: list[tuple[int, ...]],
    operands: list[Operand],
    eager: bytearray,
    joined_bytes: dict[int, int] | None = None,
) -> ChunkGraph:
    """Return a graph of other chunks, in depth-first order.

    Parameters
    ----------
    graph : ChunkGraph
        Source of all other data about the chunks. Chunks that its outputs no longer need are left out.
    operand_of, literals, inputs, operands
        The new values, by the chunks' old numbers.
    eager : bytearray
        Chunks that follow as soon as their inputs are computed, instead of when needed: those that combine results
        of joined chunks.
    joined_bytes : dict, optional
        As of a `ChunkGraph`.
    """
    order = _depth_first(inputs, graph.outputs, eager)
    new = [-1] * len(graph)
    for number, chunk in enumerate(order):
        new[chunk] = number
    used = sorted({operand_of[chunk] for chunk in order} - {DATA})
    places = {DATA: DATA, **{operand: place for place, operand in enumerate(used)}}
    found = ChunkGraph(
        keys=[graph.keys[chunk] for chunk in order],
        operand_of=[places[operand_of[chunk]] for chunk in order],
        literals=[literals[chunk] for chunk in order],
        inputs=[tuple([new[source] for source in inputs[chunk]]) for chunk in order],
        operands=[operands[operand] for operand in used],
        ids={key: new[chunk] for key, chunk in graph.ids.items() if new[chunk] >= 0},
        declared=graph.declared,
    )
    found.take_over(graph, new)
    found.outputs.sort()
    found.joined_bytes |= {new[chunk]: size for chunk, size in (joined_bytes or {}).items()}
    return found


def _depth_first(inputs: list[tuple[int, ...]], outputs: list[int], eager: bytearray) -> list[int]:
    """Return chunks in depth-first order from the outputs, with eager ones directly after their inputs.

    Otherwise chunks that combine results of joined chunks would come tree by tree, all of the first tree's before
    any of the second's.
    """
    consumers: dict[int, list[int]] = {}
    missing: dict[int, int] = {}
    # Chunks that combine only eager ones are eager, too, as the levels of a tree are.
    for chunk, sources in enumerate(inputs):
        if not eager[chunk] and sources:
            eager[chunk] = all(eager[source] for source in sources)
        if eager[chunk]:
            distinct = set(sources)
            missing[chunk] = len(distinct)
            for source in distinct:
                consumers.setdefault(source, []).append(chunk)
    order: list[int] = []
    done = bytearray(len(inputs))
    stack = [*reversed(outputs)]
    while stack:
        chunk = stack[-1]
        if done[chunk]:
            stack.pop()
            continue
        waiting = [source for source in inputs[chunk] if not done[source]]
        if waiting:
            stack += reversed(waiting)
            continue
        stack.pop()
        complete = [chunk]
        for ready in complete:
            done[ready] = 1
            order.append(ready)
            for consumer in consumers.get(ready, ()):
                missing[consumer] -= 1
                if not missing[consumer] and not done[consumer]:
                    complete.append(consumer)
    return order


__all__ = ["renumbered"]
