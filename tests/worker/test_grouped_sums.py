"""Sums of flox's groups by slices: the same numbers, to the bit, as flox has them computed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tlz.functoolz import compose

from dask_mars.expressions import native
from dask_mars.graph.chunks import Operand, Step
from dask_mars.worker import grouped_sums
from dask_mars.worker.substitutes import with_substitutes

if not find_spec("flox"):
    pytest.skip("flox is not installed", allow_module_level=True)

flox: Any
core: Any
of_dask: Any


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Import flox, which takes seconds that collecting the tests need not."""
    global flox, core, of_dask
    flox, core, of_dask = map(import_module, ("flox", "flox.core", "flox.dask"))


REDUCTIONS = {
    "mean": (("nansum", "nanlen"), (0, 0)),
    "sum": (("sum",), (0,)),
    "sum with a minimum": (("nansum", "nanlen"), (0, 0)),
    "count": (("nanlen",), (0,)),
    "largest": (("nanmax",), (np.nan,)),
}


def replaced(function: Any, reductions: bool = True) -> Any:
    return grouped_sums.grouped_sums(function, reductions)


def assert_same(found: Any, expected: Any) -> None:
    np.testing.assert_array_equal(found["groups"], expected["groups"], strict=True)
    assert len(found["intermediates"]) == len(expected["intermediates"])
    for one, other in zip(found["intermediates"], expected["intermediates"], strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
        if one.dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(one), np.signbit(other))


def reduced(chunk_reduce: Any, values: Any, labels: Any, name: str, engine: str = "numpy", **others: Any) -> Any:
    func, fill_value = REDUCTIONS[name]
    dtypes = tuple([np.dtype("i8") if one == "nanlen" else values.dtype for one in func])
    given = {
        "axis": (values.ndim - 1,),
        "expected_groups": None,
        "fill_value": fill_value,
        "dtype": dtypes,
        "engine": engine,
        **others,
    }
    return chunk_reduce(values, labels, func=func, **given)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, Any, str, str]:
    steps, side = draw(st.integers(1, 9)), draw(st.sampled_from([1, 15, 16, 20]))
    dtype = draw(st.sampled_from(["f2", "f4", "f8", "i4", "c8"]))
    seed = draw(st.integers(0, 2**32))
    random = np.random.default_rng(seed)
    values = random.standard_normal((steps, side, side)).astype(dtype)
    if dtype[0] != "i":
        odd = draw(st.lists(st.sampled_from([np.nan, np.inf, -np.inf, -0.0, 0.0]), max_size=6))
        for value in odd:
            values[tuple([random.integers(length) for length in values.shape])] = value
        if draw(st.booleans()):
            values[random.integers(steps)] = draw(st.sampled_from([np.nan, -0.0]))
    values = np.moveaxis(values, 0, -1)
    if draw(st.booleans()):
        values = np.ascontiguousarray(values)
    labels: Any = np.array(draw(st.lists(st.integers(-3, 3), min_size=steps, max_size=steps)))
    if draw(st.booleans()):
        labels = np.where(labels == 3, np.nan, labels.astype("f8"))
    names = sorted(name for name in REDUCTIONS if name != "largest" or dtype != "i4")
    return values, labels, draw(st.sampled_from(names)), draw(st.sampled_from(["numpy", "flox"]))


@given(case=cases())
def test_groups_of_a_chunk_are_as_flox_finds_them(case: tuple[Any, Any, str, str]) -> None:
    values, labels, name, engine = case
    with np.errstate(all="ignore"):
        expected = reduced(core.chunk_reduce, values, labels, name, engine)
        assert_same(reduced(replaced(core.chunk_reduce), values, labels, name, engine), expected)


def test_slices_are_added_where_times_are_furthest_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    aggregations = pytest.importorskip("flox.aggregations")
    asked: list[str] = []
    true = aggregations.generic_aggregate

    def spy(*arguments: Any, **named: Any) -> Any:
        asked.append(named["func"])
        return true(*arguments, **named)

    monkeypatch.setattr(aggregations, "generic_aggregate", spy)
    made = replaced(core.chunk_reduce)
    values = np.moveaxis(np.random.default_rng(1).random((4, 20, 20)), 0, -1)
    reduced(made, values, np.array([2, 1, 2, 1]), "mean")
    assert not asked
    # Each slice would be spread over all of the memory.
    reduced(made, np.ascontiguousarray(values), np.array([2, 1, 2, 1]), "mean")
    assert asked == ["nansum", "nanlen"]


def test_doubles_without_nan_are_added_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    extension = pytest.importorskip("dask_mars.expressions._native")
    outcomes: list[bool] = []

    def spy(*arguments: Any) -> bool:
        outcomes.append(extension.group_sums(*arguments))
        return outcomes[-1]

    monkeypatch.setattr(native, "group_sums", spy)
    chunk_reduce, labels = replaced(core.chunk_reduce), np.array([4, 1, 4, 0])
    rows = np.random.default_rng(1).random((4, 20, 40))
    rows[1, 2, 3] = -0.0
    infinite, opposite, missing = (rows.copy() for _ in range(3))
    infinite[0, 1, 1] = np.inf
    opposite[[0, 2], 1, 1] = np.inf, -np.inf
    missing[3, 5, 5] = np.nan
    half = rows[..., ::2]
    for cube in (rows, infinite, opposite, missing, half, rows[:, :, :20], rows.astype("f4")):
        values = np.moveaxis(cube, 0, -1)
        with np.errstate(invalid="ignore"):
            expected = reduced(core.chunk_reduce, values, labels, "mean")
            assert_same(reduced(chunk_reduce, values, labels, "mean"), expected)
    assert outcomes == [True, True, False, False]


def test_counts_of_a_mean_are_held_once_and_others_can_be_written_to() -> None:
    values, labels = np.moveaxis(np.random.default_rng(1).random((4, 20, 20)), 0, -1), np.array([0, 1, 0, 1])
    chunk_reduce = replaced(core.chunk_reduce)
    _, counts = reduced(chunk_reduce, values, labels, "mean")["intermediates"]
    assert counts.strides[:2] == (0, 0)
    (counts,) = reduced(chunk_reduce, values, labels, "count")["intermediates"]
    assert counts.flags.writeable
    chunks = [{"groups": np.arange(2), "intermediates": (np.broadcast_to(np.arange(2), (5, 1, 2)),)}] * 3
    given = {"agg": Aggregation(np.sum), "axis": (1,), "keepdims": True, "reindex": Reindex(True)}
    (total,) = replaced(of_dask._simple_combine)(chunks, **given)["intermediates"]
    np.testing.assert_array_equal(total, np.broadcast_to([0, 3], (5, 1, 2)))
    assert total.strides[0] == 0


def test_groups_without_numbers_and_other_fills_are_as_flox_finds_them() -> None:
    values = np.moveaxis(np.random.default_rng(1).random((3, 20, 20)), 0, -1)
    values[..., 1] = np.nan
    pandas = pytest.importorskip("pandas")
    for fill_value in (0, 7):
        given = {"expected_groups": pandas.Index([0, 1, 5]), "reindex": True, "fill_value": (fill_value,) * 2}
        labels = np.array([0, 1, 1])
        expected = reduced(core.chunk_reduce, values, labels, "mean", **given)
        assert_same(reduced(replaced(core.chunk_reduce), values, labels, "mean", **given), expected)


def test_what_flox_fills_by_the_name_of_a_reduction_keeps_it() -> None:
    values = np.moveaxis(np.random.default_rng(1).random((3, 20, 20)), 0, -1)

    def chunk_reduce(array: Any, by: Any, func: Any, **named: Any) -> Any:
        return func

    chunk_reduce.__module__ = "flox.core"
    made = replaced(chunk_reduce)
    assert made(values, np.arange(3), ("nansum", "nanlen"), engine="numbagg") == ("nansum", "nanlen")
    assert made(values, np.arange(3), ("nansum", "nanlen")) == ("nansum", "nanlen")
    assert all(map(callable, made(values, np.arange(3), ("nansum", "nanlen"), engine="numpy")))


# -- several chunks -----------------------------------------------------------------------------------------------


class Aggregation:
    """What flox's function reads of its own."""

    def __init__(self, *combine: Any) -> None:
        self.simple_combine = combine


class Reindex:
    """What it reads of how groups are found."""

    def __init__(self, blockwise: bool) -> None:
        self.blockwise = blockwise


def found(count: int, dtype: str = "f4", groups: int = 2) -> list[dict[str, Any]]:
    random = np.random.default_rng(count)
    return [
        {
            "groups": np.arange(groups),
            "intermediates": (
                random.standard_normal((5, 4, 1, groups)).astype(dtype),
                random.integers(0, 9, (5, 4, 1, groups)),
            ),
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("dtype", "count", "is_last"), [("f4", 1, False), ("f8", 2, True), ("i4", 5, False), ("f4", 5, True)]
)
def test_what_chunks_have_found_is_added(dtype: str, count: int, is_last: bool) -> None:
    given = {
        "agg": Aggregation(np.sum, np.sum),
        "axis": (2,),
        "keepdims": True,
        "reindex": Reindex(True),
        "is_aggregate": is_last,
    }
    chunks = found(count, dtype)
    before = [tuple([value.copy() for value in chunk["intermediates"]]) for chunk in chunks]
    expected = of_dask._simple_combine(chunks, **given)
    made = replaced(of_dask._simple_combine)(chunks, **given)
    np.testing.assert_array_equal(made["groups"], expected["groups"], strict=True)
    for one, other in zip(made["intermediates"], expected["intermediates"], strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
    for chunk, values in zip(chunks, before, strict=True):
        for value, old in zip(chunk["intermediates"], values, strict=True):
            np.testing.assert_array_equal(value, old)
            assert not any(np.shares_memory(value, one) for one in made["intermediates"])


def test_what_is_not_added_is_left_to_flox() -> None:
    given = {"axis": (2,), "keepdims": True, "reindex": Reindex(True)}
    made = replaced(of_dask._simple_combine)
    for agg, chunks in (
        (Aggregation(np.max, np.sum), found(3)),
        (Aggregation(np.sum, np.sum), [*found(2), *found(1, "f8")]),
    ):
        assert_same(made(chunks, agg=agg, **given), of_dask._simple_combine(chunks, agg=agg, **given))


# -- operands -----------------------------------------------------------------------------------------------------


def test_flox_is_found_in_what_calls_it() -> None:
    inner = partial(core.chunk_reduce, func="nansum")
    composed = partial(compose(of_dask._expand_dims, inner), axis=(2,))
    last = partial(of_dask._aggregate, combine=partial(of_dask._simple_combine, reindex=1), agg=2)
    operand = Operand("groups", (composed, last), (Step(0, (0, 1), ()), Step(1, (2,), ())), 2, 0)
    first, second = with_substitutes(operand, grouped_sums.grouped_sums).functions
    assert first.func.first.func is grouped_sums._reduce_chunk
    assert second.func is of_dask._aggregate
    assert second.keywords["combine"].func is grouped_sums._combine
    assert second.keywords["combine"].args == (of_dask._simple_combine,)


def test_the_order_of_sums_is_kept_where_that_is_asked_for() -> None:
    assert replaced(of_dask._simple_combine, reductions=False) is of_dask._simple_combine
    # To the bit as before, and so in any case.
    assert replaced(core.chunk_reduce, reductions=False) is not core.chunk_reduce


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "method"), [("nanmean", "map-reduce"), ("sum", "cohorts"), ("nanmax", "cohorts")]
)
def test_groupby_is_as_by_threads(get: Callable[..., Any], name: str, method: str) -> None:
    values = np.random.default_rng(2).standard_normal((24, 30, 20)).astype("f4")
    values[3, 4:9] = np.nan
    array = da.moveaxis(da.from_array(values, chunks=(2, 15, 20)), 0, -1)
    labels = np.arange(24) % 12
    result, groups = flox.groupby_reduce(array, labels, func=name, method=method, engine="numpy")
    expected = result.compute(scheduler="threads")
    made = result.compute(scheduler=get)
    assert made.dtype == expected.dtype
    np.testing.assert_allclose(made, expected, rtol=1e-5)
    np.testing.assert_array_equal(groups, np.arange(12))
