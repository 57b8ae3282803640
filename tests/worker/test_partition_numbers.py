"""Numbers of partitions: rows go where Dask's function sends them, in frames with the same attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dask_mars.worker.partition_numbers import partition_numbers

pd = pytest.importorskip("pandas")
shuffle = pytest.importorskip("dask.dataframe.dask_expr._shuffle")

DASKS = shuffle.AssignPartitioningIndex.operation
ROWS = 300


def table() -> Any:
    rng = np.random.default_rng(3)
    return pd.DataFrame(
        {
            "a": rng.integers(-50, 50, ROWS),
            "f": np.where(rng.random(ROWS) < 0.2, np.nan, rng.choice([-0.0, 0.0, 1.5, np.inf], ROWS)),
            "h": rng.integers(0, 9, ROWS).astype("u1"),
            "t": pd.array(
                [f"t{number}" if number % 7 else None for number in rng.integers(0, 40, ROWS)], dtype="str"
            ),
            "b": rng.random(ROWS) < 0.5,
        }
    )


def with_attributes() -> Any:
    frame = table()
    frame.attrs["unit"] = "m"
    return frame


FRAMES = {
    "plain": table,
    "no rows": lambda: table().iloc[:0],
    "labels that repeat": lambda: table().set_axis(np.arange(ROWS) % 9, axis=0),
    "two blocks": lambda: table().set_index("f", drop=False).rename_axis("g"),
    "an index with the same name": lambda: table().set_index("a", drop=False),
    "categories": lambda: table().astype({"a": "category"}),
    "nullable": lambda: table().astype({"a": "Int64"}),
    "objects": lambda: table().astype({"t": object}),
    "columns that repeat": lambda: table().rename(columns={"h": "b"}),
    "names of columns": lambda: table().rename_axis(columns="names"),
    "attributes": with_attributes,
}


@pytest.mark.parametrize("index", ["a", ["a"], ["f"], ["t"], ["h", "t", "f"], ["b"], ["_index"]])
@pytest.mark.parametrize("count", [2, 200])
@pytest.mark.parametrize("name", FRAMES)
def test_result_is_that_of_dask(name: str, index: Any, count: int) -> None:
    frame, meta = FRAMES[name](), table().iloc[:0]
    try:
        expected = DASKS(frame, index, "_partitions", count, meta, False)
    except Exception as error:
        with pytest.raises(type(error)):
            partition_numbers(DASKS)(frame, index, "_partitions", count, meta, False)
        return
    found = partition_numbers(DASKS)(frame, index, "_partitions", count, meta, False)
    pd.testing.assert_frame_equal(found, expected, check_exact=True, check_flags=True)
    assert found.attrs == expected.attrs


def test_other_indexes_are_dasks() -> None:
    ours, frame = partition_numbers(DASKS), table()
    for index, by_index in ((frame.a, False), (frame[["a", "t"]], False), (["_index"], True), (["a"], True)):
        found = ours(frame, index, "_partitions", 4, index if hasattr(index, "ndim") else frame, by_index)
        expected = DASKS(frame, index, "_partitions", 4, index if hasattr(index, "ndim") else frame, by_index)
        pd.testing.assert_frame_equal(found, expected)


def test_plain_columns_are_not_handed_to_dask() -> None:
    def fail(*given: Any) -> None:
        raise AssertionError(given)

    fail.__module__, fail.__qualname__ = DASKS.__module__, DASKS.__qualname__
    found = partition_numbers(fail)(table(), ["a", "t"], "_partitions", 8, table(), False)
    assert set(found["_partitions"]) <= set(range(8))
    assert partition_numbers(shuffle._select_columns_or_index) is shuffle._select_columns_or_index
