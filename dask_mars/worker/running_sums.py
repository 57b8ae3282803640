"""Running sums and products along the rows of chunks, by adding rows.

`numpy.cumsum` processes one line of an array after the other. Where neighbours in a line are whole rows apart in
memory, each step takes another cache line: 10 ns a number, compared with 1 ns for adding one row to the next, with
the same result to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dask_mars.graph.callables import look_up

_Array = np.ndarray[Any, Any]

#: Minimum numbers in a row, and minimum neighbours of each: calls for smaller ones take longer.
_FEWEST, _FEWEST_NEIGHBOURS = 128, 16


def running_sums(function: Any) -> Any:
    """Return a function that adds or multiplies rows in place of one of NumPy's, or the function itself."""
    return look_up(_SUBSTITUTES, function, function)


def _running(
    function: Callable[..., Any],
    combine: np.ufunc,
    nan_as: int | None,
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
) -> Any:
    """Compute the result of NumPy's function."""
    is_plain = out is None and type(a) is np.ndarray and a.dtype.kind in "biufc" and type(axis) is int
    # NumPy handles lossy casts, and their warnings.
    if is_plain and _has_long_rows(a, axis) and (dtype is None or np.can_cast(a.dtype, dtype)):
        values = a
        if nan_as is not None and a.dtype.kind in "fc":
            values = np.where(np.isnan(a), a.dtype.type(nan_as), a)
        rows = np.moveaxis(values, axis, 0)
        found = function(np.ones(1, a.dtype), axis=0, dtype=dtype).dtype
        if found.kind in "iufc":
            result = np.empty_like(values, dtype=found)
            sums = np.moveaxis(result, axis, 0)
            sums[:1] = function(rows[:1], axis=0, dtype=dtype)
            try:
                with np.errstate(all="raise", under="ignore"):
                    for row in range(1, len(rows)):
                        combine(sums[row - 1], rows[row], out=sums[row])
            except FloatingPointError:
                # NumPy then warns or raises in its own words, as the user has configured.
                del result, sums
            else:
                return result
    return function(a, axis=axis, dtype=dtype, out=out)


def _has_long_rows(a: _Array, axis: int) -> bool:
    """Return whether neighbours in memory are neighbours in a row."""
    if a.ndim < 2 or not -a.ndim <= axis < a.ndim or a.shape[axis] < 2:
        return False
    others = [(abs(stride), length) for stride, length in zip(a.strides, a.shape, strict=True)]
    stride, length = others.pop(axis)
    nearest, neighbours = min(others)
    return nearest < stride and neighbours >= _FEWEST_NEIGHBOURS and math.prod(a.shape) >= _FEWEST * length


_SUBSTITUTES: dict[Any, Any] = {
    np.cumsum: partial(_running, np.cumsum, np.add, None),
    np.cumprod: partial(_running, np.cumprod, np.multiply, None),
    np.nancumsum: partial(_running, np.nancumsum, np.add, 0),
    np.nancumprod: partial(_running, np.nancumprod, np.multiply, 1),
}
