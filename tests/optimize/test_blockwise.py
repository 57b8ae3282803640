"""Blockwise layers without tasks: what becomes of each kind of argument, and what is left to Dask."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from operator import add, mul, neg
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import Alias, DataNode, List, Task, TaskRef, convert_legacy_graph
from dask.blockwise import Blockwise, BlockwiseDep, BlockwiseDepDict, blockwise, blockwise_token
from dask.highlevelgraph import HighLevelGraph
from dask.layers import ArrayChunkShapeDep

from dask_mars.graph.chunks import ChunkGraph
from dask_mars.optimize import compiler
from dask_mars.optimize.compiler import LARGE_LITERAL_BYTES
from dask_mars.optimize.convert import convert as convert_lazy
from dask_mars.optimize.fronts import blockwise as module
from dask_mars.optimize.fronts.blockwise import lazy_blockwise
from dask_mars.optimize.programs import finish_operand
from tests.symbolic import Here, Loud, assert_identical, dependencies, describe, evaluate, function_names

COUNTS = {"x": (2, 3), "y": (3, 2), "v": (3,), "w": (1,), "one": (1, 3)}


def convert(dsk: Any, wanted: Any, layers: Iterable[Blockwise]) -> ChunkGraph:
    return convert_lazy(dsk, wanted, map(lazy_blockwise, layers))


def sources() -> dict[Any, Any]:
    """Return the blocks of what layers are made from, each of them its own name."""
    found: dict[Any, Any] = {"single": "the single one"}
    for name, counts in COUNTS.items():
        for at in np.ndindex(*counts):
            key = (name, *map(int, at))
            found[key] = DataNode(key, "".join(map(str, key)))
    return found


def compared(layer: Blockwise, *others: Blockwise) -> dict[Any, Any]:
    """Compute all blocks of a layer, without tasks, and compare with its tasks as Dask makes them."""
    wanted = [(layer.output, *map(int, at)) for at in np.ndindex(*(layer.dims[i] for i in layer.output_indices))]
    graph = convert(sources(), wanted, [layer, *others])
    values = evaluate(graph)
    tasks = convert_legacy_graph(
        {**sources(), **{key: task for one in (layer, *others) for key, task in one.items()}}
    )
    theirs = dict(zip(wanted, dask.get(tasks, wanted), strict=True))
    assert {key: values[key] for key in wanted} == theirs
    assert repr([values[key] for key in wanted]) == repr(list(theirs.values()))
    found = dependencies(graph)
    assert {key: found[key] for key in wanted} == {key: set(tasks[key].dependencies) for key in wanted}
    return theirs


@pytest.fixture(autouse=True)
def no_fallback(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Any:
    """Fail tests whose layers are left to Dask and should not be."""
    caplog.set_level(logging.DEBUG, logger=module.__name__.rpartition(".")[0])
    yield
    if "fallback" not in request.node.name:
        assert not [record.message for record in caplog.get_records("call") if "materialised" in record.message]


# -- arguments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("out", "arguments"),
    [
        ("ij", ("x", "ij")),
        ("ji", ("x", "ij")),
        ("ij", ("x", "ij", "x", "ij")),
        ("ij", ("x", "ij", "y", "ji")),
        ("ij", ("x", "ij", "v", "j")),
        ("ij", ("x", "ij", "one", "ij")),
        ("ij", ("x", "ij", "w", "j", "w", "i")),
        ("ij", ("w", "i", "v", "j")),
        ("ijk", ("x", "ij", "y", "jk")),
        ("ii"[:1], ("v", "i")),
        ("i", ("x", "ij")),
        ("j", ("x", "ij")),
        ("", ("x", "ij")),
        ("ik", ("x", "ij", "y", "jk")),
        ("i", ("x", "ij", "y", "ji")),
        ("i", ("x", "ij", "one", "ij", "v", "j")),
        ("", ("v", "i", "w", "i")),
        ("", ("one", "ij", "x", "ij")),
        ("ij", ("x", "ij", 5, None)),
        ("ij", ("x", "ij", "single", None)),
        ("ij", ("x", "ij", ("x", 0, 0), None)),
        ("ij", ("x", "ij", TaskRef("single"), None)),
        ("ij", ("x", "ij", Alias("single"), None)),
        ("ij", ("x", "ij", List(TaskRef("single"), 3), None)),
        ("ij", ("x", "ij", Task(None, add, TaskRef("single"), "!"), None)),
        ("ij", ("x", "ij", [1, "single"], None)),
        ("ij", ("x", "ij", np.float32(2.5), None)),
        ("ij", ("x", "ij", TaskRef(("x", 0, 1)), None)),
    ],
    ids=str,
)
def test_arguments(out, arguments):
    concatenate = None if len(str(arguments)) % 2 else False
    counts = {name: COUNTS[name] for name, axes in zip(arguments[::2], arguments[1::2], strict=True) if axes}
    compared(blockwise(describe, "out", out, *arguments, numblocks=counts, concatenate=concatenate))


@pytest.mark.parametrize(
    ("out", "arguments"), [("i", ("x", "ij")), ("", ("x", "ij", "one", "ij")), ("ik", ("x", "ij", "y", "jk"))]
)
def test_concatenated_contractions(out, arguments):
    counts = {name: COUNTS[name] for name in arguments[::2]}

    def glue(blocks: Any, axes: Any) -> Any:
        return ("glued", blocks, axes)

    compared(blockwise(describe, "out", out, *arguments, numblocks=counts, concatenate=glue))


def test_new_axes():
    layer = blockwise(describe, "out", "zxi", "v", "i", numblocks={"v": (3,)}, new_axes={"z": (1, 1), "x": 7})
    assert compared(layer)["out", 1, 0, 2] == ("v2",)


def test_keywords():
    layer = Blockwise(
        "out",
        "i",
        Task(
            "out",
            describe,
            TaskRef(blockwise_token(0)),
            5,
            name=TaskRef(blockwise_token(0)),
            single=TaskRef("single"),
            several=List(TaskRef("single"), TaskRef(blockwise_token(0)), "single"),
        ),
        [("v", "i")],
        numblocks={"v": (3,)},
    )
    found = compared(layer)
    assert found["out", 1] == (
        ("v1", 5),
        {"name": "v1", "single": "the single one", "several": ["the single one", "v1", "single"]},
    )


def test_arguments_that_the_task_does_not_use():
    layer = Blockwise(
        "out",
        "ij",
        Task("out", describe, TaskRef(blockwise_token(1))),
        [("x", "ij"), ("v", "j"), (5, None)],
        numblocks={"x": (2, 3), "v": (3,)},
    )
    compared(layer)


class Squares(BlockwiseDep):
    """A literal for each block."""

    produces_tasks = False

    def __init__(self, *numblocks: int) -> None:
        self.numblocks = numblocks

    def __getitem__(self, at: tuple[int, ...]) -> Any:
        return {"at": at, "square": sum(part**2 for part in at)}


def test_literals_that_differ_from_block_to_block():
    layer = Blockwise(
        "out",
        "ij",
        Task("out", describe, *map(TaskRef, map(blockwise_token, range(4)))),
        [
            ("x", "ij"),
            (Squares(2, 3), "ij"),
            (Squares(3), "j"),
            (BlockwiseDepDict({(0,): "nought", (1,): slice(3)}), "i"),
        ],
        numblocks={"x": (2, 3)},
    )
    assert compared(layer)["out", 1, 2] == (
        "x12",
        {"at": (1, 2), "square": 5},
        {"at": (2,), "square": 4},
        slice(3),
    )
    graph = convert(sources(), [("out", i, j) for i in range(2) for j in range(3)], [layer])
    assert len(graph.operands) == 1


def test_shapes_of_blocks_as_literals():
    shapes = [(ArrayChunkShapeDep(((2, 3),)), "i"), (ArrayChunkShapeDep(((4, 1, 1),)), "j")]
    for literals in (shapes[:1], shapes):
        task = Task("out", describe, *map(TaskRef, map(blockwise_token, range(len(literals) + 1))))
        found = compared(Blockwise("out", "ij", task, [("x", "ij"), *literals], numblocks={"x": (2, 3)}))
        assert found["out", 1, 2] == ("x12", (3,), (1,))[: len(literals) + 1]


def test_fused_layers():
    first = blockwise(neg, "first", "i", "a", "i", numblocks={"a": (3,)})
    second = blockwise(mul, "second", "i", "first", "i", 5, None, numblocks={"first": (3,)})
    graph = dask.blockwise.optimize_blockwise(
        HighLevelGraph({"first": first, "second": second}, {"first": set(), "second": {"first"}}), [("second", 0)]
    )
    (layer,) = graph.layers.values()
    converted = convert({("a", i): i for i in range(3)}, [("second", i) for i in range(3)], [layer])
    assert [evaluate(converted)["second", i] for i in range(3)] == [0, -5, -10]
    assert len(converted.operands) == 1
    assert function_names(converted.operands[0]) == ["neg", "mul"]


def test_an_array_as_literal_is_stored_once():
    large = np.arange(LARGE_LITERAL_BYTES)
    x = da.ones(8, chunks=2).map_blocks(lambda block, table: block + table[7], table=large)
    here = Here()
    np.testing.assert_array_equal(x.compute(scheduler=here), np.full(8, 8.0))
    assert [value is large for value in here.composed.values.values()] == [True]


def test_no_key_of_the_users_is_taken_for_a_block():
    for key in (("block", 0), ("block", "v", (0,)), ("contracted", "v", ((0, None),))):
        layer = blockwise(describe, "out", "i", "v", "i", TaskRef(key), None, numblocks={"v": (3,)})
        graph = convert({**sources(), key: "the user's"}, [("out", 1)], [layer])
        assert evaluate(graph)["out", 1] == ("v1", "the user's")


# -- keys of blocks -----------------------------------------------------------------------------------------------


def test_coordinates_may_be_numbers_of_numpy():
    """They are equal to plain ones, and functions are told plain ones."""
    layer = Blockwise(
        "out",
        "i",
        Task("out", describe, TaskRef(blockwise_token(0)), TaskRef(blockwise_token(1))),
        [("v", "i"), (Squares(3), "i")],
        numblocks={"v": (3,)},
    )
    dsk = {
        **sources(),
        "task": Task("task", describe, TaskRef(("out", np.int64(2)))),
        "legacy": (describe, ("out", np.int8(2)), ("out", "word"), ("out", 3), ("out", 1, 1)),
    }
    graph = convert(dsk, ["task", "legacy", ("out", np.uint16(1))], [layer])
    values = evaluate(graph)
    assert repr(values["task"]) == "(('v2', {'at': (2,), 'square': 4}),)"
    assert repr(values["legacy"][0]) == repr(values["task"][0])
    assert values["legacy"][1:] == (("out", "word"), ("out", 3), ("out", 1, 1))
    assert repr(values["out", 1]) == "('v1', {'at': (1,), 'square': 1})"


def test_blocks_beyond_the_bounds_of_a_layer():
    """Dask makes them if asked, and arrays of no elements ask for more blocks than their layers have."""
    x = da.full((0, 2), 1, chunks=((0, 0), (2,))) % 3
    here = Here()
    ours = x.compute(scheduler=here)
    assert_identical(ours, x.compute(scheduler="sync"))
    assert (here.converted.layer_of(0), len(here.layers)) == (x.name, 1)


def test_blocks_beyond_the_bounds_of_a_layer_in_tasks_that_may_mean_something_else(runtime):
    x = da.ones((0, 7), chunks=((0, 0), (2, 2, 3))) * 3
    sums = da.cumsum(x, axis=1, method="blelloch")
    with pytest.raises(np.exceptions.AxisError):
        dask.compute(sums, scheduler="sync")
    for scheduler in ("sync", runtime.get):
        assert [values.shape for values in dask.compute(x, sums, scheduler=scheduler)] == [(0, 7), (0, 7)]


@pytest.mark.parametrize("key", [("out", 3), ("out", -1), ("out",), ("out", 0, 0), ("out", "word"), ("out", 1.5)])
def test_blocks_that_are_nowhere(key):
    layer = Blockwise("out", "i", Task("out", describe, TaskRef(blockwise_token(0))), [("v", "i")], {"v": (3,)})
    with pytest.raises((KeyError, ValueError)) as caught:
        convert(sources(), [key], [layer])
    assert repr(key) in str(caught.value) or "('v'," in str(caught.value)


# -- what is left to Dask -----------------------------------------------------------------------------------------


class Keys(Squares):
    """A source of keys."""

    @property
    def produces_keys(self) -> bool:
        return True

    def __getitem__(self, at: tuple[int, ...]) -> Any:
        return TaskRef("single")


class Tasks(Squares):
    """A source of literals for some blocks, and of tasks for others."""

    produces_tasks = True

    def __getitem__(self, at: tuple[int, ...]) -> Any:
        return Task(None, add, TaskRef("single"), "!") if at == (1,) else [at, DataNode(None, 5)] if at[0] else at


def layer_of(task: type[Task] = Task, source: Any = None) -> Blockwise:
    arguments = [TaskRef(blockwise_token(0)), TaskRef(blockwise_token(1))]
    return Blockwise(
        "out",
        "i",
        task("out", describe, *arguments),
        [("v", "i"), (source or Squares(3), "i")],
        numblocks={"v": (3,)},
    )


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (layer_of(task=Loud), "its task is a Loud"),
        (layer_of(source=Keys(3)), "its blocks choose their own inputs"),
        (layer_of(source=Tasks(3)), "a block's argument is a task"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_fallback_for_layers_that_are_not_understood(layer, reason, caplog):
    compared(layer)
    messages = [record for record in caplog.records if "materialised" in record.message]
    assert [record.levelname for record in messages] == ["DEBUG"]
    assert "layer out is materialised by Dask" in messages[0].message
    assert reason in messages[0].message


def test_fallback_after_an_interruption_between_two_steps(monkeypatch, caplog):
    """As a handler of signals may raise anywhere: each operand keeps its own number."""
    rest = iter([TimeoutError("of the user's signal handler")])

    def interrupted(*arguments: Any) -> Any:
        for error in rest:
            raise error
        return finish_operand(*arguments)

    monkeypatch.setattr(compiler, "finish_operand", interrupted)
    compared(layer_of())
    assert "of the user's signal handler" in caplog.text


def test_fallback_whatever_the_reason(monkeypatch, caplog):
    def fail(*_: Any) -> Any:
        raise ArithmeticError("never seen before")

    monkeypatch.setattr(module, "_get_coord_mapping", fail)
    x = (da.arange(12, chunks=4) + 1).rechunk(6) * 2
    here = Here()
    np.testing.assert_array_equal(x.compute(scheduler=here), np.arange(1, 13) * 2)
    assert here.layers
    assert caplog.text.count("never seen before") == len(here.layers)


def test_fallback_of_one_block_leaves_those_before_it(caplog):
    graph = convert(sources(), [("out", 0), ("out", 1), ("out", 2)], [layer_of(source=Tasks(3))])
    assert [evaluate(graph)["out", i] for i in range(3)] == [
        ("v0", (0,)),
        ("v1", "the single one!"),
        ("v2", [(2,), 5]),
    ]
