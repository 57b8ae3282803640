"""Groups by text from Parquet: with codes for texts, every chunk has the value that Dask's functions give it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

from dask_mars.graph.chunks import ChunkGraph
from dask_mars.worker import number_keys, text_keys
from dask_mars.worker.table_reads import joined_reads
from tests.symbolic import prepared, values_of

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")
dd = pytest.importorskip("dask.dataframe")

ROWS = 400


def table(number: int) -> Any:
    rng = np.random.default_rng(number)
    words = pd.array([f"w{word}" for word in rng.permutation(9)])
    texts = {name: words[rng.integers(0, 6, ROWS)] for name in ("a", "b", "c")}
    frame = pd.DataFrame({"v": rng.random(ROWS) * 1e9, **texts, "i": rng.integers(0, 5, ROWS)})
    rare = pd.array([f"long{row}" for row in range(number, number + ROWS)])
    return frame.assign(rare=rare, gaps=frame.a.where(frame.i > 0), kind=frame.b.astype("category"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text")
    for number in range(3):
        table(number).to_parquet(path / f"{number}.parquet", row_group_size=150)
    return path


#: Of the user's, which sees the key of a group.
NAMES = dd.Aggregation(
    "names", lambda groups: groups.apply(lambda group: len(group.name)), lambda groups: groups.max()
)
CODED = {
    "sum": lambda df: df.groupby("a").v.sum(),
    "two": lambda df: df.groupby(["b", "a"]).v.sum(),
    "text and numbers": lambda df: df.groupby(["i", "a"]).v.count(),
    "two columns": lambda df: df.groupby("a")[["v", "i"]].max(),
    "all columns": lambda df: df[["a", "v", "b"]].groupby("a").first(),
    "values that are text": lambda df: df.groupby("a").agg({"b": "max", "v": "sum"}),
    "aggregations": lambda df: df.groupby("c").agg({"v": ["mean", "std", "count"], "b": "min"}),
    "variance": lambda df: df.groupby(["a", "i"]).v.var(),
    "distinct": lambda df: df.groupby("a").i.nunique(),
    "distinct texts": lambda df: df[df.i > 1].groupby("a").b.nunique(),
    "rows by numbers": lambda df: df[df.i > 2].groupby("a").v.sum(),
    "rows": lambda df: df[df.i * 2 > 3].groupby("a").v.sum(),
    "rows by text": lambda df: df[df.b.str.len() + df.i > 3].groupby("a").v.sum(),
    "assigned": lambda df: df.assign(x=df.v * 2).groupby(["a", "b"]).x.sum(),
    "unsorted": lambda df: df.groupby("a", sort=False).v.sum(),
    "shuffled": lambda df: df.groupby("a").v.sum(split_out=2),
    "with missing texts": lambda df: df.groupby(["a", "gaps"]).v.sum(),
    "with categories": lambda df: df.groupby(["a", "kind"], observed=True).v.sum(),
    "missing groups": lambda df: df.groupby("a", dropna=False).v.sum(),
}
OTHERS = {
    "missing texts": lambda df: df.groupby("gaps").v.sum(),
    "many texts": lambda df: df.groupby("rare").v.sum(),
    "numbers": lambda df: df.groupby("i").v.sum(),
    "the key itself": lambda df: df.groupby("a").a.count(),
    "no rows": lambda df: df[df.i * 2 > 99].groupby("a").v.sum(),
    "replaced": lambda df: df.assign(a=df.a.str.upper()).groupby("a").v.sum(),
    "a series": lambda df: df.groupby(df.a.str.upper()).v.sum(),
    "lists": lambda df: df.groupby("a").agg({"v": list}),
    "own": lambda df: df.groupby("a").agg({"v": NAMES}),
    "only text": lambda df: df.groupby("a").b.max(),
    "a column twice": lambda df: df[["a", "a", "i"]].groupby("i").count(),
    "no groups": lambda df: df[["a", "v"]].v.sum(),
}


def with_codes(graph: ChunkGraph) -> list[Any]:
    graph.operands[:] = [text_keys.text_keys(joined_reads(operand)) for operand in graph.operands]
    return values_of(graph)


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, pd.DataFrame):
        pd.testing.assert_frame_equal(found, expected, check_exact=True, check_index_type="exact")
    elif isinstance(expected, pd.Series):
        pd.testing.assert_series_equal(found, expected, check_exact=True, check_index_type="exact")
    if isinstance(getattr(expected, "index", None), pd.MultiIndex):
        for level, other in zip(found.index.levels, expected.index.levels, strict=True):
            pd.testing.assert_index_equal(level, other, exact=True)


@pytest.mark.parametrize("convert", [True, False])
@pytest.mark.parametrize("name", CODED | OTHERS)
def test_chunks_have_the_values_of_dask(name, convert, folder, monkeypatch):
    group, uses = text_keys._group_by_codes, []

    def counted(*arguments: Any) -> Any:
        uses.append(arguments)
        return group(*arguments)

    monkeypatch.setattr(text_keys, "_group_by_codes", counted)
    with dask.config.set({"dataframe.convert-string": convert, "dataframe.shuffle.method": "tasks"}):
        graph = prepared((CODED | OTHERS)[name](dd.read_parquet(folder)))
        expected = values_of(graph)
        for value, other in zip(with_codes(graph), expected, strict=True):
            assert_same(value, other)
    assert bool(uses) == (name in CODED)


@pytest.mark.parametrize(
    "options",
    [{"columns": ["b", "v", "a"]}, {"index": "i"}, {"split_row_groups": True}, {"dtype_backend": "pyarrow"}],
)
def test_options_of_readers(options, folder):
    graph = prepared(dd.read_parquet(folder, **options).groupby("a").v.sum())
    expected = values_of(graph)
    for value, other in zip(with_codes(graph), expected, strict=True):
        assert_same(value, other)


def test_files_with_other_offsets(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for number, kind in enumerate((arrow.string(), arrow.large_string())):
        columns = {"a": arrow.array(table(number).a.tolist(), kind), "v": arrow.array(table(number).v)}
        parquet.write_table(arrow.table(columns), tmp_path / f"{number}.parquet")
    graph = prepared(dd.read_parquet(tmp_path).groupby("a").v.sum())
    expected = values_of(graph)
    for value, other in zip(with_codes(graph), expected, strict=True):
        assert_same(value, other)


def test_variances_by_numbers_of_files_are_grouped_at_most_once(folder, monkeypatch):
    monkeypatch.setattr(number_keys, "_FEWEST_ROWS", 1)
    calls: list[Any] = []
    group = pd.DataFrame.groupby
    monkeypatch.setattr(pd.DataFrame, "groupby", lambda *given, **named: calls.append(0) or group(*given, **named))
    graph = prepared(dd.read_parquet(folder).groupby("i").v.std())
    with_codes(graph)
    once = len(calls)
    calls.clear()
    values_of(prepared(dd.read_parquet(folder).groupby("i").v.std()))
    assert once < len(calls)


def test_errors_are_those_of_dask(tmp_path):
    table(0).to_parquet(tmp_path / "x.parquet")
    graph = prepared(dd.read_parquet(tmp_path / "x.parquet").groupby("a").v.sum())
    (tmp_path / "x.parquet").unlink()
    with pytest.raises(FileNotFoundError):
        with_codes(graph)


def test_operands_that_do_not_read_and_group_stay(folder):
    for collection in dd.read_parquet(folder).v.sum(), dd.from_pandas(table(0), 2).groupby("a").v.sum():
        operands = prepared(collection).operands
        assert all(text_keys.text_keys(operand) is operand for operand in operands)
