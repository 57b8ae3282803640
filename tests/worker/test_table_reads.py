"""Files of Parquet that are read as one table: the frame, and its sums, are those of Dask's concatenation."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

from dask_mars.graph.chunks import ChunkGraph
from dask_mars.worker import table_reads
from tests.symbolic import prepared, values_of

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
dd = pytest.importorskip("dask.dataframe")

ROWS = 300
#: Partitions are joined where files are small, or few of their columns are read.
JOINED = ["x", "i", "t", "s", "b"]


def table(number: int) -> Any:
    rng = np.random.default_rng(number)
    columns = {"x": rng.random(ROWS) * 1e9, "i": rng.integers(0, 9, ROWS), "b": rng.random(ROWS) > 0.5}
    columns["y"] = np.where(rng.random(ROWS) < 0.1, np.nan, rng.random(ROWS))
    columns["t"] = pd.date_range("2000", periods=ROWS)
    columns |= {"s": [f"w{row % 7}" for row in range(ROWS)], "g": ["w", None, "v"] * (ROWS // 3)}
    others = {f"unread{column}": np.arange(ROWS) for column in range(20)}
    return pd.DataFrame(columns | others)


def with_gaps(frame: Any, number: int) -> Any:
    return frame.assign(i=frame.i.where(frame.i > 3)) if number == 1 else frame


def with_nullable(frame: Any, number: int) -> Any:
    return frame.astype({"i": "Int64"}) if number == 1 else frame


def with_attributes(frame: Any, number: int) -> Any:
    frame.attrs["number"] = number
    return frame


CHANGES: dict[str, Callable[[Any, int], Any]] = {
    "plain": lambda frame, number: frame,
    "longer": lambda frame, number: frame.iloc[: ROWS - 50 * number],
    "ranges that go on": lambda frame, number: frame.set_axis(pd.RangeIndex(number * ROWS, (number + 1) * ROWS)),
    "ranges with steps": lambda frame, number: frame.set_axis(pd.RangeIndex(3, 3 + 2 * ROWS, 2)),
    "an index": lambda frame, number: frame.set_axis(np.arange(ROWS)[::-1] + number).rename_axis("n"),
    "rows of none": lambda frame, number: frame.iloc[: ROWS * (number != 1)],
    "numbers missing in one": with_gaps,
    "nullable in one": with_nullable,
    "narrow in one": lambda frame, number: frame.astype({"x": "f4"}) if number == 1 else frame,
    "categories": lambda frame, number: frame.astype({"s": "category"}),
    "attributes": with_attributes,
    "names of columns": lambda frame, number: frame.rename_axis(columns="names"),
    "time zones": lambda frame, number: frame.assign(t=frame.t.dt.tz_localize("Europe/Rome")),
    "booleans missing": lambda frame, number: frame.assign(b=frame.b.astype(object).where(frame.b)),
    "days": lambda frame, number: frame.assign(t=frame.t.dt.date),
}
OPTIONS: list[dict[str, Any]] = [{}, {"index": False}, {"split_row_groups": True}]


@pytest.fixture(scope="module", params=CHANGES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables")
    for number in range(5):
        frame = CHANGES[request.param](table(number), number)
        frame.to_parquet(path / f"{number}.parquet", row_group_size=200)
    return path


def joined(graph: ChunkGraph) -> ChunkGraph:
    graph.operands[:] = [table_reads.joined_reads(operand) for operand in graph.operands]
    return graph


def outcomes(graph: ChunkGraph) -> list[Any]:
    try:
        return values_of(graph)
    except Exception as error:
        return [type(error), str(error)]


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if not isinstance(expected, pd.DataFrame):
        assert found == expected
        return
    pd.testing.assert_frame_equal(found, expected, check_exact=True, check_index_type="exact", check_flags=True)
    assert type(found.index) is type(expected.index)
    assert found.attrs == expected.attrs
    # Sums depend on the order of values in memory.
    numbers = [column for column in ("x", "y") if column in found]
    assert found[numbers].sum().tolist() == expected[numbers].sum().tolist()
    ours, theirs = found[numbers].to_numpy(), expected[numbers].to_numpy()
    assert ours.tobytes() == theirs.tobytes()
    assert repr((np.nansum(ours), ours.flags.writeable)) == repr((np.nansum(theirs), theirs.flags.writeable))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("columns", [["y", "i", "x"], ["x", "y", "i", "t", "s", "g", "b"]])
def test_frames_are_those_of_dask(columns: list[str], options: dict[str, Any], folder: Path) -> None:
    with dask.config.set({"dataframe.convert-string": len(columns) > 3}):
        graph = prepared(dd.read_parquet(folder, **options)[columns])
    expected = outcomes(graph)
    for value, other in zip(outcomes(joined(graph)), expected, strict=True):
        assert_same(value, other)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    for number in range(4):
        table(number).to_parquet(tmp_path / f"{number}.parquet")
    return tmp_path


def test_partitions_are_converted_once(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = joined(prepared(dd.read_parquet(plain).groupby("i").x.sum()))
    converted: list[Any] = []
    alike = table_reads._are_alike
    monkeypatch.setattr(table_reads, "_are_alike", lambda *given: converted.append(alike(*given)) or converted[-1])
    total = values_of(graph)[-1]
    assert converted
    assert all(converted)
    assert total.sum() == pytest.approx(sum(table(number).x.sum() for number in range(4)))


def test_errors_are_those_of_dask(plain: Path) -> None:
    graph = prepared(dd.read_parquet(plain)[JOINED])
    (plain / "1.parquet").unlink()
    expected = outcomes(graph)
    assert expected[0] is FileNotFoundError
    assert outcomes(joined(graph)) == expected


@pytest.mark.parametrize(
    "options", [{"dataset": {"partitioning": {"flavor": "hive"}}}, {"read": {"use_threads": False}}]
)
def test_options_of_arrow_are_in_force(options: dict[str, Any], tmp_path: Path) -> None:
    for number in range(3):
        with_attributes(table(number), number).to_parquet(tmp_path / f"{number}.parquet")
    graph = prepared(dd.read_parquet(tmp_path, **options)[JOINED])
    expected = outcomes(graph)
    for value, other in zip(outcomes(joined(graph)), expected, strict=True):
        assert_same(value, other)


def test_files_that_are_read_twice_stay_apart(plain: Path) -> None:
    frame = dd.read_parquet(plain)[JOINED]
    operands = prepared(frame.x.sum() + frame.i.max()).operands
    before = [len(operand.steps) for operand in operands]
    after = [len(table_reads.joined_reads(operand).steps) for operand in operands]
    assert all(new <= old for new, old in zip(after, before, strict=True))


@pytest.mark.parametrize("columns", [["x", "i"], ["x", "g"]])
def test_no_table_waits_for_the_collector_of_cycles(columns: list[str], plain: Path) -> None:
    graph = joined(prepared(dd.read_parquet(plain)[columns].sum()))
    values_of(graph)
    gc.collect()
    before_bytes = pa.total_allocated_bytes()
    gc.disable()
    try:
        values_of(graph)
        left_bytes = pa.total_allocated_bytes() - before_bytes
    finally:
        gc.enable()
    assert left_bytes == 0
