"""Sums of groups by whole numbers: the native loop returns what pandas does, in every bit and attribute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dask.utils import M
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_mars.worker import number_keys

pd = pytest.importorskip("pandas")
pytest.importorskip("dask.dataframe")
groupby = pytest.importorskip("dask.dataframe.groupby")
expressions = pytest.importorskip("dask.dataframe.dask_expr._groupby")
native = pytest.importorskip("dask_mars.expressions._native")

ROWS = 3_000
CHUNK = expressions.Sum.chunk


def table(seed: int = 0, dtype: str = "i8", low: int = 0, width: int = 50) -> Any:
    rng = np.random.default_rng(seed)
    keys = [(low + width * count * rng.integers(0, 20, ROWS) // 20).astype(dtype) for count in (1, 1)]
    values = rng.normal(size=ROWS) * 10.0 ** rng.integers(-9, 9, ROWS)
    return pd.DataFrame(
        {
            "a": keys[0],
            "v": np.where(rng.random(ROWS) < 0.1, np.nan, values),
            "b": keys[1],
            "i": rng.integers(-(1 << 62), 1 << 62, ROWS),
        }
    )


ONE_COLUMN = groupby._apply_func_to_column
SEVERAL = [
    ("total", ONE_COLUMN, {"column": "v", "func": M.sum}),
    ("number", ONE_COLUMN, {"column": "v", "func": M.count}),
    ("squares", groupby._compute_sum_of_squares, {"column": "v"}),
    ("whole", ONE_COLUMN, {"column": "i", "func": M.sum}),
]
CALLS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sum": (CHUNK, {"chunk": M.sum, "columns": "v", "observed": True, "numeric_only": False}),
    "sums": (CHUNK, {"chunk": M.sum, "columns": None}),
    "some": (CHUNK, {"chunk": M.sum, "columns": ["i"]}),
    "count": (CHUNK, {"chunk": M.count, "columns": "v", "dropna": False}),
    "several": (groupby._groupby_apply_funcs, {"funcs": SEVERAL, "sort": None, "observed": True}),
    "sorted": (groupby._groupby_apply_funcs, {"funcs": SEVERAL[:2], "sort": True}),
    "mean": (expressions._mean_chunk, {"observed": True, "dropna": None}),
    "variance": (groupby._var_chunk, {"numeric_only": False, "observed": True}),
}
OTHER_CALLS: dict[str, tuple[Any, dict[str, Any]]] = {
    "largest": (CHUNK, {"chunk": M.max, "columns": "v"}),
    "of the key": (CHUNK, {"chunk": M.sum, "columns": "a"}),
    "twice": (CHUNK, {"chunk": M.sum, "columns": ["v", "v"]}),
    "minimum count": (CHUNK, {"chunk": M.sum, "columns": "v", "min_count": 200}),
    "largest among several": (
        groupby._groupby_apply_funcs,
        {"funcs": [*SEVERAL, ("most", ONE_COLUMN, {"column": "v", "func": M.max})], "sort": False},
    ),
}


def uses(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that gets an item for each use of the native loop."""
    found: list[bool] = []
    totals = native.key_totals

    def counted(*arguments: Any) -> Any:
        result = totals(*arguments)
        found.append(result is not None)
        return result

    monkeypatch.setattr(number_keys, "key_totals", counted)
    return found


def check(name: str, frame: Any, *by: str) -> None:
    function, named = (CALLS | OTHER_CALLS)[name]
    before, expected = frame.copy(), function(frame, *by, **named)
    found = number_keys.number_keys(function)(frame, *by, **named)
    assert type(found) is type(expected)
    equal = pd.testing.assert_frame_equal if expected.ndim == 2 else pd.testing.assert_series_equal
    equal(found, expected, check_exact=True, check_index_type="exact", check_flags=True)
    assert found.attrs == expected.attrs
    assert found.index.names == expected.index.names
    if isinstance(expected.index, pd.MultiIndex):
        assert [level.dtype for level in found.index.levels] == [level.dtype for level in expected.index.levels]
    pd.testing.assert_frame_equal(frame, before)


@pytest.mark.parametrize("by", [("a",), ("b", "a")])
@pytest.mark.parametrize("name", CALLS)
def test_result_is_that_of_pandas(name: str, by: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    number_keys._adds_as_pandas()
    found = uses(monkeypatch)
    frame = table()
    check(name, frame if set(by) == {"a", "b"} else frame.drop(columns="b"), *by)
    assert found == [True]


TEXTS = {
    "one": lambda texts: texts,
    "several chunks": lambda texts: pd.concat([texts[: ROWS // 3], texts[ROWS // 3 :]]),
    "strings of Python's": lambda texts: texts.astype(object),
    "many": lambda texts: texts + np.arange(ROWS).astype(str),
    "missing": lambda texts: texts.where(texts != "t3"),
    "a part": lambda texts: pd.concat([texts[:5], texts])[5:],
    "other letters": lambda texts: texts.str.replace("t4", "\N{LATIN SMALL LETTER E WITH ACUTE}").replace(
        "t1", ""
    ),
}


@pytest.mark.parametrize("by", [("t",), ("a", "t"), ("t", "a")])
@pytest.mark.parametrize("name", ["sum", "count", "several", "sorted", "mean", "variance"])
@pytest.mark.parametrize("kind", TEXTS)
def test_texts(kind: str, name: str, by: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    number_keys._adds_as_pandas()
    found, frame = uses(monkeypatch), table().drop(columns="b")
    if "a" not in by:
        frame = frame.drop(columns="a")
    texts = pd.Series(np.random.default_rng(1).permutation(np.arange(ROWS) % 12)).map("t{}".format).astype("str")
    frame["t"] = TEXTS[kind](texts)
    check(name, frame, *by)
    assert bool(found) == (kind not in ("strings of Python's", "missing", "many"))


@pytest.mark.parametrize("name", OTHER_CALLS)
def test_other_aggregates_are_those_of_pandas(name: str) -> None:
    check(name, table(), "a")


@settings(max_examples=30)
@given(
    st.sampled_from(sorted(CALLS)),
    st.integers(0, 1000),
    st.sampled_from(["i1", "u1", "i2", "u2", "i4", "u4", "i8"]),
    st.sampled_from(["least", "most", "zero"]),
    st.sampled_from([("a",), ("a", "b")]),
)
def test_any_keys(name: str, seed: int, dtype: str, low: str, by: tuple[str, ...]) -> None:
    info, width = np.iinfo(dtype), 50
    check(name, table(seed, dtype, {"least": info.min, "most": info.max - width, "zero": 0}[low], width), *by)


ODD = {
    "sorted keys": lambda: table().sort_values("a"),
    "far keys": lambda: table().assign(a=lambda frame: frame.a * 1000),
    "infinite": lambda: table().assign(v=lambda frame: frame.v.where(frame.v < 1e8, np.inf)),
    "overflow": lambda: table().assign(v=lambda frame: frame.v * 1e300),
    "few rows": lambda: table().iloc[:20],
    "no rows": lambda: table().iloc[:0],
    "large unsigned": lambda: table().assign(a=lambda frame: frame.a.astype("u8") + (1 << 63)),
    "floats": lambda: table().assign(a=lambda frame: frame.a / 2),
    "half precision": lambda: table().astype({"v": "f4"}),
    "narrow": lambda: table().assign(i=lambda frame: frame.i.astype("i4")),
    "nullable": lambda: table().astype({"i": "Int64"}),
    "nullable keys": lambda: table().astype({"a": "Int64"}),
    "text": lambda: table().assign(i=lambda frame: frame.i.astype(str)),
    "every other row": lambda: table().iloc[::2],
    "names of columns": lambda: table().rename_axis(columns="names"),
    "objects as labels": lambda: table().set_axis(pd.Index(list("avbi"), dtype=object), axis=1),
    "numbers as labels": lambda: table().rename(columns={"i": 3}),
    "named index": lambda: table().rename_axis(index="c"),
    "one group": lambda: table().assign(a=3),
    "no labels twice": lambda: table().set_flags(allows_duplicate_labels=False),
    "counts as labels": lambda: table().rename(columns={"i": "v-count"}),
}


@pytest.mark.parametrize("name", ["sum", "count", "mean", "variance"])
@pytest.mark.parametrize("kind", ODD)
def test_odd_frames(kind: str, name: str) -> None:
    with np.errstate(all="ignore"):
        try:
            check(name, ODD[kind](), "a")
        except (TypeError, NotImplementedError):
            # Dask's own, and its message is compared by users of Dask's.
            function, named = CALLS[name]
            with pytest.raises((TypeError, NotImplementedError)):
                function(ODD[kind](), "a", **named)


@pytest.mark.parametrize("name", ["sum", "several", "sorted", "mean", "variance"])
@pytest.mark.parametrize("by", [("a",), ("a", "b"), ("b", "a")])
@pytest.mark.parametrize("rising", [True, False])
def test_groups_of_neighbours_in_any_order(name: str, by: tuple[str, ...], rising: bool) -> None:
    # pandas adds up slices if groups follow each other, numbered as they begin unless they are sorted.
    check(name, table().sort_values(list(by), ascending=rising, ignore_index=True), *by)


FAR = {
    "far keys": ODD["far keys"],
    "missing keys": lambda: table().assign(a=lambda frame: (frame.a / 2).where(frame.a > 2)),
    "categories": lambda: table().assign(a=lambda frame: frame.a.astype(pd.CategoricalDtype(range(60)))),
    "labels that repeat": lambda: ODD["far keys"]().set_axis(np.arange(ROWS) % 9, axis=0),
    "small numbers": lambda: ODD["floats"]().astype({"v": "f4"}).assign(i=lambda frame: frame.i.astype("u1")),
}


@pytest.mark.parametrize("by", [("a",), ("a", "b"), ("b", "a")])
@pytest.mark.parametrize("options", [{}, {"dropna": False, "observed": True}, {"numeric_only": True}])
@pytest.mark.parametrize("kind", FAR)
def test_variances_by_far_keys_group_once(
    kind: str, options: dict[str, Any], by: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, calls, group = FAR[kind](), [], pd.DataFrame.groupby
    before, expected = frame.copy(), groupby._var_chunk(frame, *by, **options)
    monkeypatch.setattr(pd.DataFrame, "groupby", lambda *given, **named: calls.append(0) or group(*given, **named))
    found = number_keys.number_keys(groupby._var_chunk)(frame, *by, **options)
    assert len(calls) == 1
    pd.testing.assert_frame_equal(found, expected, check_exact=True, check_flags=True)
    pd.testing.assert_frame_equal(frame, before)


@pytest.mark.parametrize("step", [1, 2, -1])
def test_variances_of_groups_of_neighbours_are_dasks(step: int) -> None:
    # pandas adds up slices in another way if a column in the same array has NaN.
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(9000, 3)) ** 9, columns=list("uvw"))
    frame.loc[::10, "u"] = np.nan
    frame = frame[::step]
    frame.insert(0, "a", np.arange(len(frame)) * 50 // len(frame) * 1e6)
    found = number_keys.number_keys(groupby._var_chunk)(frame, "a")
    pd.testing.assert_frame_equal(found, groupby._var_chunk(frame, "a"), check_exact=True)


def test_a_key_that_is_also_a_level_is_refused() -> None:
    frame, (function, named) = table().rename_axis(index="a"), CALLS["sum"]
    with pytest.raises(ValueError, match="ambiguous"):
        number_keys.number_keys(function)(frame, "a", **named)


def test_a_pandas_that_adds_otherwise_adds_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(number_keys, "_adds_as_pandas", lambda: False)
    found = uses(monkeypatch)
    check("sum", table(), "a")
    assert not found


def test_only_functions_that_group_are_replaced() -> None:
    for function in (groupby._var_agg, np.sum, sum, groupby._nunique_df_chunk):
        assert number_keys.number_keys(function) is function


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (((), (), 5), ValueError),
        (((np.arange(5),) * 9, (), 5), ValueError),
        (((np.arange(5),), (), 0), ValueError),
        (((np.arange(5.0),), (), 5), TypeError),
        (((np.arange(10)[::2],), (), 50), TypeError),
        (((np.arange(0),), (), 5), TypeError),
        (((np.arange(5),), (np.arange(4.0),), 5), TypeError),
        (((np.arange(5),), (np.arange(5, dtype="f4"),), 5), TypeError),
        (((3,), (), 5), TypeError),
        (([np.arange(5)], (), 5), TypeError),
    ],
)
def test_wrong_arguments(arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        native.key_totals(*arguments)


def test_tables_of_limited_size() -> None:
    keys = np.array([1 << 62, -(1 << 62)]), np.array([7, 9])
    assert native.key_totals(keys[:1], (), 1 << 30) is None
    assert native.key_totals(keys[1:], (), 2) is None
    first, ranges, _, runs = native.key_totals(keys[1:], (), 3)
    assert first.tolist() == [1, 0, 2]
    assert ranges == [(7, 3)]
    assert runs == 2
