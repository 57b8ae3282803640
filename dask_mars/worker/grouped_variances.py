"""Variances of a partition's groups, as Dask's dataframes define them, with each row's group found once.

Dask groups the partition for its sums and counts, and a squared copy for its sums of squares. The same groups hold
for both.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dask_mars.graph.callables import attribute


def grouped_variances(function: Any) -> Any:
    """Return a function that groups a partition once for its variances, or the function itself."""
    if attribute(function, "__module__") == "dask.dataframe.groupby" and function.__name__ == "_var_chunk":
        return partial(_group_once, function)
    return function


def _group_once(var_chunk: Callable[..., Any], frame: Any, *by: Any, **named: Any) -> Any:
    """Return sums, sums of squares and counts of groups."""
    options = {**(attribute(var_chunk, "__kwdefaults__") or {}), **named}
    # All columns are numbers.
    options.pop("numeric_only", None)
    if options.keys() == {"dropna", "observed"} and _is_plain(frame, by):
        # Errors and their tracebacks are Dask's.
        with contextlib.suppress(Exception):
            return _sums_and_counts(frame, by, options)
    return var_chunk(frame, *by, **named)


def _is_plain(frame: Any, by: tuple[Any, ...]) -> bool:
    """Return whether a frame is grouped by some of its columns, and has numbers in the others."""
    pandas = sys.modules.get("pandas")
    if pandas is None or type(frame) is not pandas.DataFrame or frame.attrs or frame.columns.name is not None:
        return False
    labels = list(frame.columns)
    are_plain = all(type(label) is str for label in (*labels, *by)) and len(set(labels)) == len(labels)
    return (
        are_plain
        and 0 < len(set(by)) == len(by) < len(labels)
        and set(by) <= set(labels)
        and all(
            label in by or (isinstance(dtype, np.dtype) and dtype.kind in "iuf")
            for label, dtype in zip(labels, frame.dtypes, strict=True)
        )
    )


def _sums_and_counts(frame: Any, by: tuple[str, ...], options: dict[str, Any]) -> Any:
    pandas: Any = sys.modules["pandas"]
    columns = [label for label in frame.columns if label not in by]
    mark = "²"
    while not {label + mark for label in columns}.isdisjoint(frame.columns):
        mark += "²"
    squares = (frame[columns] ** 2).set_axis([label + mark for label in columns], axis=1)
    groups = pandas.concat([frame, squares], axis=1).groupby(by[0] if len(by) == 1 else list(by), **options)
    if len(frame) and groups._grouper.is_monotonic:
        raise ValueError("pandas adds up slices in a way that depends on other columns in the same array")
    sums = groups[columns].sum()
    counts = groups[columns].count()
    return with_marks(sums, groups[list(squares.columns)].sum().set_axis(sums.columns, axis=1), counts)


def with_marks(sums: Any, squares: Any, counts: Any) -> Any:
    """Return sums, sums of squares and counts as one frame, with Dask's names."""
    parts = [
        sums,
        squares.rename(columns=lambda label: (label, "-x2")),
        counts.rename(columns=lambda label: (label, "-count")),
    ]
    return sys.modules["pandas"].concat(parts, axis=1)
