"""Tasks that Dask has fused, as it does for arrays within delayed values: their steps are those of the chunks."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import Task, TaskRef, _execute_subgraph

from dask_mars.expressions.rewrite import with_expressions
from dask_mars.graph.chunks import ChunkGraph, Constant, Subprogram
from dask_mars.optimize import compiler
from dask_mars.optimize.convert import convert
from dask_mars.optimize.prepare import prepare
from studies.graphs import handed_over
from tests.symbolic import assert_identical, evaluate, function_names


def fused(count: int, steps: list[Task], blocks: int = 4) -> dict[Any, Any]:
    """Return tasks that all share one inner graph."""
    inner = {step.key: step for step in steps}
    tasks: dict[Any, Any] = {
        ("x", block): Task(
            ("x", block), _execute_subgraph, inner, steps[-1].key, ("source",), TaskRef(("source", block))
        )
        for block in range(blocks)
    }
    return tasks | {("source", block): float(block) for block in range(blocks)}


def called(graph: ChunkGraph, key: Any) -> list[str]:
    return function_names(graph.operands[graph.operand_of[graph.ids[key]]])


def test_all_blocks_have_one_operand():
    steps = [Task("a", np.add, TaskRef("source"), 1.5), Task("b", np.multiply, TaskRef("a"), TaskRef("a"))]
    tasks = fused(4, steps)
    graph = convert(tasks, [("x", block) for block in range(4)])
    assert len(graph.operands) == 1
    assert called(graph, ("x", 3)) == ["add", "multiply"]
    assert evaluate(graph)["x", 3] == 4.5**2


def test_what_is_no_plain_literal_travels_with_the_operand():
    weights = np.arange(3.0)
    steps = [
        Task("a", np.add, TaskRef("source"), weights),
        Task("b", np.sum, TaskRef("a"), axis=(0,), dtype=np.dtype("f4")),
    ]
    graph = convert(fused(4, steps), [("x", block) for block in range(4)])
    chunk = graph.ids["x", 3]
    operand = graph.operands[graph.operand_of[chunk]]
    assert sum(isinstance(function, Constant) for function in operand.functions) == 2
    assert all(value == (0,) for value in graph.literals[chunk])
    assert evaluate(graph)["x", 3] == np.float32(12)


def test_the_result_may_be_an_input_of_the_inner_graph_alone():
    steps = [Task("a", np.add, TaskRef("source"), TaskRef("source"))]
    assert evaluate(convert(fused(4, steps), [("x", 2)]))["x", 2] == 4


def test_long_ones_are_called(monkeypatch):
    monkeypatch.setattr(compiler, "_LONGEST_INLINED", 1)
    steps = [Task("a", np.add, TaskRef("source"), 1.5), Task("b", np.multiply, TaskRef("a"), TaskRef("a"))]
    graph = convert(fused(4, steps), [("x", block) for block in range(4)])
    operand = graph.operands[graph.operand_of[graph.ids["x", 3]]]
    assert isinstance(operand.functions[0], Subprogram)
    assert evaluate(graph)["x", 3] == 4.5**2


def chain(x: Any) -> Any:
    return (x * 2 + 1 - x / 3) ** 2 + x.astype("f4") * np.float32(2)


@pytest.mark.parametrize("wrap", [lambda y: y, lambda y: y.sum(axis=0), lambda y: (y - y.mean()).std()])
def test_arrays_in_delayed_values_are_evaluated_as_expressions(wrap):
    y = wrap(chain(da.random.default_rng(0).random((40, 20), chunks=10)))
    dsk, wanted = handed_over(dask.delayed(np.asarray)(y))
    graph = prepare(dsk, wanted)
    assert_identical(evaluate(graph)[wanted[0]], np.asarray(y.compute(scheduler="sync")))
    rewritten = [with_expressions(operand) for operand in graph.operands]
    assert not any(isinstance(function, Subprogram) for operand in rewritten for function in operand.functions)
    assert any("region" in function_names(operand) for operand in rewritten)


def test_on_workers(get):
    x = da.random.default_rng(0).random((400, 200), chunks=100)
    y = chain(x)
    found = dask.delayed(np.asarray)(y).compute(scheduler=get)
    assert_identical(found, y.compute(scheduler="sync"))
