"""Blocks of array expressions without a layer of `dask.array`: parts of blocks, groups, and other names."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from numbers import Integral
from typing import Any

from dask.highlevelgraph import Layer
from dask.utils import M

from dask_mars.dask_api import is_gone
from dask_mars.dask_api.arrays import getitem
from dask_mars.dask_api.core import Alias, List, Task, TaskRef
from dask_mars.graph.chunks import Key
from dask_mars.optimize.fronts.base import ChunkRecord, LayerRecords, LazyLayer, NotSymbolic, TaskCompiler
from dask_mars.optimize.programs import Program

#: Coordinates of a block.
Block = tuple[int, ...]


class ExpressionLayer(Layer):  # type: ignore[misc]
    """The blocks of an expression, compiled when needed; as a mapping, the tasks that the expression makes."""

    def __init__(self, name: str, expression: Any, compile_records: Callable[..., LayerRecords]) -> None:
        super().__init__()
        self.name = name
        self._expression = expression
        self._compile = compile_records

    def lazy(self) -> LazyLayer:
        """Return the layer for compilation."""
        compile_records = partial(self._compile, self.name, self._expression)
        return LazyLayer((self.name,), compile_records, partial(dict, self))

    @cached_property
    def _tasks(self) -> dict[Key, Any]:
        tasks: dict[Key, Any] = self._expression._layer()
        return tasks

    def is_materialized(self) -> bool:
        """Return False: its blocks are compiled when needed."""
        return False

    def get_output_keys(self) -> set[Key]:
        """Return the keys of its tasks."""
        return set(self._tasks)

    def __getitem__(self, key: Key) -> Any:
        return self._tasks[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)


class _Blocks:
    """Blocks of an array of known chunks."""

    def __init__(self, name: str, expression: Any, compiler: TaskCompiler) -> None:
        self._name = name
        self._expression = expression
        self._compiler = compiler
        self._counts: Block = expression.numblocks
        #: Operand by what its program depends on.
        self._operands: dict[Any, tuple[int, tuple[Any, ...]]] = {}

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        """Return whether a key with the layer's name is that of a block."""
        if len(key) != 1 + len(self._counts):
            return False
        for at, count in zip(key[1:], self._counts):  # noqa: B905
            if not (type(at) is int or isinstance(at, Integral)) or not 0 <= at < count:  # type: ignore[operator]
                return False
        return True

    def _operand(self, pattern: Any, make_task: Callable[[], Task]) -> tuple[int, tuple[Any, ...]]:
        """Return the operand of all blocks of a pattern, and its literals; one task stands for all."""
        known = self._operands.get(pattern)
        if known is None:
            # Callables become part of the operand at their second use, so the first compilation is discarded.
            for _ in range(2):
                program = Program()
                self._compiler.emit_result(program, make_task(), {})
            known = self._compiler.operand_of(self._name, program), tuple(program.literals)
            self._operands[pattern] = known
        return known


class OtherNames(_Blocks):
    """Blocks that have another name, too."""

    def record(self, key: tuple[Any, ...]) -> Alias | None:
        """Return the other name of a block."""
        return Alias(key, (self._expression.array._name, *key[1:])) if key in self else None


class ConcatenatedBlocks(_Blocks):
    """The blocks of arrays side by side."""

    def __init__(self, name: str, expression: Any, compiler: TaskCompiler) -> None:
        super().__init__(name, expression, compiler)
        self._axis: int = expression.axis
        self._sources = [source._name for source in expression.args]
        counts = [source.numblocks[self._axis] for source in expression.args]
        self._starts = [0, *itertools.accumulate(counts)]

    def record(self, key: tuple[Any, ...]) -> Alias | None:
        """Return the name that a block has in its own array."""
        if key not in self:
            return None
        axis = self._axis
        source = bisect_right(self._starts, key[axis + 1]) - 1
        own = key[axis + 1] - self._starts[source]
        return Alias(key, (self._sources[source], *key[1 : axis + 1], own, *key[axis + 2 :]))


class SlicedBlocks(_Blocks):
    """Slices of blocks."""

    def __init__(self, name: str, expression: Any, compiler: TaskCompiler) -> None:
        from dask_mars.dask_api.expressions import _slice_1d

        super().__init__(name, expression, compiler)
        if is_gone(getitem):
            raise NotSymbolic("Dask has no getitem")
        source = expression.array
        self._source = source._name
        #: For each axis of the source, the blocks that are read and the part of each; and whether the result has
        #: the axis.
        self._axes: list[tuple[list[tuple[int, Any]], bool]] = []
        for length, sizes, index in zip(source.shape, source.chunks, expression.index, strict=True):
            parts = sorted(_slice_1d(length, sizes, index).items())
            has_axis = not isinstance(index, Integral)
            if has_axis and index.step and index.step < 0:
                parts.reverse()
            self._axes.append((parts, has_axis))
        self._keeps_whole: bool = expression.allow_getitem_optimization

    def record(self, key: tuple[Any, ...]) -> ChunkRecord | Alias | None:
        """Return the record of a block."""
        if key not in self:
            return None
        at = iter(key[1:])
        found = [parts[next(at)] if has_axis else parts[0] for parts, has_axis in self._axes]
        source = (self._source, *[block for block, _ in found])
        slices = tuple([part for _, part in found])
        if self._keeps_whole and all(type(part) is slice and part == _WHOLE for part in slices):
            return Alias(key, source)
        operand, _ = self._operand(None, partial(self._task, key, source, slices))
        return ChunkRecord(operand, (slices,), (source,))

    def _task(self, key: Key, source: Key, slices: tuple[Any, ...]) -> Task:
        return Task(key, getitem, TaskRef(source), slices)


_WHOLE = slice(None, None, None)


class StackedBlocks(_Blocks):
    """The blocks of arrays along a new axis."""

    def __init__(self, name: str, expression: Any, compiler: TaskCompiler) -> None:
        super().__init__(name, expression, compiler)
        if is_gone(getitem):
            raise NotSymbolic("Dask has no getitem")

    def record(self, key: tuple[Any, ...]) -> ChunkRecord | None:
        """Return the record of a block."""
        if key not in self:
            return None
        axis, arrays = self._expression.axis, self._expression.args
        source = (arrays[key[axis + 1]]._name, *key[1 : axis + 1], *key[axis + 2 :])
        operand, literals = self._operand(None, partial(self._task, key, source))
        return ChunkRecord(operand, literals, (source,))

    def _task(self, key: Key, source: Key) -> Task:
        axis, count = self._expression.axis, len(self._counts)
        index = (*itertools.repeat(_WHOLE, axis), None, *itertools.repeat(_WHOLE, count - axis - 1))
        return Task(key, getitem, TaskRef(source), index)


class ReshapedBlocks(_Blocks):
    """Blocks of another shape, in the same order."""

    def __init__(self, name: str, expression: Any, compiler: TaskCompiler) -> None:
        super().__init__(name, expression, compiler)
        source = expression.array
        self._source = source._name
        blocks = itertools.product(*map(range, source.numblocks))
        self._sources = dict(zip(itertools.product(*map(range, self._counts)), blocks, strict=True))

    def record(self, key: tuple[Any, ...]) -> ChunkRecord | None:
        """Return the record of a block."""
        block = self._sources.get(key[1:]) if key in self else None
        if block is None:
            return None
        source = (self._source, *block)
        shape = tuple([sizes[at] for sizes, at in zip(self._expression.chunks, key[1:], strict=True)])
        operand, _ = self._operand(None, partial(self._task, key, source, shape))
        return ChunkRecord(operand, (shape,), (source,))

    def _task(self, key: Key, source: Key, shape: tuple[int, ...]) -> Task:
        return Task(key, M.reshape, TaskRef(source), shape)


class ReducedBlocks(_Blocks):
    """Groups of blocks, each passed to one call."""

    def __init__(self, name: str, expression: Any, compiler: TaskCompiler) -> None:
        super().__init__(name, expression, compiler)
        source, every = expression.array, expression.split_every
        self._source = source._name
        #: For each axis of the source, the groups of its blocks.
        self._groups = [
            [range(start, min(start + size, count)) for start in range(0, count, size)]
            for count, size in zip(
                source.numblocks, [every.get(axis, 1) for axis in range(source.ndim)], strict=True
            )
        ]
        self._reduced = [axis in every for axis in range(source.ndim)]
        self._keeps_axes: bool = expression.keepdims

    def record(self, key: tuple[Any, ...]) -> ChunkRecord | None:
        """Return the record of a block."""
        if key not in self:
            return None
        at = iter(key[1:])
        found = [
            groups[next(at) if self._keeps_axes or not is_reduced else 0]
            for groups, is_reduced in zip(self._groups, self._reduced, strict=True)
        ]
        input_keys = list(itertools.product((self._source,), *found))
        lengths = tuple([len(group) for group, is_reduced in zip(found, self._reduced, strict=True) if is_reduced])
        operand, literals = self._operand(lengths, partial(self._task, key, lengths, input_keys))
        return ChunkRecord(operand, literals, input_keys)

    def _task(self, key: Key, lengths: Sequence[int], input_keys: Sequence[Key]) -> Task:
        nested: list[Any] = [TaskRef(source) for source in input_keys]
        for length in reversed(lengths):
            nested = [List(*nested[start : start + length]) for start in range(0, len(nested), length)]
        (argument,) = nested
        return Task(key, self._expression.func, argument)


def lazy_expression(layer: Layer, _: Any = None) -> LazyLayer | None:
    """Return the layer of an expression as one that is compiled when needed."""
    return layer.lazy() if type(layer) is ExpressionLayer else None
