"""Estimated sizes of chunks, before they are computed."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence

from dask_mars import config
from dask_mars.expressions.rewrite import with_expressions
from dask_mars.graph.chunks import ChunkGraph, Operand, layer_of
from dask_mars.graph.composition import composed_of
from dask_mars.optimize.known import temporaries_of
from dask_mars.scheduler.forecast import ChunkSize

#: Steps that create no array, or, like random numbers that are read tile by tile, never a whole one.
_LIGHT = frozenset(
    {
        "_pass_extra_kwargs",
        "getitem",
        "identity",
        "itemgetter",
        "lazy_random_chunk",
        "make_dict",
        "make_list",
        "make_tuple",
        "reshape",
        "transpose",
    }
)
#: Maximum number of intermediate arrays at a time: a step reads one, and creates the next.
_MOST_INTERMEDIATES = 2
#: Maximum number of parts of a composed chunk that are examined: pieces of a rechunk are parts of many chunks.
_MOST_PARTS = 100
#: Views below this fraction of their memory are stored as copies.
_VIEW_SHARE = 1 / 64


class Sizes:
    """Estimated sizes of a graph's chunks."""

    def __init__(self, before: ChunkGraph, after: ChunkGraph, inline_bytes: int) -> None:
        self._graph = after
        self._inline_bytes = inline_bytes
        self._shapes: dict[int, tuple[int, ...]] = {}
        self.computes = composed_of(before, after, _MOST_PARTS)
        self._slices = {id for id, operand in enumerate(after.operands) if _is_slice(operand)}
        self._intermediates = {id: _intermediates(operand) for id, operand in enumerate(after.operands)}
        self._shares = temporaries_of(after.operands)
        parts = [before.declared_bytes(chunk) or 0 for chunk in range(len(before))]
        for chunk in _steps_on_the_way(before):
            parts[chunk] = 0
        #: The largest parts of each composed chunk, the largest first.
        self._largest = [
            heapq.nlargest(_MOST_INTERMEDIATES, [parts[part] for part in computes if part != before.ids.get(key)])
            for key, computes in zip(after.keys, self.computes, strict=True)
        ]
        self.result_bytes: list[int | None] = []
        self._sizes: list[ChunkSize] = []
        for chunk in range(len(after)):
            self.result_bytes.append(self._result_bytes(chunk))
            self._sizes.append(self._size(chunk))

    def __call__(self, chunk: int) -> ChunkSize:
        """Return the estimated size of a chunk."""
        return self._sizes[chunk]

    def _result_bytes(self, chunk: int) -> int | None:
        graph = self._graph
        declared = graph.declared_bytes(chunk)
        if declared is not None:
            return declared
        if graph.operand_of[chunk] in self._slices:
            return self._slice_bytes(chunk)
        sources = [self.result_bytes[source] for source in set(graph.inputs[chunk])]
        if str(graph.layer_of(chunk)).startswith("finalize") and sources:
            # It assembles its inputs.
            return sum([size or 0 for size in sources])
        return None

    def _slice_bytes(self, chunk: int) -> int | None:
        """Return the bytes of a slice of an array of known shape."""
        graph = self._graph
        (source,) = graph.inputs[chunk]
        shape, whole = self._shape(source), self.result_bytes[source]
        index = graph.literals[chunk][0]
        if shape is None or whole is None or not isinstance(index, tuple) or len(index) > len(shape):
            return None
        if not all(isinstance(part, slice) for part in index):
            return None
        lengths = [len(range(*part.indices(length))) for part, length in zip(index, shape, strict=False)]
        self._shapes[chunk] = (*lengths, *shape[len(lengths) :])
        return whole * math.prod(self._shapes[chunk]) // max(math.prod(shape), 1)

    def _shape(self, chunk: int) -> Sequence[int] | None:
        return self._shapes.get(chunk) or self._graph.shape_of(chunk)

    def _size(self, chunk: int) -> ChunkSize:
        graph, operand = self._graph, self._graph.operand_of[chunk]
        result = self.result_bytes[chunk] or 0
        stored = 0 if result <= self._inline_bytes else result
        if operand < 0:
            return ChunkSize(stored)
        sources = graph.inputs[chunk]
        largest = max([self.result_bytes[source] or 0 for source in sources], default=0)
        if operand in self._slices:
            is_view = result >= largest * _VIEW_SHARE
            return ChunkSize(stored, owner=self._owner(sources[0]) if is_view and stored else None)
        parts = self._largest[chunk]
        working = int(self._shares.get(operand, 0.0) * max([largest, result, *parts]))
        working += sum(parts[: self._intermediates[operand]])
        return ChunkSize(stored, working)

    def _owner(self, source: int) -> int:
        owner = self._sizes[source].owner
        return source if owner is None else owner


def _steps_on_the_way(graph: ChunkGraph) -> Iterator[int]:
    """Return chunks within rechunks, whose readers read parts in place once composed."""
    rechunks = {name for name in set(map(layer_of, graph.keys)) if name.startswith("rechunk")}
    if rechunks:
        for chunk, sources in enumerate(graph.inputs):
            if graph.layer_of(chunk) in rechunks:
                yield from [source for source in sources if graph.layer_of(source) in rechunks]


def _is_slice(operand: Operand) -> bool:
    shape = operand.input_count, operand.literal_count, len(operand.steps)
    return shape == (1, 1, 1) and getattr(operand.functions[0], "__name__", "") == "getitem"


def _intermediates(operand: Operand) -> int:
    """Return the maximum number of intermediate arrays that exist at the same time."""
    rewritten = with_expressions(operand, bool(config.get("expressions.reductions")))
    functions = [rewritten.functions[step.function] for step in rewritten.steps[:-1]]
    names = [getattr(function, "__name__", type(function).__name__) for function in functions]
    return min(sum([name not in _LIGHT for name in names]), _MOST_INTERMEDIATES)
