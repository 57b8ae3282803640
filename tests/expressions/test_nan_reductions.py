"""Reductions that leave out what is no number, in one pass: Dask's values, types, warnings and errors."""

from __future__ import annotations

import itertools
import warnings
from functools import partial
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.array import reductions
from dask.array.reductions import mean_chunk, moment_chunk, nannumel
from hypothesis import given
from hypothesis import strategies as st

from dask_mars.expressions import evaluate, native
from dask_mars.expressions.evaluate import RegionFunction
from dask_mars.expressions.partial_results import MeanOfMoments
from dask_mars.expressions.rewrite import Moments, with_expressions
from dask_mars.graph.chunks import Operand, Step

AXES = ("axis", "keepdims")
NANS = {"sum": np.nansum, "numel": nannumel}
FUNCTIONS: dict[str, Any] = {
    "nansum": np.nansum,
    "nansum of a type": partial(np.nansum, dtype="f8"),
    "nanmean": partial(mean_chunk, **NANS, dtype="f8"),
    "nanmean of float32": partial(mean_chunk, **NANS, dtype="f4"),
    "nanmin": reductions._nanmin_skip,
    "nanmax": reductions._nanmax_skip,
    "nanvar": partial(moment_chunk, **NANS, dtype="f8", implicit_complex_dtype=False),
}
native_only = pytest.mark.skipif(not native.AVAILABLE, reason="there is no native extension")


@pytest.fixture(autouse=True)
def small_arrays_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "SMALL", 1)
    monkeypatch.setattr("dask_mars.expressions.rewrite.SMALL", 1)


def program(*functions: Any) -> Operand:
    """Return an operand whose steps reduce its one input; all are in its result."""
    steps = [Step(number, (0, 1, 2), AXES) for number in range(len(functions))]
    steps.append(Step(len(functions), tuple(range(3, 3 + len(functions))), ()))
    return Operand("test", (*functions, collected), tuple(steps), 3, 0)


def collected(*values: Any) -> tuple[Any, ...]:
    return values


def called(function: Any, *args: Any) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = function(*args)
        except Exception as error:
            result = type(error), str(error)
    return result, sorted({str(warning.message) for warning in caught})


def assert_alike(ours: Any, expected: Any, tolerance: float) -> None:
    assert type(ours) is type(expected)
    if isinstance(expected, (tuple, list)):
        assert len(ours) == len(expected)
        for one, other in zip(ours, expected, strict=True):
            assert_alike(one, other, tolerance)
    elif isinstance(expected, dict):
        assert list(ours) == list(expected)
        for name in expected:
            assert_alike(ours[name], expected[name], tolerance)
    elif isinstance(expected, (np.ndarray, np.generic)):
        assert (ours.dtype, ours.shape) == (expected.dtype, expected.shape)
        if expected.dtype == object:
            np.testing.assert_array_equal(ours, expected)
        else:
            np.testing.assert_allclose(ours, expected, rtol=tolerance, atol=tolerance * 100)
    else:
        assert ours == expected


def check(values: Any, axis: Any, keepdims: bool, names: Any = tuple(FUNCTIONS)) -> Operand:
    operand = program(*[FUNCTIONS[name] for name in names])
    rewritten = with_expressions(operand)
    inputs = [values, axis, keepdims]
    ours, our_warnings = called(rewritten.run, list(inputs), ())
    expected, warned = called(operand.run, list(inputs), ())
    is_single = getattr(values, "dtype", None) in (np.dtype("f4"), np.dtype("f2"))
    assert_alike(ours, expected, 1e-4 if is_single or "nanmean of float32" in names else 1e-11)
    assert our_warnings == warned
    return rewritten


def values_of(kind: str, dtype: str, shape: tuple[int, ...]) -> Any:
    rng = np.random.default_rng(len(kind))
    values = (rng.random(shape) * 100 - 20).astype(dtype)
    if values.dtype.kind in "fc":
        if kind == "some":
            values[rng.random(shape) < 0.3] = np.nan
        elif kind == "all":
            values[...] = np.nan
        elif kind == "a column":
            values[..., 0] = np.nan
        elif kind == "infinite":
            values.flat[:: max(1, values.size // 3)] = np.inf
            values[..., -1] = np.nan
        elif kind == "both infinities":
            values.flat[0], values.flat[-1] = np.inf, -np.inf
        elif kind == "zeros":
            values[...] = -0.0
    return values


KINDS = ["none", "some", "all", "a column", "infinite", "both infinities", "zeros"]


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *itertools.product(KINDS, ["f8"]),
        *itertools.product(["some"], ["f4", "c16"]),
        *itertools.product(["none"], ["i4", "?"]),
        *[pytest.param(*each, marks=pytest.mark.slow) for each in itertools.product(KINDS, ["f4", "f2", "c16"])],
    ],
)
def test_values_types_and_warnings_are_dasks(kind: str, dtype: str) -> None:
    # As there are eight axes, each function meets each of the six in some of the cases.
    keepdims, layouts = itertools.cycle([True, False]), itertools.cycle(range(3))
    for shape, axes in [((70, 90), [None, 0, 1, (0, 1)]), ((9, 8, 7), [(0, 2), 1, (1, 2)]), ((5000,), [0])]:
        values = values_of(kind, dtype, shape)
        laid = [values, np.asfortranarray(values), values[::2]]
        for name, axis in itertools.product(FUNCTIONS, axes):
            check(laid[next(layouts)], axis, next(keepdims), [name])


@native_only
@pytest.mark.parametrize("kind", KINDS)
def test_several_share_a_pass(kind: str) -> None:
    rewritten = check(values_of(kind, "f8", (200, 300)), (0,), True, ["nansum", "nanmin", "nanmax", "nanmean"])
    regions = [function for function in rewritten.functions if isinstance(function, RegionFunction)]
    assert len(regions) == 1
    if kind == "some":
        (plan,) = regions[0]._plans.values()
        assert plan is not None
        assert type(plan.kernel) is native.NativePlan


@native_only
def test_a_chain_ends_in_them() -> None:
    x = values_of("some", "f8", (300, 200))
    steps = (Step(0, (0, 0), ()), Step(1, (3, 1, 2), AXES))
    for name in FUNCTIONS:
        operand = Operand("test", (np.multiply, FUNCTIONS[name]), steps, 3, 0)
        rewritten = with_expressions(operand)
        assert_alike(rewritten.run([x, 0, True], ()), operand.run([x, 0, True], ()), 1e-4)
        if name not in ("nanvar",):
            assert [type(function) for function in rewritten.functions if function is not np.multiply] == [
                RegionFunction
            ]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_without_the_extension(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "AVAILABLE", False)
    for dtype in ("f8", "i4"):
        values = values_of("some", dtype, (300, 400))
        steps = (Step(0, (0, 0), ()), Step(1, (3, 1, 2), AXES))
        for operand in (Operand("test", (np.multiply, FUNCTIONS[name]), steps, 3, 0), program(FUNCTIONS[name])):
            for axis in (None, 1, (0, 1)):
                ours = with_expressions(operand).run([values, axis, True], ())
                assert_alike(ours, operand.run([values, axis, True], ()), 1e-4)


def test_sums_in_single_precision_along_axes_apart_are_numpys() -> None:
    values = np.random.default_rng(0).standard_normal((6, 18, 5, 30, 4)).astype("f4")
    for name in ("nansum", "nanmean of float32"):
        for axis in ((2, 4), (1, 3), (4,), (2,), (0,), (0, 1)):
            operand = program(FUNCTIONS[name])
            ours, expected = (one.run([values, axis, True], ())[0] for one in (with_expressions(operand), operand))
            if isinstance(expected, dict):
                ours, expected = ours["total"], expected["total"]
            assert ours.tobytes() == expected.tobytes()


@native_only
def test_rows_that_are_short_are_added_up_natively() -> None:
    rng = np.random.default_rng(0)
    total = partial(np.sum, dtype="f8")
    for shape, axis, native_too in [
        ((3000, 100), 1, True),
        ((7, 50, 30), 2, True),
        ((7, 5, 9, 30), (2, 3), True),
        ((300, 1000), 1, False),
        ((300, 100), 0, False),
        ((300, 100), None, False),
        ((5000, 1), 1, False),
    ]:
        values = rng.standard_normal(shape)
        for laid in (values, values[::2], np.asfortranarray(values), values[..., ::-1]):
            rewritten = check_sum(total, laid, axis)
            (region,) = rewritten.functions
            assert isinstance(region, RegionFunction)
            if laid is values:
                assert any(plan is not None for plan in region._plans.values()) is native_too


def check_sum(total: Any, values: Any, axis: Any) -> Operand:
    operand = Operand("test", (total,), (Step(0, (0, 1, 2), AXES),), 3, 0)
    rewritten = with_expressions(operand)
    for keepdims in (True, False):
        inputs = [values, axis, keepdims]
        assert_alike(rewritten.run(list(inputs), ()), operand.run(list(inputs), ()), 1e-12)
    return rewritten


def test_objects_are_left_to_dask() -> None:
    masked = np.ma.masked_greater(np.arange(60.0).reshape(6, 10), 50)
    for values in (masked, np.arange(9).astype(object), [1.0, np.nan]):
        for name in ("nansum", "nanmin"):
            check(values, 0, True, [name])


def test_plain_means_take_no_sums_of_numbers() -> None:
    mean, moments = partial(mean_chunk, dtype="f8"), FUNCTIONS["nanvar"]
    nanmean, plain = FUNCTIONS["nanmean"], partial(moment_chunk, dtype="f8", implicit_complex_dtype=False)
    values = values_of("some", "f8", (100, 60))
    for functions, shares in [
        ((mean, moments), False),
        ((nanmean, plain), False),
        ((nanmean, moments), True),
        ((mean, plain, nanmean, moments), True),
    ]:
        operand = program(*functions)
        rewritten = with_expressions(operand)
        literals = [values, 0, True]
        moved = Operand("test", operand.functions, operand.steps, 1, 2)
        shared = with_expressions(moved)
        assert any(isinstance(f, MeanOfMoments) for f in shared.functions) is shares
        expected = operand.run(list(literals), ())
        assert_alike(rewritten.run(list(literals), ()), expected, 1e-11)
        assert_alike(shared.run([values], (0, True)), expected, 1e-11)


def test_second_moments_of_random_numbers_are_those_of_numbers(get: Any) -> None:
    values = np.random.default_rng(0).random((300, 40))
    moments = Moments(FUNCTIONS["nanvar"])
    expected = FUNCTIONS["nanvar"](values, axis=0, keepdims=True)
    assert_alike(moments(values, 0, True), expected, 1e-11)
    assert_alike(moments(values, 0, False), FUNCTIONS["nanvar"](values, axis=0, keepdims=False), 1e-11)
    x = da.random.default_rng(3).random((900, 700), chunks=(300, 350))
    names = ("nanvar", "nanstd", "nanmean", "nansum", "nanmax")
    reduced = [getattr(da, name)(made, axis=0) for name in names for made in (x, da.where(x > 0.9, np.nan, x))]
    expected = dask.compute(*reduced, scheduler="synchronous")
    for one, other in zip(reduced, expected, strict=True):
        np.testing.assert_allclose(one.compute(scheduler=get), other, rtol=1e-11)


@given(st.data())
def test_any_array(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    elements = st.sampled_from([0.0, -0.0, 1.5, -2.25, np.nan, np.inf, -np.inf, 5e-324, 1e300])
    flat = data.draw(st.lists(elements, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
    with np.errstate(over="ignore"):
        values = np.array(flat).reshape(shape).astype(data.draw(st.sampled_from(["f8", "f8", "f4"])))
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    names = data.draw(st.lists(st.sampled_from(list(FUNCTIONS)), min_size=1, max_size=3, unique=True))
    with np.errstate(all="ignore"):
        operand = program(*[FUNCTIONS[name] for name in names])
        ours = with_expressions(operand).run([values, tuple(axes), True], ())
        assert_alike(ours, operand.run([values, tuple(axes), True], ()), 1e-4)
