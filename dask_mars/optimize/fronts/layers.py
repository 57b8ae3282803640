"""The front of HighLevelGraphs: layers of arrays, and delayed values."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

import dask
from dask.highlevelgraph import HighLevelGraph, Layer

from dask_mars.dask_api.core import HLGExpr, HLGFinalizeCompute, _HLGExprSequence, optimize_delayed
from dask_mars.dask_api.loaded import arrays, optimize_blockwise
from dask_mars.graph.chunks import Key, flatten, layer_of
from dask_mars.optimize.fronts.array_blocks import lazy_expression
from dask_mars.optimize.fronts.base import LazyLayer, ReadOptions, Symbolic
from dask_mars.optimize.fronts.blockwise import lazy_blockwise
from dask_mars.optimize.fronts.overlap import lazy_overlap
from dask_mars.optimize.fronts.parts import Residents
from dask_mars.optimize.fronts.rechunk import as_tasks, is_between_workers, lazy_rechunk, with_direct_rechunks

logger = logging.getLogger(__name__)

#: Returns a layer as one that is compiled when needed, None if it is of another kind.
LayerKind = Callable[[Layer, "Residents | None"], "LazyLayer | None"]
LAYER_KINDS: tuple[LayerKind, ...] = (lazy_rechunk, lazy_blockwise, lazy_overlap, lazy_expression)


def read_layers(dsk: Any, options: ReadOptions) -> Symbolic | None:
    """Read the HighLevelGraphs of collections, and optimise their layers as Dask's array optimizer does."""
    if not isinstance(dsk, _HLGExprSequence):
        return None
    found = _graph_of_layers(dsk, arrays.optimize_arrays, options.fuse_layers, options.resident_bytes)
    if found is not None:
        return Symbolic(*found)
    # Delayed values stay tasks of their own, so that effects or failures of one do not concern its neighbours.
    found = _graph_of_layers(dsk, optimize_delayed, fuse_layers=False)
    return None if found is None else Symbolic(*found, composable=False)


def _graph_of_layers(
    sequence: _HLGExprSequence,
    optimizer: Callable[..., Any],
    fuse_layers: bool,
    resident_bytes: Callable[[], int] | None = None,
) -> tuple[dict[Key, Any], list[LazyLayer]] | None:
    if dask.config.get("optimization.fuse.active", None) is False:
        return None
    if not all(
        isinstance(operand, HLGExpr) and operand.low_level_optimizer is optimizer for operand in sequence.operands
    ):
        return None
    tasks: dict[Key, Any] = {}
    layers: list[LazyLayer] = []
    residents = None if resident_bytes is None else Residents(resident_bytes)
    for operand in sequence.operands:
        graph = operand.hlg
        if isinstance(operand, HLGFinalizeCompute):
            graph = _with_all_that_is_wanted(graph, operand)
        own, lazy = divided(graph, flatten(operand.__dask_keys__()), fuse_layers, residents)
        tasks = {**tasks, **own} if tasks else own
        layers += lazy
    return tasks, layers


def divided(
    graph: HighLevelGraph, keys: Collection[Key], fuse_layers: bool, residents: Residents | None
) -> tuple[dict[Key, Any], list[LazyLayer]]:
    """Return a graph that computes keys as tasks and layers, optimised as Dask does."""
    # Dask would lose layers with cyclic dependencies. Left alone, they show the keys of the cycle.
    if fuse_layers and not in_circles(graph):
        if residents is not None:
            graph = with_direct_rechunks(graph, {layer_of(key) for key in keys}, residents)
        graph = optimize_blockwise(_with_annotations_apart(graph), keys=keys)
    return _divided(graph, residents)


def _with_all_that_is_wanted(graph: HighLevelGraph, operand: HLGFinalizeCompute) -> HighLevelGraph:
    """Make the assembly of results depend on all layers that it reads."""
    # Dask assumes that it reads only layers without other readers, and so loses variables of an xarray.Dataset
    # from which other variables are made.
    keys = operand.operand("dsk").__dask_keys__()
    wanted = {layer_of(_first(part)) for part in keys if isinstance(part, list) and part}
    wanted &= graph.layers.keys()
    last = layer_of(operand._name)
    if wanted <= graph.dependencies[last]:
        return graph
    return HighLevelGraph(graph.layers, {**graph.dependencies, last: graph.dependencies[last] | wanted})


def _first(keys: Any) -> Key:
    while isinstance(keys, list) and keys:
        keys = keys[0]
    found: Key = keys
    return found


def _with_annotations_apart(graph: HighLevelGraph) -> HighLevelGraph:
    """Keep Dask from fusing layers with different annotations, as those of one would then hold for the other."""
    # Dask's own setting for this holds in all threads, and stays forever if Ctrl-C interrupts its restoration. So
    # the layers get an annotation that Dask does not know how to fuse.
    if not any(layer.annotations for layer in graph.layers.values()):
        return graph
    layers = {}
    for name, layer in graph.layers.items():
        if layer.annotations:
            layer = copy.copy(layer)
            layer.annotations = {**layer.annotations, "dask-mars-apart": True}
        layers[name] = layer
    return HighLevelGraph(layers, graph.dependencies)


def _divided(graph: HighLevelGraph, residents: Residents | None = None) -> tuple[dict[Key, Any], list[LazyLayer]]:
    """Return the tasks of layers that are or have to be materialised, and the other layers."""
    # Collections after `dask.optimize` hold keys of their original layers in another form. As in Dask, the last
    # layer that makes a key wins.
    tasks: dict[Key, Any] = {}
    lazy: dict[str, LazyLayer] = {}
    for name, layer in graph.layers.items():
        symbolic = lazy_layer(layer, residents)
        if symbolic is None:
            tasks.update(_tasks_of(layer))
        else:
            lazy[name] = symbolic
    made_again = _made_again(tasks, lazy.values())
    if made_again:
        lazy = {name: layer for name, layer in lazy.items() if made_again.isdisjoint(layer.names)}
        tasks = {}
        for name, layer in graph.layers.items():
            if name not in lazy:
                tasks.update(_tasks_of(layer))
    return tasks, list(lazy.values())


def _made_again(tasks: Mapping[Key, Any], layers: Collection[LazyLayer]) -> set[str]:
    """Return the first elements of keys that several layers make, at least one of them not materialised."""
    names = [name for layer in layers for name in layer.names]
    known = set(names)
    found = {key[0] for key in tasks if type(key) is tuple and key and key[0] in known} if known else set()
    if len(known) < len(names):
        found |= {name for name, count in Counter(names).items() if count > 1}
    return found


def in_circles(graph: HighLevelGraph) -> bool:
    """Return whether a layer depends on itself, directly or indirectly."""
    waiting = {name: {d for d in needed if d in graph.layers} for name, needed in graph.dependencies.items()}
    dependents: dict[str, list[str]] = {}
    for name, needed in waiting.items():
        for dependency in needed:
            dependents.setdefault(dependency, []).append(name)
    ready = [name for name, needed in waiting.items() if not needed]
    for name in ready:
        for dependent in dependents.get(name, ()):
            waiting[dependent].discard(name)
            if not waiting[dependent]:
                ready.append(dependent)
    return len(ready) < len(waiting)


def lazy_layer(layer: Layer, residents: Residents | None = None) -> LazyLayer | None:
    """Return a layer as one that is compiled when needed, or None if all its tasks have to be made."""
    for kind in () if layer.is_materialized() else LAYER_KINDS:
        lazy = kind(layer, residents)
        if lazy is not None:
            return lazy
    return None


def _tasks_of(layer: Layer) -> Mapping[Key, Any]:
    if is_between_workers(layer):
        try:
            return as_tasks(layer)
        except Exception as reason:
            # Dask's own way is right, too.
            logger.debug("%r stays as it is: %r", layer, reason)
    tasks: Mapping[Key, Any] = layer
    return tasks
