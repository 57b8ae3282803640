"""Blockwise layers as chunk records, one program per layer and no Dask task objects.

A layer's task is a template over tokens, one for each of its arguments. The template is compiled once, and each
block costs only the keys of its inputs and the literals that differ from block to block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from numbers import Integral
from typing import Any

from dask.highlevelgraph import Layer

from dask_mars.dask_api import is_gone
from dask_mars.dask_api.core import GraphNode, Task, TaskRef, parse_input
from dask_mars.dask_api.loaded import (
    ArrayChunkShapeDep,
    Blockwise,
    _get_coord_mapping,
    arrays,
    blockwise_token,
)
from dask_mars.graph.chunks import Key
from dask_mars.lazy_numpy import np
from dask_mars.optimize.client_only import stores_chunk
from dask_mars.optimize.fronts.base import ChunkRecord, LazyLayer, NotSymbolic, TaskCompiler
from dask_mars.optimize.fronts.parts import Residents
from dask_mars.optimize.programs import Program, make_list

# First elements of placeholders, which no key of the user's can equal.
_BLOCK, _CONTRACTED = object(), object()


def lazy_blockwise(layer: Layer, residents: Residents | None = None) -> LazyLayer | None:
    """Return a Blockwise layer as one that is compiled when needed."""
    # A subclass may make its blocks in another way.
    if not isinstance(layer, Blockwise) or type(layer)._dict is not Blockwise._dict:
        return None
    return LazyLayer((layer.output,), partial(BlockwiseRecords, layer), partial(dict, layer))


class BlockwiseRecords:
    """The blocks of one Blockwise layer."""

    def __init__(self, layer: Blockwise, compiler: TaskCompiler) -> None:
        dims = layer.dims
        #: Number of blocks along each dimension of the output.
        self.numblocks: tuple[int, ...] = tuple(dims[index] for index in layer.output_indices)
        concatenate = arrays.concatenate_axes if layer.concatenate is True else layer.concatenate
        if is_gone(concatenate):
            raise NotSymbolic("Dask has no concatenate_axes")
        coordinate_maps, concatenated_axes, self._dummies = _get_coord_mapping(
            dims, layer.output_indices, layer.numblocks, layer.indices, concatenate
        )
        task = layer.task
        if type(task) is not Task:
            raise NotSymbolic(f"its task is a {type(task).__name__}")
        program = Program()
        local: dict[Key, int] = {}
        #: Functions from a block's coordinates to the key of each input, by placeholder.
        makers: dict[Key, Callable[[tuple[Any, ...]], Key]] = {}
        #: Position of each literal that differs between blocks, and its function of a block's coordinates.
        self._varying: list[tuple[int, Callable[[tuple[Any, ...]], Any]]] = []
        for position, ((argument, indices), coordinates, axes) in enumerate(
            zip(layer.indices, coordinate_maps, concatenated_axes, strict=True)
        ):
            token = blockwise_token(position)
            if token not in task.dependencies:
                continue
            if indices is None:
                local[token] = compiler.emit_argument(program, argument, {})
            elif argument in layer.io_deps:
                local[token] = self._block_literal(program, layer.io_deps[argument], tuple(coordinates))
            elif axes:
                nested = self._contraction(argument, coordinates, makers)
                local[token] = _emit_nested(program, nested)
                if concatenate:
                    local[token] = program.step(concatenate, (local[token], program.literal(axes)))
            else:
                # The same block as a second argument is the same input, as in x * x.
                placeholder = (_BLOCK, argument, tuple(coordinates))
                makers[placeholder] = _key_maker(argument, tuple(coordinates), len(self.numblocks))
                local[token] = program.input(placeholder)
        compiler.emit_result(program, task, local)
        if stores_chunk(program.functions):
            raise NotSymbolic("it stores chunks")
        self._literals_at = _literals_getter(tuple(program.literals), self._varying, layer.io_deps.values())
        self._makers = [makers.get(key) or _constant_key_maker(key) for key in program.input_keys]
        self._operand = compiler.operand_of(layer.output, program)

    def _block_literal(self, program: Program, source: Any, coordinates: tuple[int, ...]) -> int:
        """Add a literal that differs between blocks, and return its code."""
        if source.produces_keys:
            raise NotSymbolic("its blocks choose their own inputs")
        code = program.literal(None)
        self._varying.append((~code, _literal_getter(source, coordinates)))
        return code

    def _contraction(
        self, argument: str, coordinates: list[int], makers: dict[Key, Callable[[tuple[Any, ...]], Key]]
    ) -> Any:
        """Return nested lists of placeholders, one for each block that is contracted over."""

        def nest(fixed: tuple[Any, ...], rest: list[int]) -> Any:
            if not rest:
                placeholder = (_CONTRACTED, argument, fixed)
                makers[placeholder] = _contracted_key_maker(argument, fixed)
                return placeholder
            values = (self._dummies[rest[0] - len(self.numblocks)]) if rest[0] >= len(self.numblocks) else None
            if isinstance(values, list):
                return [nest((*fixed, (None, value)), rest[1:]) for value in values]
            return nest((*fixed, (rest[0], None)), rest[1:])

        return nest((), list(coordinates))

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        """Return whether a key with the layer's name is that of a block."""
        if len(key) != len(self.numblocks) + 1:
            return False
        for at, count in zip(key[1:], self.numblocks):  # noqa: B905
            # By type first: an abstract class takes ten times as long.
            if not (type(at) is int or isinstance(at, Integral)) or not 0 <= at < count:  # type: ignore[operator]
                return False
        return True

    def record(self, key: tuple[Any, ...]) -> ChunkRecord | None:
        """Return the record of one block."""
        at = key[1:]
        if len(at) != len(self.numblocks):
            return None
        for coordinate in at:
            if type(coordinate) is not int:
                if not all(isinstance(number, Integral) for number in at):
                    return None
                # Functions receive their block's position, and expect Python's integers.
                at = tuple(map(int, at))
                break
        coordinates = at + self._dummies if self._dummies else at
        input_keys = [maker(coordinates) for maker in self._makers] if self._makers else ()
        return self._operand, self._literals_at(coordinates), input_keys


def _literals_getter(
    literals: tuple[Any, ...],
    varying: list[tuple[int, Callable[[tuple[Any, ...]], Any]]],
    sources: Collection[Any],
) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return a function from a block's coordinates, dummies included, to its literals."""
    if not varying:
        return lambda _: literals
    if len(varying) == 1 and set(map(type, sources)) == {ArrayChunkShapeDep}:
        # Most blocks have the same shape, so they share their literals.
        ((only, shape_of),) = varying
        by_shape: dict[Any, tuple[Any, ...]] = {}
        find = by_shape.get

        def shared(coordinates: tuple[Any, ...]) -> tuple[Any, ...]:
            shape = shape_of(coordinates)
            found = find(shape)
            if found is None:
                found = by_shape[shape] = (*literals[:only], shape, *literals[only + 1 :])
            return found

        return shared

    def own(coordinates: tuple[Any, ...]) -> tuple[Any, ...]:
        found = list(literals)
        for position, get in varying:
            found[position] = get(coordinates)
        return tuple(found)

    return own


def _literal_getter(source: Any, where: tuple[int, ...]) -> Callable[[tuple[Any, ...]], Any]:
    """Return a function from a block's coordinates, dummies included, to a source's value for it."""
    if type(source) is ArrayChunkShapeDep:
        # The shapes in most arrays without an input.
        chunks = source.chunks
        if len(chunks) == 1:
            (sizes,), (only,) = chunks, where
            return lambda at: (sizes[at[only]],)
        if len(chunks) == 2:
            (rows, columns), (row, column) = chunks, where
            return lambda at: (rows[at[row]], columns[at[column]])
        return lambda at: tuple([sizes[at[c]] for sizes, c in zip(chunks, where, strict=True)])

    def get(coordinates: tuple[Any, ...]) -> Any:
        at = tuple([coordinates[c] for c in where])
        value = source.get(at, at)
        if not _is_plain(value) and isinstance(parse_input(value), (GraphNode, TaskRef)):
            raise NotSymbolic("a block's argument is a task")
        return value

    return get


_PLAIN = frozenset({int, float, str, bool, slice, type(None)})


def _is_plain(value: Any) -> bool:
    """Return quickly whether a literal holds no task: most are shapes, slices and positions."""
    kind = type(value)
    if kind is tuple:
        return _PLAIN.issuperset(map(type, value)) or all(map(_is_plain, value))
    return kind in _PLAIN or kind is np.random.SeedSequence


def _key_maker(name: str, coordinates: tuple[int, ...], dimensions: int) -> Callable[[tuple[Any, ...]], Key]:
    """Return a function from a block's coordinates, dummies included, to an input's key."""
    head = (name,)
    if not coordinates:
        return lambda at: head
    if coordinates == tuple(range(dimensions)):
        return lambda at: head + at[:dimensions]
    if len(coordinates) == 1:
        (only,) = coordinates
        return lambda at: (name, at[only])
    if len(coordinates) == 2:
        first, second = coordinates
        return lambda at: (name, at[first], at[second])
    return lambda at: (name, *[at[c] for c in coordinates])


def _constant_key_maker(key: Key) -> Callable[[tuple[Any, ...]], Key]:
    return lambda at: key


def _contracted_key_maker(name: str, fixed: tuple[Any, ...]) -> Callable[[tuple[Any, ...]], Key]:
    return lambda at: (name, *[value if where is None else at[where] for where, value in fixed])


def _emit_nested(program: Program, nested: Any) -> int:
    if isinstance(nested, list):
        return program.step(make_list, tuple([_emit_nested(program, item) for item in nested]))
    return program.input(nested)
