"""Sums, and sums of squared differences to the mean, of arrays that are read once.

Dask's `moment_chunk` reads a chunk three times. Here one part of it after the other is read while it is in the
cache, and random numbers are made no more than once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dask_mars.expressions import draws, native
from dask_mars.expressions.planning import TILE_BYTES

_FLOAT64 = np.dtype(np.float64)
#: Numbers of which all are summed lie in so many columns. Fewer columns than the least are worth no registers.
_WIDTH, _LEAST_WIDTH = 512, 16


def by_columns(values: Any, axis: Any, dtype: Any) -> tuple[Any, Any] | None:
    """Return sum and sum of squared differences to the mean, along the first axes of an array or along all.

    Parameters
    ----------
    values : ndarray or Draw
        Doubles, one after the other.
    axis : int, tuple of int or None
        As NumPy takes it.
    dtype : dtype
        Of the sums.

    Returns
    -------
    totals, squares : ndarray
        With as many dimensions as the array. Together None if another way has to be taken: for another type or
        axis, or where sums are not finite, of which NumPy has warnings to tell.
    """
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
    """Return both of columns, or of all numbers if there are none."""
    if columns is None:
        return _of_all(values)
    drawn = type(values) is draws.Draw
    if columns < _LEAST_WIDTH or (drawn and columns * _FLOAT64.itemsize > TILE_BYTES):
        return None
    found = _of_columns(_parts(values, columns), columns)
    return found.totals + found.pivots * found.rows, found.squares


class _Columns(NamedTuple):
    """Of columns: means of the first rows, sums of differences to these, and of squared ones to the means."""

    rows: int
    pivots: np.ndarray
    totals: np.ndarray
    squares: np.ndarray


def _of_columns(parts: Iterator[np.ndarray], columns: int) -> _Columns:
    """Return what is known of columns, given parts of whole rows."""
    assert native.moments is not None
    pivots, totals, squares = np.zeros((3, columns))
    rows = 0
    for part in parts:
        native.moments(part, rows, pivots, totals, squares)
        rows += part.size // columns
    return _Columns(rows, pivots, totals, squares)


def _of_all(values: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return both of all numbers, as arrays of one number."""
    rest: list[np.ndarray] = []

    def whole() -> Iterator[np.ndarray]:
        for part in _parts(values, _WIDTH):
            left = part.size % _WIDTH
            if left:
                rest.append(part[part.size - left :].copy())
            yield part[: part.size - left]

    found = _of_columns(whole(), _WIDTH)
    pivot = found.pivots[0] if found.rows else rest[0][0]
    # Differences to the pivot, and how many numbers each stands for. What is left stands for itself.
    groups = [(1, numbers - pivot) for numbers in rest]
    if found.rows:
        groups.append((found.rows, found.pivots - pivot + found.totals / found.rows))
    total = sum([count * np.sum(means) for count, means in groups])
    mean = total / values.size
    squares = np.sum(found.squares) + sum([count * np.sum((means - mean) ** 2) for count, means in groups])
    return np.array([total + pivot * values.size]), np.array([squares])


def _parts(values: Any, columns: int) -> Iterator[np.ndarray]:
    """Return the numbers in parts of whole rows, but for the last where the rows are none of the array's own."""
    if type(values) is draws.Draw:
        return values.parts(TILE_BYTES // _FLOAT64.itemsize // columns * columns)
    return iter([values.reshape(-1)])


__all__ = ["by_columns"]
