"""Expressions: the same values, bits, dtypes, warnings and errors as one call after the other."""

from __future__ import annotations

import itertools
import operator
import tracemalloc
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask.array import chunk as dask_chunk
from dask.array import reductions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dask_mars.expressions import evaluate, native, numexprs
from dask_mars.expressions.evaluate import RegionFunction
from dask_mars.expressions.functions import Bound, elementwise
from dask_mars.expressions.native import NativePlan
from dask_mars.expressions.numexprs import NumexprPlan
from dask_mars.expressions.regions import Kind, find_regions
from dask_mars.expressions.rewrite import Moments, with_expressions
from dask_mars.graph.chunks import Operand, Step
from dask_mars.optimize.programs import make_tuple
from dask_mars.worker.fast_operands import made_fast
from tests.conftest import Scripts

#: Minimum elements of a native block.
GRID = 64
EVALUATORS = {"native": NativePlan, "numexpr": NumexprPlan}
DTYPES = ["?", "i1", "u1", "i4", "i8", "u8", "f2", "f4", "f8", "c16"]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut arrays of a few elements into blocks, which the default leaves as they are."""
    monkeypatch.setattr(evaluate, "SMALL", 1)
    monkeypatch.setattr(native, "LEAST_BLOCK", GRID)
    monkeypatch.setattr(native, "MOST_BLOCK", GRID)


@pytest.fixture(params=EVALUATORS)
def evaluator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type:
    """Return the class of plans that is used, with and without the C extension."""
    if request.param == "numexpr":
        pytest.importorskip("numexpr").set_num_threads(1)
        monkeypatch.setattr(native, "AVAILABLE", False)
    elif not native.AVAILABLE:
        pytest.skip("there are no native programs")
    return EVALUATORS[request.param]


def program(inputs: int, *steps: tuple[Any, ...]) -> Operand:
    """Build an operand: each step is a function, its slots, and names for the last of them."""
    return Operand(
        "test",
        tuple(step[0] for step in steps),
        tuple(Step(number, step[1], step[2] if len(step) > 2 else ()) for number, step in enumerate(steps)),
        inputs,
        0,
    )


def regions_of(operand: Operand) -> list[RegionFunction]:
    return [function for function in operand.functions if isinstance(function, RegionFunction)]


def plans_of(operand: Operand) -> list[Any]:
    return [plan for region in regions_of(operand) for plan in region._plans.values()]


def same(got: Any, expected: Any) -> None:
    """Compare bit for bit, not a number included."""
    assert type(got) is type(expected)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert np.ascontiguousarray(got).tobytes() == np.ascontiguousarray(expected).tobytes()


def outcome(operand: Operand, values: list[Any]) -> tuple[Any, list[str]]:
    """Return result or error, and the texts of the warnings."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            result: Any = operand.run(list(values), ())
        except Exception as error:
            result = (type(error), str(error))
    return result, sorted({str(warning.message) for warning in seen})


# -- random programs ------------------------------------------------------------------------------------------

UNARY = [operator.neg, abs, operator.invert, np.sqrt, np.exp, np.isnan, np.sign, np.floor, np.logical_not]
BINARY = [
    *[operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod],
    *[operator.lt, operator.ge, operator.eq, operator.ne, operator.and_, operator.or_, operator.xor],
    *[operator.pow, np.maximum, np.fmin, np.hypot, np.arctan2, np.logical_and, np.copysign],
    *[reductions._cumsum_merge, reductions._cumprod_merge],
]


@st.composite
def programs(draw: st.DrawFn) -> tuple[Operand, list[Any]]:
    shape = draw(st.sampled_from([(400,), (17, 29), (9, 4, 15), (1, 300), (300, 1), (70, 64)]))
    values: list[Any] = []
    for _ in range(draw(st.integers(1, 3))):
        own = tuple(draw(st.sampled_from([length, length, length, 1])) for length in shape)
        own = own[draw(st.integers(0, len(own))) if draw(st.booleans()) else 0 :]
        dtype = draw(st.sampled_from(DTYPES))
        rng = np.random.default_rng(draw(st.integers(0, 99)))
        array = (rng.random(own) * 6 - 2).astype(dtype)
        if dtype[0] == "f" and array.size > 2:
            array.reshape(-1)[:3] = [np.nan, np.inf, -0.0]
        layout = draw(st.sampled_from(["c", "f", "strided", "reversed"]))
        if layout == "f":
            array = np.asfortranarray(array)
        elif layout == "strided" and array.ndim:
            array = np.repeat(array, 2, axis=0)[::2]
        elif layout == "reversed" and array.ndim:
            array = array[::-1]
        values.append(array)
    values += draw(
        st.lists(st.sampled_from([2, 0, -3, 0.5, 2.0, True, 300, np.float32(3), 1j]), min_size=1, max_size=3)
    )
    steps: list[tuple[Any, ...]] = []
    #: Whether each value is an array, or made of one.
    are_arrays = [isinstance(value, np.ndarray) for value in values]
    for _ in range(draw(st.integers(2, 6))):
        slots = st.integers(0, len(values) + len(steps) - 1)
        # What was computed last is used, so that there are chains.
        last = len(values) + len(steps) - 1 if steps else draw(slots)
        kind = draw(st.sampled_from(["unary", "binary", "binary", "where", "astype"]))
        if kind == "unary":
            steps.append((draw(st.sampled_from(UNARY)), (last,)))
        elif kind == "binary":
            pair = (last, draw(slots)) if draw(st.booleans()) else (draw(slots), last)
            function = draw(st.sampled_from(BINARY))
            if function is operator.pow and not any(are_arrays[slot] for slot in pair):
                # Python's own whole numbers grow without end: a tower of three is never done.
                function = operator.mul
            steps.append((function, pair))
        elif kind == "where":
            steps.append((np.where, (last, draw(slots), draw(slots))))
        else:
            values_before = len(values)
            steps.append((dask_chunk.astype, (last, values_before - 1), ("astype_dtype",)))
        are_arrays.append(any(are_arrays[slot] for slot in steps[-1][1]))
    if any(step[0] is dask_chunk.astype for step in steps):
        dtype = np.dtype(draw(st.sampled_from(["f4", "f8", "i4"])))
        # Only casts use the last of the values.
        place = len(values)
        values.append(dtype)
        steps = [
            (
                step[0],
                tuple(
                    place if step[0] is dask_chunk.astype and position == 1 else slot + (slot >= place)
                    for position, slot in enumerate(step[1])
                ),
                *step[2:],
            )
            for step in steps
        ]
    return program(len(values), *steps), values


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=programs())
def test_elementwise_programs(evaluator: type, case: tuple[Operand, list[Any]]) -> None:
    plain, values = case
    expected, warned = outcome(plain, values)
    got, warned_too = outcome(with_expressions(plain), values)
    assert warned_too == warned
    if isinstance(expected, tuple):
        assert isinstance(got, tuple), (
            expected,
            [(plain.functions[step.function], step.slots) for step in plain.steps],
        )
        assert got == expected
    elif isinstance(expected, (np.ndarray, np.generic)):
        same(got, expected)
    else:
        assert (type(got), repr(got)) == (type(expected), repr(expected))


REDUCTIONS: list[Callable[..., Any]] = [
    partial(np.sum, dtype=np.dtype("f8")),
    partial(np.sum, dtype="f4"),
    np.min,
    np.max,
    reductions.chunk_min,
    reductions.chunk_max,
    np.any,
    np.all,
    partial(reductions.mean_chunk, dtype=np.dtype("f8")),
]


def flat(result: Any) -> list[Any]:
    """Return the arrays of a chunk of a reduction."""
    return [result[name] for name in sorted(result)] if isinstance(result, dict) else [result]


@pytest.mark.parametrize("function", REDUCTIONS, ids=range(len(REDUCTIONS)))
def test_reductions_at_the_tail(function: Any, evaluator: type) -> None:
    chain = program(4, (operator.mul, (0, 1)), (operator.sub, (4, 0)), (function, (5, 2, 3), ("axis", "keepdims")))
    arrays = [np.asarray(np.random.default_rng(0).random((6, 11, 5)), order=order) for order in ("C", "F")]
    axes = [None, 0, (1,), (0, 2), (-1,), (0, 1, 2)]
    for x, axis, keepdims in itertools.product(arrays, axes, (True, False)):
        values = [x, 3.0, axis, keepdims]
        rewritten = with_expressions(chain)
        results = flat(rewritten.run(list(values), ())), flat(chain.run(list(values), ()))
        for got, expected in zip(*results, strict=True):
            assert type(got) is type(expected)
            assert (got.dtype, got.shape) == (expected.dtype, expected.shape), (axis, keepdims)
            np.testing.assert_allclose(got, expected, rtol=1e-6 if got.dtype == "f4" else 1e-13)
        assert all(type(plan.kernel) is evaluator and not plan.failures for plan in plans_of(rewritten))
        assert plans_of(rewritten)


@pytest.mark.parametrize("function", REDUCTIONS, ids=range(len(REDUCTIONS)))
def test_what_memory_holds_that_is_not_written_to_yet_warns_nobody(
    function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dirty(shape: Any, dtype: Any = float, *arguments: Any, **keywords: Any) -> np.ndarray:
        dtype = np.dtype(dtype)
        return np.full(shape, 1e300 if dtype == "f8" else 1, dtype)

    monkeypatch.setattr(np, "empty", dirty)
    chain = program(4, (operator.mul, (0, 1)), (operator.sub, (4, 0)), (function, (5, 2, 3), ("axis", "keepdims")))
    rewritten = with_expressions(chain)
    _, seen = outcome(rewritten, [np.random.default_rng(0).random((60, 110)), 3.0, (0, 1), True])
    assert not seen
    assert plans_of(rewritten)


def test_reductions_can_be_switched_off() -> None:
    chain = program(3, (operator.mul, (0, 0)), (operator.add, (3, 0)), (np.sum, (4, 1, 2), ("axis", "keepdims")))
    rewritten = with_expressions(chain, reductions=False)
    assert np.sum in rewritten.functions
    x = np.random.default_rng(0).random((90, 70))
    same(rewritten.run([x, (0,), True], ()), chain.run([x, (0,), True], ()))


# -- what falls back ------------------------------------------------------------------------------------------


class Labelled(np.ndarray):
    """A subclass, as users have them."""


@pytest.mark.parametrize(
    "value",
    [
        np.ma.masked_array(np.arange(6.0), [0, 1, 0, 0, 1, 0]),
        np.arange(6).astype(object),
        np.arange(6).astype(">f8"),
        np.arange(6.0).view(Labelled),
        np.arange(6) * np.timedelta64(1, "s"),
        np.array(3.0),
        np.empty(0),
        5.0,
    ],
    ids=lambda value: f"{type(value).__name__}-{getattr(value, 'dtype', '')}",
)
def test_what_is_no_plain_array_is_computed_as_it_was(value: Any) -> None:
    chain = program(2, (operator.mul, (0, 1)), (operator.add, (2, 0)))
    rewritten = with_expressions(chain)
    assert regions_of(rewritten)
    expected = chain.run([value, 2], ())
    got = rewritten.run([value, 2], ())
    assert type(got) is type(expected)
    assert repr(got) == repr(expected)
    assert getattr(got, "dtype", None) == getattr(expected, "dtype", None)


@pytest.mark.parametrize("how", ["warn", "raise", "ignore"])
def test_numpys_error_state_holds(how: Any, evaluator: type) -> None:
    chain = program(2, (operator.truediv, (1, 0)), (operator.add, (2, 0)))
    rewritten = with_expressions(chain)
    x = np.array([1.0, 0.0, -1.0] * 40)
    with np.errstate(all=how):
        for _ in range(5):
            expected, warned = outcome(chain, [x, 1.0])
            got, warned_too = outcome(rewritten, [x, 1.0])
            assert warned_too == warned
            assert bool(warned) is (how == "warn")
            if how == "raise":
                assert got == expected == (FloatingPointError, "divide by zero encountered in divide")
            else:
                same(got, expected)


def test_an_error_is_numpys_own() -> None:
    chain = program(2, (operator.add, (0, 1)), (operator.mul, (2, 0)))
    small = np.arange(100, dtype="u1")
    for operand in (chain, with_expressions(chain)):
        with pytest.raises(OverflowError, match="300"):
            operand.run([small, 300], ())


def test_an_unhashable_function_is_left_alone() -> None:
    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, x: Any) -> Any:
            return x + 1

    chain = program(1, (operator.neg, (0,)), (Unhashable(), (1,)), (operator.neg, (2,)), (operator.neg, (3,)))
    x = np.arange(60.0)
    same(with_expressions(chain).run([x], ()), chain.run([x], ()))


# -- numexpr --------------------------------------------------------------------------------------------------


@pytest.fixture
def without_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numexpr").set_num_threads(1)
    monkeypatch.setattr(native, "AVAILABLE", False)


def arguments_of(name: str, character: str) -> list[np.ndarray[Any, Any]]:
    """Return arrays with numbers of all kinds for a function of `numexprs.EXACT`."""
    template, _ = numexprs.EXACT[name]
    rng = np.random.default_rng(1)
    arrays: list[np.ndarray[Any, Any]] = [(rng.random(5000) * 2000 - 1000).astype(character) for _ in range(3)]
    if character in "fd":
        extremes = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 3e38, 1.0], character)
        for shift, array in enumerate(arrays):
            array[:64] = np.resize(np.repeat(extremes, 8) if shift == 0 else np.roll(extremes, shift), 64)
    if name == "where":
        arrays[0] = rng.random(5000) > 0.5
    return arrays[: sum(f"{{{number}}}" in template for number in range(3))]


@pytest.mark.usefixtures("without_extension")
@pytest.mark.parametrize("name", numexprs.EXACT)
def test_numexpr_gives_numpys_bits(name: str) -> None:
    function: Any = getattr(np, name)
    for character in numexprs.EXACT[name][1]:
        arrays = arguments_of(name, character)
        own = len(arrays)
        # A second step, as numexpr is not called for one.
        with np.errstate(all="ignore"):
            last: Any = np.invert if function(*arrays).dtype == bool else np.negative
            chain = program(own, (function, tuple(range(own))), (last, (own,)))
            rewritten = with_expressions(chain)
            same(rewritten.run(list(arrays), ()), chain.run(list(arrays), ()))
        assert [(type(plan.kernel), plan.failures) for plan in plans_of(rewritten)] == [(NumexprPlan, 0)]


def compiled_slots(operand: Operand) -> list[int]:
    """Return the slots that numexpr has computed."""
    return [call.slot for plan in plans_of(operand) if plan for call in plan.kernel._calls if call.expression]


@pytest.mark.usefixtures("without_extension")
def test_numexpr_computes_ordinary_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = np.random.default_rng(0).random((2, 40, 50))
    axes = ("axis", "keepdims")
    for chain, values, wanted in [
        (program(3, (operator.mul, (0, 1)), (operator.add, (3, 2))), [x, 2, 3.5], [4]),
        (program(2, (operator.sub, (0, 1)), (operator.pow, (2, 1)), (np.sqrt, (3,))), [x, 2], [4]),
        (program(3, (operator.gt, (0, 1)), (np.where, (3, 0, 2)), (operator.truediv, (4, 2))), [x, 0.5, y], [5]),
        (program(3, (operator.mul, (0, 0)), (operator.add, (3, 0)), (np.sum, (4, 1, 2), axes)), [x, 0, True], [4]),
        # The exponential is NumPy's; numexpr computes what is before it, and what is after.
        (
            program(
                2,
                (operator.mul, (0, 1)),
                (operator.neg, (2,)),
                (np.exp, (3,)),
                (np.sqrt, (4,)),
                (operator.mul, (5, 1)),
            ),
            [x, 2.0],
            [3, 6],
        ),
        # Two results.
        (
            program(2, (operator.mul, (0, 1)), (operator.add, (2, 0)), (np.sort, (3,)), (operator.sub, (3, 0))),
            [x, y],
            [3],
        ),
        (program(2, (operator.sub, (0, 1)), (operator.truediv, (2, 1))), [x, y[0]], [3]),
        (program(2, (operator.sub, (0, 1)), (operator.mul, (2, 1))), [np.asfortranarray(x), 3], [3]),
        (program(2, (operator.mul, (0, 1)), (operator.add, (2, 0))), [(x * 9).astype("i4"), 3], [3]),
    ]:
        rewritten = with_expressions(chain)
        expected = chain.run(list(values), ())
        got = rewritten.run(list(values), ())
        same(got, expected)
        assert got.strides == expected.strides
        assert compiled_slots(rewritten) == wanted
        assert not any(plan.failures for plan in plans_of(rewritten))
    for mixed in ([x.astype("f4"), x, 3], [x.astype("i4"), 2.5, 3], [x.astype("u1"), 2, 3]):
        chain = program(3, (operator.mul, (0, 1)), (operator.add, (3, 2)))
        rewritten = with_expressions(chain)
        same(rewritten.run(list(mixed), ()), chain.run(list(mixed), ()))
        assert not compiled_slots(rewritten)


@pytest.mark.usefixtures("without_extension")
def test_results_that_no_later_call_reads_are_written_over() -> None:
    sine, cosine = [(np.sin, (0,)), (operator.mul, (2, 2))], [(np.cos, (0,)), (operator.mul, (4, 4))]
    more = [(np.exp, (6,)), (operator.sub, (7, 1)), (np.sqrt, (8,)), (operator.mul, (9, 1)), (np.exp, (10,))]
    ends = [(np.exp, (11,)), (operator.add, (12, 10)), (operator.mul, (13, 0))]
    chain = program(2, *sine, *cosine, (operator.add, (3, 5)), *more, *ends)
    rewritten = with_expressions(chain)
    x = np.random.default_rng(0).random(50_000)
    same(rewritten.run([x, 0.5], ()), chain.run([x, 0.5], ()))
    tracemalloc.start()
    try:
        same(rewritten.run([x, 0.5], ()), chain.run([x, 0.5], ()))
        tracemalloc.reset_peak()
        rewritten.run([x, 0.5], ())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Twelve results are stored in turn.
    assert peak < 4.5 * x.nbytes
    assert [plan.failures for plan in plans_of(rewritten)] == [0]


def test_threads_share_a_plan(evaluator: type) -> None:
    chain = program(2, (operator.mul, (0, 1)), (operator.add, (2, 0)), (operator.sub, (3, 1)))
    rewritten = with_expressions(chain)
    inputs = [np.random.default_rng(seed).random(50_000) for seed in range(8)]
    expected = [rewritten.run([x, 0.5], ()) for x in inputs]
    for x, result in zip(inputs, expected, strict=True):
        same(result, chain.run([x, 0.5], ()))
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda number: rewritten.run([inputs[number % 8], 0.5], ()), range(80)))
    for number, result in enumerate(got):
        same(result, expected[number % 8])
    assert [(type(plan.kernel), plan.failures) for plan in plans_of(rewritten)] == [(evaluator, 0)]


def test_step_that_makes_its_own_result_takes_no_array() -> None:
    values = np.linspace(0, 1, 10)
    power = Bound("power", values.dtype, operator.pow, False, True, (0, 1))
    np.testing.assert_array_equal(power.compute([values, 3], pytest.fail), values**3)


@pytest.mark.usefixtures("without_extension")
def test_numexpr_is_not_used_with_several_threads() -> None:
    numexpr = pytest.importorskip("numexpr")
    chain = program(1, (operator.mul, (0, 0)), (operator.add, (1, 0)))
    rewritten = with_expressions(chain)
    x = np.arange(60.0)
    numexpr.set_num_threads(2)
    try:
        same(rewritten.run([x], ()), chain.run([x], ()))
    finally:
        numexpr.set_num_threads(1)
    assert [plan.failures for plan in plans_of(rewritten)] == [1]


WITHOUT_NUMEXPR = """
import dask, dask.array as da, numpy as np
import dask_mars
from dask_mars.expressions import native, numexprs

x = da.random.default_rng(1).random((400, 300), chunks=100)
chain = da.where(x > 0.5, x * 2 - 1, -x) + x / 3
expected = chain.compute(scheduler="sync")
native.AVAILABLE = False

def interpreter():
    return numexprs._interpreter()

with dask_mars.Runtime(1) as runtime:
    np.testing.assert_array_equal(chain.compute(scheduler=runtime.get), expected, strict=True)
    assert interpreter() is dask.delayed(interpreter)().compute(scheduler=runtime.get) is None
"""


@pytest.mark.slow
def test_all_works_without_numexpr(scripts: Scripts) -> None:
    # It stands in the way of the installed one, in workers as well.
    scripts.write("numexpr.py", "raise ImportError('it is not installed')\n")
    done = scripts.run("-W", "error", str(scripts.write("script.py", WITHOUT_NUMEXPR)))
    assert (done.returncode, done.stderr) == (0, "")


# -- parts ----------------------------------------------------------------------------------------------------


def test_functions_of_the_user_are_not_kept() -> None:
    def function(x: np.ndarray) -> np.ndarray:
        return x

    reference = weakref.ref(function)
    assert elementwise(function, ()) is None
    del function
    assert reference() is None


def test_regions_end_at_what_is_not_elementwise() -> None:
    # a*b -> opaque -> + -> + with the product once more: two regions, as the second waits for the opaque step.
    operand = program(
        2,
        (operator.mul, (0, 1)),
        (operator.neg, (2,)),
        (np.sort, (3,)),
        (operator.add, (4, 3)),
        (operator.sub, (5, 2)),
    )
    kinds = [Kind.ELEMENTWISE, Kind.ELEMENTWISE, Kind.OPAQUE, Kind.ELEMENTWISE, Kind.ELEMENTWISE]
    regions = find_regions(operand, kinds)
    assert [region.steps for region in regions] == [(0, 1), (3, 4)]
    assert [region.outputs for region in regions] == [(0, 1), (4,)]
    x, y = np.random.default_rng(0).random((2, 500))
    same(with_expressions(operand).run([x, y], ()), operand.run([x, y], ()))


@pytest.mark.parametrize("shape", [(40, 50), (50,)])
def test_reductions_of_the_same_inputs_read_them_once(evaluator: type, shape: tuple[int, ...]) -> None:
    products: list[tuple[Any, ...]] = [(operator.mul, pair) for pair in ((0, 0), (1, 1), (0, 1))]
    sums = [(np.sum, (slot, 2, 3), ("axis", "keepdims")) for slot in (4, 5, 6)]
    operand = program(4, *products, *sums, (make_tuple, (7, 8, 9)))
    rewritten = with_expressions(operand)
    (region,) = regions_of(rewritten)
    rng = np.random.default_rng(0)
    values = [rng.random((40, 50)), rng.random(shape), None, True]
    for got, expected in zip(rewritten.run([*values], ()), operand.run([*values], ()), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)
    (plan,) = region._plans.values()
    if shape == (50,):
        # Arrays of several shapes are evaluated apart.
        assert plan is None
        apart = [plan for part, _ in region._parts for plan in part._plans.values()]
        assert any(apart) or evaluator is not NativePlan
    elif evaluator is NativePlan:
        assert plan is not None


def test_results_of_the_chunks_size_are_not_joined() -> None:
    # The last product is stored: with the others it would be in memory while they are computed.
    operand = program(
        4,
        (operator.mul, (0, 0)),
        (operator.mul, (0, 1)),
        (np.sum, (4, 2, 3), ("axis", "keepdims")),
        (np.sort, (5,)),
        (make_tuple, (6, 7)),
    )
    kinds = [Kind.ELEMENTWISE, Kind.ELEMENTWISE, Kind.REDUCTION, Kind.OPAQUE, Kind.OPAQUE]
    assert [region.steps for region in find_regions(operand, kinds)] == [(0, 2)]


def test_through_the_scheduler(get: Any) -> None:
    rng = np.random.default_rng(0)
    x = da.from_array(rng.random((600, 500)), chunks=300)
    for expression in (
        (x * 2 + 1 - x / 3) ** 2,
        da.where(x > 0.5, x, -x) + x.astype("f4"),
        ((x - x.mean(axis=0)) / x.std(axis=0)),
    ):
        got = expression.compute(scheduler=get)
        expected = expression.compute(scheduler="sync")
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=1e-12)
    assert (x + 1 > 1.5).any().compute(scheduler=get)


def test_workers_rewrite_moments_that_stand_alone() -> None:
    function = partial(reductions.moment_chunk, dtype=np.dtype("f8"))
    alone = Operand("moment", (function,), (Step(0, (0, 1, 2), ("axis", "keepdims")),), 1, 2)
    rewritten = made_fast(alone)
    assert isinstance(rewritten.functions[0], Moments)
    single = Operand("negative", (np.negative,), (Step(0, (0,), ()),), 1, 0)
    assert made_fast(single) is single


def test_no_temporary_is_as_large_as_the_chunk() -> None:
    x = np.ones((1000, 1000))
    chain = program(
        3,
        (operator.mul, (0, 0)),
        (operator.add, (3, 0)),
        (np.sqrt, (4,)),
        (np.sum, (5, 1, 2), ("axis", "keepdims")),
    )
    rewritten = with_expressions(chain)
    tracemalloc.start()
    assert rewritten.run([x, (0, 1), False], ()) == pytest.approx(np.sqrt(2) * 1e6)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < x.nbytes / 10


def test_casts_to_other_orders_of_bytes() -> None:
    values = np.random.default_rng(0).random(50_000)
    for dtype in (">f8", ">f4", ">i2", ">c16"):
        chain = program(3, (operator.mul, (0, 1)), (dask_chunk.astype, (3, 2), ("astype_dtype",)))
        expected = chain.run([values, 2, np.dtype(dtype)], ())
        same(with_expressions(chain).run([values, 2, np.dtype(dtype)], ()), expected)
