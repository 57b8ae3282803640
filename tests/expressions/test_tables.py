"""Sums of chunks whose rows are apart: NumPy's to the last bit, or left to NumPy."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_mars
from dask_mars.expressions import native, tables
from tests.conftest import shared

pytestmark = pytest.mark.skipif(
    native.table_sum is None or not tables._is_numpys_order(np.dtype("f8")),
    reason="this NumPy adds in another order",
)


@pytest.fixture(scope="module")
def in_threads() -> Iterator[Any]:
    """Compute in threads of this process, where calls are seen."""
    with dask_mars.Runtime(2) as runtime, shared(runtime):
        da.ones(2, chunks=1).sum().compute(scheduler=runtime.get)
        yield runtime.get


def numbers(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return numbers whose sum depends on their order."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape) * 10.0 ** rng.integers(-8, 8, shape)


@given(
    st.integers(1, 40), st.integers(8, 9_000), st.integers(1, 100), st.integers(0, 1 << 32), st.sampled_from("fd")
)
def test_any_table(rows, length, gap, seed, dtype):
    table = numbers(rows, length + gap, seed=seed).astype(dtype)[:, :length]
    assert native.table_sum(table, max(1, 8_192 // length)) == table.sum()


@pytest.mark.parametrize(
    ("array", "chunks", "is_table"),
    [
        (numbers(2_000, 2_000), 1_000, True),
        (numbers(2_000, 2_000).T, 1_000, True),
        (numbers(200, 300, 50), (100, 100, 50), True),
        (numbers(2_000, 1, 2_000), (500, 1, 1_500), True),
        (numbers(2_000, 2_000), (500, 2_000), False),
        (numbers(2_000, 400), (1_000, 200), False),
        (numbers(2_000, 2_000).astype("f4"), 1_000, True),
    ],
)
def test_arrays_of_the_program(in_threads, array, chunks, is_table):
    x = da.from_array(array, chunks=chunks)
    for reduced in (x.sum(), x.mean(), x.sum(keepdims=True)):
        with mock.patch.object(native, "table_sum", wraps=native.table_sum) as table_sum:
            found = reduced.compute(scheduler=in_threads)
        expected = reduced.compute(scheduler="threads")
        assert type(found) is type(expected)
        assert np.array_equal(found, expected)
        assert table_sum.called == is_table


@pytest.mark.parametrize(("value", "message"), [(1e308, "overflow"), (np.inf, None), (np.nan, None)])
def test_what_warns_is_left_to_numpy(in_threads, value, message):
    array = np.full((1_000, 1_000), value)
    array[500:, :500] *= -1
    x = da.from_array(array, chunks=500)
    told = []
    for scheduler in (in_threads, "threads"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            told.append((str(x.sum().compute(scheduler=scheduler)), {str(each.message) for each in caught}))
    assert told[0] == told[1]
    assert any(message in text for text in told[0][1]) if message else True


def test_other_buffers(in_threads):
    array = numbers(1_000, 1_000)
    x = da.from_array(array, chunks=500)
    size = np.setbufsize(1 << 14)
    try:
        assert x.sum().compute(scheduler=in_threads) == x.sum().compute(scheduler="threads")
    finally:
        np.setbufsize(size)
