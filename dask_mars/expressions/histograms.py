"""Histograms of chunks as Dask requests them from NumPy, counted natively.

Given edges, NumPy sorts a chunk part by part; given a number of bins, it makes ten passes over the chunk. Counts
are exact, so the method cannot change them.

The programs it serves: ``da.histogram(x, bins=100, range=(0, 1))``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dask_mars.dask_api.arrays import _block_hist
from dask_mars.expressions import draws, native

#: Dask's function for the histogram of a chunk; other versions may have another.
DASK_FUNCTION: Callable[..., Any] = _block_hist
#: Size below which NumPy is as fast.
_FEWEST = 1 << 10
#: Numbers converted at a time.
_PART = 1 << 15
#: Integers up to this are exact as doubles.
_EXACT = 1 << 53


def block_histogram(values: Any, bins_range: Any) -> Any:
    """Return the result of Dask's function for these arguments."""
    drawn = type(values) is draws.Draw
    edges = _edges(bins_range) if _is_countable(values) else None
    if edges is None or native.histogram is None:
        return DASK_FUNCTION(values.array() if drawn else values, bins_range)
    counts = np.zeros(edges[0].size - 1, np.int64)
    for part in _parts(values):
        native.histogram(part, edges[0], counts, edges[1])
    return counts.astype(np.intp, copy=False)[np.newaxis]


def is_histogram(function: Any, slots: tuple[int, ...], keywords: tuple[str, ...]) -> bool:
    """Return whether a step is a histogram without weights that can be counted natively."""
    return native.histogram is not None and function is DASK_FUNCTION and len(slots) == 2 and not keywords


def _is_countable(values: Any) -> bool:
    # The type comes first: arrays of other libraries may have no size, or a method of that name.
    if type(values) is not draws.Draw and type(values) is not np.ndarray:
        return False
    if values.size < _FEWEST:
        return False
    dtype = values.dtype
    # For smaller floats NumPy computes bins in their own precision.
    return dtype == np.float64 or (dtype.kind in "iu" and dtype.itemsize <= 4 and dtype.isnative)


def _edges(bins_range: Any) -> tuple[np.ndarray, bool] | None:
    """Return the edges, and whether NumPy computes bins from a number of them; None for unsupported arguments."""
    try:
        bins, ends = bins_range
        if isinstance(bins, (int, np.integer)) and type(bins) is not bool:
            if ends is None or not all(_is_number(end) for end in ends):
                return None
            # NumPy computes the edges from the range, here for an empty array.
            edges = np.histogram(np.empty(0), bins, range=tuple(ends))[1]
            if edges[0] >= edges[-1]:
                return None
            known = edges.dtype == np.float64 and np.isfinite(edges[-1] - edges[0]) and _rise(edges)
            return (edges, True) if known else None
        if type(bins) is not np.ndarray or bins.ndim != 1 or bins.size < 2 or bins.dtype not in _EDGE_TYPES:
            return None
        if bins.dtype.kind == "i" and np.abs(bins).max() > _EXACT:
            return None
        edges = np.ascontiguousarray(bins, np.float64)
        width = (edges[-1] - edges[0]) / (edges.size - 1)
        even = np.linspace(edges[0], edges[-1], edges.size)
        # The search for a bin starts where it would be if all bins had one width.
        near = np.isfinite(width) and width > 0 and np.abs(edges - even).max() <= width
        return (edges, False) if near and _rise(edges) else None
    except (TypeError, ValueError):
        # Dask's function raises the error.
        return None


def _rise(edges: np.ndarray) -> bool:
    return bool(np.all(edges[:-1] <= edges[1:]))


_EDGE_TYPES = (np.dtype(np.float64), np.dtype(np.int64), np.dtype(np.int32))


def _is_number(end: Any) -> bool:
    if isinstance(end, (int, np.integer)):
        return abs(int(end)) <= _EXACT
    return type(end) in (float, np.float64)


def _parts(values: Any) -> Iterator[Any]:
    """Yield the numbers as doubles, or a source of them, in parts if a conversion is needed."""
    if type(values) is draws.Draw:
        yield values.source()
        return
    flat = values.ravel()
    if flat.dtype == np.float64 and flat.flags.aligned:
        yield flat
        return
    for start in range(0, flat.size, _PART):
        yield flat[start : start + _PART].astype(np.float64)
