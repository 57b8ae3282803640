"""Sums and sums of squared differences to the mean, read once: as exact as Dask's, or left to Dask."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask.array import reductions
from hypothesis import given
from hypothesis import strategies as st

from dask_mars.expressions import native
from dask_mars.expressions.draws import DASK_FUNCTION, Draw, lazy_random_chunk
from dask_mars.expressions.moments import by_columns
from dask_mars.expressions.rewrite import Moments

pytestmark = pytest.mark.skipif(native.moments is None, reason="there is no native extension")

F8 = np.dtype("f8")
FUNCTION = partial(reductions.moment_chunk, implicit_complex_dtype=False, dtype=F8)


def exact(values: np.ndarray[Any, Any], axis: Any) -> tuple[Any, Any]:
    """Return both as exactly as the longest numbers allow."""
    long = values.astype(np.longdouble)
    mean = long.mean(axis=axis, keepdims=True)
    return long.sum(axis=axis, keepdims=True), ((long - mean) ** 2).sum(axis=axis, keepdims=True)


def near(found: tuple[Any, Any] | None, values: np.ndarray[Any, Any], axis: Any, rtol: float = 1e-12) -> None:
    assert found is not None
    for got, expected in zip(found, exact(values, axis), strict=True):
        assert (got.dtype, got.shape) == (F8, expected.shape)
        np.testing.assert_allclose(got, expected.astype("f8"), rtol=rtol, atol=1e-300)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.integers(0, 4),
    st.sampled_from([0.0, 3.0, -1e6]),
    st.integers(0, 2**32 - 1),
)
def test_any_shape(shape, count, offset, seed):
    axis = tuple(range(min(count, len(shape))))
    values = np.random.default_rng(seed).random(shape) + offset
    found = by_columns(values, axis, F8)
    columns = int(np.prod(shape[len(axis) :]))
    if len(axis) < len(shape) and columns < 16:
        assert found is None
    else:
        # Two numbers near a million may differ little.
        near(found, values, axis, rtol=1e-11)


@pytest.mark.parametrize("shape", [(1000, 700), (40_001,), (17, 513, 3), (1, 100_000), (300_000, 1), (3, 20_000)])
def test_of_all_and_of_columns(shape):
    values = np.random.default_rng(1).standard_normal(shape) * 7 + 1000
    for axis in (None, 0, (0,), tuple(range(len(shape))), tuple(range(len(shape)))[::-1]):
        found = by_columns(values, axis, F8)
        if found is not None:
            near(found, values, axis)
    assert by_columns(values, None, F8) is not None


def test_what_is_far_from_zero_loses_nothing():
    values = np.random.default_rng(2).random((5000, 32)) + 1e9
    near(by_columns(values, 0, F8), values, 0)


@pytest.mark.parametrize("trouble", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize("axis", [0, None])
def test_what_is_not_finite_warns_as_numpy_does(trouble, axis):
    values = np.ones((400, 100))
    values[7, 3] = trouble
    assert by_columns(values, axis, F8) is None
    axes = (0,) if axis == 0 else (0, 1)
    with warnings.catch_warnings(record=True) as ours:
        warnings.simplefilter("always")
        got = Moments(FUNCTION)(values, axes, True)
    with warnings.catch_warnings(record=True) as theirs:
        warnings.simplefilter("always")
        expected = FUNCTION(values, axis=axes, keepdims=True)
    assert {str(w.message) for w in ours} == {str(w.message) for w in theirs}
    for name in expected:
        np.testing.assert_array_equal(got[name], expected[name])


@pytest.mark.parametrize(
    ("values", "axis"),
    [
        (np.ones((50, 50), "f4"), 0),
        (np.ones((50, 50), "i8"), 0),
        (np.ones((50, 50), ">f8"), 0),
        (np.ones((50, 50)).T[::2], 0),
        (np.asfortranarray(np.ones((50, 50))), 0),
        (np.ones((50, 50)), 1),
        (np.ones((50, 50)), -1),
        (np.ones((50, 20, 50)), (0, 2)),
        (np.ones((50, 3)), 0),
        (np.ones((0, 50)), 0),
        (np.ma.ones((50, 50)), 0),
    ],
    ids=str,
)
def test_other_ways_are_taken_for_the_rest(values, axis):
    assert by_columns(values, axis, F8) is None
    assert by_columns(np.ones((50, 50)), 0, np.dtype("f4")) is None


@pytest.mark.parametrize("shape", [(500, 300), (70, 30, 20), (40_001,), (2, 30_000)])
def test_of_random_numbers_that_are_never_stored(shape, monkeypatch):
    arguments = (np.random.PCG64, "random", np.random.SeedSequence(7), shape, [], {})
    drawn = lazy_random_chunk(*arguments)
    assert type(drawn) is Draw
    values = DASK_FUNCTION(*arguments)
    made = []
    monkeypatch.setattr(Draw, "array", lambda self: made.append(self) or values)
    for axes in [tuple(range(count)) for count in range(1, len(shape) + 1)]:
        near(by_columns(drawn, axes, F8), values, axes)
    assert not made


def test_a_standardised_array(get):
    x = da.random.default_rng(3).random((600, 400), chunks=(200, 200)) + 5
    for made in (x.std(axis=0), x.var(), ((x - x.mean(axis=0)) / x.std(axis=0)).max(), x.std(axis=1)):
        ours = made.compute(scheduler=get)
        np.testing.assert_allclose(ours, made.compute(scheduler="synchronous"), rtol=1e-12)


def test_bad_arguments():
    good = np.ones(40), np.zeros(10), np.zeros(10), np.zeros(10)
    native.moments(*good)
    frozen = np.zeros(10)
    frozen.flags.writeable = False
    for place, wrong in [
        (0, np.ones((4, 10))),
        (0, np.ones(40, "f4")),
        (1, frozen),
        (2, np.zeros(20)[::2]),
        (0, 5),
    ]:
        with pytest.raises(TypeError):
            native.moments(*[wrong if at == place else value for at, value in enumerate(good)])
    for place, wrong in [(0, np.ones(41)), (2, np.zeros(0)), (1, np.zeros(11)), (3, np.zeros(11))]:
        with pytest.raises(ValueError, match="rows"):
            native.moments(*[wrong if at == place else value for at, value in enumerate(good)])
