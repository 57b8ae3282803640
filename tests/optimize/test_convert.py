"""Dask's graphs to chunk graphs: the same values as Dask, in few operands and a good order."""

from __future__ import annotations

import pickle
import sys
import weakref
from collections import namedtuple
from collections.abc import Mapping
from functools import partial
from operator import add, mul
from typing import Any

import dask
import numpy as np
import pytest
from dask._task_spec import (
    Alias,
    DataNode,
    Dict,
    List,
    Set,
    Task,
    TaskRef,
    Tuple,
    _execute_subgraph,
    fuse_linear_task_spec,
)
from dask.utils import apply
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_mars.graph.chunks import DATA, Constant, Operand, Step, Subprogram
from dask_mars.optimize.compiler import LARGE_LITERAL_BYTES
from dask_mars.optimize.convert import convert
from tests.symbolic import Loud, describe, evaluate

Point = namedtuple("Point", "x y")


def inc(value: Any) -> Any:
    return value + 1


def call(function: Any, *args: Any) -> Any:
    return function(*args)


def computed(dsk: dict[Any, Any], *keys: Any) -> Any:
    """Return what a graph's keys come to here, having compared it with what Dask makes of them."""
    graph = convert(dsk, keys)
    assert graph.outputs == sorted({graph.ids[key] for key in keys})
    values = evaluate(graph)
    result = [values[key] for key in keys]
    assert result == list(dask.get(dsk, list(keys)))
    return result[0] if len(result) == 1 else result


# -- kinds of nodes ---------------------------------------------------------------------------------------------


def test_array_is_data_and_not_copied():
    value = np.arange(5)
    assert convert({"x": value}, ["x"]).values[0] is value


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ((add, "x", 10), 11),
        ((describe, "x", ("t", 0), 7, 1.5, ("t", 1), "z", b"x"), (1, 2, 3, 4, ("t", 1), "z", b"x")),
        (
            (apply, describe, ["x", 2], (dict, [["name", "x"], ["other", (inc, "x")]])),
            ((1, 2), {"name": 1, "other": 2}),
        ),
        ((add, "word", "b"), "ab"),
        (Task("y", describe, TaskRef("x"), 5, name=TaskRef("x"), other="x"), ((1, 5), {"name": 1, "other": "x"})),
        (Task("y", describe, b=2, c=TaskRef("x"), a=3), ((), {"b": 2, "c": 1, "a": 3})),
        (Task("y", describe, Task(None, inc, Alias("x")), Alias("x"), DataNode(None, "plain")), (2, 1, "plain")),
    ],
    ids=["legacy", "keys of every kind", "apply", "no key", "keywords", "order of keywords", "nested"],
)
def test_tasks(task, expected):
    assert computed({"x": 1, ("t", 0): 2, 7: 3, 1.5: 4, "word": "a", "y": task}, "y") == expected


def test_legacy_literals_stay_as_they_are():
    for literal in (1j, slice(1, 2), Ellipsis, np.int8(3), np.float32(2), [], {}):
        result = computed({"x": 1, "y": (describe, "x", literal)}, "y")
        assert result == (1, literal)
        assert type(result[1]) is type(literal)


@pytest.mark.parametrize(
    ("nested", "expected"),
    [
        (["x", [2, "x"], (inc, "x")], [1, [2, 1], 2]),
        (("x", ("x", 5)), (1, (1, 5))),
        ({"x", 9}, {1, 9}),
        (frozenset(["x", 9]), frozenset([1, 9])),
        (Point("x", (inc, "x")), Point(1, 2)),
        ([{"key": "x"}], [{"key": "x"}]),
        ([[], ()], [[], ()]),
    ],
    # Not what they look like: the order in which a set is shown differs from run to run.
    ids=["list", "tuple", "set", "frozenset", "named tuple", "dict in a list", "empty"],
)
def test_legacy_containers(nested, expected):
    assert computed({"x": 1, "y": (describe, nested)}, "y") == (expected,)
    result = computed({"x": 1, "y": nested}, "y")
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (List(TaskRef("x"), 2, List(TaskRef("x"))), [1, 2, [1]]),
        (Tuple(TaskRef("x"), 2), (1, 2)),
        (Tuple(), ()),
        (Set(TaskRef("x"), 2), {1, 2}),
        (Dict({"a": TaskRef("x"), "b": List(TaskRef("x"))}), {"a": 1, "b": [1]}),
        (Dict(), {}),
        (Dict({"a": Dict({"b": TaskRef("x")})}), {"a": {"b": 1}}),
    ],
    ids=lambda value: repr(value),
)
def test_container_nodes(node, expected):
    dsk = {"x": DataNode("x", 1), "y": Task("y", describe, node), "z": Task("z", describe, value=node)}
    assert computed(dsk, "y", "z") == [(expected,), ((), {"value": expected})]
    node.key = "n"
    result = computed({"x": DataNode("x", 1), "n": node}, "n")
    assert result == expected
    assert type(result) is type(expected)


def test_subclass_of_task_is_called_in_its_own_way():
    dsk = {
        "x": DataNode("x", 1),
        "y": Loud("y", describe, TaskRef("x"), Task(None, inc, TaskRef("x")), name=TaskRef("x")),
        "z": Task("z", describe, Loud(None, inc, TaskRef("x"))),
    }
    assert computed(dsk, "y", "z") == [("loud", ((1, 2), {"name": 1})), (("loud", 2),)]


# -- aliases ----------------------------------------------------------------------------------------------------


def test_alias_is_the_chunk_it_stands_for():
    dsk = {"x": (inc, 1), "a": "x", "b": Alias("b", "a"), "y": (add, "b", "x")}
    graph = convert(dsk, ["a", "b", "y"])
    assert graph.ids["a"] == graph.ids["b"] == graph.ids["x"]
    assert len(graph) == 2
    assert computed(dsk, "a", "b", "y") == [2, 2, 4]


def test_long_chain_of_aliases():
    dsk = {"a0": (inc, 0), **{f"a{number}": f"a{number - 1}" for number in range(1, 3000)}}
    graph = convert(dsk, ["a2999"])
    assert len(graph) == 1
    assert evaluate(graph)["a2999"] == 1


# -- what is left out, and what is missing ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dsk",
    [
        {"x": Task("x", inc, TaskRef("nowhere"))},
        {"x": Task("x", describe, List(TaskRef("nowhere")))},
        {"x": Alias("x", "nowhere")},
    ],
)
def test_missing_dependency_is_named_with_who_needs_it(dsk):
    with pytest.raises(ValueError, match=r"Missing dependency nowhere for dependents \{'x'\}"):
        convert(dsk, ["x"])


@pytest.mark.parametrize(
    "dsk",
    [
        {"a": (inc, "b"), "b": (inc, "a")},
        {"top": (inc, "a"), "a": (add, "b", 1), "b": (add, 1, "a")},
        {"a": Task("a", inc, TaskRef("b")), "b": Alias("b", "a")},
        {"a": [(inc, "b")], "b": (inc, "a"), "c": 1},
    ],
)
def test_cycle_is_shown(dsk):
    with pytest.raises(RuntimeError) as caught:
        convert(dsk, list(dsk)[:1])
    first, *steps = str(caught.value).splitlines()
    assert first == "Cycle detected between the following keys:"
    assert sorted(set(steps)) == ["  -> a", "  -> b"]
    assert steps[0] == steps[-1]


# -- order and size -----------------------------------------------------------------------------------------------


def test_deep_chain_needs_no_recursion():
    depth = 10_000
    assert depth > sys.getrecursionlimit()
    dsk = {("x", 0): 0, **{("x", number): (inc, ("x", number - 1)) for number in range(1, depth)}}
    graph = convert(dsk, [("x", depth - 1)])
    assert graph.keys == [("x", number) for number in range(depth)]
    assert len(graph.operands) == 1
    assert evaluate(graph)["x", depth - 1] == depth - 1


def test_chunks_are_numbered_depth_first_in_the_order_wanted():
    dsk = {}
    for branch in "cab":
        dsk[f"{branch}0"] = (describe, branch)
        dsk[f"{branch}1"] = (inc, f"{branch}0")
    dsk["sum"] = (describe, "a1", "b1")
    assert convert(dsk, ["c1", "sum"]).keys == ["c0", "c1", "a0", "a1", "b0", "b1", "sum"]


def test_inputs_come_in_the_order_of_the_arguments_each_once():
    dsk = {"a": 1, "b": 2, "y": (describe, "b", "a", (add, "b", "a"))}
    graph = convert(dsk, ["y"])
    assert [graph.keys[source] for source in graph.inputs[graph.ids["y"]]] == ["b", "a"]


def test_many_tasks_of_one_shape_are_one_operand():
    dsk = {("x", number): (mul, (add, ("data", number), number), 2.5) for number in range(1000)}
    dsk |= {("data", number): number for number in range(1000)}
    graph = convert(dsk, [("x", number) for number in range(1000)])
    (operand,) = graph.operands
    assert (operand.name, operand.input_count, operand.literal_count, len(operand.steps)) == ("add-mul", 1, 2, 2)
    assert [graph.literals[graph.ids["x", number]] for number in (3, 7)] == [(3, 2.5), (7, 2.5)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((add, "a", 1), (mul, "a", 1)),
        ((add, "a", 1), (add, 1, "a")),
        ((add, "a", "b"), (add, "a", "a")),
        ((describe, "a"), (describe, "a", "b")),
        ((add, (inc, "a"), "b"), (add, "a", (inc, "b"))),
        (Task("y", describe, x=TaskRef("a")), Task("y", describe, y=TaskRef("a"))),
        (Task("y", describe, TaskRef("a"), x=1), Task("y", describe, 1, x=TaskRef("a"))),
    ],
)
def test_tasks_of_different_shape_are_different_operands(one, other):
    dsk = {"a": 1, "b": 2, "y": one, "z": other}
    assert len(convert(dsk, ["y", "z"]).operands) == 2
    computed(dsk, "y", "z")


@pytest.mark.parametrize("shared", [lambda value: value + 1, partial(add, 1)])
def test_callable_that_chunks_share_belongs_to_their_operand(shared):
    dsk = {n: Task(n, call, shared, n) for n in range(10)}
    graph = convert(dsk, list(dsk))
    assert [value for _, value in sorted(evaluate(graph).items())] == list(range(1, 11))
    # The first could not know that there would be more.
    assert [sum(map(callable, literals)) for literals in graph.literals] == [1] + [0] * 9
    assert graph.operand_of == [0] + [1] * 9
    assert [operand.name for operand in graph.operands] == ["call", "call"]
    (held,) = [function for function in graph.operands[1].functions if isinstance(function, Constant)]
    assert held() is shared


def test_callables_of_one_chunk_each_are_no_operands_of_their_own():
    dsk = {n: Task(n, call, partial(add, n), 1) for n in range(10)}
    graph = convert(dsk, list(dsk))
    assert [value for _, value in sorted(evaluate(graph).items())] == list(range(1, 11))
    assert len(graph.operands) == 1


def test_callable_that_travels_as_its_path_stays_a_literal():
    dsk = {n: Task(n, call, inc, n) for n in range(10)}
    graph = convert(dsk, list(dsk))
    assert len(graph.operands) == 1
    assert graph.literals == [(inc, n) for n in range(10)]


def test_shared_callable_survives_pickling():
    shared = partial(add, 1)
    operand = convert({n: Task(n, call, shared, n) for n in range(2)}, [0, 1]).operands[1]
    assert pickle.loads(pickle.dumps(operand)).run([], (1,)) == 2


def test_large_literal_is_a_chunk_that_all_share():
    large = np.arange(LARGE_LITERAL_BYTES // 8)
    dsk = {("x", number): (add, large, number) for number in range(5)}
    graph = convert(dsk, list(dsk))
    assert list(map(id, graph.values.values())) == [id(large)]
    assert len(graph.operands) == 1
    assert all(graph.inputs[graph.ids[key]] == (0,) for key in dsk)
    np.testing.assert_array_equal(evaluate(graph)["x", 3], large + 3)


def test_small_array_is_a_literal():
    small = np.arange(LARGE_LITERAL_BYTES // 8 - 1)
    graph = convert({"x": (add, small, 1)}, ["x"])
    assert graph.values == {}
    assert graph.literals[0][0] is small


# -- fused tasks ------------------------------------------------------------------------------------------------


def fused(key: Any, inner: dict[Any, Any], outkey: Any, **inputs: Any) -> Task:
    return Task(key, _execute_subgraph, inner, outkey, tuple(inputs), *inputs.values())


def inner_graph() -> dict[Any, Any]:
    """Return ``out = (a + 1) * ((a + 1) + b)``."""
    return {
        "one": Task("one", inc, TaskRef("a")),
        "two": Task("two", add, TaskRef("one"), TaskRef("b")),
        "out": Task("out", mul, TaskRef("one"), TaskRef("two")),
    }


def test_fused_task_met_once_becomes_steps():
    dsk = {"x": 1, "y": fused("y", inner_graph(), "out", a=TaskRef("x"), b=10)}
    graph = convert(dsk, ["y"])
    assert list(graph.operands[0].functions) == [inc, add, mul]
    assert computed(dsk, "y") == 24


def test_inner_graph_with_two_outputs_in_use():
    inner = inner_graph()
    dsk = {
        f"{out}{n}": fused(f"{out}{n}", inner, out, a=n, b=1) for out in ("two", "out", "one") for n in range(3)
    }
    assert computed(dsk, *dsk) == [2, 3, 4, 2, 6, 12, 1, 2, 3]


def test_inner_graph_whose_output_is_its_input():
    inner = {"other": Task("other", inc, TaskRef("a"))}
    dsk = {("y", n): fused(("y", n), {**inner, "b": Alias("b", "a")}, "b", a=n) for n in range(3)}
    assert computed(dsk, *dsk) == [0, 1, 2]
    shared = {"b": Alias("b", "a")}
    dsk = {("y", n): fused(("y", n), shared, "b", a=n) for n in range(3)}
    assert computed(dsk, *dsk) == [0, 1, 2]


class MadeWhenAsked(Mapping):
    """A graph that makes its tasks anew at each look, as layers may."""

    def __getitem__(self, key: Any) -> Any:
        inner = {"out": Task("out", partial(add, key), TaskRef("a"))}
        return fused(key, inner, "out", a=1)

    def __iter__(self) -> Any:
        return iter(range(50))

    def __len__(self) -> int:
        return 50


def test_tasks_made_when_asked_for_are_not_mistaken_for_each_other():
    values = evaluate(convert(MadeWhenAsked(), range(50)))
    assert values == {key: key + 1 for key in range(50)}


def test_fused_blocks_of_an_array_are_few_operands():
    array = pytest.importorskip("dask.array")
    x = (array.ones((40, 40), chunks=4) + 1) * 2 - 3
    x = x.sum(axis=0)
    expression = dask.base.collections_to_expr([x]).optimize()
    dsk = expression.__dask_graph__()
    keys = list(dask.core.flatten(expression.__dask_keys__()))
    graph = convert(dsk, keys)
    assert len(graph.operands) < len(graph) / 5
    values = evaluate(graph)
    for key in keys:
        np.testing.assert_array_equal(values[key], np.full(np.shape(values[key]), 40.0))


# -- operands ---------------------------------------------------------------------------------------------------


def test_shared_inner_graph_survives_pickling():
    inner = inner_graph()
    large = np.arange(LARGE_LITERAL_BYTES // 8)
    inner["out"] = Task("out", describe, TaskRef("two"), large)
    graph = convert({n: fused(n, inner, "out", a=n, b=n) for n in range(2)}, [0, 1])
    (operand,) = [found for found in graph.operands if isinstance(found.functions[0], Subprogram)]
    result, kept = pickle.loads(pickle.dumps(operand)).run([], (1, 1))
    assert result == 3
    np.testing.assert_array_equal(kept, large)


class Value:
    """Something whose end can be noticed."""


def test_temporary_is_gone_before_the_step_after_its_last_use():
    made: list[weakref.ref[Value]] = []
    alive: list[list[bool]] = []

    def make(*_: Any) -> Value:
        alive.append([ref() is not None for ref in made])
        value = Value()
        made.append(weakref.ref(value))
        return value

    first, second, third = 2, 3, 4
    steps = (Step(0, (0, 1), ()), Step(0, (first,), ()), Step(0, (first, second), ()), Step(0, (third,), ()))
    operand = Operand("make", (make,), steps, input_count=1, literal_count=1)
    for _ in range(2):
        made.clear()
        alive.clear()
        given = Value()
        made.append(weakref.ref(given))
        inputs = [given]
        del given
        result = operand.run(inputs, (1,))
        assert alive == [
            # A function's own arguments are there while it runs.
            [True],
            [False, True],
            [False, True, True],
            [False, False, False, True],
        ]
        assert [ref() is not None for ref in made] == [False, False, False, False, True]
        assert made[-1]() is result


def test_temporary_passed_by_name_is_dropped_too():
    made: list[weakref.ref[Value]] = []

    def make(value: Any = None) -> Value:
        result = Value()
        made.append(weakref.ref(result))
        return result

    def last(value: Any) -> bool:
        return made[0]() is None

    steps = (Step(0, (), ()), Step(0, (0,), ("value",)), Step(1, (1,), ("value",)))
    assert Operand("last", (make, last), steps, 0, 0).run([], ())


def test_layer_of_a_chunk_is_the_name_in_its_key():
    graph = convert({("add-1", 0, 1): 1, "sum": (inc, ("add-1", 0, 1))}, ["sum"])
    assert [graph.layer_of(chunk) for chunk in range(2)] == ["add-1", "sum"]


# -- any graph --------------------------------------------------------------------------------------------------

LITERALS = st.one_of(st.integers(-3, 3), st.sampled_from(["word", None, 2.5, True, b"x", (), "k99"]))


def arguments(keys: list[Any]) -> st.SearchStrategy[Any]:
    """Draw what may stand in a legacy task: keys, literals, tasks and containers of all of these."""
    leaves = st.one_of(LITERALS, st.sampled_from(keys)) if keys else LITERALS

    def extend(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        several = st.lists(inner, max_size=3)
        return st.one_of(
            several,
            several.map(tuple),
            several.map(lambda items: (describe, *items)),
            st.tuples(inner, inner).map(lambda items: Point(*items)),
            several.map(lambda items: (apply, describe, items, (dict, [["name", items]]))),
            several.map(lambda items: (partial(describe, 0), *items)),
            st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
        )

    return st.recursive(leaves, extend, max_leaves=6)


@st.composite
def legacy_graphs(draw: st.DrawFn) -> dict[Any, Any]:
    names = st.sampled_from([*(f"k{number}" for number in range(6)), *(("k", number) for number in range(4))])
    dsk: dict[Any, Any] = {}
    for key in draw(st.lists(names, min_size=1, max_size=8, unique=True)):
        known = list(dsk)
        kinds = [arguments(known), st.lists(arguments(known), max_size=4).map(lambda items: (describe, *items))]
        if known:
            kinds.append(st.sampled_from(known))
        dsk[key] = draw(st.one_of(kinds))
    return dsk


@settings(max_examples=12)
@given(dsk=legacy_graphs(), data=st.data())
def test_any_graph_comes_to_what_dask_makes_of_it(dsk, data):
    shuffled = dict(data.draw(st.permutations(list(dsk.items()))))
    keys = data.draw(st.lists(st.sampled_from(list(dsk)), min_size=1, unique=True))
    graph = convert(shuffled, keys)
    values = evaluate(graph)
    expected = list(dask.get(shuffled, keys))
    assert [values[key] for key in keys] == expected
    assert repr([values[key] for key in keys]) == repr(expected)
    needed = {source for inputs in graph.inputs for source in inputs} | set(graph.outputs)
    assert needed == set(range(len(graph)))
    assert all(graph.keys[graph.ids[key]] == key for key in graph.keys)
    assert sorted(set(graph.operand_of) - {DATA}) == list(range(len(graph.operands)))
    fused = fuse_linear_task_spec(dask._task_spec.convert_legacy_graph(dsk), set(keys))
    values = evaluate(convert(fused, keys))
    assert [values[key] for key in keys] == expected


def test_fused_tasks_within_fused_tasks():
    innermost = inner_graph()
    inner = {
        "a": Task("a", inc, TaskRef("in")),
        "result": fused("result", innermost, "out", a=TaskRef("a"), b=TaskRef("in")),
    }
    dsk = {("y", n): fused(("y", n), inner, "result", **{"in": n}) for n in range(4)}
    assert computed(dsk, *dsk) == [(n + 2) * (2 * n + 2) for n in range(4)]


def test_inner_names_do_not_leak_between_tasks():
    dsk = {
        "one": 100,
        "y": Task("y", add, fused(None, inner_graph(), "out", a=TaskRef("one"), b=0), TaskRef("one")),
    }
    assert computed(dsk, "y") == 101 * 101 + 100
