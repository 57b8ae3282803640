"""What a chunk graph knows of a chunk before it is computed: shape, dtype and bytes as declared."""

from __future__ import annotations

import io
import math
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.diagnostics import ProgressBar

from dask_mars.client import backend
from dask_mars.graph.chunks import ChunkGraph, Declared, flatten
from dask_mars.optimize.convert import convert
from dask_mars.optimize.declarations import declarations
from dask_mars.optimize.fronts import ReadOptions, symbolic_graph
from dask_mars.optimize.fronts.tasks import low_level_graph
from dask_mars.optimize.passes import Limits, run_passes
from dask_mars.optimize.passes.compose import compose
from tests.symbolic import values_of


class Caught(Exception):
    """Carries what Dask would have had computed."""


def prepared(x: Any, composed: bool = True, symbolic: bool = True) -> ChunkGraph:
    """Return the chunk graph of a collection, as `compute` makes it."""

    def catch(dsk: Any, keys: Any, **options: Any) -> None:
        raise Caught(dsk, keys)

    with pytest.raises(Caught) as caught:
        dask.compute(x, scheduler=catch)
    dsk, keys = caught.value.args
    parts = symbolic_graph(dsk, ReadOptions()) if symbolic else None
    if parts is None:
        tasks = low_level_graph(dsk, False)
        graph = convert(tasks, flatten(keys))
        graph.declared = declarations(dsk, tasks)
    else:
        graph = convert(parts[0], flatten(keys), parts[1])
        graph.declared = declarations(dsk)
    return run_passes(graph, Limits(), passes=(compose,)) if composed else graph


A = da.random.default_rng(0).random((20, 30), chunks=(7, 11))
V = da.arange(50, chunks=7)
#: Arrays of whose chunks all that is declared is right.
RIGHT = {
    "random": lambda: A,
    "elementwise": lambda: da.sin(A) * 2 + A,
    "comparison": lambda: A > 0.5,
    "cast": lambda: A.astype("i2"),
    "transpose": lambda: A.T,
    "slice": lambda: A[2:15, ::3],
    "outer": lambda: da.outer(V, V),
    "from_array": lambda: da.from_array(np.arange(60.0).reshape(6, 10), chunks=4) + 1,
    "concatenate": lambda: da.concatenate([A, A]),
    "stack": lambda: da.stack([A, A]),
    "sum": lambda: A.sum(),
    "sum along an axis": lambda: A.sum(axis=0),
    "max": lambda: A.max(axis=1, keepdims=True),
    "any": lambda: (A > 0.5).any(),
    "nanmax": lambda: da.nanmax(A),
    "median": lambda: da.median(A, axis=0),
    "matmul": lambda: A @ A.T,
    "empty": lambda: da.ones((0, 3), chunks=2) + 1,
}


@pytest.mark.parametrize("is_composed", [False, True], ids=["tasks", "composed"])
def test_shape_and_dtype_are_as_declared(is_composed):
    for make in RIGHT.values():
        assert_right(prepared(make(), is_composed, is_composed))


def assert_right(graph: ChunkGraph) -> None:
    declared = 0
    for chunk, value in enumerate(values_of(graph)):
        if (shape := graph.shape_of(chunk)) is not None:
            declared += 1
            assert shape == value.shape
            assert graph.dtype_of(chunk) == value.dtype
            assert graph.declared_bytes(chunk) == value.size * value.dtype.itemsize
    assert declared


def test_partial_results_of_a_reduction_are_not_declared_as_large_as_what_is_reduced():
    graph = prepared(da.random.default_rng(0).random((400, 400), chunks=100).mean())
    partials = [chunk for chunk, value in enumerate(values_of(graph)) if isinstance(value, dict)]
    assert len(partials) >= 16
    assert {graph.declared_bytes(chunk) for chunk in partials} == {8}


def test_array_without_dimensions_is_one_element():
    x = da.ones((), chunks=()) + 1
    graph = prepared(x)
    chunk = graph.ids[(x.name,)]
    assert (graph.shape_of(chunk), graph.declared_bytes(chunk)) == ((), 8)


def test_unknown_sizes_are_none():
    x = V[V > 10] + 1
    graph = prepared(x)
    chunk = graph.ids[(x.name, 3)]
    assert math.isnan(x.chunks[0][3])
    assert graph.shape_of(chunk) is None
    assert graph.declared_bytes(chunk) is None
    assert graph.dtype_of(chunk) == x.dtype


def test_arrays_of_objects_have_no_declared_bytes():
    x = da.from_array(np.array(["a", "b"], dtype=object), chunks=1).copy()
    graph = prepared(x + x)
    (chunk, _) = graph.inputs[graph.outputs[0]]
    assert graph.shape_of(chunk) == (1,)
    assert graph.declared_bytes(chunk) is None


@pytest.mark.parametrize(
    "key", ["x", ("x",), ("x", 2), ("x", -1), ("x", 0, 0), ("x", "a"), ("y", 0), ("x", 1.0), 3]
)
def test_key_that_is_no_chunk_of_the_layer_is_undeclared(key):
    graph = ChunkGraph(keys=[key], declared={"x": Declared(np.dtype("f8"), ((3, 3),))})
    assert graph.shape_of(0) is None
    assert graph.dtype_of(0) is None
    assert graph.declared_bytes(0) is None


def test_delayed_is_undeclared():
    graph = prepared(dask.delayed(abs)(-1))
    assert graph.declared == {}
    assert graph.shape_of(graph.outputs[0]) is None


def test_declarations_reach_the_graph_that_is_computed(runtime, monkeypatch):
    graphs = []
    computation = backend.GraphComputation

    def record(engine: Any, graph: ChunkGraph, *rest: Any, **options: Any) -> Any:
        graphs.append(graph)
        return computation(engine, graph, *rest, **options)

    monkeypatch.setattr(backend, "GraphComputation", record)
    x = da.ones(10, chunks=5) + 1
    x.compute(scheduler=runtime.get)
    with ProgressBar(out=io.StringIO()):
        x.compute(scheduler=runtime.get)
    assert len(graphs) == 2
    for graph in graphs:
        assert graph.shape_of(graph.ids[(x.name, 1)]) == (5,)
