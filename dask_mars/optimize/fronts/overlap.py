"""Overlaps of neighbouring blocks as chunk records: `da.overlap`, `da.map_overlap` and functions based on them.

Dask names the edge that a block lends to its neighbour by fractional coordinates: ``2.9`` is the front edge of
block 3, cut for block 2, and ``1.1`` the back edge of block 1. Where memory has room for the array, edges are read
in place from the neighbours, and are not chunks of their own.
"""

from __future__ import annotations

import itertools
import math
import operator
from functools import partial
from typing import Any

from dask.highlevelgraph import Layer

from dask_mars.dask_api import is_gone
from dask_mars.dask_api.loaded import ArrayOverlapLayer, arrays
from dask_mars.graph.chunks import Key
from dask_mars.optimize.fronts.base import ALIAS, ChunkRecord, LazyLayer, NotSymbolic, TaskCompiler
from dask_mars.optimize.fronts.parts import PartOperands, Residents
from dask_mars.optimize.programs import Program, make_list

# Position of a cut part relative to the block that receives it.
_BEFORE, _CENTRE, _AFTER = -1, 0, 1
Sides = tuple[int, ...]


def lazy_overlap(layer: Layer, residents: Residents | None = None) -> LazyLayer | None:
    """Return an overlap as a layer that is compiled when needed, reading edges in place if there is room."""
    if type(layer) is not ArrayOverlapLayer:
        return None
    names = (f"getitem-{layer.token}", f"overlap-{layer.token}")
    size = _bytes(layer)
    in_place = residents is not None and size is not None and residents.reserve(size)
    return LazyLayer(names, partial(OverlapRecords, layer, in_place=in_place), partial(dict, layer))


def _bytes(layer: ArrayOverlapLayer) -> int | None:
    """Return the size of the array in bytes, None if it is unknown or the array is not numeric."""
    said = layer.collection_annotations or {}
    lengths = [sum(sizes) for sizes in layer.chunks]
    dtype = said.get("dtype")
    if said.get("chunk_type") != "numpy.ndarray" or dtype is None or dtype.hasobject:
        return None
    # An unknown length is NaN, which is unequal to itself.
    return None if any(length != length for length in lengths) else int(math.prod(lengths) * dtype.itemsize)


class OverlapRecords:
    """The blocks of one layer: edges cut from the source's blocks, and blocks assembled with their edges."""

    def __init__(self, layer: ArrayOverlapLayer, compiler: TaskCompiler, in_place: bool = False) -> None:
        self._compiler = compiler
        self._source: str = layer.name
        self._edge_name, self._name = f"getitem-{layer.token}", f"overlap-{layer.token}"
        counts = tuple(map(len, layer.chunks))
        depths = [_both_sides(layer.axes.get(axis, 0)) for axis in range(len(counts))]
        #: For each axis and block, the coordinates of its parts.
        self._around = [
            {block: _neighbours(block, count, *depth) for block in range(count)}
            for count, depth in zip(counts, depths, strict=True)
        ]
        #: For each axis and coordinate, the block that it is cut from, and the side.
        self._cut = [_cuts(around) for around in self._around]
        #: For each axis and block, the blocks that its parts are cut from, and their sides.
        self._parts = [
            {
                block: tuple(zip(*[cut[at] for at in coordinates], strict=True))
                for block, coordinates in around.items()
            }
            for around, cut in zip(self._around, self._cut, strict=True)
        ]
        #: Operand and literals for parts in place, by their sides along each axis.
        self._patterns: dict[Any, tuple[int, tuple[Any, ...]]] = {}
        #: Slices for cutting, by the side along each axis.
        self._literals = {
            sides: (tuple([_cut_at(side, *depth) for side, depth in zip(sides, depths, strict=True)]),)
            for sides in itertools.product((_BEFORE, _CENTRE, _AFTER), repeat=len(counts))
        }
        self._edge_length, self._whole = len(counts) + 1, (_CENTRE,) * len(counts)
        program = Program()
        program.step(operator.getitem, (program.input("block"), program.literal(None)))
        self._edge_operand = compiler.operand_of(self._edge_name, program)
        #: Operand by number of parts.
        self._operands: dict[int, int] = {}
        self._in_place = PartOperands(compiler, self._name) if in_place else None

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        """Return whether a key with one of the layer's names is that of a block or of an edge."""
        coordinates = key[1:]
        if len(coordinates) != len(self._cut):
            return False
        if key[0] == self._edge_name:
            return all(at in known for at, known in zip(coordinates, self._cut, strict=True))
        # By type, because 1.0 equals 1.
        return all(isinstance(at, int) for at in coordinates) and all(
            at in known for at, known in zip(coordinates, self._around, strict=True)
        )

    def record(self, key: tuple[Any, ...]) -> ChunkRecord | None:
        """Return the record of a block or of an edge."""
        if key[0] == self._edge_name:
            return self._edge(key)
        if key not in self:
            return None
        coordinates = key[1:]
        if self._in_place is not None:
            blocks, sides = zip(
                *[parts[at] for parts, at in zip(self._parts, coordinates, strict=True)], strict=True
            )
            operand, literals = self._patterns.get(sides) or self._pattern(self._in_place, sides)
            if literals:
                return operand, literals, list(itertools.product((self._source,), *blocks))
        parts = [around[at] for around, at in zip(self._around, coordinates, strict=True)]
        input_keys: list[Key] = list(itertools.product((self._edge_name,), *parts))
        shape = tuple(map(len, parts))
        # The centre is not cut: it is the source's block itself.
        input_keys[input_keys.index((self._edge_name, *coordinates))] = (self._source, *coordinates)
        return self._operand_of(len(input_keys)), (shape,), input_keys

    def _pattern(self, in_place: PartOperands, along: tuple[Sides, ...]) -> tuple[int, tuple[Any, ...]]:
        """Return the operand and the literals of blocks whose parts have some sides; no literals for one part."""
        found = list(itertools.product(*along))
        slices = [self._literals[sides][0] for sides in found if any(sides)]
        literals = (*slices, tuple(map(len, along))) if len(found) > 1 else ()
        operand = in_place.operand_id([not any(sides) for sides in found]) if literals else 0
        self._patterns[along] = operand, literals
        return operand, literals

    def _edge(self, key: tuple[Any, ...]) -> ChunkRecord | None:
        if len(key) != self._edge_length:
            return None
        try:
            block, sides = self._cut_of(key)
        except KeyError:
            return None
        if sides == self._whole:
            return ALIAS, (), (block,)
        return self._edge_operand, self._literals[sides], (block,)

    def _cut_of(self, key: Any) -> tuple[tuple[Any, ...], tuple[int, ...]]:
        """Return the key of the block that an edge is cut from, and its side along each axis."""
        blocks, sides = zip(*[known[at] for known, at in zip(self._cut, key[1:], strict=True)], strict=True)
        return (self._source, *blocks), sides

    def _operand_of(self, part_count: int) -> int:
        operand = self._operands.get(part_count)
        if operand is None:
            program = Program()
            parts = program.step(make_list, tuple([program.input(part) for part in range(part_count)]))
            if is_gone(arrays.concatenate_shaped):
                raise NotSymbolic("Dask has no concatenate_shaped")
            program.step(arrays.concatenate_shaped, (parts, program.literal(None)))
            operand = self._operands[part_count] = self._compiler.operand_of(self._name, program)
        return operand


def _both_sides(depth: Any) -> tuple[int, int]:
    return depth if isinstance(depth, tuple) else (depth, depth)


def _neighbours(block: int, count: int, before: int, after: int) -> list[float]:
    """Return the coordinates of a block's parts along one axis, as Dask computes them."""
    coordinates: list[float] = [block]
    if before and block > 0:
        coordinates.insert(0, block - 0.9)
    if after and block < count - 1:
        coordinates.append(block + 0.9)
    return coordinates


def _cuts(around: dict[int, list[float]]) -> dict[float, tuple[int, int]]:
    """Return block and side of each coordinate along one axis."""
    cuts: dict[float, tuple[int, int]] = {}
    for block, coordinates in around.items():
        for at in coordinates:
            if at == block:
                cuts[at] = block, _CENTRE
            elif at < block:
                cuts[at] = block - 1, _BEFORE
            else:
                cuts[at] = block + 1, _AFTER
    return cuts


def _cut_at(side: int, before: int, after: int) -> slice:
    """Return the slice of a neighbour that stands before or after a block."""
    if side == _BEFORE:
        return slice(-before, None)
    if side == _AFTER:
        return slice(0, after)
    return slice(None, None, None)
