"""Blocks of array expressions without a layer of `dask.array`: parts of blocks, groups, and other names."""

from __future__ import annotations

import itertools
import operator
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from numbers import Integral
from typing import Any

from dask.highlevelgraph import Layer
from dask.utils import M

from dask_mars.dask_api import is_gone
from dask_mars.dask_api.core import List, Task, TaskRef
from dask_mars.dask_api.loaded import arrays
from dask_mars.graph.chunks import Key
from dask_mars.lazy_numpy import np
from dask_mars.optimize.fronts.base import ALIAS, ChunkRecord, LayerRecords, LazyLayer, NotSymbolic, TaskCompiler
from dask_mars.optimize.programs import Program

#: Coordinates of a block.
Block = tuple[int, ...]


class ExpressionLayer(Layer):  # type: ignore[misc]
    """The blocks of an expression, compiled when needed; as a mapping, the tasks that the expression makes."""

    def __init__(
        self, name: str, expression: Any, compile_records: Callable[..., LayerRecords], resident_bytes: int = 0
    ) -> None:
        super().__init__()
        self.name = name
        #: Bytes of the blocks whose parts it reads in place.
        self.resident_bytes = resident_bytes
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

    def record(self, key: tuple[Any, ...]) -> ChunkRecord | None:
        """Return the record of a block, None if there is no such block."""
        return self._record(key) if key in self else None

    def _record(self, key: tuple[Any, ...]) -> ChunkRecord | None:
        """Return the record of a block."""
        raise NotImplementedError

    def _operand(self, pattern: Any, task: Callable[..., Task], *given: Any) -> tuple[int, tuple[Any, ...]]:
        """Return the operand of all blocks of a pattern, and its literals; one task stands for all."""
        known = self._operands.get(pattern)
        if known is None:
            # Callables become part of the operand at their second use, so the first compilation is discarded.
            for _ in range(2):
                program = Program()
                self._compiler.emit_result(program, task(*given), {})
            known = self._compiler.operand_of(self._name, program), tuple(program.literals)
            self._operands[pattern] = known
        return known


class OtherNames(_Blocks):
    """Blocks that have another name, too."""

    def _record(self, key: tuple[Any, ...]) -> ChunkRecord:
        return ALIAS, (), ((self._expression.array._name, *key[1:]),)


class ConcatenatedBlocks(_Blocks):
    """The blocks of arrays side by side."""

    def __init__(self, name: str, expression: Any, compiler: TaskCompiler) -> None:
        super().__init__(name, expression, compiler)
        self._axis: int = expression.axis
        self._sources = [source._name for source in expression.args]
        counts = [source.numblocks[self._axis] for source in expression.args]
        self._starts = [0, *itertools.accumulate(counts)]

    def _record(self, key: tuple[Any, ...]) -> ChunkRecord:
        axis = self._axis
        source = bisect_right(self._starts, key[axis + 1]) - 1
        own = key[axis + 1] - self._starts[source]
        return ALIAS, (), ((self._sources[source], *key[1 : axis + 1], own, *key[axis + 2 :]),)


class SlicedBlocks(_Blocks):
    """Slices of blocks."""

    def __init__(self, name: str, expression: Any, compiler: TaskCompiler) -> None:
        from dask_mars.dask_api.expressions import _slice_1d

        super().__init__(name, expression, compiler)
        if is_gone(arrays.getitem):
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

    def _record(self, key: tuple[Any, ...]) -> ChunkRecord:
        at = iter(key[1:])
        found = [parts[next(at)] if has_axis else parts[0] for parts, has_axis in self._axes]
        source = (self._source, *[block for block, _ in found])
        slices = tuple([part for _, part in found])
        if self._keeps_whole and all(type(part) is slice and part == _WHOLE for part in slices):
            return ALIAS, (), (source,)
        operand, _ = self._operand(None, self._task, key, source, slices)
        return operand, (slices,), (source,)

    def _task(self, key: Key, source: Key, slices: tuple[Any, ...]) -> Task:
        return Task(key, arrays.getitem, TaskRef(source), slices)


_WHOLE = slice(None, None, None)


class StackedBlocks(_Blocks):
    """The blocks of arrays along a new axis."""

    def __init__(self, name: str, expression: Any, compiler: TaskCompiler) -> None:
        super().__init__(name, expression, compiler)
        if is_gone(arrays.getitem):
            raise NotSymbolic("Dask has no getitem")

    def _record(self, key: tuple[Any, ...]) -> ChunkRecord:
        axis, parts = self._expression.axis, self._expression.args
        source = (parts[key[axis + 1]]._name, *key[1 : axis + 1], *key[axis + 2 :])
        operand, literals = self._operand(None, self._task, key, source)
        return operand, literals, (source,)

    def _task(self, key: Key, source: Key) -> Task:
        axis, count = self._expression.axis, len(self._counts)
        index = (*itertools.repeat(_WHOLE, axis), None, *itertools.repeat(_WHOLE, count - axis - 1))
        return Task(key, arrays.getitem, TaskRef(source), index)


class ReshapedBlocks(_Blocks):
    """Blocks of another shape, in the same order."""

    def __init__(self, name: str, expression: Any, compiler: TaskCompiler) -> None:
        super().__init__(name, expression, compiler)
        source = expression.array
        self._source = source._name
        blocks = itertools.product(*map(range, source.numblocks))
        self._sources = dict(zip(itertools.product(*map(range, self._counts)), blocks, strict=True))

    def _record(self, key: tuple[Any, ...]) -> ChunkRecord:
        source = (self._source, *self._sources[key[1:]])
        shape = tuple([sizes[at] for sizes, at in zip(self._expression.chunks, key[1:], strict=True)])
        operand, _ = self._operand(None, self._task, key, source, shape)
        return operand, (shape,), (source,)

    def _task(self, key: Key, source: Key, shape: tuple[int, ...]) -> Task:
        return Task(key, M.reshape, TaskRef(source), shape)


class SqueezedBlocks(_Blocks):
    """Blocks without axes of length one."""

    def _record(self, key: tuple[Any, ...]) -> ChunkRecord:
        at, gone = iter(key[1:]), self._expression._axis_set
        source = self._expression.array
        block = (source._name, *[0 if axis in gone else next(at) for axis in range(source.ndim)])
        operand, literals = self._operand(None, self._task, key, block)
        return operand, literals, (block,)

    def _task(self, key: Key, source: Key) -> Task:
        return Task(key, np.squeeze, TaskRef(source), axis=tuple(sorted(self._expression._axis_set)))


class ShuffledBlocks(_Blocks):
    """Elements along one axis in another order, each block assembled from parts that it reads in place."""

    def __init__(self, name: str, expression: Any, compiler: TaskCompiler) -> None:
        super().__init__(name, expression, compiler)
        source, self._axis = expression.array, expression.axis
        self._source = source._name
        self._ends = np.cumsum(source.chunks[self._axis])
        #: By position along the axis: the blocks to read, and the literals.
        self._plans: dict[int, tuple[list[int], tuple[Any, ...]]] = {}

    def _record(self, key: tuple[Any, ...]) -> ChunkRecord:
        at = self._axis + 1
        if key[at] not in self._plans:
            self._plans[key[at]] = self._plan(self._expression._new_chunks[key[at]])
        blocks, literals = self._plans[key[at]]
        sources = [(self._source, *key[1:at], block, *key[at + 1 :]) for block in blocks]
        operand, _ = self._operand(len(sources), self._task, key, sources, literals)
        return operand, literals, sources

    def _plan(self, places: Sequence[int]) -> tuple[list[int], tuple[Any, ...]]:
        taken = np.array(places)
        order = np.argsort(taken)
        in_order = taken[order]
        blocks, starts = np.unique(np.searchsorted(self._ends, in_order, side="right"), return_index=True)
        indices = [
            part - (self._ends[block - 1] if block else 0)
            for block, part in zip(blocks, np.split(in_order, starts[1:]), strict=True)
        ]
        if len(blocks) == 1:
            return blocks.tolist(), (self._index(indices[0][np.argsort(order)]),)
        return blocks.tolist(), (*map(self._index, indices), (1, order), self._axis)

    def _index(self, places: Any) -> tuple[int, Any]:
        # dask-array's functions expect an index behind a number.
        index = [_WHOLE] * len(self._counts)
        index[self._axis] = places.astype(np.min_scalar_type(max(self._expression.array.chunks[self._axis])))
        return 1, tuple(index)

    def _task(self, key: Key, sources: Sequence[Key], literals: tuple[Any, ...]) -> Task:
        from dask_mars.dask_api.expressions import _getitem, concatenate_arrays

        if is_gone(_getitem) or is_gone(concatenate_arrays):
            raise NotSymbolic("dask-array has no concatenate_arrays")
        indices, rest = literals[: len(sources)], literals[len(sources) :]
        parts = [
            Task(None, _getitem, TaskRef(source), index) for source, index in zip(sources, indices, strict=True)
        ]
        return Task(key, concatenate_arrays, List(*parts), *rest) if rest else parts[0]


class HistogramBlocks(_Blocks):
    """Counts of the numbers of each block in bins, a row for each block."""

    def __init__(self, name: str, expression: Any, compiler: TaskCompiler) -> None:
        super().__init__(name, expression, compiler)
        if is_gone(arrays._block_hist):
            raise NotSymbolic("Dask has no _block_hist")
        parts = (expression.array,) if expression.weights is None else (expression.array, expression.weights)
        self._sources = [array._name for array in parts]
        self._blocks = list(itertools.product(*map(range, expression.array.numblocks)))
        self._bins_range = [expression.bins, [expression.range_start, expression.range_stop]]

    def _record(self, key: tuple[Any, ...]) -> ChunkRecord:
        block = self._blocks[key[1]]
        sources = [(source, *block) for source in self._sources]
        operand, literals = self._operand(None, self._task, key, sources)
        # An array may have itself as its weights.
        return operand, literals, list(dict.fromkeys(sources))

    def _task(self, key: Key, sources: Sequence[Key]) -> Task:
        values, *weights = map(TaskRef, sources)
        return Task(key, arrays._block_hist, values, self._bins_range, *weights)


def name_of_scans(name: str) -> str:
    """Return the name of the running sums of each block alone."""
    return f"{name}-chunk"


class CumulativeBlocks(_Blocks):
    """Running sums: those of each block alone, with the total of the blocks before it."""

    def __init__(self, name: str, expression: Any, compiler: TaskCompiler) -> None:
        from dask_mars.dask_api.expressions import _cum_tail

        super().__init__(name, expression, compiler)
        if is_gone(_cum_tail):
            raise NotSymbolic("dask-array has no _cum_tail")
        self._scans = name_of_scans(name)
        self._axis: int = expression.axis
        axis, identity = self._axis, expression.ident
        last = (*itertools.repeat(_WHOLE, axis), slice(-1, None), *[_WHOLE] * (len(self._counts) - axis - 1))
        self._tail = partial(_cum_tail, operator.getitem, last, identity, axis)
        self._first_total = partial(np.full_like, expression.array._meta, identity, expression.dtype)

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        """Return whether a key with the layer's name is that of a block, or of the total before it."""
        return super().__contains__((key[0], *key[2:]) if _is_total(key) else key)

    def _record(self, key: tuple[Any, ...]) -> ChunkRecord:
        is_total, axis = _is_total(key), self._axis
        block = key[2:] if is_total else key[1:]
        if not block[axis]:
            return self._total_before_all(key, block) if is_total else (ALIAS, (), ((self._scans, *block),))
        if is_total:
            block = (*block[:axis], block[axis] - 1, *block[axis + 1 :])
        sources = (self._name, _TOTAL, *block), (self._scans, *block)
        operand, literals = self._operand(is_total, self._task, key, is_total, sources)
        return operand, literals, sources

    def _task(self, key: Key, is_total: bool, sources: tuple[Key, Key]) -> Task:
        total, scan = map(TaskRef, sources)
        return Task(key, self._expression.binop, total, Task(None, self._tail, scan) if is_total else scan)

    def _total_before_all(self, key: Key, block: Block) -> ChunkRecord:
        sizes = [along[at] for along, at in zip(self._expression.chunks, block, strict=True)]
        shape = (*sizes[: self._axis], 1, *sizes[self._axis + 1 :])
        operand, _ = self._operand(None, lambda: Task(key, self._first_total, shape=shape))
        return operand, (shape,), ()


#: Behind the layer's name in the key of the total before a block.
_TOTAL = "extra"


def _is_total(key: tuple[Any, ...]) -> bool:
    return len(key) > 1 and type(key[1]) is str and key[1] == _TOTAL


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

    def _record(self, key: tuple[Any, ...]) -> ChunkRecord:
        at = iter(key[1:])
        found = [
            groups[next(at) if self._keeps_axes or not is_reduced else 0]
            for groups, is_reduced in zip(self._groups, self._reduced, strict=True)
        ]
        input_keys = list(itertools.product((self._source,), *found))
        lengths = tuple([len(group) for group, is_reduced in zip(found, self._reduced, strict=True) if is_reduced])
        operand, literals = self._operand(lengths, self._task, key, lengths, input_keys)
        return operand, literals, input_keys

    def _task(self, key: Key, lengths: Sequence[int], input_keys: Sequence[Key]) -> Task:
        nested: list[Any] = [TaskRef(source) for source in input_keys]
        for length in reversed(lengths):
            nested = [List(*nested[start : start + length]) for start in range(0, len(nested), length)]
        (argument,) = nested
        return Task(key, self._expression.func, argument)


def lazy_expression(layer: Layer, _: Any = None) -> LazyLayer | None:
    """Return the layer of an expression as one that is compiled when needed."""
    return layer.lazy() if type(layer) is ExpressionLayer else None
