"""Sums, counts, means and variances of a partition's groups by texts, and by whole numbers close to each other.

pandas looks up each row's number in a hash table, and holds the GIL for most of that. Here the numbers are places
in a table, and a native loop adds as pandas does, to the last bit. Arrow finds numbers for texts.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from dask.utils import methodcaller
from numpy.typing import NDArray

from dask_mars.graph.callables import attribute, called_by, is_of
from dask_mars.worker.coded_reads import encoded

key_totals: Any
try:
    from dask_mars.expressions import _native
except ImportError:
    key_totals = None
else:
    key_totals = _native.key_totals

#: Minimum number of rows, and maximum number of places for each of them, and for all.
_FEWEST_ROWS, _PLACES_PER_ROW, _MOST_PLACES = 1 << 11, 1, 1 << 22
#: Dtypes of columns that can be added up.
_NUMBERS = frozenset({np.dtype(np.float64), np.dtype(np.int64)})


def number_keys(function: Any) -> Any:
    """Return a function that adds up groups by whole numbers natively, or the function itself."""
    if type(function) is partial:
        return partial(number_keys(function.func), *function.args, **function.keywords)
    called = called_by(function)
    if not is_of(called, "dask.dataframe.", *_REPLACED):
        return function
    return partial(_grouped, function, *_REPLACED[called.__qualname__])


def _grouped(
    function: Callable[..., Any],
    natively: Callable[..., Any],
    once: Callable[..., Any] | None,
    frame: Any,
    *by: Any,
    **named: Any,
) -> Any:
    if _has_keys(frame, by):
        # Errors and their tracebacks are Dask's.
        if key_totals is not None and _adds_as_pandas():
            with contextlib.suppress(Exception):
                found = natively(frame, by, named, named.get("sort", True))
                if found is not None:
                    return found
        if once is not None:
            with contextlib.suppress(Exception):
                return once(frame, by, **named)
    return function(frame, *by, **named)


def _has_keys(frame: Any, by: tuple[Any, ...]) -> bool:
    pandas = sys.modules.get("pandas")
    if pandas is None or type(frame) is not pandas.DataFrame or len(frame) < _FEWEST_ROWS:
        return False
    labels = frame.columns
    if frame.attrs or not frame.flags.allows_duplicate_labels or labels.name is not None or not labels.is_unique:
        return False
    names = list(labels)
    if set(map(type, names)) != {str} or labels.dtype != pandas.Index(names).dtype:
        return False
    are_columns = all(type(label) is str and label in labels and label not in frame.index.names for label in by)
    return are_columns and 0 < len(set(by)) == len(by)


class _Key:
    """A column of keys: a number for each row, in the order of the keys."""

    def __init__(self, column: Any) -> None:
        dtype = column.dtype
        self._texts, self._dtype, self._name = None, dtype, column.name
        if isinstance(dtype, np.dtype) and dtype.kind in "iu" and dtype != np.uint64:
            self.numbers = np.ascontiguousarray(column.to_numpy(), np.int64)
        elif (found := encoded(column)) is not None:
            numbers, self._texts = found
            self.numbers = numbers.astype(np.int64)
        else:
            raise ValueError("the keys are of another type")

    def index(self, numbers: NDArray[Any]) -> Any:
        """Return an index of the keys of some numbers."""
        values = numbers.astype(self._dtype) if self._texts is None else self._texts.at(numbers)
        return sys.modules["pandas"].Index(values, name=self._name, copy=False)


class _Groups:
    """The groups of a partition, with sums and counts of columns."""

    def __init__(self, frame: Any, by: Sequence[str], columns: Mapping[Any, Any], is_sorted: bool) -> None:
        self._pandas: Any = sys.modules["pandas"]
        if any(values.dtype not in _NUMBERS for values in columns.values()):
            raise ValueError("a column has other numbers")
        keys = [_Key(frame[label]) for label in by]
        arrays = tuple([key.numbers for key in keys])
        values = tuple([np.ascontiguousarray(column.to_numpy()) for column in columns.values()])
        found = key_totals(arrays, values, min(_PLACES_PER_ROW * len(frame), _MOST_PLACES))
        if found is None:
            raise ValueError("the keys are far from each other")
        first, ranges, totals, runs = found
        present = np.flatnonzero(first)
        if runs == len(present):
            raise ValueError("pandas adds up slices")
        if not is_sorted:
            # pandas puts groups into the order in which they begin.
            present = present[np.argsort(first[present])]
        numbers = np.unravel_index(present, [size for _, size in ranges])
        levels = [key.index(number + low) for key, number, (low, _) in zip(keys, numbers, ranges, strict=True)]
        self._index = levels[0] if len(by) == 1 else self._pandas.MultiIndex.from_arrays(levels)
        self.sums = {label: sums[present] for label, (sums, _) in zip(columns, totals, strict=True)}
        self.counts = {label: counts[present] for label, (_, counts) in zip(columns, totals, strict=True)}
        if not all(np.isfinite(sums).all() for sums in self.sums.values()):
            raise ValueError("pandas adds infinite numbers in another way")

    def series(self, values: Any, label: str) -> Any:
        """Return a series with a value for each group."""
        return self._pandas.Series(values, self._index, name=label, copy=False)

    def frame(self, columns: Mapping[str, Any]) -> Any:
        """Return a frame with a row for each group."""
        return self._pandas.DataFrame(columns, self._index, copy=False)


def _others(frame: Any, by: Sequence[str]) -> dict[str, Any]:
    """Return the columns that are not keys."""
    return {label: frame[label] for label in frame.columns if label not in by}


def _single(frame: Any, by: Sequence[str], named: dict[str, Any], is_sorted: bool) -> Any:
    """Return the sum or count of some or all columns."""
    is_sum = _is_sum(named["chunk"])
    if is_sum is None or not named.keys() <= {"chunk", "columns", "observed", "dropna", "numeric_only"}:
        return None
    columns, others = named["columns"], _others(frame, by)
    is_series = type(columns) is str
    if columns is not None:
        columns = [columns] if is_series else list(columns)
        others = {label: others[label] for label in columns}
        if len(others) < len(columns):
            return None
    groups = _Groups(frame, by, others, is_sorted)
    found = groups.sums if is_sum else groups.counts
    return groups.series(found[columns[0]], columns[0]) if is_series else groups.frame(found)


def _several(frame: Any, by: Sequence[str], named: dict[str, Any], is_sorted: bool) -> Any:
    """Return several sums, counts and sums of squares."""
    others = _others(frame, by)
    columns: dict[Any, Any] = {}
    #: Name of the result, and what it is of which column.
    wanted: list[tuple[str, bool, Any]] = []
    for name, function, options in named["funcs"]:
        column: Any = options["column"]
        is_square = attribute(function, "__name__") == "_compute_sum_of_squares"
        is_sum = is_square or _is_sum(options.get("func"))
        if is_sum is None or options.keys() != ({"column"} if is_square else {"column", "func"}):
            return None
        values = others[column]
        if is_square:
            column, values = (column, "squared"), values**2
        columns[column] = values
        wanted.append((name, is_sum, column))
    groups = _Groups(frame, by, columns, is_sorted)
    return groups.frame({name: (groups.sums if is_sum else groups.counts)[at] for name, is_sum, at in wanted})


def method_of(function: Any) -> str | None:
    """Return the name of the method that a function of groups calls; None if it does more."""
    return function.method if type(function) is methodcaller else None


def _is_sum(function: Any) -> bool | None:
    """Return whether a function of groups is the sum; None if it is not the count either."""
    return {"sum": True, "count": False}.get(method_of(function) or "")


def _means(frame: Any, by: Sequence[str], named: dict[str, Any], is_sorted: bool) -> Any:
    """Return the sums and counts of means."""
    groups = _Groups(frame, by, _others(frame, by), is_sorted)
    counts = {f"{label}-count": counts for label, counts in groups.counts.items()}
    # Otherwise two columns have one label.
    return groups.frame({**groups.sums, **counts}) if counts.keys().isdisjoint(groups.sums) else None


def _variances(frame: Any, by: Sequence[str], named: dict[str, Any], is_sorted: bool) -> Any:
    """Return the sums, sums of squares and counts of variances."""
    others = _others(frame, by)
    squared = {(label, "-x2"): values**2 for label, values in others.items()}
    groups = _Groups(frame, by, {**others, **squared}, is_sorted)
    sums, squares, counts = [
        groups.frame({label: found[place] for label, place in zip(others, places, strict=True)})
        for found, places in ((groups.sums, others), (groups.sums, squared), (groups.counts, others))
    ]
    return _with_marks(sums, squares, counts)


def _variances_at_once(
    frame: Any, by: Sequence[str], numeric_only: Any = None, observed: Any = False, dropna: Any = True
) -> Any:
    """Return what `_variances` does by pandas, grouping rows once; Dask groups a squared copy again."""
    others = _others(frame, by)
    dtypes = [values.dtype for values in others.values()]
    if not others or not all(isinstance(dtype, np.dtype) and dtype.kind in "iuf" for dtype in dtypes):
        raise ValueError("a column has no numbers")
    pandas: Any = sys.modules["pandas"]
    squares = (frame[[*others]] ** 2).set_axis([f"{label}²" for label in others], axis=1)
    if not set(squares).isdisjoint(frame):
        raise ValueError("a column has the name of a square")
    keys = by[0] if len(by) == 1 else list(by)
    groups = pandas.concat([frame, squares], axis=1).groupby(keys, observed=observed, dropna=dropna)
    if groups._grouper.is_monotonic:
        raise ValueError("pandas adds up slices in a way that depends on other columns in the same array")
    sums, counts = groups[[*others]].sum(), groups[[*others]].count()
    return _with_marks(sums, groups[[*squares]].sum().set_axis(sums.columns, axis=1), counts)


def _with_marks(sums: Any, squares: Any, counts: Any) -> Any:
    """Return sums, sums of squares and counts as one frame, with Dask's names."""
    parts = [
        sums,
        squares.rename(columns=lambda label: (label, "-x2")),
        counts.rename(columns=lambda label: (label, "-count")),
    ]
    return sys.modules["pandas"].concat(parts, axis=1)


@cache
def _adds_as_pandas() -> bool:
    """Return whether this version of pandas compensates errors of sums as the native loop does."""
    pandas: Any = sys.modules["pandas"]
    keys, values = np.arange(999) % 3, np.random.default_rng(0).normal(size=999) * 10.0 ** (np.arange(999) % 17)
    values[::10] = np.nan
    found = key_totals((keys,), (values,), 3)
    return found is not None and bool(
        (pandas.Series(values).groupby(keys).sum().to_numpy() == found[2][0][0]).all()
    )


#: Replacements of Dask's functions: by a native loop, and by pandas where that loop does not suit the keys.
_REPLACED: dict[str, tuple[Callable[..., Any], Callable[..., Any] | None]] = {
    "SingleAggregation.chunk": (_single, None),
    "_groupby_apply_funcs": (_several, None),
    "_mean_chunk": (_means, None),
    "_var_chunk": (_variances, _variances_at_once),
}
