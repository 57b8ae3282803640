"""Fused chunks: two graphs of the same computation, before and after fusion."""

from __future__ import annotations

from dask_mars.graph.chunks import ChunkGraph


def composed_of(before: ChunkGraph, after: ChunkGraph, most: int | None = None) -> list[list[int]]:
    """Return, for each chunk after composing, the chunks before composing that it computes."""
    # These are the chunk of the same key and its ancestors down to the next remaining chunks. A chunk with a new
    # key was split off its consumer, and computes the part that the consumer does not. With `most` the search
    # stops after that many for each chunk.
    kept = {before.ids[key] for key in after.keys if key in before.ids}
    found: list[list[int]] = []
    for chunk, key in enumerate(after.keys):
        own = before.ids.get(key)
        found.append([] if own is None else _needed(before, own, kept, most))
        for source in after.inputs[chunk]:
            if own is not None and after.keys[source] not in before.ids and not found[source]:
                found[source] = [part for part in found[chunk] if part != own]
                found[chunk] = [own]
    return found


def _needed(graph: ChunkGraph, chunk: int, kept: set[int], most: int | None) -> list[int]:
    """Return a chunk and its ancestors that are not kept, in the graph's order."""
    needed: set[int] = set()
    stack = [chunk]
    while stack and (most is None or len(needed) < most):
        part = stack.pop()
        if part not in needed:
            needed.add(part)
            stack += [source for source in graph.inputs[part] if source not in kept]
    return sorted(needed)
