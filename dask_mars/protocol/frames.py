"""Recognises pandas' frames that hold nothing but numbers, times and text, whose pickles need no checks."""

from __future__ import annotations

from typing import Any

from dask_mars.graph.callables import attribute, package_of
from dask_mars.lazy_numpy import np

_FRAMES = frozenset({"DataFrame", "Series"})
_INDEXES = frozenset({"Index", "RangeIndex"})
_TIMES = frozenset({"DatetimeArray", "TimedeltaArray"})
#: Types of names of axes and series.
_NAMES = frozenset({type(None), str, int, float, bool})


def is_data_frame(value: Any) -> bool:
    """Return whether a value is a frame or series of pandas without Python objects; False if that is unknown."""
    kind = type(value)
    if kind.__name__ not in _FRAMES or package_of(kind) != "pandas":
        return False
    # The blocks are a private attribute of pandas: its `dtypes` take as long as a pickle.
    blocks = attribute(attribute(value, "_mgr"), "blocks")
    if blocks is None or value.attrs or not (value.ndim == 2 or type(value.name) in _NAMES):
        return False
    return all(map(_is_data_index, value.axes)) and all(_is_data(attribute(block, "values")) for block in blocks)


def _is_data_index(index: Any) -> bool:
    is_plain = type(index).__name__ in _INDEXES and type(index.name) in _NAMES
    return is_plain and (type(index).__name__ == "RangeIndex" or _is_data(attribute(index, "_values")))


def _is_data(values: Any) -> bool:
    if type(values) is np.ndarray:
        return not values.dtype.hasobject
    # Times with a zone hold an object of Python.
    name = type(values).__name__
    return name == "ArrowStringArray" or (name in _TIMES and isinstance(values.dtype, np.dtype))
