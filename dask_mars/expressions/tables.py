"""Sums of tables whose rows are not adjacent in memory, such as chunks of a larger array.

NumPy copies such rows to a buffer, and sums the buffer pairwise. This module sums the rows in place, in the same
order, and prefetches the next row meanwhile: in 0.75 of the time.

The program it serves: ``x.sum()`` or ``x.mean()`` of an array in the program's memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from dask_mars.expressions import native
from dask_mars.expressions.functions import Unsupported
from dask_mars.expressions.native import Chain, Reduced

#: Minimum and maximum length of the rows that this module sums faster, in elements.
_LEAST_ROW, _MOST_ROW = 1 << 9, 1 << 14
#: Number of elements in the buffer of NumPy's ufuncs, unless the user changes it.
_BUFFER = 1 << 13


class TableSum:
    """The sum of one table; it raises `Unsupported` for other computations."""

    def __init__(self, chain: Chain) -> None:
        (reduced,) = chain.reductions
        found = _layout(reduced, chain)
        if found is None or not _is_numpys_order(reduced.dtype):
            raise Unsupported
        self._reduced = reduced
        self._shape, self._strides = found
        self._together = max(1, _BUFFER // self._shape[1])

    def run(
        self, values: list[Any], errors: dict[str, str], sources: Mapping[int, Any] = MappingProxyType({})
    ) -> tuple[dict[int, Any], dict[int, Any]] | None:
        """Compute the total; return None if NumPy has to do it, for example to warn."""
        if np.getbufsize() != _BUFFER:
            return None
        reduced = self._reduced
        table = as_strided(values[reduced.source], self._shape, self._strides, writeable=False)
        assert native.table_sum is not None
        total = native.table_sum(table, self._together)
        return None if total is None else ({}, {reduced.slot: np.full(reduced.shape, total, reduced.dtype)})


def _layout(reduced: Reduced, chain: Chain) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return shape and strides of the table to sum, or None if the reduction is no sum of a table."""
    array = chain.values[reduced.source]
    is_sum = reduced.ufunc is np.add and reduced.dtype.char in "fd" and len(reduced.axes) == len(chain.shape)
    if native.table_sum is None or not is_sum or type(array) is not np.ndarray or array.dtype != reduced.dtype:
        return None
    axes: list[tuple[int, int]] = []
    for length, stride in sorted(zip(array.shape, array.strides, strict=True), key=lambda axis: axis[1]):
        if axes and stride == math.prod(axes[-1]):
            # It continues the one before.
            axes[-1] = axes[-1][0] * length, axes[-1][1]
        elif length > 1:
            axes.append((length, stride))
    if len(axes) != 2 or axes[0][1] != array.itemsize or not _LEAST_ROW <= axes[0][0] <= _MOST_ROW:
        return None
    (length, item), (rows, stride) = axes
    return ((rows, length), (stride, item)) if stride >= length * item else None


@cache
def _is_numpys_order(dtype: np.dtype[Any]) -> bool:
    """Return whether this version of NumPy adds in the same order as `native.table_sum`."""
    assert native.table_sum is not None
    numbers = np.random.default_rng(0).random((20, 1_000)).astype(dtype)[:, :999]
    return bool(np.add.reduce(numbers, axis=(0, 1)) == native.table_sum(numbers, _BUFFER // 999))
