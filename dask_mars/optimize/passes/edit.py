"""The chunk graph that passes change in place."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from dask_mars.graph.chunks import DATA, ChunkGraph, Operand


class Limits(NamedTuple):
    """Limits of the machine for passes."""

    #: Number of workers: chunks that could run in parallel are merged only if enough remain for all workers. None:
    #: such chunks are not merged.
    workers: int | None = None
    #: Returns how many bytes of chunks may stay in memory for readers in place, which need shared memory.
    resident_bytes: Callable[[], int] | None = None
    #: Whether each reader may recompute random numbers.
    recomputes: bool = False
    #: Minimum number of equal groups per worker for fusing.
    groups_per_worker: int = 4
    #: Minimum number of equal consumers per worker into which initial chunks are folded.
    consumers_per_worker: int = 32

    @property
    def fewest_groups(self) -> int | None:
        """Minimum number of equal groups for fusing; None: fuse none."""
        return None if self.workers is None else self.workers * self.groups_per_worker


class GraphEdit:
    """A chunk graph that passes change in place."""

    # A removed chunk stays as a value without readers until the graph is renumbered, so ids stay valid within a
    # pass.

    def __init__(self, graph: ChunkGraph, fixed: Collection[int] = (), fuses_slices: bool = True) -> None:
        self._given = graph
        #: As in `Symbolic`.
        self.fuses_slices = fuses_slices
        #: The graph so far, a copy. Passes write its operands, and each chunk's operand, literals and inputs.
        self.graph = replace(
            graph,
            operand_of=list(graph.operand_of),
            literals=list(graph.literals),
            inputs=list(graph.inputs),
            operands=list(graph.operands),
        )
        annotated = graph.retries.keys() | graph.priorities.keys() | graph.restrictions.keys() | graph.saves.keys()
        #: Chunks that must not be merged: the given ones, and all with annotations or requirements.
        self.fixed: set[int] = graph.in_client.union(annotated, fixed)
        #: Whether each chunk is removed.
        self.removed = bytearray(len(graph))
        #: Returns the declared bytes of a chunk, as `ChunkGraph.declared_bytes`.
        self.size_of = _size_of(self.graph)

    def __len__(self) -> int:
        """Return the number of chunks that are left."""
        return self.removed.count(0)

    def add_operand(self, operand: Operand) -> int:
        """Add an operand and return its id."""
        self.graph.operands.append(operand)
        return len(self.graph.operands) - 1

    def remove(self, chunk: int) -> None:
        """Remove a chunk that no other reads any more."""
        self.removed[chunk] = 1
        self.graph.operand_of[chunk], self.graph.inputs[chunk] = DATA, ()

    def total_bytes(self, chunks: Collection[int]) -> int:
        """Return the declared bytes of chunks; unknown sizes count as nothing."""
        return sum([self.size_of(chunk) or 0 for chunk in chunks])

    def count_uses(self) -> list[int]:
        """Return how often each chunk is an input or an output."""
        chunks = itertools.chain(itertools.chain.from_iterable(self.graph.inputs), self.graph.outputs)
        counts = Counter(chunks)
        return list(map(counts.get, range(len(self.graph)), itertools.repeat(0)))

    def reorder(self, eager: bytearray, joined_bytes: dict[int, int] | None = None) -> None:
        """Renumber chunks depth-first from the outputs, which drops those without readers."""
        # Chunks marked in `eager` follow as soon as their inputs are computed, instead of when needed: those that
        # combine results of fused chunks. `joined_bytes` adds entries to the graph's.
        if joined_bytes:
            self.graph.joined_bytes = {**self.graph.joined_bytes, **joined_bytes}
        self.keep(_depth_first(self.graph.inputs, self.graph.outputs, eager))

    def finish(self) -> ChunkGraph:
        """Return the graph without removed chunks and unused operands: the given one if nothing has changed."""
        if any(self.removed):
            self.keep([chunk for chunk, is_gone in enumerate(self.removed) if not is_gone])
        return self._given if self.graph.keys is self._given.keys else self.graph

    def keep(self, order: list[int]) -> None:
        """Keep only the chunks of `order`, each with its place there as its id."""
        old = self.graph
        new = [-1] * len(old)
        for place, chunk in enumerate(order):
            new[chunk] = place
        new_id = new.__getitem__
        keys = list(map(old.keys.__getitem__, order))
        operand_of = list(map(old.operand_of.__getitem__, order))
        used = [operand for operand in dict.fromkeys(operand_of) if operand != DATA]
        places = {DATA: DATA, **{operand: place for place, operand in enumerate(used)}}
        if len(old.ids) == len(old):
            ids = dict(zip(keys, range(len(keys)), strict=True))
        else:
            # Some keys are aliases.
            ids = {key: new[chunk] for key, chunk in old.ids.items() if new[chunk] >= 0}
        self.graph = ChunkGraph(
            keys=keys,
            operand_of=list(map(places.__getitem__, operand_of)),
            literals=list(map(old.literals.__getitem__, order)),
            inputs=[
                tuple(map(new_id, sources)) if sources else () for sources in map(old.inputs.__getitem__, order)
            ],
            operands=[old.operands[operand] for operand in used],
            ids=ids,
            declared=old.declared,
        )
        self.graph.take_over(old, new)
        self.graph.outputs.sort()
        self.fixed = {new[chunk] for chunk in self.fixed if new[chunk] >= 0}
        self.removed = bytearray(len(order))
        self.size_of = _size_of(self.graph)


def _size_of(graph: ChunkGraph) -> Callable[[int], int | None]:
    # Frames and delayed values declare nothing.
    return cache(graph.declared_bytes) if graph.declared or graph.joined_bytes else lambda chunk: None


def _depth_first(inputs: list[tuple[int, ...]], outputs: list[int], eager: bytearray) -> list[int]:
    """Return chunks in depth-first order from the outputs, with eager ones directly after their inputs."""
    # Otherwise chunks that combine results of fused chunks would come tree by tree, all of the first tree's before
    # any of the second's.
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
