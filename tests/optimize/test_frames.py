"""Dataframes: chunks made from one task of each expression, with the values of all of Dask's."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import dask
import numpy as np
import pytest
from dask._task_spec import Task, TaskRef, convert_legacy_graph
from dask.utils import SerializableLock

from dask_mars.optimize.convert import convert
from dask_mars.optimize.fronts import ReadOptions, frames, symbolic_graph
from dask_mars.optimize.passes import Limits, run_passes
from dask_mars.optimize.passes.compose import compose
from studies.graphs import handed_over
from tests.graphs import dependencies_of, resolved, symbolic
from tests.symbolic import evaluate, passed

pd = pytest.importorskip("pandas")
dd = pytest.importorskip("dask.dataframe")
collection = pytest.importorskip("dask.dataframe.dask_expr._collection")
expressions = pytest.importorskip("dask.dataframe.dask_expr._expr")


def table() -> Any:
    return pd.DataFrame({"a": np.arange(40) % 7, "b": np.linspace(0, 1, 40), "c": list("wxyz") * 10})


def part(number: int) -> Any:
    return table().iloc[number * 5 : number * 5 + 5]


FRAMES = {
    "elementwise": lambda df: df.assign(d=df.a * 2 + df.b)[["d", "a"]],
    "filter": lambda df: df[(df.a > 2) & (df.b < 0.9)].b,
    "sum": lambda df: ((df.a + df.b) * 2).sum(),
    "mean": lambda df: df[["a", "b"]].mean(),
    "groupby": lambda df: df.groupby("c").b.sum(),
    "groupby shuffled": lambda df: df.groupby("a").agg({"b": ["mean", "max"]}, split_out=3),
    "map_partitions": lambda df: df.map_partitions(lambda part, by: part.b * by, 3.0, meta=("b", "f8")),
    "partition_info": lambda df: df.map_partitions(
        lambda part, partition_info=None: part.a * 0 + partition_info["number"], meta=("a", "i8")
    ),
    "apply": lambda df: df.b.apply(lambda value: value + 1, meta=("b", "f8")),
    "string": lambda df: df.c.str.upper(),
    "index": lambda df: df.index.max(),
    "head": lambda df: df.head(8, npartitions=-1, compute=False),
    "tail": lambda df: df.tail(3, compute=False),
    "partitions": lambda df: (df.a + 1).partitions[[1, 3]],
    "broadcast": lambda df: df.b - df.b.mean(),
    "two": lambda df: df.a + dd.from_pandas(table(), npartitions=8).b,
    "merge": lambda df: df.merge(df.groupby("c").b.max().reset_index(), on="c").b_y,
    "broadcast merge": lambda df: df.merge(pd.DataFrame({"a": [1, 2], "e": [3, 4]}), on="a"),
    "concat": lambda df: dd.concat([df, df.assign(b=df.b + 1)]).b,
    "shuffle": lambda df: df.set_index("b", divisions=[0, 0.3, 0.7, 1]).a,
    "repartition": lambda df: (df.b + 1).repartition(npartitions=2) * 2,
    "rolling": lambda df: df.b.rolling(3).sum(),
    "cumulative": lambda df: df.a.cumsum(),
    "sample": lambda df: df.sample(frac=0.5, random_state=3).b,
    "describe": lambda df: df.b.describe(),
    "already fused": lambda df: (df.a + df.b + 1).sum().optimize(),
    "one partition": lambda df: df.repartition(npartitions=1).b.sum() + 1,
    "persisted": lambda df: (df.persist(scheduler="sync").b + 1).sum(),
}


@pytest.mark.parametrize(
    "number", [pytest.param(number, marks=pytest.mark.slow if number % 3 else ()) for number in range(len(FRAMES))]
)
def test_dataframe(number, given_up):
    """With Dask's fusion and without, and with two sources in turn."""
    kind, fuse, is_given = list(FRAMES)[number], bool(number // 2 % 2), bool(number % 2)
    options = {"optimization.fuse.active": fuse, "dataframe.shuffle.method": "tasks"}
    with dask.config.set(options):
        if is_given:
            df = dd.from_pandas(table(), npartitions=8)
        else:
            df = dd.from_map(part, range(8), divisions=[*range(0, 40, 5), 39])
        dsk, wanted = handed_over(FRAMES[kind](df))
        tasks, lazy, *_ = symbolic_graph(dsk, ReadOptions())
        assert lazy or kind in ("partition_info", "sample")
        graph = convert(tasks, wanted, lazy, keep_shuffles=True)
        assert given_up() == []
        materialised = convert_legacy_graph(dsk.__dask_graph__())
    if not fuse and kind != "already fused":
        expected = resolved(materialised)
        found = dependencies_of(graph)
        assert found == {key: expected[key] for key in found}
    assert len(passed(graph, compose)) <= len(convert(materialised, wanted))
    values = evaluate(graph)
    for key, value in zip(wanted, dask.get(materialised, wanted), strict=True):
        assert_equal(values[key], value)


def assert_equal(value: Any, expected: Any) -> None:
    assert type(value) is type(expected)
    if isinstance(expected, pd.DataFrame):
        pd.testing.assert_frame_equal(value, expected)
    elif isinstance(expected, pd.Series):
        pd.testing.assert_series_equal(value, expected)
    else:
        np.testing.assert_array_equal(value, expected)


def test_partitions_of_a_dataframe_are_one_chunk_each(runtime):
    df = dd.from_map(part, range(8))
    x = ((df.a + df.b) * df.b).sum()
    graph, tasks = symbolic(x)
    composed = passed(graph, compose)
    assert len(composed) == 8 + 1
    assert len(composed.operands) == 2
    # The sum of their sums, and the name of the result that Dask knows.
    assert len(tasks) == 1 + 1
    assert x.compute(scheduler=runtime.get) == pytest.approx(((table().a + table().b) * table().b).sum())


def with_columns(number: Any, other: Any = 0, columns: Any = None, offset: Any = 0) -> Any:
    found = table().assign(d=len(str(number)), e=float(np.sum(other)) + offset)
    return found if columns is None else found[columns]


MAPPED = {
    "one": lambda: dd.from_map(with_columns, range(300, 308)),
    "several": lambda: dd.from_map(with_columns, list("stuvw"), [1, 2.5, True, 0, -1], offset=3)[["e", "a"]],
    "column": lambda: dd.from_map(with_columns, ["x", "yy", "zzz"]).d + 1,
    "selected": lambda: dd.from_map(with_columns, range(8)).partitions[[6, 2]],
    "after arguments": lambda: dd.from_map(with_columns, [(1, "a"), [2], {"b": None}], args=([5, 6],)),
    "without names": lambda: dd.from_map(part, range(4), enforce_metadata=False),
    "paths": lambda: dd.from_map(with_columns, [PurePath("a"), PurePath("b/c")]).d,
    "empty tuple": lambda: dd.from_map(with_columns, [(), ("a",)], meta=with_columns(0)),
    "small arrays": lambda: dd.from_map(with_columns, [1, 2], [np.arange(3), np.arange(4)]).e,
    # Dask makes these tasks, as their arguments are more than literals.
    "functions": lambda: dd.from_map(with_columns, [len, lambda: 0, max]).e,
    "large arrays": lambda: dd.from_map(with_columns, [1, 2], [np.zeros(1), np.ones(10_000)]).e,
}


@pytest.mark.parametrize("kind", MAPPED)
def test_functions_mapped_over_lists_are_rows_of_one_operand(kind):
    dsk, wanted = handed_over(MAPPED[kind]())
    tasks, lazy, *_ = symbolic_graph(dsk, ReadOptions())
    graph = convert(tasks, wanted, lazy)
    values = evaluate(graph)
    materialised = convert_legacy_graph(dsk.__dask_graph__())
    for key, value in zip(wanted, dask.get(materialised, wanted), strict=True):
        assert_equal(values[key], value)
    if kind not in ("functions", "large arrays"):
        # The function, the partitionwise steps, and the assembly of the result.
        assert len(graph.operands) <= 3
        assert not any(isinstance(key, tuple) and "with" in key[0] for key in tasks)


def fused_length(*collections: Any) -> int:
    graph, _ = symbolic(*collections)
    return len(run_passes(graph, Limits(workers=2)))


def test_sums_and_counts_of_a_partition_are_one_chunk_with_it(runtime):
    df = dd.from_map(part, range(8))
    rows = df[df.a > 2]
    own = rows.b.reduction(lambda values: values.sum(), aggregate=lambda sums: sums.max(), meta=("b", "f8"))
    # The combined sums and counts, and the mean of both.
    assert fused_length(rows.b.mean()) == 8 + 3
    # Rows, their sum, and what a function of the user's makes of them; then both combined.
    assert fused_length(rows.b.sum(), own) == 3 * 8 + 2
    kept = table()[table().a > 2]
    assert dask.compute(rows.b.mean(), own, rows.b.max(), scheduler=runtime.get)[::2] == (
        pytest.approx(kept.b.mean()),
        kept.b.max(),
    )


def test_literals_that_partitions_share_are_parts_of_the_operand(runtime):
    df = dd.from_map(part, range(8)).merge(table().assign(a=1)[["c", "a"]].drop_duplicates(), on="c")
    x = df.assign(d=df.b * 2)[["c", "d"]].groupby("c").d.sum()
    graph, _ = symbolic(x)
    of_part = [literals for key, literals in zip(graph.keys, graph.literals, strict=True) if key[-1] == 5]
    kinds = {type(literal) for literals in of_part for literal in literals}
    assert kinds
    assert not kinds & {dict, list, pd.DataFrame}
    pd.testing.assert_series_equal(x.compute(scheduler=runtime.get), x.compute(scheduler="sync"))
    # Literals are searched for locks.
    locked = df.map_partitions(
        lambda rows, lock, names: rows[names], SerializableLock(), ["b"], meta=part(0)[["b"]]
    )
    kinds = {type(literal) for literals in symbolic(locked)[0].literals for literal in literals}
    assert SerializableLock in kinds
    assert list not in kinds


def test_files_of_parquet_are_read_by_one_operand(tmp_path, runtime):
    for number in range(4):
        part(number).to_parquet(tmp_path / f"{number}.parquet")
    df, half = dd.read_parquet(tmp_path), dd.read_parquet([tmp_path / f"{number}.parquet" for number in range(2)])
    for x, operands in ((df.a + df.b, 1), (dd.concat([df.a, half.b]), 2)):
        graph, _ = symbolic(x)
        composed = passed(graph, compose)
        read = {composed.operand_of[chunk] for chunk, sources in enumerate(composed.inputs) if not sources}
        assert len(read - {-1}) == operands
    expected = pd.concat([frame.a + frame.b for frame in map(part, range(4))])
    pd.testing.assert_series_equal((df.a + df.b).compute(scheduler=runtime.get), expected)


def test_shared_part_of_two_dataframes_is_made_once(runtime):
    df = dd.from_map(part, range(8))
    shared = df.a + 1
    graph, _ = symbolic(shared.sum(), shared.max(), shared)
    assert sum(str(key[0]).startswith("part-") for key in passed(graph, compose).keys) <= 8
    results = dask.compute(shared.sum(), shared.max(), shared, scheduler=runtime.get)
    assert results[:2] == ((table().a + 1).sum(), 7)
    pd.testing.assert_series_equal(results[2], table().a + 1)


def test_several_dataframes_and_a_persisted_one(runtime):
    df = dd.from_pandas(table(), npartitions=4)
    kept = (df.a + 1).persist(scheduler=runtime.get)
    assert dask.compute(kept.sum(), df.b.count(), (kept * 2).max(), scheduler=runtime.get) == (
        (table().a + 1).sum(),
        40,
        14,
    )


class _Numbered(expressions.Blockwise):
    """Its task for a partition knows which one it is."""

    _parameters = ("frame",)
    operation = staticmethod(lambda part, number: part.a * 0 + number)

    @property
    def _meta(self) -> Any:
        return self.frame._meta.a

    def _task(self, name: Any, index: int) -> Task:
        return Task(name, self.operation, TaskRef((self.frame._name, index)), index)


@pytest.mark.parametrize("careless", [False, True], ids=["asked", "compared"])
def test_partitions_that_differ_are_made_by_dask(careless, monkeypatch, given_up):
    """Even if a kind of expression is taken for one whose partitions are alike."""
    x = collection.new_collection(_Numbered(dd.from_pandas(table(), npartitions=8)))
    if careless:
        monkeypatch.setattr(frames, "_is_uniform", lambda expression: type(expression) is _Numbered)
    dsk, wanted = handed_over(x)
    tasks, lazy, *_ = symbolic_graph(dsk, ReadOptions())
    values = evaluate(convert(tasks, wanted, lazy))
    assert [len(given_up()), len(lazy)] == ([1, 1] if careless else [0, 0])
    assert sorted(values[wanted[0]].unique()) == list(range(8))


NUMBERS = {
    "all": lambda df: df,
    "columns": lambda df: df[["b", "a"]],
    "series": lambda df: df.b,
    "partitions": lambda df: df.partitions[[3, 1]][["a"]],
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("index", [None, pd.date_range("2000", periods=40), np.arange(40)[::-1] // 3])
def test_partitions_in_memory_are_those_of_dask(name: str, index: Any) -> None:
    source = table().drop(columns="c").assign(d=1, t=pd.Timestamp("2000"))
    source = source if index is None else source.set_axis(index)
    source.attrs["unit"] = "m"
    optimized = NUMBERS[name](dd.from_pandas(source, npartitions=8)).optimize(fuse=False)
    expression = next(each for each in optimized.expr.walk() if type(each).__name__ == "FromPandas")
    if name == "series":
        expression = expression.substitute_parameters({"_series": True})
    found, expected = frames._partitions_in_memory(expression), expression._layer()
    assert list(found) == list(expected)
    check = pd.testing.assert_series_equal if name == "series" else pd.testing.assert_frame_equal
    for key, node in expected.items():
        check(found[key].value, node.value, check_exact=True, check_index_type="exact", check_flags=True)
        assert type(found[key].value.index) is type(node.value.index)
        assert found[key].value.attrs == node.value.attrs


@pytest.mark.parametrize("frame", [table(), table().a, table().set_index("c"), table().astype({"a": "Int64"})])
def test_frames_with_other_values_are_cut_by_dask(frame: Any) -> None:
    expression = dd.from_pandas(frame, npartitions=4, sort=False).expr
    assert frames._partitions_in_memory(expression) is None


def test_a_column_that_may_not_be_text_is_left_to_dask() -> None:
    frame = table()[["a"]].assign(o="x").astype({"o": object})
    expression = dd.from_pandas(frame, npartitions=4)[["a"]].optimize(fuse=False).expr
    found = next(each for each in expression.walk() if type(each).__name__ == "FromPandas")
    assert frames._partitions_in_memory(found) is None


def test_a_frame_is_left_to_a_dask_that_keeps_it_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    expression = dd.from_pandas(table()[["a"]], npartitions=4).expr
    assert frames._partitions_in_memory(expression) is not None
    monkeypatch.delattr(type(expression), "_locations")
    assert frames._partitions_in_memory(expression) is None
