"""Running sums by rows: the same numbers, to the bit, types and warnings as by NumPy's functions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_mars.worker import running_sums
from dask_mars.worker.running_sums import running_sums as substitute

FUNCTIONS = [np.cumsum, np.cumprod, np.nancumsum, np.nancumprod]
DTYPES = ["?", "i1", "u2", "i8", "u8", "f2", "f4", "f8", "c8", "c16", "m8[s]", "O"]


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    shape = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 7, 16, 40]), max_size=3)))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    values = np.asarray(random.standard_normal(shape) * 10)
    values = values.astype("i8" if dtype.kind in "mO" else "f8").astype(dtype)
    if dtype.kind in "fc" and values.size:
        for value in draw(st.lists(st.sampled_from([np.nan, np.inf, -np.inf, -0.0, 6e4]), max_size=4)):
            values[tuple([random.integers(length) for length in shape])] = value
    if draw(st.booleans()):
        values = values.T
    if draw(st.booleans()):
        values = values[..., ::-1] if values.ndim else values
    return values


def result_of(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = function(*arguments, **named)
        except Exception as error:
            value = error
    return value, sorted([str(warning.message) for warning in caught])


@given(
    values=arrays(),
    axis=st.sampled_from([None, 0, 1, 2, -1, -2]),
    dtype=st.sampled_from([None, "f4", "f8", "i8", "u8", "c16"]),
    number=st.integers(0, len(FUNCTIONS) - 1),
)
def test_sums_are_as_numpy_has_them(values: Any, axis: int | None, dtype: str | None, number: int) -> None:
    function = FUNCTIONS[number]
    expected, warned = result_of(function, values, axis=axis, dtype=dtype)
    found, said = result_of(substitute(function), values, axis=axis, dtype=dtype)
    assert said == warned
    if isinstance(expected, Exception):
        assert (type(found), str(found)) == (type(expected), str(expected))
        return
    assert found.dtype == expected.dtype
    if expected.dtype == object:
        assert found.tolist() == expected.tolist()
    else:
        assert found.tobytes() == expected.tobytes() or np.array_equal(found, expected, equal_nan=True)


def test_rows_are_added_where_lines_go_through_all_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(1).random((30, 40, 50))
    for array, axis, by_rows in (
        (values, 0, True),
        (values, 1, True),
        (values, -2, True),
        (values, 2, False),
        (np.asfortranarray(values), 0, False),
        (np.asfortranarray(values), 2, True),
        (values[:, :2, :2], 0, False),
        (values[:, :, :8], 1, False),
    ):
        assert running_sums._has_long_rows(array, axis) == by_rows


@pytest.mark.parametrize(
    ("function", "dtype"),
    [*[(np.cumsum, dtype) for dtype in ("f4", "f8", "i8", "?", "m8[s]", "V8", "no such type")]]
    + [(function, "f8") for function in FUNCTIONS[1:]],
)
def test_a_cast_that_loses_something_is_said_once(function: Any, dtype: str) -> None:
    # Of which neighbours lie far apart, so that rows would be added.
    values = (np.arange(560).reshape(2, 7, 40) * (1 + 1j)).astype("c8").T
    (expected, warned), (found, said) = [
        result_of(kind, values, axis=2, dtype=dtype) for kind in (function, substitute(function))
    ]
    assert said == warned
    assert str(found) == str(expected)


def test_overflow_is_said_as_numpy_says_it() -> None:
    values = np.full((3, 200), 1e308)
    with pytest.warns(RuntimeWarning, match="overflow encountered in accumulate"):
        assert np.isinf(substitute(np.cumsum)(values, axis=0)[-1]).all()
    with np.errstate(over="raise"), pytest.raises(FloatingPointError, match="overflow encountered in accumulate"):
        substitute(np.cumsum)(values, axis=0)
    with warnings.catch_warnings(), np.errstate(over="ignore"):
        warnings.simplefilter("error")
        substitute(np.cumsum)(values, axis=0)


def test_others_are_left_alone() -> None:
    class Unhashable:
        __hash__ = None

        def __call__(self) -> None:
            pass

    for function in (np.sum, abs, Unhashable(), lambda: None):
        assert substitute(function) is function


@pytest.mark.parametrize(("name", "method"), [("cumsum", "sequential"), ("nancumprod", "blelloch")])
def test_of_arrays(get: Callable[..., Any], name: str, method: str) -> None:
    values = np.random.default_rng(3).random((60, 50)) + 0.5
    values[7, 8] = np.nan
    array = da.from_array(values, chunks=(20, 25))
    result = getattr(da, name)(array, axis=0, method=method)
    expected = result.compute(scheduler="threads")
    np.testing.assert_array_equal(result.compute(scheduler=get), expected, strict=True)
