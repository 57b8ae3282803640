"""Graphs that cannot be right are refused with the key named, and those that only look odd are not."""

from __future__ import annotations

import re
from functools import partial
from itertools import pairwise
from operator import add, mul, neg
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import numpy as np
import pytest
from array_calls import CALLS, Arrays
from dask._task_spec import Alias, DataNode, Task, TaskRef
from dask.blockwise import Blockwise, blockwise
from dask.highlevelgraph import HighLevelGraph
from symbolic import Here

from dask_mars.optimize import conflicts as module
from dask_mars.optimize.blockwise import lazy_blockwise
from dask_mars.optimize.convert import convert
from dask_mars.optimize.expression import low_level_graph
from tests.conftest import without_addresses

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
    assert sorted(set(steps)) in (["('a', 0)", "('b', 0)"], ["('a', 1)", "('b', 1)"])


def test_layer_that_needs_itself():
    with pytest.raises(RuntimeError) as caught:
        array_of({"a": negative_of("a", "a")}, {"a": {"a"}}, "a").compute(scheduler=Here())
    assert steps_of(caught.value) == ["('a', 0)", "('a', 0)"]


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


def made_anew() -> Any:
    return lambda: 1


def layered(first: Any, second: Any) -> da.Array:
    """Return an array whose graph has two layers, each with its own idea of ("x", 0)."""
    layers = {"one": {("x", 0): first, "leaf": 1}, "two": {("x", 0): second, ("x", 1): np.ones(5)}}
    return array_of(layers, {"one": set(), "two": set()}, "x")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1, 2),
        (np.zeros(5), np.ones(5)),
        (1, (neg, 1)),
        ((neg, 1), 1),
        ("leaf", (neg, "leaf")),
        ((neg, "leaf"), (neg, ("x", 1))),
        ((neg, "leaf"), (abs, "leaf")),
        ((add, "leaf", 1), (add, "leaf", 2)),
        ((add, "leaf", 1), (add, 1, "leaf")),
        ((max, ["leaf", 1]), (max, [1, "leaf"])),
        (Task(("x", 0), neg, TaskRef("leaf")), Task(("x", 0), abs, TaskRef("leaf"))),
        (Task(("x", 0), dict, a=1), Task(("x", 0), dict, b=1)),
        ((np.full, 5, 1.0), (np.full, 5, 1)),
        (Alias(("x", 0), "leaf"), Alias(("x", 0), ("x", 1))),
        ((partial(np.full, 5), 1), (partial(np.full, 6), 1)),
    ],
    ids=without_addresses,
)
def test_key_made_in_two_ways_is_refused(first, second):
    expected = re.escape("Key ('x', 0) is made in different ways by two layers, 'one' and 'two'")
    for optimize_graph in (True, False):
        with pytest.raises(ValueError, match=expected):
            dask.compute(layered(first, second), scheduler=prepared, optimize_graph=optimize_graph)
    with pytest.raises(ValueError, match=expected):
        low_level_graph(layered(first, second).dask)


def prepared(dsk: Any, keys: Any, **options: Any) -> Any:
    """Prepare a graph in the way that is not for arrays, or in the other."""
    if all(operand.low_level_optimizer is None for operand in dsk.operands):
        low_level_graph(dsk)
    return Here()(dsk, keys)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1, 1),
        (1, DataNode(("x", 0), 1)),
        (np.ones(5), np.ones(5)),
        ((neg, "leaf"), (neg, "leaf")),
        ((neg, "leaf"), Task(("x", 0), neg, TaskRef("leaf"))),
        ("leaf", Alias(("x", 0), "leaf")),
        ((max, ["leaf", 1]), (max, ["leaf", 1])),
        ((partial(np.full, 5), 1), (partial(np.full, 5), 1)),
        ((made_anew(),), (made_anew(),)),
        ((add, "leaf", np.arange(100_000)), (add, "leaf", np.arange(100_000))),
        # Fused by Dask, or inlined: what they come to may well be the same.
        ((neg, "leaf"), (neg, (abs, 1))),
        (Task.fuse(Task("y", abs, 1), Task(("x", 0), neg, TaskRef("y"))), (neg, "leaf")),
        ((neg, (neg, "leaf")), "leaf"),
        # Objects of which nobody knows whether they are the same.
        ((id, object()), (id, object())),
    ],
    ids=lambda value: str(value)[:40],
)
def test_key_made_twice_in_the_same_way_is_not_refused(first, second):
    low_level_graph(layered(first, second).dask)
    here = Here()
    dask.persist(layered(first, second), scheduler=here)
    assert here.composed.ids.keys() >= {("x", 0), ("x", 1)}


@pytest.mark.parametrize("order", [1, -1])
def test_key_made_by_a_symbolic_layer_and_by_another(order):
    layers = {
        "a": negative_of("a", "b"),
        "b": {("b", i): i for i in range(2)},
        "other": {("a", 1): (abs, ("b", 1))},
    }
    layers = dict(list(layers.items())[::order])
    x = array_of(layers, {"a": {"b"}, "b": set(), "other": {"b"}}, "a")
    with pytest.raises(
        ValueError, match=re.escape("Key ('a', 1) is made in different ways by two layers")
    ) as caught:
        x.compute(scheduler=Here())
    assert "'a'" in str(caught.value)
    assert "'other'" in str(caught.value)
    layers["other"] = {("a", 1): Task(("a", 1), neg, TaskRef(("b", 1)))}
    x = array_of(layers, {"a": {"b"}, "b": set(), "other": {"b"}}, "a")
    assert x.dask.layers["a"].is_materialized() is False
    dask.persist(x, scheduler=Here())
    assert x.dask.layers["a"].is_materialized() is False


def test_key_made_by_two_symbolic_layers():
    layers = {"a": negative_of("a", "b"), "again": blockwise(abs, "a", "i", "b", "i", numblocks={"b": (2,)})}
    layers["b"] = {("b", i): i for i in range(2)}
    dependencies = {"a": {"b"}, "again": {"b"}, "b": set()}
    expected = re.escape("Key ('a', 0) is made in different ways by two layers, 'a' and 'again'")
    with pytest.raises(ValueError, match=expected):
        array_of(layers, dependencies, "a").compute(scheduler=Here())
    layers["again"] = negative_of("a", "b")
    dask.persist(array_of(layers, dependencies, "a"), scheduler=Here())


#: Among them those whose layers do share keys: LU makes three layers of the same tasks.
SAMPLE = [*[name for name in CALLS if name.startswith(("linalg", "method"))], *list(CALLS)[::25]]


@pytest.mark.filterwarnings("ignore")
def test_collections_of_dask_are_not_refused(monkeypatch):
    """Neither alone, nor together with what `dask.optimize` makes of them, which spells some keys differently."""
    compared = []
    compare = module._compare_shared_keys
    monkeypatch.setattr(module, "_compare_shared_keys", lambda *a: (compared.append(a), compare(*a)))
    for name in SAMPLE:
        made = CALLS[name](Arrays())
        made = [
            value
            for value in (made if isinstance(made, list | tuple) else [made])
            if dask.is_dask_collection(value)
        ]
        low_level_graph(dask.base.collections_to_expr(made))
        low_level_graph(dask.base.collections_to_expr([*made, *dask.optimize(*made)]))
    assert compared


def test_optimized_collections_meet_those_they_were_made_from():
    a = da.ones(10, chunks=5)
    b = a + a.sum()
    (optimized,) = dask.optimize(b)
    np.testing.assert_array_equal((optimized + a).compute(scheduler=Here()), np.full(10, 12.0))
    (persisted,) = dask.persist(b, scheduler=Here())
    np.testing.assert_array_equal((persisted + b + a).compute(scheduler=Here()), np.full(10, 23.0))
    bag = db.from_sequence(range(10), npartitions=3).map(neg)
    total = db.Bag.join(
        bag.map(lambda x: (x, x)), bag.map(lambda x: (x, x)).compute(scheduler="sync"), lambda x: x
    )
    (optimized_bag,) = dask.optimize(total)
    low_level_graph(dask.base.collections_to_expr([optimized_bag, total, bag]))
    value = dask.delayed(neg)(3)
    (optimized_value,) = dask.optimize(dask.delayed(add)(value, value))
    low_level_graph(dask.base.collections_to_expr([dask.delayed(add)(optimized_value, value)]))


# -- through the real getter --------------------------------------------------------------------------------------


def test_the_getter_refuses_in_the_same_way(get: Get) -> None:
    with pytest.raises(RuntimeError, match="Cycle detected"):
        array_of(*CYCLES["two symbolic layers"]).compute(scheduler=get)
    with pytest.raises(ValueError, match=re.escape("Missing dependency ('b', 0)")):
        array_of({"a": negative_of("a", "b")}, {"a": {"b"}}, "a").compute(scheduler=get)
    with pytest.raises(ValueError, match=re.escape("Key ('x', 0)")):
        layered(1, 2).compute(scheduler=get)
    with pytest.raises(ValueError, match=re.escape("Key ('x', 0)")):
        get(layered(1, 2).dask, [("x", 0)])
    with pytest.raises(TypeError, match="'unhashable'"):
        get({"x": 1}, ["x", {"unhashable": 1}])
    with pytest.raises(KeyError, match="nowhere"):
        get({"x": 1}, ["nowhere"])
