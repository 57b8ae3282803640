"""Graphs that cannot be right are refused with the key named, and those that only look odd are not."""

from __future__ import annotations

import re
from itertools import pairwise
from operator import add, mul, neg
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import numpy as np
import pytest
from dask._task_spec import Alias, DataNode, Task, TaskRef
from dask.blockwise import Blockwise, blockwise
from dask.core import flatten
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from dask_mars.optimize.convert import convert
from dask_mars.optimize.fronts import ReadOptions, symbolic_graph
from dask_mars.optimize.fronts.blockwise import lazy_blockwise
from tests.array_calls import CALLS, Arrays
from tests.conftest import without_addresses
from tests.symbolic import Here, assert_identical

Get = Any


def array_of(layers: dict[str, Any], dependencies: dict[str, set[str]], name: str) -> da.Array:
    """Return an array of two blocks made by a graph of the user's."""
    return da.Array(HighLevelGraph(layers, dependencies), name, ((5, 5),), dtype=float)


def negative_of(name: str, source: str) -> Blockwise:
    return blockwise(neg, name, "i", source, "i", numblocks={source: (2,)})


def tasks_of(name: str, source: str) -> dict[Any, Any]:
    return {(name, i): Task((name, i), neg, TaskRef((source, i))) for i in range(2)}


def steps_of(error: BaseException) -> list[str]:
    first, *steps = str(error).splitlines()
    assert first == "Cycle detected between the following keys:"
    return [step.removeprefix("  -> ") for step in steps]


# -- cycles -------------------------------------------------------------------------------------------------------

CYCLES: dict[str, tuple[dict[str, Any], dict[str, set[str]], str]] = {
    "of one layer": ({"a": negative_of("a", "a")}, {"a": {"a"}}, "a"),
    "two symbolic layers": (
        {"a": negative_of("a", "b"), "b": negative_of("b", "a")},
        {"a": {"b"}, "b": {"a"}},
        "a",
    ),
    "undeclared": ({"a": negative_of("a", "b"), "b": negative_of("b", "a")}, {"a": set(), "b": set()}, "a"),
    "below a layer": (
        {"top": negative_of("top", "a"), "a": negative_of("a", "b"), "b": negative_of("b", "a")},
        {"top": {"a"}, "a": {"b"}, "b": {"a"}},
        "top",
    ),
    "symbolic and not": ({"a": negative_of("a", "b"), "b": tasks_of("b", "a")}, {"a": {"b"}, "b": {"a"}}, "a"),
    "symbolic and not, undeclared": (
        {"top": negative_of("top", "b"), "a": negative_of("a", "b"), "b": tasks_of("b", "a")},
        {"top": {"b"}, "a": set(), "b": {"a"}},
        "top",
    ),
    "by a keyword": (
        {
            "a": blockwise(add, "a", "i", "b", "i", TaskRef(("b", 0)), None, numblocks={"b": (2,)}),
            "b": {("b", i): Task(("b", i), neg, TaskRef(("a", 0))) for i in range(2)},
        },
        {"a": {"b"}, "b": {"a"}},
        "a",
    ),
    "with an alias": (
        {"a": negative_of("a", "b"), "b": {("b", i): Alias(("b", i), ("a", i)) for i in range(2)}},
        {"a": {"b"}, "b": {"a"}},
        "a",
    ),
}


@pytest.mark.parametrize("name", CYCLES)
def test_cycle_of_an_array_is_shown(name):
    with pytest.raises(RuntimeError) as caught:
        array_of(*CYCLES[name]).compute(scheduler=Here())
    steps = steps_of(caught.value)
    assert steps[0] == steps[-1]
    layers = {"of one layer": "a"}.get(name, "ab")
    assert sorted(set(steps)) in [[f"('{layer}', {block})" for layer in layers] for block in (0, 1)]


def test_only_the_keys_of_the_cycle_are_shown_and_in_order():
    """Keys that wait for others on the way are no part of it."""
    dsk = {
        "top": (max, "c", "side", "d", "a"),
        "side": (neg, "leaf"),
        "leaf": (neg, 1),
        "a": (max, "d", "b", "side"),
        "b": (max, "leaf", "d", "c"),
        "c": (max, "side", "d", "leaf"),
        "d": (max, "leaf", "a"),
    }
    with pytest.raises(RuntimeError) as caught:
        convert(dsk, ["top"])
    steps = steps_of(caught.value)
    assert steps[0] == steps[-1]
    for key, needed in pairwise(steps):
        assert needed in dsk[key]
    assert len(set(steps)) == len(steps) - 1


def test_layers_that_go_in_circles_with_blocks_that_do_not():
    """Each layer has a block that needs one of the other's; no block needs itself."""
    layers = {
        "a": {("a", 0): DataNode(("a", 0), np.ones(5)), ("a", 1): Task(("a", 1), neg, TaskRef(("b", 0)))},
        "b": {("b", 0): Task(("b", 0), mul, TaskRef(("a", 0)), 3), ("b", 1): DataNode(("b", 1), np.ones(5))},
        "c": negative_of("c", "a"),
    }
    x = array_of(layers, {"a": {"b"}, "b": {"a"}, "c": {"a"}}, "c")
    assert x.compute(scheduler=Here()).tolist() == [-1] * 5 + [3] * 5


def test_long_cycle_is_found_without_recursion():
    depth = 20_000
    dsk = {("x", i): Task(("x", i), neg, TaskRef(("x", (i + 1) % depth))) for i in range(depth)}
    with pytest.raises(RuntimeError) as caught:
        convert(dsk, [("x", 0)])
    assert len(steps_of(caught.value)) == depth + 1


# -- missing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", [True, False])
def test_missing_dependency_of_a_symbolic_layer(declared):
    x = array_of({"a": negative_of("a", "b")}, {"a": {"b"} if declared else set()}, "a")
    with pytest.raises(ValueError, match=re.escape("Missing dependency ('b', 0) for dependents {('a', 0)}")):
        x.compute(scheduler=Here())


def test_missing_block_of_a_layer_that_is_there():
    layers = {"a": negative_of("a", "b"), "b": {("b", 0): np.ones(5)}}
    with pytest.raises(ValueError, match=re.escape("Missing dependency ('b', 1) for dependents {('a', 1)}")):
        array_of(layers, {"a": {"b"}, "b": set()}, "a").compute(scheduler=Here())


def test_missing_wanted_key_of_a_symbolic_layer():
    with pytest.raises(KeyError) as caught:
        convert({}, [("nowhere", 0)], [lazy_blockwise(negative_of("a", "b"))])
    assert caught.value.args == (("nowhere", 0),)


# -- unhashable ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [{"x"}, {"x": 1}, ("x", [0]), ("x", {0}), np.ones(2)], ids=str)
def test_unhashable_key_is_named(key):
    with pytest.raises(TypeError, match=re.escape(repr(key))):
        convert({"x": 1}, ["x", key])


# -- made twice ---------------------------------------------------------------------------------------------------


def assert_one_wins(layers: dict[str, Any], name: str, dependencies: dict[str, set[str]], get: Get) -> None:
    """Compute an array of two blocks in all ways, whichever of its layers comes last.

    Dask's optimizer changes the order of layers, and with it who wins: any will do then.
    """
    keys = [(name, block) for block in range(2)]
    possible, ours = [], []
    for order in (1, -1):
        x = array_of(dict(list(layers.items())[::order]), dependencies, name)
        values = dask.get(x.dask.to_dict(), keys)
        assert_identical(get(x.dask, keys), values)
        assert_identical(blocks_of(x.persist(scheduler=get, optimize_graph=False)), values)
        possible.append(repr(values))
        ours.append(repr(blocks_of(x.persist(scheduler=get))))
    assert set(ours) <= set(possible)


def blocks_of(x: da.Array) -> tuple[Any, ...]:
    return dask.get(dict(x.dask), list(flatten(x.__dask_keys__())))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1, 2),
        (np.zeros(5), np.ones(5)),
        (1, (neg, 1)),
        ((neg, 1), 1),
        ("leaf", (neg, "leaf")),
        ((neg, "leaf"), (neg, ("x", 1))),
        ((add, "leaf", np.arange(100_000)), (add, "leaf", np.arange(100_000))),
        (Task(("x", 0), neg, TaskRef("leaf")), Task(("x", 0), abs, TaskRef("leaf"))),
        (Task.fuse(Task("y", abs, 1), Task(("x", 0), neg, TaskRef("y"))), (neg, "leaf")),
        (Alias(("x", 0), "leaf"), Alias(("x", 0), ("x", 1))),
    ],
    ids=without_addresses,
)
def test_of_two_layers_that_make_a_key_one_wins(first, second, get):
    layers = {"one": {("x", 0): first, "leaf": 1}, "two": {("x", 0): second, ("x", 1): np.ones(5)}}
    assert_one_wins(layers, "x", {"one": set(), "two": set()}, get)


def test_key_made_by_a_symbolic_layer_and_by_another(get):
    layers = {
        "a": negative_of("a", "b"),
        "b": {("b", i): i + 3 for i in range(2)},
        "other": {("a", 1): (abs, ("b", 1))},
    }
    assert_one_wins(layers, "a", {"a": {"b"}, "b": set(), "other": {"b"}}, get)


def test_layers_whose_keys_nobody_else_makes_stay_symbolic():
    layers = {
        "top": negative_of("top", "a"),
        "a": negative_of("a", "b"),
        "b": {("b", i): i + 3 for i in range(2)},
        "other": {("a", 1): (neg, ("b", 1))},
    }
    x = array_of(layers, {"top": {"a"}, "a": {"b"}, "b": set(), "other": {"b"}}, "top")
    with dask.config.set({"optimization.fuse.active": None}):
        graph = symbolic_graph(dask.base.collections_to_expr([x]).optimize(), ReadOptions(fuse_layers=False))
    assert [layer.names for layer in graph.layers] == [("top",)]
    assert {("a", 0), ("a", 1), ("b", 0), ("b", 1)} <= graph.tasks.keys()


def test_layers_that_only_dasks_choice_among_them_leaves_without_a_cycle(get):
    """Dask sorts layers when it leaves out what nobody needs, and only then lets the last win."""
    made, other = ("x", 0), ("k", 0)
    layers = {
        "c": {made: Task(made, np.ones, 5)},
        "a": {made: Alias(made, other), other: Task(other, np.ones, 5)},
        "b": {other: Alias(other, made)},
        "d": {"z": Task("z", np.add, TaskRef(made), TaskRef(other))},
    }
    graph = HighLevelGraph(layers, {"a": set(), "b": {"c"}, "c": set(), "d": {"a", "b"}})
    value = Delayed("z", graph, layer="d")
    with pytest.raises(RuntimeError, match="Cycle detected"):
        value.compute(scheduler=Here())
    assert value.compute(scheduler=get).tolist() == value.compute(scheduler="sync").tolist() == [2] * 5


#: Among them those whose layers do share keys: LU makes three layers of the same tasks.
SAMPLE = [*[name for name in CALLS if name.startswith(("linalg", "method"))], *list(CALLS)[::25]]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_collections_are_computed_beside_what_optimize_makes_of_them():
    """What `dask.optimize` makes of them spells some keys differently."""
    for name in SAMPLE:
        made = CALLS[name](Arrays())
        made = [
            value
            for value in (made if isinstance(made, list | tuple) else [made])
            if dask.is_dask_collection(value)
        ]
        together = [*made, *dask.optimize(*made)]
        assert_identical(dask.compute(*together, scheduler=Here()), dask.compute(*together, scheduler="sync"))


def test_optimized_collections_meet_those_they_were_made_from(get):
    x = da.from_array(np.arange(16.0).reshape(4, 4), chunks=2)
    y = x + 1
    z = y * 2
    _, o = dask.optimize(y, z)
    for together in ((o, y), (y, o), (o, y, z), (z, o + y)):
        assert_identical(dask.compute(*together, scheduler=get), dask.compute(*together, scheduler="sync"))
    a = da.ones(10, chunks=5)
    b = a + a.sum()
    (optimized,) = dask.optimize(b)
    np.testing.assert_array_equal((optimized + a).compute(scheduler=get), np.full(10, 12.0))
    (persisted,) = dask.persist(b, scheduler=get)
    np.testing.assert_array_equal((persisted + b + a).compute(scheduler=get), np.full(10, 23.0))
    bag = db.from_sequence(range(10), npartitions=3).map(neg)
    pairs = bag.map(lambda x: (x, x))
    total = db.Bag.join(pairs, pairs.compute(scheduler="sync"), lambda x: x)
    (optimized_bag,) = dask.optimize(total)
    together = (optimized_bag, total, bag)
    assert dask.compute(*together, scheduler=get) == dask.compute(*together, scheduler="sync")
    value = dask.delayed(neg)(3)
    (optimized_value,) = dask.optimize(dask.delayed(add)(value, value))
    assert dask.delayed(add)(optimized_value, value).compute(scheduler=get) == -9


# -- through the real getter --------------------------------------------------------------------------------------


def test_the_getter_refuses_in_the_same_way(get: Get) -> None:
    with pytest.raises(RuntimeError, match="Cycle detected"):
        array_of(*CYCLES["two symbolic layers"]).compute(scheduler=get)
    with pytest.raises(ValueError, match=re.escape("Missing dependency ('b', 0)")):
        array_of({"a": negative_of("a", "b")}, {"a": {"b"}}, "a").compute(scheduler=get)
    with pytest.raises(TypeError, match="'unhashable'"):
        get({"x": 1}, ["x", {"unhashable": 1}])
    with pytest.raises(KeyError, match="nowhere"):
        get({"x": 1}, ["nowhere"])
