"""Results lie in memory as NumPy's do, and what NumPy refuses or warns of is NumPy's own."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from dask.array import chunk as dask_chunk

from dask_mars.expressions import evaluate
from dask_mars.expressions.rewrite import with_expressions
from dask_mars.optimize.programs import make_tuple
from tests.expressions.test_expressions import program


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluate arrays of any size by blocks."""
    monkeypatch.setattr(evaluate, "SMALL", 1)


ROWS = np.arange(600.0).reshape(20, 30)
BOXES = np.arange(480.0).reshape(4, 6, 20)
FIRST: dict[str, tuple[Any, ...]] = {
    "add": (operator.add, (0, 1)),
    "maximum": (np.maximum, (1, 0)),
    "where": (np.where, (4, 0, 1)),
    "astype": (dask_chunk.astype, (0, 2), ("astype_dtype",)),
}


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize(
    "arrays",
    [
        (np.broadcast_to(ROWS[0], (20, 30)), 1.5),
        (np.broadcast_to(ROWS[:, :1], (20, 30)), 1.5),
        (np.broadcast_to(ROWS[0], (20, 30)), np.asfortranarray(ROWS)),
        (np.asfortranarray(ROWS), np.asfortranarray(ROWS)[:, ::-1]),
        (np.asfortranarray(ROWS), ROWS[:1]),
        (np.asfortranarray(ROWS), ROWS),
        (ROWS[:, :1], ROWS[0]),
        (np.asfortranarray(BOXES), BOXES[0]),
        (np.asfortranarray(BOXES), np.asfortranarray(BOXES)[0]),
        (BOXES, np.asfortranarray(BOXES)[0]),
        (np.broadcast_to(BOXES[0, 0, 0], BOXES.shape), np.asfortranarray(BOXES)[0]),
        (np.broadcast_to(np.asfortranarray(BOXES[:1]), BOXES.shape), 2.5),
    ],
)
def test_strides_are_numpys(first: str, arrays: tuple[Any, Any]) -> None:
    plain = program(4, (operator.gt, (0, 3)), FIRST[first], (operator.mul, (5, 1)), (make_tuple, (4, 5, 6)))
    values = [*arrays, "f4", 3.0]
    found, expected = with_expressions(plain).run(list(values), ()), plain.run(list(values), ())
    assert [each.strides for each in found] == [each.strides for each in expected]
    assert [each.tobytes() for each in found] == [each.tobytes() for each in expected]


def test_totals_lie_as_numpys() -> None:
    plain = program(3, (operator.mul, (0, 0)), (np.sum, (3, 1, 2), ("axis", "keepdims")))
    for array in (BOXES, np.asfortranarray(BOXES)):
        for axis in range(3):
            found, expected = [each.run([array, axis, True], ()) for each in (with_expressions(plain), plain)]
            assert (found.flags.c_contiguous, found.flags.f_contiguous) == (
                expected.flags.c_contiguous,
                expected.flags.f_contiguous,
            )


@pytest.mark.parametrize("function", [np.sum, np.max, np.any, np.nansum])
@pytest.mark.parametrize("axis", [2, -3, (0, 0), (0, -2), [0], True, 1.0, np.int64(1), (), "0"])
def test_axes_that_numpy_may_refuse(function: Callable[..., Any], axis: Any) -> None:
    _same_error(
        program(3, (operator.mul, (0, 0)), (function, (3, 1, 2), ("axis", "keepdims"))), [ROWS, axis, True]
    )


@pytest.mark.parametrize("keepdims", [None, 1, np.True_, "no", 2.5])
def test_keepdims_of_other_types(keepdims: Any) -> None:
    _same_error(program(3, (operator.mul, (0, 0)), (np.sum, (3, 1, 2), ("axis", "keepdims"))), [ROWS, 0, keepdims])


def _same_error(plain: Any, values: list[Any]) -> None:
    outcomes = []
    for operand in (with_expressions(plain), plain):
        try:
            outcomes.append(operand.run(list(values), ()).tolist())
        except (TypeError, ValueError) as error:
            outcomes.append((type(error), str(error)))
    assert outcomes[0] == outcomes[1]


def test_lost_imaginary_parts_are_warned_of_once_each() -> None:
    plain = program(
        4,
        (operator.mul, (0, 0)),
        (dask_chunk.astype, (4, 3), ("astype_dtype",)),
        (partial(np.sum, dtype="f8"), (4, 1, 2), ("axis", "keepdims")),
        (make_tuple, (5, 6)),
    )
    counts = []
    for operand in (plain, with_expressions(plain)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            operand.run([ROWS * 1j, None, True, "f4"], ())
        counts.append([entry.category.__name__ for entry in caught])
    assert counts[0] == counts[1] == ["ComplexWarning"] * 2
