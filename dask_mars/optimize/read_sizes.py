"""Sizes of parts that are read from an array, where no collection declares them.

When Dask passes a delayed value, such as that of Xarray's `to_zarr(compute=False)`, to a scheduler, it has dropped
its arrays' declarations. The index of a getter contains the sizes again.
"""

from __future__ import annotations

import math
from typing import Any

from dask_mars.graph.chunks import DATA, ChunkGraph, Declared, Operand
from dask_mars.optimize.passes.slices import reading_step

#: Maximum coordinate of a block; keys with larger numbers do not belong to arrays.
_MOST_BLOCKS = 1_000_000


def with_reads(graph: ChunkGraph, declared: dict[str, Declared]) -> dict[str, Declared]:
    """Return the declarations of layers, extended by the sizes of slices that further layers read."""
    reading = {id: found[1] for id, operand in enumerate(graph.operands) if (found := reading_step(operand))}
    if not reading:
        return declared
    layers: dict[str, tuple[Any, list[dict[int, int]]]] = {}
    for chunk, operand_id in enumerate(graph.operand_of):
        key = graph.keys[chunk]
        if operand_id == DATA or operand_id not in reading or not isinstance(key, tuple) or not key:
            continue
        if key[0] in declared:
            continue
        lengths = _lengths(graph.literals[chunk][reading[operand_id]])
        if lengths is None or len(lengths) != len(key) - 1 or not all(map(_is_block, key[1:])):
            continue
        name = str(key[0])
        if name not in layers:
            layers[name] = _dtype_of_source(graph, graph.operands[operand_id], chunk), [{} for _ in lengths]
        if len(layers[name][1]) == len(lengths):
            for along, at, length in zip(layers[name][1], key[1:], lengths, strict=True):
                along[at] = length
    read = {name: Declared(dtype, _chunks(axes)) for name, (dtype, axes) in layers.items() if dtype is not None}
    return declared | read


def _chunks(axes: list[dict[int, int]]) -> tuple[tuple[Any, ...], ...]:
    # Blocks that no chunk reads have unknown sizes.
    return tuple([tuple([along.get(at, math.nan) for at in range(max(along) + 1)]) for along in axes])


def _is_block(at: Any) -> bool:
    return isinstance(at, int) and 0 <= at < _MOST_BLOCKS


def _lengths(index: Any) -> list[int] | None:
    """Return the lengths of slices along each axis, None for other kinds of indices."""
    if not isinstance(index, tuple):
        return None
    lengths = []
    for along in index:
        if not isinstance(along, slice) or along.step not in (None, 1):
            return None
        if (
            not isinstance(along.start, int)
            or not isinstance(along.stop, int)
            or not 0 <= along.start <= along.stop
        ):
            return None
        lengths.append(along.stop - along.start)
    return lengths


def _dtype_of_source(graph: ChunkGraph, operand: Operand, chunk: int) -> Any:
    """Return the dtype of the source that is read, None if unknown."""
    slot = operand.steps[-1].slots[0]
    if slot < operand.input_count:
        source = graph.values.get(graph.inputs[chunk][slot])
    else:
        literal = slot - operand.input_count
        source = graph.literals[chunk][literal] if literal < operand.literal_count else None
    return getattr(source, "dtype", None)
