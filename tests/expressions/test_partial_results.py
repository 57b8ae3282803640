"""Functions with several results: what is not read is not made, and the values stay the same."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask.array.linalg import _wrapped_qr
from dask.array.reductions import mean_chunk, moment_chunk

from dask_mars.expressions import evaluate
from dask_mars.expressions.partial_results import MeanOfMoments, RItem
from dask_mars.expressions.rewrite import with_expressions
from dask_mars.graph.chunks import Operand, Step
from tests.symbolic import assert_identical

F8 = np.dtype("f8")
MEAN, MOMENTS = partial(mean_chunk, dtype=F8), partial(moment_chunk, dtype=F8, implicit_complex_dtype=False)
AXES = ("axis", "keepdims")


def program(inputs: int, literals: int, *steps: tuple[Any, ...]) -> Operand:
    return Operand(
        "test",
        tuple(step[0] for step in steps),
        tuple(Step(number, step[1], step[2] if len(step) > 2 else ()) for number, step in enumerate(steps)),
        inputs,
        literals,
    )


def calls(operand: Operand, kind: type) -> int:
    return sum(isinstance(operand.functions[step.function], kind) for step in operand.steps)


def pair(*values: Any) -> tuple[Any, ...]:
    return values


MATRICES = {
    "tall": np.random.default_rng(0).random((50, 7)),
    "wide": np.random.default_rng(1).random((3, 9)),
    "no rows": np.empty((0, 4)),
    "no columns": np.empty((4, 0)),
    "float32": np.random.default_rng(2).random((20, 5)).astype("f4"),
    "complex": np.random.default_rng(3).random((20, 5)) * (1 + 2j),
    "integers": np.arange(12).reshape(4, 3),
    "strided": np.random.default_rng(4).random((40, 12))[::2, ::3],
    "in Fortran order": np.asfortranarray(np.random.default_rng(5).random((20, 6))),
    "denormals": np.random.default_rng(6).random((9, 4)) * 1e-310,
    "infinite": np.array([[1.0, np.inf], [2.0, 3.0]]),
    "not a number": np.array([[1.0, np.nan], [2.0, 3.0], [0.0, 0.0]]),
    "a stack": np.random.default_rng(7).random((3, 5, 2)),
}


@pytest.mark.parametrize("qr", [np.linalg.qr, _wrapped_qr])
@pytest.mark.parametrize("matrix", MATRICES)
def test_r_alone_is_the_same_r(qr, matrix):
    plain = program(1, 1, (qr, (0,)), (operator.getitem, (2, 1)), (np.abs, (3,)))
    found = with_expressions(plain)
    assert calls(found, RItem) == 1
    values = MATRICES[matrix]
    for place in (0, 1, -1):
        try:
            expected = plain.run([values], (place,))
        except Exception as error:
            with pytest.raises(type(error)):
                found.run([values], (place,))
        else:
            assert_identical(found.run([values], (place,)), expected)


def test_q_is_made_where_it_is_read():
    both = program(
        1, 2, (np.linalg.qr, (0,)), (operator.getitem, (3, 1)), (operator.getitem, (3, 2)), (pair, (4, 5))
    )
    whole = program(1, 2, (np.linalg.qr, (0,)), (pair, (3,)))
    last = program(1, 0, (np.negative, (0,)), (np.linalg.qr, (1,)))
    for operand in (both, whole, last):
        assert not calls(with_expressions(operand), RItem)


def test_singular_values_are_the_same(get):
    x = da.random.default_rng(0).random((400, 10), chunks=(100, 10))
    _, values, _ = da.linalg.svd(x)
    assert_identical(values.compute(scheduler=get), values.compute(scheduler="sync"))
    _, r = da.linalg.qr(x)
    assert_identical(r.compute(scheduler=get), r.compute(scheduler="sync"))


ARRAYS = {
    "floats": np.random.default_rng(0).random((30, 8)),
    "float32": np.random.default_rng(1).random((30, 8)).astype("f4"),
    "integers": np.arange(240).reshape(30, 8),
    "booleans": np.arange(240).reshape(30, 8) % 3 == 0,
    "complex": np.random.default_rng(2).random((30, 8)) * 1j,
    "strided": np.random.default_rng(3).random((60, 24))[::2, ::3],
    "empty": np.empty((0, 8)),
    "not a number": np.full((30, 8), np.nan),
    "infinite": np.where(np.arange(240).reshape(30, 8) == 5, np.inf, 1.0),
    "masked": np.ma.array(np.arange(240.0).reshape(30, 8), mask=np.arange(240).reshape(30, 8) % 7 == 0),
}


@pytest.mark.parametrize("moments_first", [True, False])
@pytest.mark.parametrize("axes", [((0,), (0,)), ((0, 1), (0, 1)), ((0,), (1,)), ((1,), (1,))])
def test_the_mean_takes_its_sum_from_the_moments(moments_first, axes, monkeypatch):
    monkeypatch.setattr(evaluate, "SMALL", 1)
    steps = [(MOMENTS, (0, 1, 3), AXES), (MEAN, (0, 2, 3), AXES)]
    plain = program(1, 3, *(steps if moments_first else steps[::-1]), (pair, (4, 5)))
    found = with_expressions(plain)
    assert calls(found, MeanOfMoments) == 1
    assert not calls(with_expressions(plain, reductions=False), MeanOfMoments)
    literals = (*axes, True)
    for kind, array in ARRAYS.items():
        with np.errstate(all="ignore"):
            ours, theirs = found.run([array], literals), plain.run([array], literals)
        for our, their in zip(ours, theirs, strict=True):
            assert our.keys() == their.keys()
            for name in their:
                assert (our[name].dtype, our[name].shape) == (their[name].dtype, their[name].shape), kind
                np.testing.assert_allclose(our[name], their[name], rtol=1e-6, err_msg=kind)


def test_means_of_something_else_are_left_alone():
    other = program(2, 2, (MOMENTS, (0, 2, 3), AXES), (MEAN, (1, 2, 3), AXES), (pair, (4, 5)))
    assert not calls(with_expressions(other), MeanOfMoments)
    computed = program(1, 2, (MEAN, (0, 1, 2), AXES), (MOMENTS, (3, 1, 2), AXES), (pair, (3, 4)))
    assert not calls(with_expressions(computed), MeanOfMoments)
