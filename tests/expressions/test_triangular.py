"""The triangular factor is NumPy's but for rounding, its signs included."""

from __future__ import annotations

import operator
from typing import Any

import dask.array as da
import numpy as np
import pytest

from dask_mars.expressions import triangular
from dask_mars.expressions.partial_results import RItem
from dask_mars.expressions.rewrite import with_expressions
from dask_mars.expressions.triangular import triangular_factor
from dask_mars.graph.chunks import Operand, Step

needs_it = pytest.mark.skipif(triangular._checked() is None, reason="NumPy's LAPACK does not have it")


def random(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


@needs_it
@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((2048, 8), "F"),
        ((3000, 15), "strided"),
        ((500, 257), "C"),
    ],
)
def test_it_is_numpys_but_for_rounding(shape: tuple[int, int], layout: str) -> None:
    matrix = (
        random(shape[0], 2 * shape[1])[:, ::2] if layout == "strided" else np.array(random(*shape), order=layout)
    )
    before = matrix.copy()
    found = triangular_factor(matrix)
    expected = np.linalg.qr(matrix, mode="r")
    assert found is not None
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(matrix, before)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


@needs_it
@pytest.mark.parametrize("scale", [1e-300, 1e-310, 1e150])
def test_sizes_of_numbers(scale: float) -> None:
    matrix = random(1000, 20) * scale
    found = triangular_factor(matrix)
    assert found is not None
    np.testing.assert_allclose(found / scale, np.linalg.qr(matrix, mode="r") / scale, rtol=0, atol=1e-6)


@needs_it
def test_columns_that_depend_on_each_other() -> None:
    matrix = random(2000, 12)
    matrix[:, 5], matrix[:, 7] = 0.0, matrix[:, 3]
    found = triangular_factor(matrix)
    assert found is not None
    np.testing.assert_allclose(found.T @ found, matrix.T @ matrix, rtol=0, atol=1e-10 * len(matrix))


@pytest.mark.parametrize(
    "matrix",
    [
        random(20, 10),
        random(10_000, 3),
        random(50, 400),
        random(2000, 20).astype("f4"),
        random(2000, 20) * 1j,
        random(2000, 20).astype(">f8"),
        random(3, 2000, 20),
        np.where(np.arange(40_000).reshape(2000, 20) == 777, np.nan, 1.0),
        np.where(np.arange(40_000).reshape(2000, 20) == 777, np.inf, 1.0),
    ],
)
def test_what_is_left_to_numpy(matrix: Any) -> None:
    assert triangular_factor(matrix) is None


def test_without_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triangular, "_NAMES", ("no_such_function",))
    triangular._checked.cache_clear()
    try:
        assert triangular_factor(random(2000, 20)) is None
    finally:
        triangular._checked.cache_clear()


def test_it_is_numpys_where_sums_are_not_reordered() -> None:
    steps = (Step(0, (0,), ()), Step(1, (2, 1), ()), Step(2, (3,), ()))
    plain = Operand("r", (np.linalg.qr, operator.getitem, np.abs), steps, 1, 1)
    found = with_expressions(plain, reductions=False)
    assert any(isinstance(function, RItem) for function in found.functions)
    matrix = random(2000, 20)
    np.testing.assert_array_equal(found.run([matrix], (1,)), plain.run([matrix], (1,)))


def test_singular_values(get: Any) -> None:
    x = da.random.default_rng(3).random((8_000, 20), chunks=(2000, 20))
    for part in (da.linalg.svd(x)[1], da.linalg.qr(x)[1]):
        np.testing.assert_allclose(part.compute(scheduler=get), part.compute(scheduler="sync"), rtol=1e-9)
