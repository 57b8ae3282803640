"""Native programs: NumPy's bits, warnings and errors, however arrays lie, and in several threads."""

from __future__ import annotations

import itertools
import math
import operator
import shutil
import signal
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Callable, Collection, Iterable
from functools import partial
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dask.array import chunk as dask_chunk
from dask.array import reductions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dask_mars.expressions import evaluate, native
from dask_mars.expressions.draws import draw
from dask_mars.expressions.evaluate import RegionFunction
from dask_mars.expressions.functions import elementwise
from dask_mars.expressions.positions import is_same_anywhere
from dask_mars.expressions.rewrite import Moments, with_expressions
from dask_mars.graph.chunks import Operand
from tests.expressions.test_expressions import GRID, outcome, plans_of, program

ROOT = Path(__file__).parents[2]
DTYPES = "?bBhHiIlLefdgFD"
#: Around groups of vector instructions, blocks and NumPy's buffers.
LENGTHS = [65, 1000, 4097, 10007]
UFUNCS = list(
    dict.fromkeys(
        ufunc
        for _, ufunc in sorted(vars(np).items())
        if isinstance(ufunc, np.ufunc) and ufunc.nout == 1 and ufunc.signature is None and ufunc is not np.isnat
    )
)


def some(values: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """Return parameters, of which all but some are slow, and most of those nightly."""
    return [
        pytest.param(value, marks=() if value in quick else pytest.mark.nightly if place % 3 else pytest.mark.slow)
        for place, value in enumerate(values)
    ]


#: Dtypes of which each stands for others.
FEW = "?lfdD"

pytestmark = pytest.mark.skipif(
    not native.AVAILABLE, reason="the extension is not built, or NumPy hides its loops"
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run native programs for arrays of any size."""
    monkeypatch.setattr(evaluate, "SMALL", 1)


#: Minimum and maximum elements of a block as they are, and of the shortest blocks that there can be.
BLOCKS = [(native.LEAST_BLOCK, native.MOST_BLOCK), (GRID, GRID)]


@pytest.fixture
def block_lengths(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that makes blocks as long as `BLOCKS` has them at a place."""

    def choose(place: int) -> None:
        least, most = BLOCKS[place % 2]
        monkeypatch.setattr(native, "LEAST_BLOCK", least)
        monkeypatch.setattr(native, "MOST_BLOCK", most)

    return choose


@pytest.fixture
def short_blocks(block_lengths: Callable[[int], None]) -> None:
    block_lengths(1)


def bits(array: Any) -> bytes:
    """Return the bytes that count."""
    array = np.ascontiguousarray(array)
    if array.dtype.char in "gG" and np.finfo("g").nmant == 63:
        return bytes(array.reshape(-1).view("u1").reshape(-1, np.dtype("g").itemsize)[:, :10].tobytes())
    return bytes(array.tobytes())


def same(got: Any, expected: Any) -> None:
    assert (type(got), got.dtype, got.shape) == (type(expected), expected.dtype, expected.shape)
    assert bits(got) == bits(expected)


def data(dtype: str, count: int, seed: int) -> np.ndarray[Any, Any]:
    """Return numbers of all kinds, many of them awkward."""
    rng = np.random.default_rng(seed)
    own = np.dtype(dtype)
    if own.kind == "b":
        return rng.random(count) > 0.5
    if own.kind in "iu":
        return rng.integers(0 if own.kind == "u" else -50, 100, count).astype(own)
    values: Any = rng.standard_normal(count) * 10
    if own.kind == "c":
        values = values + 1j * rng.standard_normal(count)
    values = values.astype(own)
    about = np.finfo(own)
    awkward = [np.nan, np.inf, -np.inf, 0.0, -0.0, about.tiny, about.smallest_subnormal, about.max, 1, 2, 0.5]
    places = rng.integers(0, count, count // 9)
    values[places] = rng.choice(np.array(awkward, about.dtype), len(places))
    return np.asarray(values)


def is_native(operand: Operand) -> bool:
    return any(
        plan is not None and type(plan.kernel) is native.NativePlan and not plan.failures
        for plan in plans_of(operand)
    )


def region(operand: Operand) -> Operand:
    """Make one region of an operand, which `with_expressions` does not for a single step."""
    known = [elementwise(operand.functions[step.function], step.keywords) for step in operand.steps]
    assert all(what is not None for what in known)
    function = RegionFunction(operand, known, (len(operand.steps) - 1,))  # type: ignore[arg-type]
    return program(operand.input_count, (function, tuple(range(operand.input_count))))


# -- every function -------------------------------------------------------------------------------------------


def _flat(dtype: str, count: int, number: int) -> list[Any]:
    return [data(dtype, count, seed) for seed in range(number)]


def _with_number(dtype: str, count: int, number: int) -> list[Any]:
    value = {"b": True, "i": 2, "u": 2}.get(np.dtype(dtype).kind, 1.5)
    return [*_flat(dtype, count, number - 1), value]


def _number_first(dtype: str, count: int, number: int) -> list[Any]:
    return _with_number(dtype, count, number)[::-1]


def _strided(dtype: str, count: int, number: int) -> list[Any]:
    return [np.repeat(array, 2)[::2] for array in _flat(dtype, count, number)]


def _reversed(dtype: str, count: int, number: int) -> list[Any]:
    return [array[::-1] for array in _flat(dtype, count, number)]


def _rows(dtype: str, count: int, number: int) -> list[Any]:
    width = 192 if count > 4000 else 7
    whole, *others = _flat(dtype, count // width * width, number)
    return [whole.reshape(-1, width), *[array[:width] for array in others]]


def _columns(dtype: str, count: int, number: int) -> list[Any]:
    whole, *others = _rows(dtype, count, number)
    return [whole, *[data(dtype, len(whole), 5).reshape(-1, 1) for _ in others]]


def _cut(dtype: str, count: int, number: int) -> list[Any]:
    width = 192 if count > 4000 else 7
    arrays = _flat(dtype, count // width * width, number)
    return [np.repeat(array.reshape(-1, width), 2, axis=0)[::2] for array in arrays]


def _mixed(dtype: str, count: int, number: int) -> list[Any]:
    first, *others = _flat(dtype, count, number)
    kind = np.dtype(dtype).kind
    return [first, *[data({"i": "f", "u": "f", "c": "D"}.get(kind, "d"), count, 7) for _ in others]]


def is_of_some_place(ufunc: np.ufunc, values: list[Any], got: Any) -> bool:
    """Return whether each element is what NumPy itself gives with the result below or above its arguments.

    NumPy 2.0 takes arrays that are walked backwards for overlapping with what lies below them, and then calls
    other loops, so that its last bits depend on addresses. Later ones give the same at both places.
    """
    if not all(isinstance(value, np.ndarray) and value.strides == (-value.itemsize,) for value in values):
        return False
    room = np.empty((len(values) + 2, got.size, max(values[0].itemsize, got.itemsize)), "u1")
    placed = [
        row.reshape(-1)[: value.nbytes].view(value.dtype)[::-1]
        for row, value in zip(room[1:], values, strict=False)
    ]
    for to, value in zip(placed, values, strict=True):
        to[:] = value
    found = np.zeros(got.size, bool)
    own = np.ascontiguousarray(got).view("u1").reshape(got.size, -1)
    for row in (room[0], room[-1]):
        result = row.reshape(-1)[: got.nbytes].view(got.dtype)
        with np.errstate(all="ignore"):
            ufunc(*placed, out=result)
        found |= (own == result.view("u1").reshape(got.size, -1)).all(axis=1)
    return bool(found.all())


LAYOUTS: list[Callable[..., list[Any]]] = [_flat, _strided, _reversed, _cut]
BINARY_LAYOUTS: list[Callable[..., list[Any]]] = [_with_number, _number_first, _rows, _columns, _mixed]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ufunc", some(UFUNCS, UFUNCS[::5]), ids=lambda ufunc: ufunc.__name__)
def test_every_ufunc_gives_its_own_bits(ufunc: np.ufunc, block_lengths: Callable[[int], None]) -> None:
    used = 0
    layouts = LAYOUTS + (BINARY_LAYOUTS if ufunc.nin == 2 else [])
    plain = program(ufunc.nin, (ufunc, tuple(range(ufunc.nin))))
    for place, dtype in enumerate(DTYPES):
        # Each dtype meets each layout, and each layout each length and all blocks, whatever the function.
        for turn, layout in enumerate(layouts, place):
            count = LENGTHS[turn % len(LENGTHS)]
            block_lengths(place // len(LENGTHS) + turn - place + UFUNCS.index(ufunc))
            values = layout(dtype, count, ufunc.nin)
            with np.errstate(all="ignore"):
                try:
                    expected = plain.run(list(values), ())
                except (TypeError, ValueError, OverflowError):
                    continue
                rewritten = region(plain)
                got = rewritten.run(list(values), ())
            is_same = bits(got) == bits(expected) or is_of_some_place(ufunc, values, got)
            assert is_same, (dtype, layout.__name__, count)
            assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
            used += is_native(rewritten)
    assert used


def test_last_bits_that_depend_on_neighbours_are_numpys_where_arrays_are_not_flat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NumPy processes groups of elements, which begin elsewhere in a block of such an array."""
    x = np.linspace(0.1, 5, 6000)
    cut = np.repeat(x.reshape(-1, 60), 2, axis=0)[::2]
    for is_same in (False, True):
        monkeypatch.setattr(native, "is_same_anywhere", lambda ufunc, dtype, is_same=is_same: is_same)
        for ufunc, is_positional in ((np.exp, True), (np.fmin, True), (np.sqrt, False), (np.add, False)):
            for values, is_flat in ((x, True), (x[::-1], False), (cut, is_same)):
                plain = program(ufunc.nin, (ufunc, tuple(range(ufunc.nin))))
                rewritten = region(plain)
                same(rewritten.run([values] * ufunc.nin, ()), plain.run([values] * ufunc.nin, ()))
                assert is_native(rewritten) == (is_flat or not is_positional)
        rounded = region(program(2, (np.arctan2, (0, 1))))
        rounded.run([cut, np.asarray(cut, "f4")], ())
        assert is_native(rounded) == is_same


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("source", some(DTYPES, FEW))
def test_casts(source: str, block_lengths: Callable[[int], None]) -> None:
    plain = program(2, (dask_chunk.astype, (0, 1), ("astype_dtype",)))
    arrays = [layout(source, 1000, 1)[0] for layout in LAYOUTS]
    for place, target in enumerate(map(np.dtype, DTYPES)):
        block_lengths(place + DTYPES.index(source))
        for array in arrays:
            with np.errstate(all="ignore"):
                same(region(plain).run([array, target], ()), plain.run([array, target], ()))
        expected, warned = outcome(plain, [array, target])
        got, warned_too = outcome(region(plain), [array, target])
        assert warned_too == warned, target
        same(got, expected)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("target", some("?bBhHiIlLfd", FEW))
def test_casts_at_the_limits(target: str) -> None:
    """What is in range is cast here; NumPy is asked for what is not."""
    plain = program(2, (dask_chunk.astype, (0, 1), ("astype_dtype",)))
    rewritten = region(plain)
    bits_of_target = 8 * np.dtype(target).itemsize
    edges = [sign * 2.0**power for power in (bits_of_target - 1, bits_of_target) for sign in (1, -1)]
    near = [0.0, -0.0, 0.5, -0.5, -0.99, 1.99, -1.0, np.nan, np.inf, -np.inf, 1e300, 1e-300]
    beside = [(edge, np.nextafter(edge, 0), np.nextafter(edge, np.inf), edge - 1, edge + 1) for edge in edges]
    for source, value in itertools.product("fd", [*itertools.chain(*beside), *near]):
        values = [np.full(130, value).astype(source), np.dtype(target)]
        expected, warned = outcome(plain, values)
        got, warned_too = outcome(rewritten, values)
        assert warned_too == warned, value
        same(got, expected)
        with np.errstate(all="ignore"):
            same(region(plain).run(list(values), ()), expected)


def test_casts_within_range_are_native() -> None:
    plain = program(2, (dask_chunk.astype, (0, 1), ("astype_dtype",)))
    for source in "?bBhHiIlLfd":
        for target in "?bBhHiIlLfd":
            values = [np.arange(1000).astype(source) % 2, np.dtype(target)]
            rewritten = region(plain)
            same(rewritten.run([values[0].astype(source), values[1]], ()), values[0].astype(source).astype(target))
            assert is_native(rewritten)


@pytest.mark.parametrize("dtype", some(DTYPES, FEW))
def test_where(dtype: str, block_lengths: Callable[[int], None]) -> None:
    plain = program(3, (np.where, (0, 1, 2)))
    number: Any = {"b": True, "i": 2, "u": 2}.get(np.dtype(dtype).kind, 1.5)
    for place, count in enumerate((*LENGTHS, 20_000)):
        block_lengths(place + DTYPES.index(dtype))
        condition = data("?", count, 1)
        x, y = data(dtype, count, 2), data(dtype, count, 3)
        wide = [np.repeat(array, 2)[::2] for array in (condition, x, y)]
        pairs = [(x, y), (x, number), (number, y), (x, x[:1]), (x[:1], y[:1])]
        for values in [*[[condition, *pair] for pair in pairs], wide, [condition, wide[1], y]]:
            rewritten = region(plain)
            same(rewritten.run(list(values), ()), plain.run(list(values), ()))
            assert is_native(rewritten)


EXPONENTS = [-2, -1, 0, 1, 2, 3, 0.5, -0.5, 1.0, 2.0, 2.5, -1.0, 0.0, True, np.float32(2), 2j]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", some(DTYPES, FEW))
def test_powers(dtype: str) -> None:
    arrays = [data(dtype, count, 1) for count in LENGTHS]
    for turn, (exponent, function) in enumerate(itertools.product(EXPONENTS, (operator.pow, pow))):
        plain = program(2, (function, (0, 1)))
        for values in ([arrays[turn % 4], exponent], [exponent, arrays[(turn + 1) % 4]]):
            with np.errstate(all="ignore"):
                (expected, _), (got, _) = outcome(plain, values), outcome(region(plain), values)
            if isinstance(expected, tuple):
                assert got == expected, values
            else:
                same(got, expected)


NUMBERS = [2**24 + 1, 2**53 + 1, 2**60 + 1, 10**30, -(2**62) - 1, 3.3, 1e39, 1e-50, 70000]


@pytest.mark.parametrize("dtype", some("bBhHiIlLefdgFD", FEW))
def test_numbers_are_rounded_as_numpy_does(dtype: str) -> None:
    functions: list[Any] = [operator.add, operator.lt, operator.truediv, np.maximum]
    for function, number, is_compared in itertools.product(functions, NUMBERS, (True, False)):
        operand = program(2, (function, (0, 1)), *[(np.equal, (2, 0))][:is_compared])
        values = [data(dtype, 1000, 1), number]
        expected, warned = outcome(operand, values)
        got, warned_too = outcome(region(operand), values)
        assert warned_too == warned, number
        if isinstance(expected, tuple):
            assert got == expected, number
        else:
            same(got, expected)


# -- shapes ---------------------------------------------------------------------------------------------------


@st.composite
def shaped(draw: st.DrawFn) -> list[np.ndarray[Any, Any]]:
    """Draw arrays that are broadcast to one shape, cut, turned and with their axes exchanged."""
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 5, 17, 64, 70]), min_size=1, max_size=5))
    while math.prod(shape) > 40_000:
        shape.pop()
    arrays = []
    for number in range(3):
        own = [length if number == 0 or draw(st.booleans()) else 1 for length in shape]
        own = own[draw(st.integers(0, len(own))) if number and draw(st.booleans()) else 0 :]
        order = draw(st.sampled_from(["C", "F", "any"]))
        steps = [draw(st.sampled_from([1, 1, 1, 2, -1])) for _ in own]
        axes = list(range(len(own)))
        if order == "any":
            axes = draw(st.permutations(axes))
        elif order == "F":
            axes.reverse()
        lengths = [own[axis] * abs(steps[axis]) for axis in axes]
        base = np.random.default_rng(draw(st.integers(0, 9))).integers(-9, 9, lengths).astype("f8")
        turned = base.transpose(np.argsort(axes)) if own else base
        arrays.append(turned[tuple([slice(None, None, step) for step in steps])])
    return arrays


@settings(suppress_health_check=list(HealthCheck))
@given(arrays=shaped(), place=st.integers(0, 1))
def test_arrays_of_any_shape(arrays: list[Any], place: int, block_lengths: Callable[[int], None]) -> None:
    block_lengths(place)
    chain = program(
        3, (operator.mul, (0, 1)), (operator.sub, (3, 2)), (operator.lt, (4, 0)), (np.where, (5, 4, 1))
    )
    same(with_expressions(chain).run(list(arrays), ()), chain.run(list(arrays), ()))


@settings(suppress_health_check=list(HealthCheck))
@given(arrays=shaped(), draw=st.data())
def test_reductions_of_any_shape(
    arrays: list[Any], draw: st.DataObject, block_lengths: Callable[[int], None]
) -> None:
    """Of whole numbers, whose sum is the same in any order."""
    block_lengths(draw.draw(st.integers(0, 1)))
    dimensions = max(array.ndim for array in arrays)
    axis = draw.draw(st.none() | st.lists(st.integers(0, dimensions - 1), unique=True).map(tuple))
    function = draw.draw(st.sampled_from([np.sum, np.max, np.min, partial(np.sum, dtype="i4"), np.any, np.all]))
    keepdims = draw.draw(st.booleans())
    chain = program(5, (operator.mul, (0, 1)), (operator.sub, (5, 2)), (function, (6, 3, 4), ("axis", "keepdims")))
    values = [*arrays, axis, keepdims]
    if draw.draw(st.booleans()):
        values[0] = values[0].astype("i8")
    expected, got = chain.run(list(values), ()), with_expressions(chain).run(list(values), ())
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("shape", [(2000, 3), (500, 2, 4), (5, 1, 700, 2), (40, 50, 17)])
def test_runs_of_a_few_elements(shape: tuple[int, ...], place: int, block_lengths: Callable[[int], None]) -> None:
    block_lengths(place)
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 9, shape).astype("f8")
    chain = program(2, (operator.mul, (0, 1)), (operator.add, (2, 0)))
    for other in (x[:1], x[..., :1], x[0], x[..., :1, :], x[::-1], np.broadcast_to(x[..., :1], shape)):
        rewritten = with_expressions(chain)
        same(rewritten.run([x, other], ()), chain.run([x, other], ()))
        assert is_native(rewritten)
    for axis in [None, *range(len(shape)), (0, len(shape) - 1)]:
        tail = program(3, (operator.mul, (0, 0)), (np.sum, (3, 1, 2), ("axis", "keepdims")))
        rewritten = with_expressions(tail)
        same(rewritten.run([x, axis, True], ()), tail.run([x, axis, True], ()))
        assert is_native(rewritten)


_RESULTS: list[tuple[Callable[..., Any], int]] = [
    (operator.add, 2),
    (operator.sub, 2),
    (operator.mul, 2),
    (operator.truediv, 2),
    (abs, 1),
    (np.square, 1),
    (operator.neg, 1),
]


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(("function", "count"), _RESULTS)
def test_sums_of_results_that_are_not_stored(
    function: Callable[..., Any], count: int, place: int, block_lengths: Callable[[int], None]
) -> None:
    block_lengths(place)
    rng = np.random.default_rng(0)
    wide = rng.random((70, 2311)) + 0.5
    # Rows apart, whole, with a single number on either side, along an axis, and rows that are short or reversed.
    pairs = [
        (wide[:, 5:1908], wide[:, 9:1912]),
        (wide, wide),
        (wide[:, :1000], 0.3),
        (0.3, wide[:, :1000]),
        (wide[:, :600], wide[0, :600]),
        (wide[:, :600], wide[:, :1]),
        (wide[:, :50], wide[:, 50:100]),
        (wide[:, ::-1], wide),
        (wide[:, ::2], wide[:, 1::2][:, :1156]),
        # One number everywhere, as in `da.ones`, with another, with a number and with an array.
        (np.broadcast_to(3.0, wide.shape), np.broadcast_to(5.0, wide.shape)),
        (np.broadcast_to(3.0, wide.shape), 0.3),
        (0.3, np.broadcast_to(3.0, wide.shape)),
        (np.broadcast_to(3.0, wide.shape), wide),
    ]
    total = program(4, (function, tuple(range(count))), (np.sum, (4, 2, 3), ("axis", "keepdims")))
    beside = program(
        4,
        (function, tuple(range(count))),
        (operator.mul, (0, 0)),
        (np.sum, (4, 2, 3), ("axis", "keepdims")),
        (np.sum, (5, 2, 3), ("axis", "keepdims")),
        (np.max, (4, 2, 3), ("axis", "keepdims")),
        (operator.add, (6, 7)),
        (operator.add, (8, 9)),
    )
    for x, y in pairs:
        if not isinstance(x, np.ndarray) and count == 1:
            continue
        if isinstance(y, np.ndarray) and isinstance(x, np.ndarray) and y.ndim == 2 and y.shape[1] > 1:
            y = y[:, : x.shape[1]]
            x = x[:, : y.shape[1]]
        values = [x, y, None, True]
        for plain in (total, beside):
            got, expected = with_expressions(plain).run(list(values), ()), plain.run(list(values), ())
            assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
            np.testing.assert_allclose(got, expected, rtol=1e-13, atol=1e-9)


def test_a_sum_of_an_array_before_a_sum_of_results() -> None:
    x, y = np.random.default_rng(0).random((2, 300, 500))[:, :, :400]
    double = np.dtype("f8")
    product = native.Bound("multiply", double, np.multiply, True, False, (0, 1))
    sums = [native.Reduced(slot, of, np.add, None, (0, 1), (1, 1), double) for slot, of in ((3, 0), (4, 2))]
    types, shapes = dict.fromkeys(range(3), double), dict.fromkeys(range(3), x.shape)
    plan = native.NativePlan(
        native.Chain(x.shape, False, types, shapes, {2: (product, (0, 1))}, [], sums, (x, y, None))
    )
    found = plan.run([x, y, None], {"divide": "raise", "over": "raise", "under": "ignore", "invalid": "raise"})
    assert found is not None
    for slot, expected in ((3, x.sum()), (4, (x * y).sum())):
        np.testing.assert_allclose(found[1][slot], expected, rtol=1e-13)


def test_sums_of_results_keep_zeros_nan_and_warnings() -> None:
    squares = program(3, (operator.mul, (0, 0)), (np.sum, (3, 1, 2), ("axis", "keepdims")))
    for value in (-0.0, np.nan, np.inf, 1e300, 1e-320):
        x = np.full((100, 900), value)[:, :800]
        with warnings.catch_warnings(record=True) as expected_warnings:
            warnings.simplefilter("always")
            expected = squares.run([x, None, True], ())
        with warnings.catch_warnings(record=True) as found_warnings:
            warnings.simplefilter("always")
            got = with_expressions(squares).run([x, None, True], ())
        same(got, expected)
        assert [str(each.message) for each in found_warnings] == [str(each.message) for each in expected_warnings]
    differences = program(3, (operator.sub, (0, 0)), (np.sum, (3, 1, 2), ("axis", "keepdims")))
    x = np.full((100, 900), -0.0)[:, :800]
    same(with_expressions(differences).run([x, None, True], ()), differences.run([x, None, True], ()))


def test_functions_whose_results_are_the_same_anywhere() -> None:
    assert is_same_anywhere(np.absolute, np.dtype("f8"))
    assert not is_same_anywhere(np.exp, np.dtype("c16"))
    x = np.random.default_rng(0).random((300, 500))[:, :400]
    for ufunc in (np.exp, np.sin, np.log, np.hypot, np.power, np.cbrt):
        plain = program(ufunc.nin, (ufunc, tuple(range(ufunc.nin))))
        rewritten = region(plain)
        same(rewritten.run([x] * ufunc.nin, ()), plain.run([x] * ufunc.nin, ()))
        assert is_native(rewritten) == is_same_anywhere(ufunc, x.dtype)


@pytest.mark.parametrize("has_loop", [True, False])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
@pytest.mark.parametrize(
    "tasks",
    [
        # A product, both results read again, one of them written, and sums of one and of both.
        [(np.sin, (0,)), (np.cos, (0,)), (np.multiply, (1, 2))],
        [(np.cos, (0,)), (np.sin, (0,)), (np.subtract, (1, 2)), (np.multiply, (1, 3)), (np.add, (4, 2))],
        [(np.multiply, (0, 0)), (np.sin, (1,)), (np.cos, (1,)), (np.sqrt, (2,)), (np.add, (4, 3))],
        [(np.sin, (0,)), (np.sqrt, (1,)), (np.cos, (0,))],
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_sines_and_cosines_of_the_same_numbers(
    tasks: list[Any], dtype: str, has_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_loop:
        monkeypatch.setattr(native, "sincos_loop", lambda: None)
    numbers = data(dtype, 10_007, 5)
    for x in (numbers, numbers[::-1], numbers[::3], np.repeat(numbers, 2)[: 2 * 5_000].reshape(5_000, 2)[:, :1]):
        plain = program(1, *tasks)
        same(region(plain).run([x], ()), plain.run([x], ()))


@pytest.mark.filterwarnings("ignore")
def test_sums_of_sines_and_of_cosines() -> None:
    x = data("f8", 20_000, 6)
    x = x[np.isfinite(x)].reshape(-1, 1)
    for reduced in ((1, 2), (2, 1)):
        sums = program(
            1, (np.sin, (0,)), (np.cos, (0,)), *[(np.sum, (at,)) for at in reduced], (np.subtract, (3, 4))
        )
        expected = sums.run([x], ())
        np.testing.assert_allclose(with_expressions(sums).run([x], ()), expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("width", [20, 100])
@pytest.mark.filterwarnings("ignore")
def test_exponents_that_are_repeated_along_rows(width: int, dtype: str) -> None:
    rng = np.random.default_rng(0)
    x = (rng.random((300, 2 * width)) * 10).astype(dtype)[:, :width]
    column = np.array([2, 0.5, -1, 3], dtype)[rng.integers(0, 4, 300)][:, None]
    repeated = [column, np.broadcast_to(column, x.shape), column.astype("i2"), np.full(width, 2, dtype)]
    for ufunc, y in itertools.product((np.power, np.float_power), [*repeated, x, np.full((1, 1), 2, dtype)]):
        for values in ([x, y], [y, x]):
            plain = program(2, (ufunc, (0, 1)))
            same(region(plain).run(list(values), ()), plain.run(list(values), ()))


def test_arrays_that_are_not_aligned() -> None:
    x = np.frombuffer(bytearray(b"\0" + np.arange(3000.0).tobytes()), "u1")[1:].view("f8")
    assert not x.flags.aligned
    chain = program(2, (operator.mul, (0, 1)), (np.exp, (2,)))
    aligned = with_expressions(chain)
    values = [np.arange(3000.0) / 10, 0.5]
    same(aligned.run(list(values), ()), chain.run(list(values), ()))
    assert is_native(aligned)
    # The same plan: whether an array is aligned is seen when it comes.
    np.copyto(x, values[0])
    same(aligned.run([x, 0.5], ()), chain.run([x, 0.5], ()))
    same(aligned.run(list(values), ()), chain.run(list(values), ()))


# -- reductions -----------------------------------------------------------------------------------------------


def reduced(function: Any, values: Any, axis: Any = None) -> tuple[Any, Any]:
    """Return what comes of a reduction of a copy by plain calls, and by a native program."""
    copy = np.logical_and if values.dtype == bool else np.maximum
    chain = program(3, (copy, (0, 0)), (function, (3, 1, 2), ("axis", "keepdims")))
    rewritten = with_expressions(chain)
    expected, warned = outcome(chain, [values, axis, False])
    got, warned_too = outcome(rewritten, [values, axis, False])
    assert warned_too == warned
    # There are no casts of these.
    assert warned or is_native(rewritten) or (values.dtype.char in "eg" and expected.dtype == bool)
    return expected, got


@pytest.mark.parametrize("dtype", some("bBhHiIlLfdgFD", FEW))
def test_sums_are_as_exact_as_numpys(dtype: str, block_lengths: Callable[[int], None]) -> None:
    rng = np.random.default_rng(0)
    values = (rng.random((300, 500)) * 100).astype(dtype)
    for axis, place in itertools.product((None, 0, 1), (0, 1)):
        block_lengths(place)
        expected, got = reduced(np.sum, values, axis)
        assert got.dtype == expected.dtype
        if np.dtype(dtype).kind in "iu":
            same(got, expected)
        else:
            exact = np.sum(values.astype("G" if np.dtype(dtype).kind == "c" else "g"), axis=axis)
            error, own_error = np.abs(got - exact).max(), np.abs(expected - exact).max()
            assert error <= max(8 * own_error, np.abs(exact).max() * 4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", "fdFD")
def test_sums_of_short_rows_are_numpys(dtype: str, block_lengths: Callable[[int], None]) -> None:
    rng = np.random.default_rng(0)
    for place, length in enumerate((2, 3, 4, 7, 8, 9, 10, 16, 17, 31, 64, 100, 129, 300, 777, 1_024)):
        block_lengths(place)
        rows = 5_000 // length
        values = (rng.random((rows, 2, length)) * 10.0 ** rng.integers(-6, 6, (rows, 2, length))).astype(dtype)
        same(*reduced(np.sum, values, 2))
        same(*reduced(np.sum, values.T, 0))
        # The sums of several rows are added.
        same(*reduced(np.sum, values.reshape(rows, 1, 2, length).repeat(3, 1), (1, 3)))
        if dtype in "fd":
            same(*reduced(np.nansum, np.where(values == values[0, 0, 0], np.nan, values).astype(dtype), 2))


def test_equal_windows_have_equal_sums() -> None:
    numbers = np.random.default_rng(0).random((40, 400))
    windows = np.lib.stride_tricks.sliding_window_view(numbers, 10, axis=1)
    total = program(3, (np.sum, (0, 1, 2), ("axis", "keepdims")))
    rewritten = with_expressions(total)
    same(rewritten.run([windows, 2, False], ()), windows.sum(axis=2))
    assert is_native(rewritten)


@pytest.mark.parametrize("function", [np.sum, np.max, np.min, reductions.chunk_max])
def test_zeros_keep_their_sign(function: Any, block_lengths: Callable[[int], None]) -> None:
    for value, place in itertools.product((-0.0, 0.0, 5e-324), (0, 1)):
        block_lengths(place)
        expected, got = reduced(function, np.full(5000, value))
        same(got, expected)


@pytest.mark.parametrize("dtype", some("?bBhHiIlLefdg", FEW))
def test_largest_and_smallest(dtype: str, block_lengths: Callable[[int], None]) -> None:
    functions = [np.max, np.min, np.any, np.all]
    for seed, (turn, function) in itertools.product(range(3), enumerate(functions)):
        block_lengths(seed + turn)
        values = data(dtype, 6000, seed)
        if dtype == "?":
            # Whole rows are alike.
            values = np.random.default_rng(seed).random(6000) > (0.5, 0.01, 0.99)[seed]
        if seed and values.dtype.kind == "f":
            values = values[np.isfinite(values)][:3000]
        for lying in (values, values[: len(values) // 60 * 60].reshape(-1, 60)):
            for axis in range(-1, lying.ndim):
                expected, got = reduced(function, lying, None if axis < 0 else axis)
                assert got.dtype == expected.dtype
                np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("available", [True, False])
@pytest.mark.parametrize("dtype", ["f8", "f4", "i4", "?"])
def test_second_moments(available: bool, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "AVAILABLE", available)
    values = (np.random.default_rng(3).random((900, 20, 10)) * 10 + 1e6 * (dtype == "f8")).astype(dtype)
    function = partial(reductions.moment_chunk, implicit_complex_dtype=False, dtype=np.dtype("f8"))
    for axis in [(0,), (1,), (0, 1), (0, 1, 2)]:
        ours, theirs = Moments(function)(values, axis, True), function(values, axis=axis, keepdims=True)
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert (ours[name].dtype, ours[name].shape) == (theirs[name].dtype, theirs[name].shape)
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-9, atol=1e-9)


# -- errors ---------------------------------------------------------------------------------------------------

TROUBLES: list[tuple[str, Operand, list[Any]]] = [
    ("divide", program(2, (operator.truediv, (0, 1)), (operator.lt, (2, 0))), [np.ones(5000), np.zeros(5000)]),
    ("over", program(2, (operator.mul, (0, 1)), (np.isnan, (2,))), [np.full(5000, 1e200), np.full(5000, 1e200)]),
    (
        "under",
        program(2, (operator.mul, (0, 1)), (np.isnan, (2,))),
        [np.full(5000, 1e-200), np.full(5000, 1e-200)],
    ),
    ("invalid", program(2, (np.sqrt, (0,)), (np.maximum, (2, 1))), [np.full(5000, -1.0), np.ones(5000)]),
    ("invalid", program(2, (np.log, (0,)), (operator.lt, (2, 1))), [np.full(5000, -1.0), np.ones(5000)]),
    (
        "divide",
        program(2, (operator.floordiv, (0, 1)), (operator.add, (2, 1))),
        [np.arange(5000), np.arange(5000)],
    ),
    (
        "over",
        program(2, (dask_chunk.astype, (0, 1), ("astype_dtype",)), (np.isnan, (2,))),
        [np.full(5000, 1e200), np.dtype("f4")],
    ),
    (
        "invalid",
        program(2, (dask_chunk.astype, (0, 1), ("astype_dtype",)), (operator.add, (2, 2))),
        [np.full(5000, np.nan), np.dtype("i8")],
    ),
    ("over", program(2, (operator.mul, (0, 1)), (np.isnan, (2,))), [np.ones(5000, "f4"), 1e300]),
    (
        "over",
        program(3, (np.negative, (0,)), (np.sum, (3, 1, 2), ("axis", "keepdims"))),
        [np.full(5000, 1e308), None, False],
    ),
    ("invalid", program(1, (operator.sub, (0, 0)), (operator.mul, (1, 1))), [np.r_[np.ones(4999), np.inf]]),
]


@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize("trouble", range(len(TROUBLES)))
def test_floating_point_errors(trouble: int, capfd: pytest.CaptureFixture[str]) -> None:
    kind, chain, values = TROUBLES[trouble]
    told: list[Any] = []

    class Log:
        def write(self, message: str) -> None:
            told.append(message)

    ways: list[Any] = ["ignore", "warn", "raise", "call", "log", "print"]
    for how in ways:
        said: list[Any] = []
        for watched in (kind, "all"):
            rewritten = with_expressions(chain)
            call = Log() if how == "log" else lambda *facts: told.append(facts)
            with np.errstate(all="ignore", call=call):
                np.seterr(**{watched: how})
                # The first failures are those of a plan that may still be given up.
                for operand in (chain, rewritten) * 4:
                    told.clear()
                    result, warned = outcome(operand, values)
                    shown = bits(result) if isinstance(result, np.ndarray) else repr(result)
                    said.append((shown, warned, list(told), capfd.readouterr().err))
        assert all(some == said[0] for some in said), how


def test_what_is_ignored_stays_native() -> None:
    _, chain, values = TROUBLES[0]
    rewritten = with_expressions(chain)
    with np.errstate(divide="ignore"):
        same(rewritten.run(list(values), ()), chain.run(list(values), ()))
    assert is_native(rewritten)


def test_errors_of_before_are_not_told_again() -> None:
    """Flags of the processor that something else has left set mean nothing, nor do those that NumPy ignores."""
    x = np.r_[np.full(3000, np.nan), np.arange(3000.0)]
    chain = program(2, (operator.lt, (0, 1)), (operator.mul, (0, 1)), (np.where, (2, 3, 0)))
    rewritten = with_expressions(chain)
    with np.errstate(all="ignore"):
        np.ones(3) / np.zeros(3)
        np.sqrt(np.full(3, -1.0))
    with np.errstate(all="raise"):
        same(rewritten.run([x, 2.0], ()), chain.run([x, 2.0], ()))
    assert is_native(rewritten)


def test_an_error_of_a_loop_without_the_lock() -> None:
    chain = program(2, (operator.pow, (0, 1)), (operator.add, (2, 0)))
    x = np.arange(5000)
    exponents = np.where(x == 4000, -1, 2)
    for operand in (chain, with_expressions(chain)):
        with pytest.raises(ValueError, match="negative integer powers"):
            operand.run([x, exponents], ())


# -- inputs that a source makes -------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [None, 0, 1, (0, 1)])
@pytest.mark.parametrize("block", [GRID, 3 * GRID, 1 << 10, 1 << 13])
def test_an_input_that_a_source_makes(axis: Any, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "MOST_BLOCK", block)
    monkeypatch.setattr(native, "LEAST_BLOCK", block)
    drawn = draw(np.random.PCG64, "integers", np.random.SeedSequence(3), (130, 77), [9], {})
    if drawn is None:
        pytest.skip("there are no sources")
    x = drawn.array()
    row = x[:1] + 1
    chain = program(4, (operator.mul, (0, 1)), (operator.add, (4, 0)), (np.sum, (5, 2, 3), ("axis", "keepdims")))
    rewritten = with_expressions(chain)
    values = [x, row, axis, True]
    expected = rewritten.run(list(values), ())
    (plan,) = plans_of(rewritten)
    described = plan._chain(list(plan.bound), tuple(values))._replace(made={0}, written=[5])
    errors = dict.fromkeys(("divide", "over", "under", "invalid"), "raise")
    done = native.NativePlan(described).run([None, row, None, None], errors, {0: drawn.source()})
    assert done is not None
    same(done[0][5], x * row + x)
    (total,) = done[1].values()
    same(total, expected)


# -- around ---------------------------------------------------------------------------------------------------


def test_the_module_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("dask_mars.expressions._native")
    monkeypatch.setitem(sys.modules, "dask_mars.expressions._native", None)
    assert native.__spec__ is not None
    assert native.__spec__.loader is not None
    again = module_from_spec(native.__spec__)
    native.__spec__.loader.exec_module(again)
    assert not again.AVAILABLE


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
def test_signals_are_handled_meanwhile() -> None:
    class Stop(BaseException):
        pass

    def stop(*_: Any) -> None:
        raise Stop

    x = np.linspace(0, 1000, 1 << 22)
    chain = program(1, *[(np.sin, (step,)) for step in range(40)])
    rewritten = with_expressions(chain)
    rewritten.run([x[:1000]], ())
    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        # It takes a second.
        with pytest.raises(Stop):
            rewritten.run([x], ())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_programs_that_cannot_be() -> None:
    from dask_mars.expressions._native import REDUCTION, Program, cast, select

    _, loop = np.add._resolve_dtypes_and_context((np.dtype("f8"),) * 2 + (None,))  # type: ignore[attr-defined]
    unfilled = (loop, (0, 0, 1), 0)
    np.add._get_strided_loop(loop)  # type: ignore[attr-defined]
    _, needs_python = np.add._resolve_dtypes_and_context((np.dtype("O"),) * 2 + (None,))  # type: ignore[attr-defined]
    np.add._get_strided_loop(needs_python)  # type: ignore[attr-defined]
    good: dict[str, Any] = {
        "steps": (unfilled,),
        "array_items": (8, 8),
        "buffer_items": (8,),
        "shape": (100,),
        "reversed": False,
        "block": 1024,
    }
    Program(**good)
    for name, wrong in [
        ("steps", ((loop, (0, 0, 2), 0),)),
        ("steps", ((loop, (0, 0, -2), 0),)),
        ("steps", ((loop, (0,) * 9, 0),)),
        ("steps", ((loop, (0, 1), REDUCTION),)),
        ("steps", ((loop, (-1, 0, 0), REDUCTION),)),
        ("steps", ((needs_python, (0, 0, 1), 0),)),
        ("steps", ((None, (0, 0, 1), 0),)),
        ("array_items", (8, 0)),
        ("array_items", (8, 64)),
        ("buffer_items", (8,) * 300),
        ("shape", (0,)),
        ("shape", (1,) * 33),
        ("block", 100),
        ("block", 0),
    ]:
        with pytest.raises(ValueError, match=r"."):
            Program(**{**good, name: wrong})
    whole = Program(**good)
    x = np.arange(100.0)
    with pytest.raises(TypeError, match="2 arrays"):
        whole.run(0, x)
    with pytest.raises(TypeError, match="8 bytes"):
        whole.run(0, x, x.astype("f4"))
    assert not whole.run(0, x[:50], np.empty(100))
    assert not whole.run(0, x.reshape(1, 1, 100), np.empty(100))
    out = np.empty(100)
    assert whole.run(0, x, out)
    same(out, x + x)
    assert cast("d", "e") is None
    assert cast("D", "d") is None
    assert select(3) is None


# -- under the sanitizers -------------------------------------------------------------------------------------

SANITIZERS = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread"],
}
BLOCKS_PARTS = ("_blocks", "_loops", "_sums")


@pytest.mark.skipif(sys.platform != "linux", reason="the sanitizers are tried on Linux")
@pytest.mark.parametrize(
    ("flags", "stress", "argument", "parts"),
    [
        # To compile the loops takes seconds.
        pytest.param("address", "blocks", 200, BLOCKS_PARTS, marks=pytest.mark.slow),
        pytest.param("thread", "blocks", 200, BLOCKS_PARTS, marks=pytest.mark.slow),
        pytest.param("address", "histogram", 100, ("_histogram",), marks=pytest.mark.slow),
        pytest.param("address", "moments", 100, ("_moments",), marks=pytest.mark.slow),
        ("address", "streams", 2100, ("_streams",)),
    ],
)
def test_stress_under_a_sanitizer(
    tmp_path: Path, flags: str, stress: str, argument: int, parts: tuple[str, ...]
) -> None:
    compiler = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0])
    if compiler is None:
        pytest.skip("no C compiler")
    package = ROOT / "dask_mars" / "expressions"
    sources = [ROOT / "tests" / f"{stress}_stress.c", *[package / f"{part}.c" for part in parts]]
    includes = [f"-I{np.get_include()}", f"-I{sysconfig.get_paths()['include']}"]
    options = ["-std=c11", "-O0", "-Wall", "-Wextra", "-ffp-contract=off", "-pthread", *SANITIZERS[flags]]
    options += includes
    program = tmp_path / "stress"
    built = subprocess.run([compiler, *options, *sources, "-lm", "-o", program], capture_output=True, text=True)
    if built.returncode:
        pytest.skip(f"it could not be built: {built.stderr[-200:]}")
    assert built.stderr == ""
    done = subprocess.run([program, str(argument)], capture_output=True, text=True)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the sanitizer does not know this kernel's address space")
    assert (done.returncode, done.stderr) == (0, "")
