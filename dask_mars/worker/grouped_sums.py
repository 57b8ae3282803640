"""Sums and counts of a chunk's groups, as flox defines them, by adding slices.

Flox passes each chunk to numpy_groupies, which looks up the group of each number: 20 to 80 ns a number, mostly
with the GIL. Where groups follow the axis with the largest stride, as times mostly do, a whole slice belongs to
one group, and NumPy adds slices in the same order. Partial results of several chunks are added in the same way;
flox concatenates them first, and adds along a short axis.

Flox does the rest: it finds groups, fills and divides. It also handles all inputs that this module does not
expect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from dask_mars.graph.callables import attribute

#: Minimum numbers in a slice: calls for smaller ones take longer than flox.
_FEWEST = 256
#: Supported reductions, by flox's names.
_NAMES = frozenset({"nanlen", "nansum", "sum"})
#: Supported engines of flox. With numbagg, flox fills results by the reduction's name.
_ENGINES = frozenset({"flox", "numpy"})

_Array = np.ndarray[Any, Any]


def grouped_sums(function: Any, reductions: bool = True) -> Any:
    """Return a function that computes sums of flox's groups by slices, or the function itself."""
    # Without `reductions`, flox adds up the partial results of several chunks in its own order.
    module = attribute(function, "__module__")
    if module == "flox.core" and function.__name__ == "chunk_reduce":
        return partial(_reduce_chunk, function)
    if module == "flox.dask" and function.__name__ == "_simple_combine" and reductions:
        return partial(_combine, function)
    return function


# -- within a chunk -------------------------------------------------------------------------------------------


def _reduce_chunk(
    chunk_reduce: Callable[..., Any], array: Any, by: Any, func: Any, *rest: Any, **named: Any
) -> Any:
    """Call flox's function with its sums and counts replaced."""
    names = func if type(func) in (tuple, list) else (func,)
    engine = named.get("engine")
    if engine in _ENGINES and type(array) is np.ndarray and array.dtype.kind == "f" and array.itemsize <= 8:
        sums = _Sums(engine, are_counts_inner=set(names) != {"nanlen"})
        func = tuple([partial(sums.reduce, name) if name in _NAMES else name for name in names])
    return chunk_reduce(array, by, func, *rest, **named)


class _Sums:
    """The sums and counts of one chunk, which flox requests one after the other."""

    def __init__(self, engine: str, are_counts_inner: bool) -> None:
        self._engine = engine
        #: Whether flox computes its result from sums and counts: counts themselves may be written to.
        self._are_counts_inner = are_counts_inner
        #: Facts about the last array: whether groups consist of slices, and of one each; its NaN mask, if it has
        #: any; and its sums, if they were computed instead of the mask.
        self._array: _Array | None = None
        self._are_slices = self._are_single = False
        self._missing: _Array | None = None
        self._sums: _Array | None = None

    def reduce(
        self, name: str, groups: Any, array: _Array, *, size: int, dtype: Any, fill_value: Any, **options: Any
    ) -> Any:
        """Return a reduction of an array along its last axis, with the signature of flox's engines."""
        if self._array is not array:
            self._look_at(groups, array, size, name != "nanlen")
        if self._are_slices and not options and not fill_value and fill_value is not None:
            if name == "nanlen":
                return self._count(groups, array, size, np.dtype(dtype))
            if name == "nansum" and self._missing is not None:
                array = np.where(self._missing, array.dtype.type(0), array)
            return self._sum(groups, array, size, np.dtype(dtype))
        aggregations: Any = import_module("flox.aggregations")
        result = aggregations.generic_aggregate(
            groups,
            array,
            axis=-1,
            engine=self._engine,
            func=name,
            size=size,
            dtype=dtype,
            fill_value=fill_value,
            **options,
        )
        return result.astype(dtype, copy=False)

    def _look_at(self, groups: _Array, array: _Array, size: int, is_sum: bool) -> None:
        self._array, self._missing, self._sums = array, None, None
        self._are_slices = self._has_slices(groups, array, size)
        if self._are_slices and is_sum and self._engine == "numpy":
            self._sums = _sums_without_nan(groups, array, size)
        if self._are_slices and self._sums is None:
            missing = np.isnan(array)
            self._missing = missing if missing.any() else None

    def _has_slices(self, groups: _Array, array: _Array, size: int) -> bool:
        steps = len(groups)
        if not steps or math.prod(array.shape[:-1]) < _FEWEST or array.shape[-1] != steps:
            return False
        if steps > 1 and abs(array.strides[-1]) < max(map(abs, array.strides)):
            # Each slice would read through all of the memory.
            return False
        self._are_single = steps == size == len(np.unique(groups))
        # Flox's own engine adds in another order, and in a narrower type.
        return self._engine == "numpy" or self._are_single

    def _sum(self, groups: _Array, array: _Array, size: int, dtype: np.dtype[Any]) -> _Array:
        if self._engine == "flox":
            return array.astype(dtype)[..., np.argsort(groups)]
        if self._sums is not None:
            result, self._sums = self._sums, None
            return np.moveaxis(result.astype(dtype, copy=False), 0, -1)
        # As `numpy.bincount` does, which adds each number to an initial zero.
        result = np.zeros((size, *array.shape[:-1]), dtype if self._are_single else np.float64)
        for step, group in enumerate(groups.tolist()):
            np.add(result[group], array[..., step], out=result[group])
        return np.moveaxis(result.astype(dtype, copy=False), 0, -1)

    def _count(self, groups: _Array, array: _Array, size: int, dtype: np.dtype[Any]) -> _Array:
        counts = np.bincount(groups, minlength=size).astype(dtype).reshape(-1, *(1,) * (array.ndim - 1))
        # Slices without NaN count alike: once is enough.
        result = np.broadcast_to(counts, (size, *array.shape[:-1]))
        if self._missing is not None or not self._are_counts_inner:
            result = result.copy()
        if self._missing is not None:
            for step, group in enumerate(groups.tolist()):
                np.subtract(result[group], self._missing[..., step], out=result[group])
        return np.moveaxis(result, 0, -1)


def _sums_without_nan(groups: _Array, array: _Array, size: int) -> _Array | None:
    """Return the sums of groups of doubles in one pass; None if one is NaN, if NumPy may warn, or for others."""
    # It imports Dask's arrays, which a worker has imported once it meets flox.
    from dask_mars.expressions import native

    rows = np.moveaxis(array, -1, 0)
    if (
        native.group_sums is None
        or array.dtype != np.float64
        or not (rows.flags.aligned and rows[0].flags.c_contiguous)
    ):
        return None
    sums = np.empty((size, *rows.shape[1:]))
    counts, first = np.bincount(groups, minlength=size), np.zeros(len(groups), np.bool_)
    first[np.unique(groups, return_index=True)[1]] = True
    sums[counts == 0] = 0.0
    flat = rows.reshape(len(groups), -1)
    return sums if native.group_sums(flat, groups.astype(np.int64), first, sums.reshape(size, -1)) else None


# -- across chunks --------------------------------------------------------------------------------------------


def _combine(
    simple_combine: Callable[..., Any],
    x_chunk: Any,
    agg: Any,
    axis: Sequence[int],
    keepdims: bool,
    reindex: Any,
    is_aggregate: bool = False,
) -> Any:
    """Call flox's function, or add up the chunks' partial results in its place."""
    if not (len(axis) == 1 and reindex.blockwise and _are_sums(x_chunk, agg)):
        return simple_combine(x_chunk, agg, axis, keepdims, reindex=reindex, is_aggregate=is_aggregate)
    found = []
    for values in zip(*[chunk["intermediates"] for chunk in x_chunk], strict=True):
        total = _total(values)
        found.append(total.squeeze(-2) if is_aggregate else total)
    return {"groups": x_chunk[0]["groups"], "intermediates": found}


def _total(values: Sequence[_Array]) -> _Array:
    """Return the sum of arrays of one shape, repeated where all of them repeat the same elements."""
    first = values[0]
    once = tuple(
        [slice(None) if any(value.strides[axis] for value in values) else slice(1) for axis in range(first.ndim)]
    )
    parts = [value[once] for value in values]
    total = parts[0].copy(order="K") if len(parts) == 1 else np.add(parts[0], parts[1])
    for value in parts[2:]:
        total += value
    return total if total.shape == first.shape else np.broadcast_to(total, first.shape)


def _are_sums(x_chunk: Any, agg: Any) -> bool:
    """Return whether all partial results are numbers of the same shapes, to be added."""
    if type(x_chunk) is not list or not all(combine is np.sum for combine in agg.simple_combine):
        return False
    layouts = set()
    for chunk in x_chunk:
        if type(chunk) is not dict:
            return False
        values = chunk["intermediates"]
        if len(values) != len(agg.simple_combine) or not all(map(_is_addable, values)):
            return False
        layouts.add(tuple([(value.dtype, value.shape) for value in values]))
    return len(layouts) == 1


def _is_addable(value: Any) -> bool:
    # Flox's sums of integers are 64 bits wide, with length one along the axis that is added up.
    return (
        type(value) is np.ndarray
        and value.ndim >= 2
        and value.shape[-2] == 1
        and (value.dtype.kind == "f" or value.dtype in (np.int64, np.uint64))
    )
