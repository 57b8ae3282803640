"""Initial chunks computed where they are needed: which are, what becomes of their programs, and the switch."""

from __future__ import annotations

from operator import add, mul, neg
from typing import Any

import dask
import dask.array as da
import pytest
from dask._task_spec import DataNode, List, Task, TaskRef

from dask_mars.graph.chunks import ChunkGraph
from dask_mars.optimize.convert import convert
from dask_mars.optimize.passes import Limits
from dask_mars.optimize.passes.folding import fold_initial
from dask_mars.optimize.prepare import PrepareOptions, prepare
from tests.symbolic import evaluate, function_names, passed


def ref(name: str, number: int) -> TaskRef:
    return TaskRef((name, number))


def pairs(count: int) -> dict[Any, Any]:
    """Return tasks that add two chunks that nothing else needs, and one that adds all of these."""
    tasks: dict[Any, Any] = {}
    for number in range(count):
        tasks["left", number] = Task(("left", number), mul, number, 10)
        tasks["right", number] = Task(("right", number), neg, number)
        tasks["both", number] = Task(("both", number), add, ref("left", number), ref("right", number))
    tasks["all"] = Task("all", sum, List(*[ref("both", number) for number in range(count)]))
    return tasks


def folded(tasks: dict[Any, Any], wanted: list[Any], fewest: int = 1) -> ChunkGraph:
    """Fold, compare the values, and return the graph."""
    before = convert(tasks, wanted)
    after = passed(before, fold_initial, workers=1, consumers_per_worker=fewest)
    values, expected = evaluate(after), evaluate(before)
    assert {key: values[key] for key in wanted} == {key: expected[key] for key in wanted}
    return after


def test_initial_chunks_with_one_consumer_are_folded_into_it():
    graph = folded(pairs(6), ["all"], fewest=6)
    assert graph.keys == [*(("both", number) for number in range(6)), "all"]
    assert [function_names(operand) for operand in graph.operands] == [["mul", "neg", "add"], ["make_list", "sum"]]
    assert graph.literals[:2] == [(0, 10, 0), (1, 10, 1)]


def test_not_where_there_are_too_few_alike():
    assert len(folded(pairs(6), ["all"], fewest=7)) == 19


def test_each_kind_is_counted_for_itself():
    tasks = pairs(6)
    tasks["right", 5] = Task(("right", 5), abs, -5)
    graph = folded(tasks, ["all"], fewest=3)
    assert [key for key in graph.keys if key != "all" and key[0] != "both"] == [("left", 5), ("right", 5)]


@pytest.mark.parametrize("kind", ["wanted", "used twice", "with an input", "a value"])
def test_what_stays_a_chunk_of_its_own(kind):
    tasks, wanted = pairs(4), ["all"]
    if kind == "wanted":
        wanted.append(("left", 2))
    elif kind == "used twice":
        tasks["all"] = Task("all", add, tasks["all"], ref("left", 2))
    elif kind == "with an input":
        tasks["left", 2] = Task(("left", 2), mul, ref("left", 1), 2)
    else:
        tasks["left", 2] = DataNode(("left", 2), 20)
    graph = folded(tasks, wanted)
    assert ("left", 2) in graph.ids
    assert ("right", 2) not in graph.ids


def test_the_same_chunk_twice_is_not_folded():
    tasks = {"x": Task("x", abs, -3), "y": Task("y", add, TaskRef("x"), TaskRef("x"))}
    assert folded(tasks, ["y"]).keys == ["x", "y"]


def test_chunks_of_which_the_user_has_said_something():
    graph = convert(pairs(4), ["all"])
    graph.retries[graph.ids["left", 1]] = 3
    graph.priorities[graph.ids["both", 2]] = 5.0
    graph.in_client.add(graph.ids["right", 3])
    after = passed(graph, fold_initial, workers=1, consumers_per_worker=1)
    kept = {("left", 1), ("left", 2), ("right", 2), ("right", 3)}
    assert {key for key in after.keys if key[0] in ("left", "right")} == kept
    assert after.retries == {after.ids["left", 1]: 3}
    assert after.priorities == {after.ids["both", 2]: 5.0}
    assert after.in_client == {after.ids["right", 3]}


def test_long_operands_do_not_grow():
    tasks: dict[Any, Any] = {("x", number): Task(("x", number), abs, -number) for number in range(200)}
    tasks["all"] = Task("all", sum, List(*[ref("x", number) for number in range(200)]))
    assert len(folded(tasks, ["all"])) == 201


@pytest.mark.parametrize(("workers", "folds"), [(None, False), (4, True), (6, False)])
def test_sums_over_many_chunks_become_a_quarter(workers, folds):
    x = (da.ones(6400, chunks=10) * 2 + 1).sum()
    seen = []

    def capture(dsk: Any, keys: Any, **_: Any) -> Any:
        wanted = list(dask.core.flatten(keys))
        graph = prepare(dsk, wanted, PrepareOptions(Limits(workers)))
        seen.append(len(graph))
        return [evaluate(graph)[wanted[0]]]

    assert x.compute(scheduler=capture) == 19200
    assert (seen[0] < 3 * 160) == folds
