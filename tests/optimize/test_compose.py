"""Composing: chains without branches become one chunk, and nothing else does."""

from __future__ import annotations

from operator import add, mul, neg
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import DataNode, Task, TaskRef
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_mars.graph.chunks import DATA, ChunkGraph
from dask_mars.graph.splice import LONGEST, splice
from dask_mars.optimize.convert import convert
from dask_mars.optimize.passes.compose import compose
from tests.symbolic import Here, evaluate, function_names, passed


def inc(value: Any) -> Any:
    return value + 1


def pair(*values: Any) -> Any:
    return values


def composed(dsk: dict[Any, Any], *wanted: Any) -> ChunkGraph:
    """Compose a graph, and see that it comes to the same."""
    before = convert(dsk, wanted)
    after = passed(before, compose)
    values = evaluate(after)
    assert [values[key] for key in wanted] == list(dask.get(dsk, list(wanted)))
    return after


def steps(graph: ChunkGraph) -> dict[Any, list[str]]:
    """Name the steps of each chunk that is computed."""
    return {
        key: function_names(graph.operands[number])
        for key, number in zip(graph.keys, graph.operand_of, strict=True)
        if number != DATA
    }


# -- Mars's rule --------------------------------------------------------------------------------------------------


def test_a_chain_ends_before_a_branch():
    dsk = {"a": (inc, 1), "b": (inc, "a"), "c": (neg, "b"), "d": (inc, "b"), "e": (add, "c", "d")}
    assert steps(composed(dsk, "e")) == {"b": ["inc", "inc"], "c": ["neg"], "d": ["inc"], "e": ["add"]}


def test_a_wanted_alias_ends_its_chain():
    dsk = {"a": (inc, 1), "x": "a", "b": (inc, "a"), "y": "b", "c": (neg, "y")}
    graph = composed(dsk, "c", "x")
    assert steps(graph) == {"a": ["inc"], "c": ["inc", "neg"]}
    assert graph.ids["x"] == graph.ids["a"]
    # What is no chunk of its own any more cannot be looked up.
    assert graph.ids.keys() == {"a", "c", "x"}


def test_an_input_used_twice_by_one_chunk_is_no_branch():
    dsk = {"a": (inc, 1), "b": (mul, "a", "a"), "c": (pair, "b", (add, "b", "b"))}
    assert steps(composed(dsk, "c")) == {"c": ["inc", "mul", "add", "pair"]}


def test_the_same_chunk_as_two_inputs_stays_apart():
    """Blocks of the diagonal of x + x.T have one input twice, and share their operand with the others."""
    graph = ChunkGraph()
    base = convert({"a": (inc, 1), "b": (inc, 2), "c": (pair, "a", "b")}, ["c"])
    graph.keys, graph.operands = ["a", "c"], base.operands
    graph.operand_of, graph.literals = [base.operand_of[0], base.operand_of[2]], [(1,), ()]
    graph.inputs, graph.outputs, graph.ids = [(), (0, 0)], [1], {"a": 0, "c": 1}
    assert len(passed(graph, compose)) == 2
    assert evaluate(passed(graph, compose))["c"] == (2, 2)


def test_nothing_to_merge_is_the_same_graph():
    graph = convert({"a": (inc, 1), "b": (inc, 2), "c": (add, "a", "b")}, ["c"])
    assert passed(graph, compose) is graph


def test_many_chains_alike_are_one_operand():
    dsk = {}
    for number in range(100):
        dsk["a", number] = (inc, number)
        dsk["b", number] = (mul, ("a", number), number)
    graph = composed(dsk, *[("b", number) for number in range(100)])
    assert len(graph) == 100
    assert [operand.name for operand in graph.operands] == ["inc-mul"]
    assert graph.literals[7] == (7, 7)


def test_functions_that_both_have_are_there_once():
    first, second = convert({"x": 1, "a": (inc, "x"), "b": (add, "a", 1)}, ["a", "b"]).operands
    operand = splice([(first, (0,)), (second, (~0,)), (first, (~1,)), (second, (~2,)), (first, (~3,))], 1)
    assert operand.functions == (inc, add)
    assert operand.run([1], (10, 100)) == 1 + 1 + 10 + 1 + 100 + 1


def test_keywords_stay_with_their_values():
    dsk = {"a": Task("a", dict, x=1, y=2), "b": Task("b", dict, TaskRef("a"), y=3, z=TaskRef("a"))}
    graph = composed(dsk, "b")
    assert len(graph) == 1
    assert evaluate(graph)["b"] == {"x": 1, "y": 3, "z": {"x": 1, "y": 2}}


# -- what is fixed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["retries", "priorities", "in_client"])
def test_chunks_about_which_something_is_said_stay_as_they_are(kind):
    graph = convert({"a": (inc, 1), "b": (neg, "a"), "c": (inc, "b"), "d": (neg, "c")}, ["d"])
    if kind == "in_client":
        graph.in_client = {1}
    else:
        setattr(graph, kind, {1: 3})
    after = passed(graph, compose)
    assert steps(after) == {"a": ["inc"], "b": ["neg"], "d": ["inc", "neg"]}
    assert set(getattr(after, kind)) == {after.ids["b"]} == {1}
    assert evaluate(after)["d"] == evaluate(graph)["d"]


def test_what_runs_in_the_client_stays_as_it_is():
    target = np.zeros(4)
    x = da.ones(4, chunks=4)
    here = Here()
    dask.compute(da.store(x + 1, target, compute=False), scheduler=here)
    assert any(operand.in_client for operand in here.composed.operands)
    for operand in here.composed.operands:
        stores = {"load_store_chunk", "load_chunk"} & set(function_names(operand))
        assert operand.in_client == bool(stores or "finalize" in function_names(operand))
    np.testing.assert_array_equal(target, 2)


@pytest.mark.parametrize("annotation", [{"retries": 2}, {"priority": 5}])
def test_annotated_arrays_keep_their_chunks(annotation):
    x = da.random.default_rng(1).random(8, chunks=4)
    with dask.annotate(**annotation):
        y = x + 1
    here = Here()
    dask.compute(y * 2, scheduler=here)
    assert [names for names in steps(here.composed).values() if "finalize" not in names] == [
        ["_apply_random_func"],
        ["add"],
        ["mul"],
    ] * 2
    noted = here.composed.retries or here.composed.priorities
    assert {here.composed.keys[chunk] for chunk in noted} == {(y.name, 0), (y.name, 1)}


def test_the_longest_chain():
    depth = 3 * LONGEST + 10
    dsk = {number: (inc, number - 1) for number in range(1, depth)}
    dsk[0] = (inc, 1000)
    graph = composed(dsk, depth - 1)
    lengths = [len(operand.steps) for operand in graph.operands]
    assert max(lengths) == LONGEST
    assert len(graph) == 4
    assert len(graph.operands) <= 4


# -- arrays -------------------------------------------------------------------------------------------------------


def random_arrays(count: int) -> list[da.Array]:
    generator = da.random.default_rng(1)
    return [generator.random((4, 4), chunks=2) for _ in range(count)]


def chunks_of_layers(array: da.Array) -> dict[str, list[list[str]]]:
    """Return the steps of the chunks of each layer, but for the last, which puts the result together."""
    here = Here()
    array.compute(scheduler=here)
    found: dict[str, list[list[str]]] = {}
    for key, names in steps(here.composed).items():
        if isinstance(key, tuple):
            found.setdefault(key[0].rpartition("-")[0], []).append(names)
    return found


def test_sum_of_a_sum_of_two_random_arrays():
    """Mars's own example: ADD and SUM become one, the two RANDs stay apart."""
    a, b = random_arrays(2)
    found = chunks_of_layers((a + b).sum())
    assert found["random"] == [["_apply_random_func"]] * 8
    sums = found["sum"]
    assert len(sums) == 4
    assert all(names[0] == "add" and len(names) == 2 for names in sums)


def test_several_wanted_arrays_keep_their_chunks():
    (a,) = random_arrays(1)
    b = a + 1
    c = (b * 2).sum()
    here = Here()
    dask.persist(b, c, scheduler=here)
    found = steps(here.composed)
    assert [found[b.name, i, j] for i in range(2) for j in range(2)] == [["_apply_random_func", "add"]] * 4


# -- any graph ----------------------------------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[Any, Any], list[Any]]:
    """Draw a graph of chains, branches and joins, and the keys wanted of it."""
    dsk: dict[Any, Any] = {}
    for number in range(draw(st.integers(1, 25))):
        recent = list(range(max(0, number - 4), number))
        inputs = draw(st.lists(st.sampled_from(recent), max_size=2)) if recent else []
        kind = draw(st.integers(0, 9))
        if kind == 0:
            dsk[number] = DataNode(number, number)
        elif kind == 1 and inputs:
            dsk[number] = Task(number, pair, TaskRef(inputs[0]), TaskRef(inputs[-1]))
        else:
            function = draw(st.sampled_from([pair, lambda *values: values[::-1]]))
            dsk[number] = Task(number, function, *map(TaskRef, inputs), draw(st.integers(0, 3)))
    wanted = draw(st.lists(st.sampled_from(list(dsk)), min_size=1, max_size=4, unique=True))
    return dsk, wanted


@settings(derandomize=True)
@given(drawn=graphs())
def test_any_graph_is_composed_as_far_as_it_goes_and_no_further(drawn):
    dsk, wanted = drawn
    before = convert(dsk, wanted)
    graph = passed(before, compose)
    values = evaluate(graph)
    assert [values[key] for key in wanted] == list(dask.get(dsk, wanted))
    uses = [0] * len(graph)
    for inputs in graph.inputs:
        for source in inputs:
            uses[source] += 1
    for inputs in graph.inputs:
        if len(inputs) == 1:
            (source,) = inputs
            ends = graph.operand_of[source] == DATA or source in graph.outputs or uses[source] > 1
            assert ends, "a chain could go on"
    # Whatever has several inputs or users was there before, and is there still.
    uses_before = [0] * len(before)
    for inputs in before.inputs:
        for source in inputs:
            uses_before[source] += 1
    kept = set(graph.keys)
    for chunk, key in enumerate(before.keys):
        if uses_before[chunk] != 1 or chunk in before.outputs or before.operand_of[chunk] == DATA:
            assert key in kept
    total = sum(len(graph.operands[number].steps) for number in graph.operand_of if number != DATA)
    assert total == sum(len(before.operands[number].steps) for number in before.operand_of if number != DATA)
    assert set(graph.operand_of) - {DATA} == set(range(len(graph.operands)))
