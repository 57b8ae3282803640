"""Functions of the user's that run as programs: results, effects, errors and warnings are their own."""

from __future__ import annotations

import operator
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.array.core import concatenate_shaped

import dask_mars
from dask_mars.expressions import adjacent
from dask_mars.expressions.evaluate import RegionFunction
from dask_mars.expressions.straight_code import NotStraight, StraightCode
from dask_mars.expressions.tracing import Traced
from dask_mars.graph.chunks import Operand, Step
from dask_mars.optimize.programs import make_list
from dask_mars.worker.fast_operands import made_fast
from tests.conftest import shared

SIDE = 200
COLUMNS = np.arange(float(SIDE))
FACTOR = 2.5
#: What functions below write into.
CALLS: list[int] = []


def _mean_of_neighbours(block: Any) -> Any:
    mean = block.copy()
    vertical = block[:-2, 1:-1] + block[2:, 1:-1]
    mean[1:-1, 1:-1] = (vertical + block[1:-1, :-2] + block[1:-1, 2:]) / 4
    return mean


def _edges(block: Any) -> Any:
    changed = block.copy()
    changed[3:-2] = block[3:-2] * 2 + 1
    other = block.copy()
    other[..., 1] = block[..., 0] + block[..., 2] * 3
    third = np.copy(block)
    third[::2] = block[::2] * 2 - 1
    fourth = block.copy()
    fourth[:, 5:2] = 2
    return changed + other * third - fourth


def _backwards(block: Any) -> Any:
    # NumPy's loop for `isnan` does not write backwards.
    missing = np.copy(block == block)
    missing[..., ::-1] = np.isnan(block[..., ::-1] + 1.5)
    every_other = np.copy(block == block)
    every_other[..., ::2] = np.isnan(block[..., ::2] + 1)
    return np.where(missing, 0, block) + every_other


def _neighbours(block: Any) -> Any:
    total = np.zeros_like(block[1:-1, 1:-1])
    for row in range(3):
        for column, weight in enumerate((1, 2, 1)):
            end = block.shape[1] - 2 + column
            total += block[row : row + total.shape[0], column:end] * weight
    count = 0
    while count < 3:
        count += 1
    return total / max(count, 12)


def _guarded(block: Any) -> Any:
    if block.shape[0] != block.shape[-1] or block.dtype.kind in "OUS":
        raise ValueError(f"not square: {block.shape}")
    doubled = block * 2
    total = doubled + block
    del doubled
    return total


def _polar(u: Any, v: Any = 2.0) -> Any:
    return np.hypot(u, v) + 1, np.arctan2(v, u) * 180 / np.pi


def _differences(block: Any) -> Any:
    change = np.zeros_like(block)
    change[1:] = block[1:] - block[:-1]
    return change / 2 + 1


def _clipped(block: Any) -> Any:
    scaled = block * 2 - 1
    scaled[scaled < 0] = 0
    return scaled + 1


def _in_place(block: Any) -> Any:
    scaled = block * 2
    other = scaled
    scaled += 1
    return scaled * other


def _numbers(block: Any) -> Any:
    mean = block.mean()
    same = mean
    mean += 1
    return block * mean + same


def _by_shape(block: Any, missing: Any = None) -> Any:
    if missing is None and block.ndim == 2:
        rows, columns = block.shape
        return block * rows + columns
    return block + len(block) * 2


def _distance(u: Any, v: Any) -> Any:
    return np.sqrt(u**2 + v**2) * FACTOR


def _with_function(block: Any) -> Any:
    return _distance(block, COLUMNS) + np.where(block > 0.5, block, 0)


def _ratio(block: Any) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = (block - 0.5) / (block * (block > 0.25))
    return np.where(np.isfinite(ratio) & ~np.isnan(block), ratio, -1.0)


def _ratios_of_both_kinds(block: Any) -> Any:
    with np.errstate(all="ignore"):
        ratio = block / (block - block)
    return ratio + block / (block * (block > 0.25))


def _ratio_that_raises(block: Any) -> Any:
    with np.errstate(divide="raise", invalid="raise"):
        return block / (block * (block > 0.25)) + 1


def _narrowed(block: Any) -> Any:
    with np.errstate(all="ignore"):
        ratio = (block / (block - block)).astype("f4")
    return np.where(block > 0.5, ratio, 1e300) * ratio


def _prints(block: Any) -> Any:
    with np.errstate(divide="print"):
        return block * 2 + 1 + np.float64(1) / block.ndim


def _finally(block: Any) -> Any:
    try:
        return np.sqrt(block) * 2
    finally:
        CALLS.append(1)


#: Functions that run as programs.
CALCULATING: list[Callable[..., Any]] = [
    _ratio,
    _mean_of_neighbours,
    _edges,
    _backwards,
    _neighbours,
    _guarded,
    _polar,
    _differences,
    _clipped,
    _in_place,
    _numbers,
    _by_shape,
    _with_function,
    lambda b: (b - b.mean(axis=0)) / b.std(axis=0, ddof=1),
    lambda b: np.roll(b, 1, 0) - 2 * b + np.roll(b, -1, axis=0),
    lambda b: np.clip(b, 0.2, 0.7) * 2 + np.maximum(b, 0.5).astype("f4"),
    lambda b: (b * 2 + 1,),
    lambda b: 2**b + b**-1 - b**0.5,
    lambda b: np.log(b - 0.5) + 1 / (b - b),
    lambda b: b[::-1] * 2 + b,
    lambda b: b.reshape(-1) * 2 + 1,
    lambda b: b.sum(axis=0, keepdims=True) * b + b[0],
    lambda b: np.roll(b * 2 + 1, 1, axis=1) * 3 - b,
    lambda b: (b.astype("i4") + 300).astype("u1") * 2,
]


def _writes(block: Any) -> Any:
    block += 1
    return block * 2 + 1


def _writes_elsewhere(block: Any) -> Any:
    COLUMNS[0] = 5
    return block * 2 + COLUMNS


def _counts(block: Any) -> Any:
    CALLS.append(1)
    return block * 2 + 1


def _by_type(block: Any) -> Any:
    return block * 2 + 1 if isinstance(block, np.ndarray) else block * 3 + 1


def _by_value(block: Any) -> Any:
    return block * 2 + 1 if block[0, 0] < 10 else block


def _handles(block: Any) -> Any:
    try:
        return block * 2 + 1
    except ValueError:
        return block


def _read_before_written(block: Any) -> Any:
    copy = block.copy()
    doubled = copy * 2
    copy[0] = 0
    return copy * doubled


def _viewed_before_written(block: Any) -> Any:
    copy = block.copy()
    rest = copy[1:]
    copy[1] = 7
    return rest * 2 + 1


def _with_text(block: Any) -> Any:
    return block * 2 + 1 if f"{block.shape}{block[0, 0]}" == "text" else block * 3 + 1


def _each_row(block: Any) -> Any:
    total = block[0] * 2
    for row in block:
        total = total + row
    return total


def _unread_division(block: Any) -> Any:
    unread = block / 0  # noqa: F841
    return block * 2 + 1


#: Functions that only the functions themselves can compute.
OTHERS: list[Callable[..., Any]] = [
    _ratios_of_both_kinds,
    _ratio_that_raises,
    _narrowed,
    _finally,
    _writes,
    _writes_elsewhere,
    _counts,
    _by_type,
    _by_value,
    _handles,
    _read_before_written,
    _viewed_before_written,
    _unread_division,
    lambda b: (b, b * 2),
    lambda b: sum(row * 2 + 1 for row in b),
    _each_row,
    _with_text,
    lambda b: b.T * 2 + 1,
    lambda b: np.add(b, 1, dtype="f4") * 2,
    lambda b: np.sqrt(b, b) + 1,
    lambda b: float(b),
    lambda b: np.float32(b) * 2,
    lambda b: b[b > 0.5] * 2 + 1,
    lambda b: b[:0].mean() + b * 2,
    lambda b: [b * n + 1 for n in range(2)][1],
    lambda b: b.missing * 2 + 1,
]


_square = np.random.default_rng(0).random((SIDE, SIDE))
#: Rows do not lie one after another in parts of these columns.
_COLUMNS = slice(3, 60), slice(60, None)
#: Each makes its array anew, because functions may write into it.
ARRAYS: dict[str, Callable[[], Any]] = {
    "C order": lambda: _square.copy(),
    "Fortran order": lambda: np.asfortranarray(_square),
    "strided": lambda: np.repeat(_square, 2, axis=1)[:, ::2],
    "backwards": lambda: _square[::-1].copy()[::-1],
    "float32": lambda: _square.astype("f4"),
    "integers": lambda: (_square * 100).astype("i8") + 1,
    "complex": lambda: _square + 1j,
    "NaN": lambda: np.where(_square > 0.9, np.nan, _square),
    "axes exchanged": lambda: np.stack([_square] * 4).transpose(2, 0, 1),
    "repeated": lambda: np.broadcast_to(_square[0], (SIDE, SIDE)),
    "other bytes": lambda: _square.astype(">f8"),
    "masked": lambda: np.ma.masked_array(_square.copy(), _square > 0.5),
    "small": lambda: _square[:3, :3].copy(),
}


@pytest.mark.parametrize("array", ARRAYS)
def test_the_results_effects_and_warnings_are_the_functions(array: str) -> None:
    for function in CALCULATING + OTHERS:
        fast = Traced(function)  # type: ignore[arg-type]
        for _ in range(2):
            expected, found = (_called(each, ARRAYS[array]()) for each in (function, fast))
            assert found == expected, function.__name__


@pytest.mark.parametrize(
    "array", ["C order", "Fortran order", "strided", "backwards", "float32", "NaN", "repeated"]
)
def test_functions_of_adjacent_parts_see_the_array_that_dask_makes_of_them(array: str) -> None:
    for function in [*CALCULATING, *OTHERS, lambda b: (b - b.mean()) * 2 + b, lambda b: b * 3 - b.sum(axis=0)]:
        operand = _joining(function)
        fast = made_fast(operand)
        expected, found = (_called(_of_quarters(each), ARRAYS[array]()) for each in (operand, fast))
        assert found == expected, function.__name__


def _joining(function: Callable[..., Any]) -> Operand:
    """Return an operand that calls a function with four parts that it joins."""
    steps = Step(0, (0, 1, 2, 3), ()), Step(1, (5, 4), ()), Step(2, (6,), ())
    return Operand("overlap", (make_list, concatenate_shaped, function), steps, 4, 1)


def _of_quarters(operand: Operand) -> Callable[[Any], Any]:
    def called(array: Any) -> Any:
        array.flags.writeable = False
        parts = [array[rows, columns] for rows in (slice(90), slice(90, None)) for columns in _COLUMNS]
        return operand.run(parts, ((2, 2),))

    return called


def test_parts_are_read_in_place_where_they_lie_side_by_side() -> None:
    parts = [_square[rows, columns] for rows in (slice(90), slice(90, None)) for columns in _COLUMNS]
    joined = adjacent._joined(parts, (2, 2))
    assert np.shares_memory(joined.view, _square)
    assert (joined.view.shape, joined.view.strides) == (_square[:, 3:].shape, _square.strides)
    assert np.array_equal(adjacent.whole(joined), _square[:, 3:])
    assert np.array_equal(joined.view, _square[:, 3:])
    others: list[list[Any]] = [
        [parts[1], parts[0], parts[3], parts[2]],
        [*parts[:3], parts[3].copy()],
        [part.astype("f4") for part in parts],
        [_square[:90, :50], *parts[1:]],
    ]
    for other in others[:3]:
        assert type(adjacent._joined(other, (2, 2))) is np.ndarray
    with pytest.raises(ValueError, match="broadcast"):
        adjacent._joined(others[3], (2, 2))


def _called(function: Callable[..., Any], given: Any) -> Any:
    """Return all that a call shows."""
    CALLS.clear()
    COLUMNS[0] = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = _shown(function(given))
        except Exception as error:
            result = type(error), str(error)
    where = [(str(each.message), each.category, each.filename, each.lineno) for each in caught]
    return result, where, _shown(given), len(CALLS), COLUMNS[0]


def _shown(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return list(map(_shown, value))
    mask = np.ma.getmaskarray(value).tobytes() if isinstance(value, np.ma.MaskedArray) else b""
    order = getattr(value, "strides", None)
    return type(value), getattr(value, "dtype", None), np.shape(value), order, mask, np.asarray(value).tobytes()


def test_functions_that_calculate_run_as_programs() -> None:
    for function in CALCULATING:
        fast = Traced(function)  # type: ignore[arg-type]
        with np.errstate(all="ignore"):
            fast(_square)
        assert list(map(bool, fast._recorded[1].values())) == [True], function.__name__


def test_functions_with_effects_are_not_traced() -> None:
    for function in [_counts, _by_type, _handles, _finally, _prints]:
        with pytest.raises(NotStraight):
            StraightCode(function)  # type: ignore[arg-type]


@pytest.mark.parametrize("state", ["warn", "ignore", "raise"])
@pytest.mark.parametrize("function", [_ratio, _ratios_of_both_kinds, _ratio_that_raises, _narrowed, _finally])
def test_errors_that_a_function_ignores_are_ignored(function: Any, state: Any) -> None:
    array, fast = np.round(_square * 3) / 3, Traced(function)
    for _ in range(2):
        with np.errstate(all=state):
            expected, found = (_called(each, array) for each in (function, fast))
        assert found == expected


def test_functions_may_warn_in_the_name_of_their_caller() -> None:
    def fails_soon(block: Any) -> Any:
        warnings.warn("use another", DeprecationWarning, stacklevel=2)
        return block * 2

    with pytest.warns(DeprecationWarning, match="use another"):
        assert (Traced(fails_soon)(_square) == _square * 2).all()


def test_values_that_a_function_refers_to_may_change() -> None:
    offset = 1

    def shifted(block: Any) -> Any:
        return block * 2 + offset

    fast = Traced(shifted)
    assert type(fast) is Traced
    assert fast(_square)[0, 0] == _square[0, 0] * 2 + 1
    offset = 5
    assert fast(_square)[0, 0] == _square[0, 0] * 2 + 5


def test_arguments_other_than_arrays_choose_the_program() -> None:
    def scaled(block: Any, factor: Any, shift: Any = 0) -> Any:
        return block * factor + shift

    fast = Traced(scaled)
    for factor, shift in [(1, 0), (1.0, 0), (True, 0), (0.0, 1), (-0.0, 1), (np.float32(3), 1), (None, 1)]:
        for array in (_square, ARRAYS["integers"]()):
            calls = [partial(each, factor=factor, shift=shift) for each in (scaled, fast)]
            expected, found = (_called(call, array) for call in calls)
            assert found == expected


def test_a_debugger_sees_the_function_itself() -> None:
    seen: list[type] = []

    def trace(frame: Any, *_: Any) -> None:
        if frame.f_code is _doubled.__code__:
            seen.append(type(frame.f_locals["block"]))

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        Traced(_doubled)(_square)  # type: ignore[arg-type]
    finally:
        sys.settrace(before)
    assert seen == [np.ndarray]


def test_functions_with_many_combinations_of_arguments_are_called() -> None:
    def scaled(block: Any, factor: int) -> Any:
        return block * factor + 1

    fast = Traced(scaled)
    for factor in range(100):
        assert fast(_square, factor)[0, 0] == _square[0, 0] * factor + 1
    assert len(fast._recorded[1]) < 50


def test_programs_that_run_again_allow_more_recordings() -> None:
    fast = Traced(_doubled)  # type: ignore[arg-type]
    for rows in range(170, 200):
        for _ in range(2):
            assert np.array_equal(fast(_square[:rows]), _doubled(_square[:rows]))
    assert len(fast._recorded[1]) == 30


def test_functions_may_assert() -> None:
    # Not in this module's own code, whose assertions pytest rewrites.
    namespace: dict[str, Any] = {}
    exec('def checked(b):\n    assert b.ndim == 2, f"{b.ndim} dimensions"\n    return b * 2 + 1\n', namespace)
    checked = namespace["checked"]
    fast = Traced(checked)
    for array in (_square, _square.ravel()):
        assert _called(fast, array) == _called(checked, array)
    assert list(map(bool, fast._recorded[1].values())) == [True, False]


def test_long_functions_are_not_read() -> None:
    code = "def long(b):\n" + "    b = b + 1\n" * 1000 + "    return b\n"
    namespace: dict[str, FunctionType] = {}
    exec(code, namespace)
    with pytest.raises(NotStraight):
        StraightCode(namespace["long"])


def test_operands_call_the_functions_of_the_user_as_programs() -> None:
    operand = Operand("distance", (_distance,), (Step(0, (0, 1), ()),), 2, 0)
    fast = made_fast(operand)
    assert type(fast.functions[0]) is Traced
    expected, found = (each.run([_square, _square[0]], ()) for each in (operand, fast))
    assert np.array_equal(expected, found)


def _doubled(block: Any) -> Any:
    return np.sqrt(block) * 2 + block


def _with_largest(*slots: int) -> Operand:
    """Return an operand with some of: a function's result, the same plus one, sum and maximum of that."""
    functions = (_doubled, operator.add, np.sum, np.max, _both)
    axis, one = 1, 2
    chain = Step(0, (0,), ()), Step(1, (3, one), ())
    ends = Step(2, (4, axis), ("axis",)), Step(3, (4, axis), ("axis",)), Step(4, slots, ())
    return Operand("both", functions, (*chain, *ends), 1, 2)


def _both(*results: Any) -> Any:
    return results


@pytest.mark.parametrize("slots", [(5,), (5, 6), (6, 5, 3)])
def test_reductions_read_results_of_functions_in_blocks(slots: tuple[int, ...]) -> None:
    operand = _with_largest(*slots)
    fast = made_fast(operand)
    expected, found = (each.run([_square], (0, 1)) for each in (operand, fast))
    assert len(expected) == len(found)
    for each, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, each, rtol=1e-14)
        assert (each.dtype, each.shape, each.strides) == (other.dtype, other.shape, other.strides)
    joined = [function.joined for function in fast.functions if type(function) is RegionFunction]
    assert any(joined) == (3 not in slots), "a result that others read as well is computed once"


@pytest.mark.parametrize("axes", [(0, 1), (1, 0), [0, 1], (0, -1)])
def test_transpositions_between_a_function_and_a_reduction(axes: Any) -> None:
    steps = (Step(0, (0,), ()), Step(1, (3, 1), ("axes",)), Step(2, (4, 2), ("axis",)))
    operand = Operand("sum", (_doubled, np.transpose, np.sum), steps, 1, 2)
    fast = made_fast(operand)
    expected, found = (each.run([_square[:190]], (axes, 0)) for each in (operand, fast))
    np.testing.assert_allclose(found, expected, rtol=1e-14)
    joined = [function.joined for function in fast.functions if type(function) is RegionFunction]
    assert any(joined) == (tuple(axes) == (0, 1))


def test_results_that_are_not_made_in_blocks_are_not_pending() -> None:
    operand = Operand("sum", (_mean_of_neighbours, np.sum), (Step(0, (0,), ()), Step(1, (2, 1), ("axis",))), 1, 1)
    fast = made_fast(operand)
    np.testing.assert_allclose(fast.run([_square], (None,)), _mean_of_neighbours(_square).sum(), rtol=1e-14)
    assert not any(function.joined for function in fast.functions if type(function) is RegionFunction)


def test_a_joined_program_leaves_warnings_to_the_function() -> None:
    operand = _with_largest(5, 6)
    negative = -_square
    for each in (operand, made_fast(operand)):
        with pytest.warns(RuntimeWarning, match="invalid value encountered in sqrt") as caught:
            totals, _ = each.run([negative], (0, 1))
        assert [warning.filename for warning in caught] == [__file__]
        assert np.isnan(totals).all()


@pytest.mark.parametrize("array", ["Fortran order", "strided", "integers", "complex", "small", "NaN"])
def test_joined_programs_give_what_separate_ones_give(array: str) -> None:
    operand = Operand("sum", (_doubled, np.sum), (Step(0, (0,), ()), Step(1, (2, 1), ("axis",))), 1, 1)
    with np.errstate(invalid="ignore"):
        expected, found = (each.run([ARRAYS[array]()], (0,)) for each in (operand, made_fast(operand)))
    np.testing.assert_allclose(found, expected, rtol=1e-14)


@pytest.fixture(scope="module")
def in_threads() -> Iterator[Any]:
    """Compute in threads of this process."""
    with dask_mars.Runtime(2) as runtime, shared(runtime):
        da.ones(2, chunks=1).sum().compute(scheduler=runtime.get)
        yield runtime.get


def _random_like(x: Any) -> Any:
    return da.random.default_rng(1).random(x.shape, chunks=x.chunks)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.map_blocks(_doubled).sum(axis=0),
        lambda x: (x.map_blocks(_doubled).mean(), x.map_blocks(_doubled).std()),
        lambda x: x.map_overlap(_mean_of_neighbours, depth=1, boundary="reflect"),
        lambda x: x.map_overlap(_mean_of_neighbours, depth=1, boundary="none"),
        lambda x: da.apply_gufunc(_distance, "(),()->()", x, x[0], output_dtypes=float).max(axis=1),
        lambda x: x.map_blocks(_clipped, dtype=float).min(),
        lambda x: x[:250, :250].rechunk(-1).map_blocks(_doubled).map_blocks(np.transpose).sum(axis=1),
        lambda x: x[:250, :250].rechunk(-1).map_blocks(_doubled).map_blocks(np.transpose, axes=None).max(axis=0),
        lambda x: _random_like(x).map_blocks(_doubled).sum(axis=1),
        lambda x: (_random_like(x) * 2 + _random_like(x).map_blocks(_doubled)).mean(axis=0),
    ],
)
def test_collections_compute_what_threads_compute(in_threads: Any, program: Callable[[Any], Any]) -> None:
    x = da.from_array(np.random.default_rng(1).random((600, 500)), chunks=(200, 250))
    expected, found = (dask.compute(program(x), scheduler=get)[0] for get in ("threads", in_threads))
    for each, other in zip(np.atleast_1d(expected), np.atleast_1d(found), strict=True):
        np.testing.assert_allclose(other, each, rtol=1e-14)
