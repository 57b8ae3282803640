"""Numbers of the partitions to which rows of a dataframe go by columns of numbers or text.

Dask selects and casts the columns as frames, and those of the empty frame that describes them. For the groups of a
partition, often a hundred rows, that takes ten times as long as the hashes.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dask_mars.graph.callables import is_of


def partition_numbers(function: Any) -> Any:
    """Return a function that numbers rows by their hashed columns, or the function itself."""
    if is_of(function, "dask.dataframe.", "AssignPartitioningIndex.operation"):
        return partial(_number_rows, function)
    return function


def _number_rows(
    operation: Callable[..., Any],
    frame: Any,
    index: Any,
    name: Any,
    npartitions: Any,
    meta: Any,
    index_shuffle: Any,
    **more: Any,
) -> Any:
    """Return a frame with a further column, which has the number of each row."""
    if not more and not index_shuffle:
        # Errors are Dask's.
        with contextlib.suppress(Exception):
            pandas: Any = sys.modules["pandas"]
            columns = _columns(pandas, frame, index, meta)
            if columns is not None:
                hashes = pandas.util.hash_pandas_object(pandas.DataFrame(columns, copy=False), index=False)
                numbers = hashes.to_numpy() % int(npartitions)
                return frame.assign(**{name: numbers.astype(np.min_scalar_type(-npartitions - 1))})
    return operation(frame, index, name, npartitions, meta, index_shuffle, **more)


def _columns(pandas: Any, frame: Any, index: Any, meta: Any) -> dict[str, Any] | None:
    """Return the columns by which rows are numbered, as Dask casts them; None if they are not all plain."""
    labels = index if type(index) is list else [index]
    if type(frame) is not pandas.DataFrame or type(meta) is not pandas.DataFrame or not labels:
        return None
    if not (frame.columns.is_unique and meta.columns.is_unique and all(type(label) is str for label in labels)):
        return None
    found = {}
    for label in labels:
        # A level of the index may have a column's name, too.
        if label not in frame.columns or label not in meta.columns or label in frame.index.names:
            return None
        values, described = frame[label], meta[label].dtype
        if _is_number(values.dtype) and _is_number(described):
            found[label] = values.to_numpy(dtype=np.float64)
        elif isinstance(described, pandas.StringDtype) and values.dtype == described:
            found[label] = values.array
        else:
            return None
    return found


def _is_number(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind in "iuf"
