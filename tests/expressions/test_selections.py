"""Sums and means of what a mask selects are those of the array that NumPy would make of it."""

from __future__ import annotations

import operator
import warnings
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask.array.core import _enforce_dtype
from dask.array.reductions import mean_chunk

from dask_mars.expressions import native
from dask_mars.expressions.rewrite import with_expressions
from dask_mars.expressions.selections import SelectedSum, with_selected_sums
from dask_mars.graph.chunks import Operand, Step
from tests.symbolic import assert_identical

pytestmark = pytest.mark.skipif(not native.AVAILABLE, reason="the extension was not built")

SIZE = 70_000
NAMES = ("axis", "keepdims")
#: Whole numbers have one sum, however they are added up.
WHOLE: dict[str, Any] = {
    name: np.random.default_rng(1).integers(0, 100, SIZE).astype(name)
    for name in ("u1", "i2", "i4", "i8", "f4", "f8")
}
MASK = np.random.default_rng(2).random(SIZE) > 0.4


def program(select: Any, reduce: Any, names: tuple[str, ...] = ()) -> Operand:
    literals = len(names) + 2
    steps = (
        Step(0, (0, 1, *range(2, 2 + len(names))), names),
        Step(1, (2 + literals, literals, literals + 1), NAMES),
    )
    return Operand("selected", (select, reduce), steps, 2, literals)


def is_rewritten(operand: Operand) -> bool:
    return any(isinstance(function, SelectedSum) for function in operand.functions)


def compare(values: Any, mask: Any, reduce: Any, axis: Any = (0,), keepdims: bool = True) -> None:
    for select, names, literals in (
        (operator.getitem, (), ()),
        (_enforce_dtype, ("enforce_dtype", "enforce_dtype_function"), (values.dtype, operator.getitem)),
    ):
        plain = program(select, reduce, names)
        found = with_expressions(plain)
        assert is_rewritten(found)
        given = (*literals, axis, keepdims)
        with warnings.catch_warnings(record=True) as expected_warnings:
            warnings.simplefilter("always")
            expected = plain.run([values, mask], given)
        with warnings.catch_warnings(record=True) as found_warnings:
            warnings.simplefilter("always")
            result = found.run([values, mask], given)
        # That of a mean is a dictionary.
        assert_identical(
            [*result.values()] if isinstance(result, dict) else result,
            [*expected.values()] if isinstance(expected, dict) else expected,
        )
        assert {str(one.message) for one in found_warnings} == {str(one.message) for one in expected_warnings}


@pytest.mark.parametrize("dtype", WHOLE)
def test_sums_and_means(dtype: str) -> None:
    for axis, keepdims in ((0, True), ((0,), True), ((0,), False), (None, True)):
        compare(WHOLE[dtype], MASK, np.sum, axis, keepdims)
    compare(WHOLE[dtype], MASK, partial(np.sum, dtype="f8"))
    if dtype[0] != "f":
        compare(WHOLE[dtype], MASK, partial(np.sum, dtype="i8"))
    for keepdims in (True, False):
        compare(WHOLE[dtype], MASK, partial(mean_chunk, dtype=np.dtype("f8")), keepdims=keepdims)


def test_fractions_are_rounded_otherwise_at_most() -> None:
    values = np.random.default_rng(3).standard_normal(SIZE)
    found = with_expressions(program(operator.getitem, np.sum)).run([values, MASK], ((0,), True))
    np.testing.assert_allclose(found, values[MASK].sum(keepdims=True), rtol=1e-10)


@pytest.mark.parametrize(
    ("special", "selected"),
    [(np.nan, False), (np.nan, True), (np.inf, True), (-np.inf, False), (-0.0, True), (1e308, True)],
)
def test_special_values(special: float, selected: bool) -> None:
    values = np.where(selected == MASK, special, 1.0) if special != 1e308 else np.full(SIZE, special)
    compare(values, MASK, np.sum)
    if np.isinf(special):
        values[np.flatnonzero(MASK)[5]] = -special
        compare(values, MASK, np.sum)


@pytest.mark.parametrize(
    ("values", "mask"),
    [
        (WHOLE["f8"], np.zeros(SIZE, bool)),
        (WHOLE["f8"], np.ones(SIZE, bool)),
        (WHOLE["f8"].reshape(700, 100), MASK.reshape(700, 100)),
        (WHOLE["f8"].reshape(700, 100).T, MASK.reshape(700, 100).T),
        (WHOLE["f8"], np.flatnonzero(MASK)),
        (WHOLE["f8"], MASK.astype("u1")),
        (WHOLE["f8"][::2], MASK[::2]),
        (WHOLE["f8"][:10], MASK[:10]),
        (WHOLE["f8"] * 1j, MASK),
        (WHOLE["f8"].astype("f2"), MASK),
        (WHOLE["i4"].astype(">i4"), MASK),
        (np.ma.masked_less(WHOLE["f8"], 50), MASK),
        (WHOLE["f8"], slice(3, 9)),
    ],
)
def test_whatever_is_selected(values: Any, mask: Any) -> None:
    compare(values, mask, np.sum)


def test_what_is_read_otherwise_is_made() -> None:
    twice = Operand(
        "twice",
        (operator.getitem, np.sum, operator.mul),
        (Step(0, (0, 1), ()), Step(1, (4, 2, 3), NAMES), Step(2, (4, 5), ())),
        2,
        2,
    )
    assert not is_rewritten(with_selected_sums(twice))
    assert not is_rewritten(with_selected_sums(program(operator.getitem, np.max)))
    assert not is_rewritten(with_expressions(program(operator.getitem, np.sum), reductions=False))


def test_another_dtype_is_enforced() -> None:
    names = ("enforce_dtype", "enforce_dtype_function")
    plain = program(_enforce_dtype, np.sum, names)
    given = (np.dtype("f4"), operator.getitem, (0,), True)
    inputs = [WHOLE["f8"], MASK]
    assert_identical(with_expressions(plain).run([*inputs], given), plain.run([*inputs], given))


def test_by_dask(get: Any) -> None:
    x = da.random.default_rng(1).integers(0, 50, (600, 500), chunks=200)
    y = da.random.default_rng(1).random(300_000, chunks=100_000)
    for part in (x[x > 20].mean(), x[x > 20].sum(), x[x > 100].sum()):
        assert part.compute(scheduler=get) == part.compute(scheduler="sync")
    for part in (y[y > 0.3].mean(), y[y > 0.3].std(), y[y <= 0.3].sum()):
        assert part.compute(scheduler=get) == pytest.approx(part.compute(scheduler="sync"))
