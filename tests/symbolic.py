"""The preparation of graphs without workers: expressions made ready as the client does, and evaluated in place."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import dask
import numpy as np
from dask._task_spec import Alias, Task, convert_legacy_graph
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph
from dask.local import nested_get
from dask.utils import ensure_dict

from dask_mars.graph.chunks import DATA, ChunkGraph, Key, Operand
from dask_mars.optimize.convert import convert
from dask_mars.optimize.declarations import annotate, annotations_of
from dask_mars.optimize.fronts import ReadOptions, symbolic_graph
from dask_mars.optimize.passes import Limits, Pass, run_passes
from dask_mars.optimize.passes.compose import compose
from dask_mars.optimize.passes.folding import fold_initial
from dask_mars.optimize.prepare import PrepareOptions, prepare
from studies.graphs import handed_over


def describe(*args: Any, **kwargs: Any) -> Any:
    """Return what a call was given, by position and by name."""
    return (args, kwargs) if kwargs else args


class Loud(Task):
    """A task that does more than to call its function."""

    __slots__ = ()

    def __call__(self, values: Any = ()) -> Any:
        return ("loud", super().__call__(values))


def values_of(graph: ChunkGraph) -> list[Any]:
    """Compute every chunk."""
    values: list[Any] = []
    for chunk, operand_id in enumerate(graph.operand_of):
        assert all(source < chunk for source in graph.inputs[chunk])
        if operand_id == DATA:
            values.append(graph.values[chunk])
            continue
        operand = graph.operands[operand_id]
        assert len(graph.inputs[chunk]) == operand.input_count
        assert len(graph.literals[chunk]) == operand.literal_count
        values.append(operand.run([values[source] for source in graph.inputs[chunk]], graph.literals[chunk]))
    return values


def evaluate(graph: ChunkGraph) -> dict[Key, Any]:
    """Compute every chunk and return the values of all keys that can be looked up."""
    values = values_of(graph)
    return {key: values[chunk] for key, chunk in graph.ids.items()}


@dataclass(repr=False)
class Here:
    """A scheduler that computes in this process, as the client prepares graphs, and keeps what it made of them."""

    #: What Dask has called it with last.
    expression: Any = None
    wanted: list[Key] = field(default_factory=list)
    #: Layers that stayed symbolic.
    layers: list[Any] = field(default_factory=list)
    #: The graph before and after composing, and with all folded in that can be.
    converted: ChunkGraph = field(default_factory=ChunkGraph)
    composed: ChunkGraph = field(default_factory=ChunkGraph)
    folded: ChunkGraph = field(default_factory=ChunkGraph)

    def __call__(self, dsk: Any, keys: Any, **options: Any) -> Any:
        # Other threads may compute with this scheduler meanwhile, and the last one stays recorded.
        wanted = list(flatten([keys]))
        symbolic = symbolic_graph(dsk, ReadOptions())
        assert symbolic is not None
        converted = composed = folded = convert(symbolic.tasks, wanted, symbolic.layers)
        annotate(converted, annotations_of(dsk))
        if symbolic.composable:
            composed = passed(converted, compose, fuses_slices=symbolic.fuses_slices)
            folded = passed(composed, fold_initial, workers=1, consumers_per_worker=1)
        self.expression, self.wanted, self.layers = dsk, wanted, symbolic.layers
        self.converted, self.composed, self.folded = converted, composed, folded
        return nested_get(keys, evaluate(folded))

    def operands(self) -> list[Operand]:
        """Return the operand of every chunk that is computed once all is composed."""
        return [
            self.composed.operands[operand_id] for operand_id in self.composed.operand_of if operand_id != DATA
        ]


def function_names(operand: Operand) -> list[str]:
    """Name the functions that an operand calls, one for each step."""
    return [getattr(operand.functions[step.function], "__name__", "?") for step in operand.steps]


def passed(
    graph: ChunkGraph, *passes: Pass, fixed: Collection[int] = (), fuses_slices: bool = True, **limits: Any
) -> ChunkGraph:
    """Return a graph after some passes; the given one must not change."""
    before = [
        list(column) for column in (graph.keys, graph.operand_of, graph.literals, graph.inputs, graph.operands)
    ]
    after = run_passes(graph, Limits(**limits), fixed, passes, fuses_slices=fuses_slices)
    assert before == [graph.keys, graph.operand_of, graph.literals, graph.inputs, graph.operands]
    return after


def prepared(*collections: Any, **limits: Any) -> ChunkGraph:
    """Prepare collections within limits."""
    return _prepared(*handed_over(*collections), **limits)


def _prepared(
    dsk: Any, wanted: list[Key], workers: int | None = None, resident_bytes: int | None = None
) -> ChunkGraph:
    resident = None if resident_bytes is None else lambda: resident_bytes
    return prepare(dsk, wanted, PrepareOptions(Limits(workers, resident)))


def in_place(
    *collections: Any, workers: int | None = None, resident_bytes: int = 1 << 40, check: Any = None
) -> ChunkGraph:
    """Prepare within limits, compare the values with those of no limits, and return the graph."""
    dsk, wanted = handed_over(*collections)
    graph = _prepared(dsk, wanted, workers, resident_bytes)
    ours, theirs = evaluate(graph), evaluate(_prepared(dsk, wanted))
    for key in wanted:
        (check or assert_identical)(ours[key], theirs[key])
    assert sorted(graph.outputs) == graph.outputs
    return graph


def assert_identical(ours: Any, theirs: Any) -> None:
    """Compare kinds, dtypes, shapes, masks and every bit of what is in arrays; any NaN equals any other."""
    assert type(ours) is type(theirs)
    if isinstance(theirs, tuple | list):
        assert len(ours) == len(theirs)
        for our, their in zip(ours, theirs, strict=True):
            assert_identical(our, their)
        return
    if not isinstance(theirs, np.ndarray | np.generic):
        assert ours == theirs or (ours != ours and theirs != theirs)
        return
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    if isinstance(theirs, np.ma.MaskedArray):
        assert (ours is np.ma.masked) == (theirs is np.ma.masked)
        if theirs is np.ma.masked:
            return
        assert_identical(np.ma.getmaskarray(ours), np.ma.getmaskarray(theirs))
        assert ours.fill_value == theirs.fill_value or ours.fill_value != ours.fill_value
        assert_identical(ours.filled(), theirs.filled())
        return
    np.testing.assert_array_equal(ours, theirs)
    if theirs.dtype.kind in "fc":
        # Equal zeros may have different signs.
        parts = (
            [(ours.real, theirs.real), (ours.imag, theirs.imag)] if theirs.dtype.kind == "c" else [(ours, theirs)]
        )
        for our, their in parts:
            known = ~np.isnan(np.asarray(their))
            np.testing.assert_array_equal(np.signbit(our)[known], np.signbit(their)[known])


# -- what needs what ----------------------------------------------------------------------------------------------


def dependencies(graph: ChunkGraph) -> dict[Key, set[Key]]:
    """Return the keys that each key of a chunk graph needs; chunks that only we have are left out."""
    return {
        key: {graph.keys[source] for source in graph.inputs[chunk]} - _only_ours(graph.keys)
        for chunk, key in enumerate(graph.keys)
        if key not in _only_ours([key])
    }


def _only_ours(keys: Iterable[Key]) -> set[Key]:
    return {key for key in keys if isinstance(key, tuple) and key and key[0] == "mars-literal"}


def dependencies_of_dask(expression: Any, wanted: list[Key]) -> dict[Key, set[Key]]:
    """Return the same of Dask's own tasks, after Dask's fusion of layers; aliases are what they stand for.

    The layers are materialised by it, so it has to come last.
    """
    tasks: dict[Key, Any] = {}
    for operand in expression.operands:
        keys = set(flatten([operand.__dask_keys__()]))
        with dask.config.set({"optimization.annotations.fuse": False}):
            graph = dask.blockwise.optimize_blockwise(operand.hlg, keys=keys)
        assert isinstance(graph, HighLevelGraph)
        tasks.update(ensure_dict(graph.cull(keys)))
    nodes = convert_legacy_graph(tasks)

    def real(key: Key) -> Key:
        while isinstance(nodes[key], Alias):
            key = nodes[key].target
        return key

    found: dict[Key, set[Key]] = {}
    stack = [real(key) for key in wanted]
    while stack:
        key = stack.pop()
        if key not in found:
            found[key] = {real(source) for source in nodes[key].dependencies}
            stack.extend(found[key])
    return found
