"""Variances of groups: what grouping once returns is what Dask's own function does, in every attribute."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from dask_mars.worker import grouped_variances

pd = pytest.importorskip("pandas")
pytest.importorskip("dask.dataframe")
groupby = pytest.importorskip("dask.dataframe.groupby")

ROWS = 500


def table() -> Any:
    rng = np.random.default_rng(1)
    return pd.DataFrame(
        {
            "a": rng.integers(0, 5, ROWS),
            "b": rng.integers(0, 7, ROWS).astype("f4"),
            "v": np.where(rng.random(ROWS) < 0.1, np.nan, rng.random(ROWS) * 1e9),
            "i": rng.integers(0, 1 << 40, ROWS),
            "h": rng.integers(0, 200, ROWS).astype("u1"),
        }
    )


FRAMES = {
    "numbers": table,
    "text": lambda: table().assign(a=lambda frame: "t" + frame.a.astype(str)),
    "missing keys": lambda: table().assign(b=lambda frame: frame.b.where(frame.b > 2)),
    "categories": lambda: table().assign(a=lambda frame: frame.a.astype(pd.CategoricalDtype(range(8)))),
    "labels that repeat": lambda: table().set_axis(np.arange(ROWS) % 9, axis=0),
    "no rows": lambda: table().iloc[:0],
    "other names": lambda: table().rename(columns={"i": "v²"}),
}
OTHERS = {
    "objects": lambda: table().assign(i=lambda frame: frame.i.astype(object)),
    "nullable": lambda: table().assign(i=lambda frame: frame.i.astype("Int64")),
    "booleans": lambda: table().assign(h=lambda frame: frame.h > 100),
    "names of columns": lambda: table().rename_axis(columns="names"),
    "numbers as labels": lambda: table().rename(columns={"i": 3}),
    "attributes": lambda: with_attributes(table()),
}


def with_attributes(frame: Any) -> Any:
    frame.attrs["unit"] = "m"
    return frame


@pytest.mark.parametrize("by", [("a",), ("a", "b"), ("b", "i")])
@pytest.mark.parametrize("options", [{}, {"dropna": False, "observed": True}, {"numeric_only": True}])
@pytest.mark.parametrize("name", FRAMES | OTHERS)
def test_result_is_that_of_dask(name: str, by: tuple[str, ...], options: dict[str, Any]) -> None:
    frame = (FRAMES | OTHERS)[name]()
    by = tuple([label for label in by if label in frame])
    before, ours = frame.copy(), grouped_variances.grouped_variances(groupby._var_chunk)
    try:
        expected = groupby._var_chunk(frame, *by, **options)
    except TypeError as error:
        with pytest.raises(TypeError, match=re.escape(str(error))):
            ours(frame, *by, **options)
        return
    found = ours(frame, *by, **options)
    pd.testing.assert_frame_equal(found, expected, check_exact=True, check_flags=True)
    assert found.attrs == expected.attrs
    pd.testing.assert_frame_equal(frame, before)


@pytest.mark.parametrize("step", [1, 2, -1])
@pytest.mark.parametrize("are_together", [True, False])
def test_groups_of_neighbours_are_dasks(step: int, are_together: bool) -> None:
    # pandas adds up slices in another way if a column in the same array has NaN.
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(9000, 3)) ** 9, columns=list("uvw"))
    frame.loc[::10, "u"] = np.nan
    if not are_together:
        frame = pd.DataFrame({label: frame[label].to_numpy().copy() for label in frame})
    frame = frame[::step]
    frame.insert(0, "a", np.arange(len(frame)) * 50 // len(frame))
    found = grouped_variances.grouped_variances(groupby._var_chunk)(frame, "a")
    pd.testing.assert_frame_equal(found, groupby._var_chunk(frame, "a"), check_exact=True)


@pytest.mark.parametrize(("frames", "groupings"), [(FRAMES, 1), (OTHERS, 2)])
def test_plain_numbers_are_grouped_once(frames: Any, groupings: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    group = pd.DataFrame.groupby
    monkeypatch.setattr(pd.DataFrame, "groupby", lambda *given, **named: calls.append(0) or group(*given, **named))
    for make in frames.values():
        calls.clear()
        grouped_variances.grouped_variances(groupby._var_chunk)(make(), "a")
        assert len(calls) == groupings


def test_other_ways_of_grouping_are_dasks() -> None:
    ours = grouped_variances.grouped_variances(groupby._var_chunk)
    for frame, by in ((table(), table().a), (table().v, table().a), (table().v, table().a % 2 == 0)):
        pd.testing.assert_frame_equal(ours(frame, by), groupby._var_chunk(frame, by), check_exact=True)
    with pytest.raises(KeyError):
        ours(table(), "absent")
    assert grouped_variances.grouped_variances(groupby._var_agg) is groupby._var_agg
