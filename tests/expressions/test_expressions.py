"""Expressions: the same values, bits, dtypes, warnings and errors as one call after the other."""

from __future__ import annotations

import itertools
import operator
import tracemalloc
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.array import chunk as dask_chunk
from dask.array import reductions
from hypothesis import given
from hypothesis import strategies as st

from dask_mars.expressions import evaluate, native, numexprs, planning
from dask_mars.expressions.costs import costs
from dask_mars.expressions.evaluate import RegionFunction
from dask_mars.expressions.functions import elementwise
from dask_mars.expressions.regions import Kind, find_regions
from dask_mars.expressions.rewrite import Moments, with_expressions
from dask_mars.expressions.tiling import GRID, on_grid, tile_index, tiles
from dask_mars.graph.chunks import Operand, Step
from dask_mars.worker.fast_operands import made_fast
from tests.conftest import Scripts

EVALUATORS = ["auto", "tiled", "numexpr"]
DTYPES = ["?", "i1", "u1", "i4", "i8", "u8", "f2", "f4", "f8", "c16"]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut arrays of a few elements into tiles, which the default leaves as they are."""
    monkeypatch.setattr(evaluate, "SMALL", 1)
    monkeypatch.setattr(planning, "TILE_BYTES", 512)
    monkeypatch.setattr(native, "LEAST_BLOCK", GRID)
    monkeypatch.setattr(native, "MOST_BLOCK", GRID)


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


@pytest.mark.parametrize("evaluator", EVALUATORS)
@given(case=programs())
def test_elementwise_programs(evaluator: str, case: tuple[Operand, list[Any]]) -> None:
    plain, values = case
    expected, warned = outcome(plain, values)
    got, warned_too = outcome(with_expressions(plain, evaluator), values)
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


@pytest.mark.parametrize("evaluator", EVALUATORS)
@pytest.mark.parametrize("function", REDUCTIONS, ids=range(len(REDUCTIONS)))
def test_reductions_at_the_tail(function: Any, evaluator: str) -> None:
    chain = program(4, (operator.mul, (0, 1)), (operator.sub, (4, 0)), (function, (5, 2, 3), ("axis", "keepdims")))
    arrays = [np.asarray(np.random.default_rng(0).random((6, 11, 5)), order=order) for order in ("C", "F")]
    axes = [None, 0, (1,), (0, 2), (-1,), (0, 1, 2)]
    for x, axis, keepdims in itertools.product(arrays, axes, (True, False)):
        values = [x, 3.0, axis, keepdims]
        rewritten = with_expressions(chain, evaluator)
        results = flat(rewritten.run(list(values), ())), flat(chain.run(list(values), ()))
        for got, expected in zip(*results, strict=True):
            assert type(got) is type(expected)
            assert (got.dtype, got.shape) == (expected.dtype, expected.shape), (axis, keepdims)
            np.testing.assert_allclose(got, expected, rtol=1e-6 if got.dtype == "f4" else 1e-13)
        assert all(plan is not None and not plan.failures for plan in plans_of(rewritten))
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


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "?"])
@pytest.mark.parametrize("axis", [(0,), (1,), (0, 1)], ids=str)
def test_second_moments(dtype: str, axis: tuple[int, ...]) -> None:
    x = (np.random.default_rng(0).random((50, 30)) * 5).astype(dtype)
    function = partial(reductions.moment_chunk, implicit_complex_dtype=False, dtype=np.dtype("f8"))
    operand = program(3, (function, (0, 1, 2), ("axis", "keepdims")))
    rewritten = with_expressions(operand)
    assert function not in rewritten.functions
    got, expected = rewritten.run([x, axis, True], ()), operand.run([x, axis, True], ())
    assert got.keys() == expected.keys()
    for name in expected:
        assert (got[name].dtype, got[name].shape) == (expected[name].dtype, expected[name].shape)
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-12)


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


@pytest.mark.parametrize("evaluator", EVALUATORS)
@pytest.mark.parametrize("how", ["warn", "raise", "ignore"])
def test_numpys_error_state_holds(how: Any, evaluator: str) -> None:
    chain = program(2, (operator.truediv, (1, 0)), (operator.add, (2, 0)))
    rewritten = with_expressions(chain, evaluator)
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


@pytest.mark.parametrize("name", numexprs.EXACT)
def test_numexpr_gives_numpys_bits(name: str) -> None:
    pytest.importorskip("numexpr")
    template, characters = numexprs.EXACT[name]
    for character in characters:
        rng = np.random.default_rng(1)
        arrays = [(rng.random(5000) * 2000 - 1000).astype(character) for _ in range(3)]
        if character in "fd":
            extremes = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 3e38, 1.0], character)
            for shift, array in enumerate(arrays):
                array[:64] = np.resize(np.repeat(extremes, 8) if shift == 0 else np.roll(extremes, shift), 64)
        if name == "where":
            arrays[0] = rng.random(5000) > 0.5
        count = sum(f"{{{number}}}" in template for number in range(3))
        function: Any = getattr(np, name)
        names = tuple(f"a{number}" for number in range(count))
        with np.errstate(all="ignore"):
            expected = function(*arrays[:count])
            got = np.empty_like(expected)
            tile = numexprs.CompiledTile(template.format(*names), names, tuple(a.dtype for a in arrays[:count]))
            tile(*arrays[:count], out=got)
        same(got, expected)


def test_numexpr_is_used_where_it_is_asked_for() -> None:
    pytest.importorskip("numexpr")
    chain = program(3, (operator.mul, (0, 1)), (operator.add, (3, 2)))
    x = np.arange(60.0)
    for dtype in ("f8", "f4", "i4", "i8"):
        rewritten = with_expressions(chain, "numexpr")
        same(rewritten.run([x.astype(dtype), 2, 3], ()), chain.run([x.astype(dtype), 2, 3], ()))
        assert [plan.compiled is not None for plan in plans_of(rewritten)] == [True]
    for mixed in ([x.astype("f4"), x, 3], [x.astype("i4"), 2.5, 3], [x.astype("u1"), 2, 3]):
        rewritten = with_expressions(chain, "numexpr")
        same(rewritten.run(list(mixed), ()), chain.run(list(mixed), ()))
        assert [plan.compiled for plan in plans_of(rewritten)] == [None]


def test_numexpr_is_chosen_by_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numexpr")
    monkeypatch.setattr(native, "AVAILABLE", False)
    chain = program(3, (operator.mul, (0, 1)), (operator.add, (3, 2)))
    for tiled_ns, wanted in ((5.0, True), (0.1, False)):
        monkeypatch.setattr(numexprs, "costs", lambda ns=tiled_ns: {"multiply-d": (ns, 0.5), "add-d": (ns, 0.5)})
        rewritten = with_expressions(chain)
        rewritten.run([np.arange(60.0), 2, 3], ())
        assert [plan.compiled is not None for plan in plans_of(rewritten)] == [wanted]


WITHOUT_NUMEXPR = """
import dask, dask.array as da, numpy as np
import dask_mars
from dask_mars.expressions import numexprs

x = da.random.default_rng(1).random((400, 300), chunks=100)
chain = da.where(x > 0.5, x * 2 - 1, -x) + x / 3
expected = chain.compute(scheduler="sync")
for evaluator in ("auto", "tiled", "numexpr", "plain"):
    with dask.config.set({"dask-mars.expressions.evaluator": evaluator}), dask_mars.Runtime(1) as runtime:
        for _ in range(2):
            np.testing.assert_array_equal(chain.compute(scheduler=runtime.get), expected, strict=True)

def compiler():
    return numexprs._compiler()

with dask_mars.Runtime(1) as runtime:
    assert compiler() is dask.delayed(compiler)().compute(scheduler=runtime.get) is None
"""


def test_all_works_without_numexpr(scripts: Scripts) -> None:
    # It stands in the way of the installed one, in workers as well.
    scripts.write("numexpr.py", "raise ImportError('it is not installed')\n")
    done = scripts.run("-W", "error", str(scripts.write("script.py", WITHOUT_NUMEXPR)))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_shipped_table_knows_every_exact_operation() -> None:
    for name, (_, characters) in numexprs.EXACT.items():
        for character in characters.replace("q", ""):
            tiled, compiled = costs()[f"{name}-{character}"]
            assert tiled > 0 < compiled


# -- parts ----------------------------------------------------------------------------------------------------


def test_functions_of_the_user_are_not_kept() -> None:
    def function(x: np.ndarray) -> np.ndarray:
        return x

    reference = weakref.ref(function)
    assert elementwise(function, ()) is None
    del function
    assert reference() is None


def test_every_operator_is_the_ufunc_that_it_is_taken_for() -> None:
    """Bit for bit, for every dtype, and with Python's numbers as well as with arrays."""
    rng = np.random.default_rng(0)
    for function in [*UNARY, *BINARY]:
        known = elementwise(function, ())
        assert known is not None
        for dtype in DTYPES:
            x = (rng.random(70) * 6 - 2).astype(dtype)
            for other in [x[::-1].copy(), 2, 2.0, 3, 0.5, -1] if function in BINARY else [None]:
                arguments = [x] if other is None else [x, other]
                plain = program(
                    len(arguments), (function, tuple(range(len(arguments)))), (np.isnan, (len(arguments),))
                )
                operand = Operand("", plain.functions[:1], plain.steps[:1], plain.input_count, 0)
                expected, warned = outcome(operand, arguments)
                region = RegionFunction(operand, [known], (0,), "tiled")
                wrapped = Operand("", (region,), plain.steps[:1], plain.input_count, 0)
                got, warned_too = outcome(wrapped, arguments)
                assert warned == warned_too
                if isinstance(expected, tuple):
                    assert got == expected
                else:
                    same(got, expected)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=3), st.integers(1, 400))
def test_tiles_cover_every_element_once(shape: list[int], most: int) -> None:
    seen = np.zeros(shape, int)
    numbers = np.arange(seen.size).reshape(shape)
    for tile in tiles(shape, most):
        if on_grid(shape, tile):
            assert numbers[tile.where].flat[0] % GRID == 0
        view = seen[tile.where]
        assert view.shape == tile.shape
        assert view.size <= most + GRID * max(1, view.size // len(view.reshape(-1, *shape[len(tile.where) :])))
        view += 1
        row = np.zeros([1, *shape[1:]])
        assert np.broadcast_shapes(row[tile_index(tile, row.shape, shape)].shape, tile.shape) == tile.shape
    assert (seen == 1).all()


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


def test_no_temporary_is_as_large_as_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "TILE_BYTES", 1 << 16)
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


@pytest.mark.parametrize("evaluator", [*EVALUATORS, "plain"])
def test_through_the_scheduler(evaluator: str, get: Any) -> None:
    rng = np.random.default_rng(0)
    x = da.from_array(rng.random((600, 500)), chunks=300)
    with dask.config.set({"dask-mars.expressions.evaluator": evaluator}):
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


@pytest.mark.parametrize("axis", [(0,), (0, 1), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("dtype", ["f8", "f4", "i4", "?"])
def test_second_moments_of_several_parts(dtype: str, axis: tuple[int, ...]) -> None:
    """They are as exact as in two passes, also where the mean is large beside the differences."""
    shape = (900, 20, 10)
    values = (np.random.default_rng(3).random(shape) * 10 + 1e6 * (dtype == "f8")).astype(dtype)
    function = partial(reductions.moment_chunk, implicit_complex_dtype=False, dtype=np.dtype("f8"))
    moments = Moments(function)
    assert moments._in_one_pass(values, axis) is not None
    ours, theirs = moments(values, axis, True), function(values, axis=axis, keepdims=True)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert (ours[name].dtype, ours[name].shape) == (theirs[name].dtype, theirs[name].shape)
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_second_moments_of_what_is_not_finite(value: float) -> None:
    values = np.random.default_rng(3).random((900, 200))
    values[500, 3] = value
    function = partial(reductions.moment_chunk, implicit_complex_dtype=False, dtype=np.dtype("f8"))
    with warnings.catch_warnings(record=True) as theirs_warned:
        warnings.simplefilter("always")
        theirs = function(values, axis=(0,), keepdims=True)
    with warnings.catch_warnings(record=True) as ours_warned:
        warnings.simplefilter("always")
        ours = Moments(function)(values, (0,), True)
    assert {str(w.message) for w in ours_warned} == {str(w.message) for w in theirs_warned}
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-9)
