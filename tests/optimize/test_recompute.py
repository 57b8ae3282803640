"""Chunks made again by their readers: which are, what becomes of the graph, the costs, and the switch."""

from __future__ import annotations

from importlib import import_module
from operator import add, mul, neg
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import DataNode, List, Task, TaskRef

from dask_mars.expressions import draws
from dask_mars.graph.chunks import ChunkGraph, Operand
from dask_mars.optimize.convert import convert
from dask_mars.optimize.passes import Limits
from dask_mars.optimize.passes.recompute import READ_NS, WRITE_NS, is_cheaper, recompute
from dask_mars.optimize.prepare import PrepareOptions, prepare
from studies.graphs import handed_over
from tests.symbolic import evaluate, function_names, passed

module = import_module("dask_mars.optimize.passes.recompute")


def ref(name: str, number: int) -> TaskRef:
    return TaskRef((name, number))


def thrice(count: int) -> dict[Any, Any]:
    """Return tasks that read each of some chunks three times, once beside another chunk."""
    tasks: dict[Any, Any] = {}
    for number in range(count):
        tasks["x", number] = Task(("x", number), mul, number, 10)
        tasks["negative", number] = Task(("negative", number), neg, ref("x", number))
        tasks["square", number] = Task(("square", number), pow, ref("x", number), 2)
        tasks["both", number] = Task(("both", number), add, ref("x", number), TaskRef("total"))
    tasks["total"] = Task("total", sum, List(*[ref("negative", number) for number in range(count)]))
    tasks["all"] = Task(
        "all", sum, List(*[ref(name, number) for name in ("square", "both") for number in range(count)])
    )
    return tasks


def is_product(operand: Operand) -> bool:
    """Have products made again, and nothing else."""
    return operand.functions[0] is mul


def recomputing(graph: ChunkGraph, cost: float | None = 0.1, last_stored: str = "", **options: Any) -> ChunkGraph:
    """Recompute products, which have a cost, and are stored for functions of a name."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "is_source", is_product)
        patched.setattr(module, "make_ns", lambda operand, literals: cost)
        patched.setattr(module, "never_stored", lambda operand: function_names(operand)[-1] != last_stored)
        return passed(graph, recompute, recomputes=True, **options)


def recomputed(tasks: dict[Any, Any], wanted: list[Any]) -> ChunkGraph:
    """Recompute, compare the values, and return the graph."""
    before = convert(tasks, wanted)
    after = recomputing(before)
    values, expected = evaluate(after), evaluate(before)
    assert {key: values[key] for key in wanted} == {key: expected[key] for key in wanted}
    return after


def names(graph: ChunkGraph) -> set[Any]:
    return {key[0] if isinstance(key, tuple) else key for key in graph.keys}


def test_each_reader_makes_its_own():
    graph = recomputed(thrice(4), ["all"])
    assert names(graph) == {"negative", "square", "both", "total", "all"}
    programs = {tuple(function_names(graph.operands[number])) for number in graph.operand_of}
    assert programs == {("mul", "neg"), ("mul", "pow"), ("mul", "add"), ("make_list", "sum")}
    both = graph.ids["both", 3]
    assert graph.inputs[both] == (graph.ids["total"],)
    assert graph.literals[both] == (3, 10)


def test_two_of_them_in_one_reader():
    tasks = thrice(4)
    for number in range(4):
        tasks["both", number] = Task(("both", number), add, ref("x", number), ref("x", (number + 1) % 4))
    graph = recomputed(tasks, ["all"])
    assert "x" not in names(graph)
    assert graph.literals[graph.ids["both", 3]] == (3, 10, 0, 10)


@pytest.mark.parametrize(
    "kind", ["wanted", "one reader", "with an input", "a value", "retries", "a reader's retries", "alone"]
)
def test_what_stays_a_chunk_of_its_own(kind):
    tasks, wanted, alone = thrice(4), ["all"], set()
    if kind == "wanted":
        wanted.append(("x", 2))
    elif kind == "one reader":
        tasks["square", 2], tasks["both", 2] = DataNode(("square", 2), 1), DataNode(("both", 2), 1)
    elif kind == "with an input":
        tasks["x", 2] = Task(("x", 2), mul, ref("x", 1), 2)
    elif kind == "a value":
        tasks["x", 2] = DataNode(("x", 2), 20)
    graph = convert(tasks, wanted)
    if kind == "retries":
        graph.retries[graph.ids["x", 2]] = 1
    elif kind == "a reader's retries":
        graph.retries[graph.ids["square", 2]] = 1
    elif kind == "alone":
        alone.add(graph.ids["x", 2])
    after = recomputing(graph, fixed=alone)
    assert ("x", 2) in after.ids
    assert ("x", 3) not in after.ids
    values, expected = evaluate(after), evaluate(graph)
    assert all(values[key] == expected[key] for key in wanted)


def test_reader_that_uses_it_twice_makes_it_once():
    tasks = thrice(4)
    tasks["both", 2] = Task(("both", 2), add, ref("x", 2), ref("x", 2))
    graph = recomputed(tasks, ["all"])
    assert function_names(graph.operands[graph.operand_of[graph.ids["both", 2]]]) == ["mul", "add"]


def test_not_where_a_reader_needs_all_of_it():
    graph = convert(thrice(4), ["all"])
    assert recomputing(graph, last_stored="pow") is graph


@pytest.mark.parametrize("cost", [10.0, None])
def test_not_where_it_takes_longer(cost):
    graph = convert(thrice(4), ["all"])
    assert recomputing(graph, cost) is graph


def test_long_operands_do_not_grow():
    tasks: dict[Any, Any] = {("x", number): Task(("x", number), mul, number, 2) for number in range(200)}
    for name in ("all", "again"):
        tasks[name] = Task(name, sum, List(*[ref("x", number) for number in range(200)]))
    graph = convert(tasks, ["all", "again"])
    assert recomputing(graph) is graph


def test_costs():
    for readers in range(1, 20):
        for make in (0.01, READ_NS, 0.9, 3.0):
            assert is_cheaper(make, readers) == ((readers - 1) * make < WRITE_NS + readers * READ_NS)
        assert is_cheaper(READ_NS, readers)


# -- random numbers -----------------------------------------------------------------------------------------------

streams = pytest.mark.skipif(draws.checked_stream("random") is None, reason="the extension was not compiled")


@pytest.fixture(autouse=True)
def costs_with_avx512(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the same costs on every processor."""
    monkeypatch.setattr(draws, "_level", lambda: 2)


def prepared(*collections: Any, **options: Any) -> ChunkGraph:
    dsk, wanted = handed_over(*collections)
    return prepare(dsk, wanted, PrepareOptions(Limits(recomputes=True)), **options)


def sources_of(graph: ChunkGraph) -> int:
    return sum(
        graph.operands[number].functions == (draws.DASK_FUNCTION,) for number in graph.operand_of if number >= 0
    )


def random(name: str = "random", *args: Any, chunks: int = 200) -> da.Array:
    return getattr(da.random.default_rng(3), name)(*args, size=(400, 400), chunks=chunks)


def standardised(x: da.Array) -> da.Array:
    return (x - x.mean(axis=0)) / x.std(axis=0)


@streams
@pytest.mark.parametrize(
    ("make", "sources"),
    [
        (lambda: standardised(random()), 0),
        (lambda: random("integers", 10) - random("integers", 10).mean(axis=0), 0),
        (lambda: standardised(random("integers", 10)), 4),
        (lambda: random("normal", 0.0, 1.0) - random("normal", 0.0, 1.0).mean(axis=0), 4),
        (lambda: (random() - random().mean(axis=0)).sum(), 0),
        (lambda: random() @ random().T, 4),
        (lambda: da.linalg.svd(random(chunks=(100, 400)))[1], 0),
        (lambda: standardised(random("poisson", 3.0)), 4),
        (lambda: standardised(random(chunks=100)), 16),
        (lambda: standardised(da.random.RandomState(1).random_sample((400, 400), chunks=200)), 0),
        (lambda: random().map_blocks(np.sort).sum() * random().max(), 4),
    ],
    ids=[
        "random",
        "integers",
        "integers thrice",
        "normal",
        "two readers",
        "matmul",
        "svd",
        "unknown",
        "small",
        "legacy",
        "whole",
    ],
)
def test_which_chunks_of_random_numbers(make, sources):
    assert sources_of(prepared(make())) == sources


@streams
def test_what_is_asked_for_is_kept():
    x = random()
    assert sources_of(prepared(x, standardised(x))) == 4


@streams
def test_switch():
    x = standardised(random())
    with dask.config.set({"dask-mars.expressions.reductions": False}):
        assert sources_of(prepared(x)) == 4
    assert sources_of(prepared(x)) == 0


@streams
def test_values(get):
    for x in (standardised(random()), standardised(random("normal", 2.0, 3.0)), random() * random().max()):
        np.testing.assert_allclose(x.compute(scheduler=get), x.compute(scheduler="sync"), rtol=1e-9)
