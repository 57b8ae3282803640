"""Sums, and sums of squared differences to the mean, of arrays that are read once.

Dask's `moment_chunk` reads a chunk three times. This module processes parts that stay in the cache, and draws
random numbers only once.

The programs it serves: ``x.var()``, ``x.std(axis=0)`` and standard scores.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from dask_mars.expressions import draws, native

#: Maximum bytes of a row of random numbers, which stays in the cache.
_MOST_ROW_BYTES = 1 << 18
_FLOAT64 = np.dtype(np.float64)
#: Columns into which an array is arranged to be summed as a whole, and minimum columns for vector registers.
_WIDTH, _LEAST_WIDTH = 512, 16


def by_columns(values: Any, axis: Any, dtype: Any) -> tuple[Any, Any] | None:
    """Return sum and sum of squared differences to the mean, along the first axes of an array or along all."""
    # None instead of both if another way has to be taken: for another type or axis, or for sums that are not
    # finite, about which NumPy warns.
    drawn = type(values) is draws.Draw
    if native.moments is None or np.dtype(dtype) != _FLOAT64 or values.dtype != _FLOAT64:
        return None
    if not drawn and not (type(values) is np.ndarray and values.flags.c_contiguous and values.flags.aligned):
        return None
    shape = values.shape
    axes = range(len(shape)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    if sorted(axes) != list(range(len(axes))) or not values.size:
        return None
    columns = math.prod(shape[len(axes) :])
    with np.errstate(all="ignore"):
        found = _sums(values, columns if len(axes) < len(shape) else None)
    if found is None or not (np.isfinite(found[0]).all() and np.isfinite(found[1]).all()):
        return None
    reduced = (1,) * len(axes) + shape[len(axes) :]
    return found[0].reshape(reduced), found[1].reshape(reduced)


def _sums(values: Any, columns: int | None) -> tuple[np.ndarray, np.ndarray] | None:
    """Return both sums for each column, or for all numbers if `columns` is None."""
    drawn = type(values) is draws.Draw
    if columns is not None and (
        columns < _LEAST_WIDTH or (drawn and columns * _FLOAT64.itemsize > _MOST_ROW_BYTES)
    ):
        return None
    numbers = values.source() if drawn else values.reshape(-1)
    if columns is None:
        return _of_all(numbers, values.size)
    found = _of_columns(numbers, values.size // columns, columns)
    return found.totals + found.pivots * found.rows, found.squares


class _Columns(NamedTuple):
    """Per column: means of the first rows, sums of differences to these, and of squared ones to the means."""

    rows: int
    pivots: np.ndarray
    totals: np.ndarray
    squares: np.ndarray


def _of_columns(numbers: Any, rows: int, columns: int) -> _Columns:
    """Return the sums of columns, from rows or a source of them."""
    assert native.moments is not None
    pivots, totals, squares = np.zeros((3, columns))
    native.moments(numbers, pivots, totals, squares)
    return _Columns(rows, pivots, totals, squares)


def _of_all(numbers: Any, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return both sums of all numbers, of an array or a source, as arrays of one number."""
    assert native.rest is not None
    rows, left = divmod(size, _WIDTH)
    if type(numbers) is np.ndarray:
        found, rest = _of_columns(numbers[: size - left], rows, _WIDTH), numbers[size - left :]
    else:
        found, rest = _of_columns(numbers, rows, _WIDTH), native.rest(numbers)
    pivot = found.pivots[0] if rows else rest[0]
    # Differences to the pivot, and the count of numbers behind each. Each leftover number counts once.
    groups = [(1, rest - pivot)]
    if rows:
        groups.append((rows, found.pivots - pivot + found.totals / rows))
    total = sum([count * np.sum(means) for count, means in groups])
    mean = total / size
    squares = np.sum(found.squares) + sum([count * np.sum((means - mean) ** 2) for count, means in groups])
    return np.array([total + pivot * size]), np.array([squares])
