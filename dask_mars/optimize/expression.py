"""Reads the arguments of a scheduler: graph, requested keys, annotations."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import dask
import numpy as np
from dask.highlevelgraph import HighLevelGraph, Layer

from dask_mars.dask_api.arrays import (
    ArrayOverlapLayer,
    Blockwise,
    broadcast_trick,
    optimize_arrays,
    optimize_blockwise,
)
from dask_mars.dask_api.core import (
    Alias,
    DataNode,
    Expr,
    HLGExpr,
    HLGFinalizeCompute,
    Task,
    _AnnotationsTombstone,
    _ExprSequence,
    _HLGExprSequence,
    optimize_delayed,
)
from dask_mars.graph.callables import called_by
from dask_mars.graph.chunks import ChunkGraph, Declared, Key, Restriction
from dask_mars.optimize.blockwise import lazy_blockwise
from dask_mars.optimize.frames import fused, lazy_expression
from dask_mars.optimize.layers import LazyLayer
from dask_mars.optimize.overlap import lazy_overlap
from dask_mars.optimize.parts import Residents
from dask_mars.optimize.rechunk import (
    DirectRechunk,
    as_tasks,
    is_between_workers,
    lazy_rechunk,
    with_direct_rechunks,
)
from dask_mars.optimize.unfused import unfused_graph

logger = logging.getLogger(__name__)

#: Annotations that we honour.
HONOURED = ("retries", "priority", "workers", "allow_other_workers", "resources", "checkpoint")


def low_level_graph(dsk: Any) -> tuple[Mapping[Key, Any], dict[str, dict[str, Any]]]:
    """Return the low-level graph of any argument of a getter, and the honoured annotations by layer."""
    annotations = _annotations(dsk)
    if isinstance(dsk, Mapping) and not isinstance(dsk, HighLevelGraph):
        return dsk, annotations
    if isinstance(dsk, HighLevelGraph):
        return dsk.to_dict(), annotations
    return unfused_graph(dsk) if annotations else dsk.__dask_graph__(), annotations


class Symbolic(NamedTuple):
    """The graph of a Dask expression, part of it without task objects.

    Attributes
    ----------
    tasks : dict
        Tasks of the materialised layers.
    layers : list of LazyLayer
        The other layers.
    annotations : dict
        The user's annotations, as from `low_level_graph`.
    composable : bool
        Whether chains may become one chunk, as Dask itself fuses tasks of such expressions.
    """

    tasks: dict[Key, Any]
    layers: list[LazyLayer]
    annotations: dict[str, dict[str, Any]]
    composable: bool


def symbolic_graph(
    dsk: Any, fuse_layers: bool = True, resident_bytes: Callable[[], int] | None = None
) -> Symbolic | None:
    """Return the graph of a Dask expression with as few layers materialised as possible.

    Dask would make a task object for each block. This function optimises layers as Dask's array optimizer does;
    `compose` does the same for tasks.

    Parameters
    ----------
    dsk : Expr
        As `dask.compute` makes it.
    fuse_layers : bool, optional
        Fuse consecutive blockwise layers, as Dask's optimizer does.
    resident_bytes : callable, optional
        Returns how many bytes may stay in memory for readers of parts in place. By default they read copies of the
        parts, each a value of its own.

    Returns
    -------
    Symbolic or None
        None if the expression is of another kind, or its user has disabled optimisation: then use
        `low_level_graph`.
    """
    composable = True
    if isinstance(dsk, _HLGExprSequence):
        found = _graph_of_layers(dsk, optimize_arrays, fuse_layers, resident_bytes)
        if found is None:
            # Dask only culls delayed values, in quadratic time; the conversion does the same. Each stays a task of
            # its own, so that its effects or failures do not concern its neighbours.
            composable = False
            found = _graph_of_layers(dsk, optimize_delayed, fuse_layers=False)
    elif isinstance(dsk, Expr):
        found = _graph_of_expressions(dsk)
    else:
        found = None
    return None if found is None else Symbolic(*found, _annotations(dsk), composable)


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
        # Dask would lose layers with cyclic dependencies. Left alone, they show the keys of the cycle.
        if fuse_layers and not in_circles(graph):
            keys = flatten(operand.__dask_keys__())
            if residents is not None:
                graph = with_direct_rechunks(graph, {_layer_name(key) for key in keys}, residents)
            graph = optimize_blockwise(_with_annotations_apart(graph), keys=keys)
        own, lazy = _divided(graph, residents)
        tasks = {**tasks, **own} if tasks else own
        layers += lazy
    return tasks, layers


def _with_all_that_is_wanted(graph: HighLevelGraph, operand: HLGFinalizeCompute) -> HighLevelGraph:
    """Make the assembly of results depend on all layers that it reads.

    Dask assumes that it reads only layers without other readers, and so loses variables of an xarray.Dataset from
    which other variables are made.
    """
    keys = operand.operand("dsk").__dask_keys__()
    wanted = {_layer_name(_first(part)) for part in keys if isinstance(part, list) and part}
    wanted &= graph.layers.keys()
    last = _layer_name(operand._name)
    if wanted <= graph.dependencies[last]:
        return graph
    return HighLevelGraph(graph.layers, {**graph.dependencies, last: graph.dependencies[last] | wanted})


def _first(keys: Any) -> Key:
    while isinstance(keys, list) and keys:
        keys = keys[0]
    found: Key = keys
    return found


def _with_annotations_apart(graph: HighLevelGraph) -> HighLevelGraph:
    """Keep Dask from fusing layers with different annotations, as those of one would then hold for the other.

    Dask's own setting for this holds in all threads, and stays for ever if Ctrl-C interrupts its restoration. So
    the layers get an annotation that Dask does not know how to fuse.
    """
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
    """Return the tasks of layers that are or have to be materialised, and the other layers.

    Collections after `dask.optimize` hold keys of their original layers in another form. As in Dask, the last
    layer that makes a key wins.
    """
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


def _graph_of_expressions(root: Expr) -> tuple[dict[Key, Any], list[LazyLayer]] | None:
    """Collect layers as `Expr.__dask_graph__` does."""
    whole = fused(root)
    # Fusion renames an expression and its dependents.
    names = zip(flatten(root.__dask_keys__()), flatten(whole.__dask_keys__()), strict=True)
    tasks: dict[Key, Any] = {key: Alias(key, new) for key, new in names if key != new}
    layers: list[LazyLayer] = []
    seen: set[str] = set()
    stack = [whole]
    while stack:
        expression = stack.pop()
        if expression._name in seen:
            continue
        seen.add(expression._name)
        if type(expression).__dask_graph__ is not Expr.__dask_graph__:
            return None
        lazy = lazy_expression(expression)
        if lazy is not None:
            layer, others = lazy
            layers.append(layer)
            stack += others
        else:
            tasks.update(expression._layer())
        stack += expression.dependencies()
    return tasks, layers


def lazy_layer(layer: Layer, residents: Residents | None = None) -> LazyLayer | None:
    """Return a layer as one that is compiled when needed, or None if all its tasks have to be made."""
    if type(layer) is DirectRechunk:
        return lazy_rechunk(layer)
    if layer.is_materialized():
        return None
    # A subclass may make its blocks in another way.
    if isinstance(layer, Blockwise) and type(layer)._dict is Blockwise._dict:
        return lazy_blockwise(layer)
    if type(layer) is ArrayOverlapLayer:
        return lazy_overlap(layer, residents)
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


def _annotations(dsk: Any) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    is_saving = dask.config.get("dask-mars.checkpoint.directory", None) is not None
    for graph in _high_level_graphs(dsk):
        for name, layer in graph.layers.items():
            honoured = {kind: value for kind, value in (layer.annotations or {}).items() if kind in HONOURED}
            if "checkpoint" in honoured and not is_saving:
                # Without checkpoints the annotation must not prevent merging.
                del honoured["checkpoint"]
            if honoured:
                found[name] = honoured
                # Materialised layers may hold keys that do not carry the layer's name.
                if layer.is_materialized():
                    for key in layer:
                        found[_layer_name(key)] = honoured
    return found


#: Declared types of arrays that hold memory for each element.
_DENSE = frozenset({"numpy.ndarray", "numpy.ma.MaskedArray", "numpy.ma.core.MaskedArray"})


def declarations(dsk: Any, tasks: Mapping[Key, Any] | None = None) -> dict[str, Declared]:
    """Return the declarations of an expression's arrays about their chunks, by the names of their layers.

    Optimisation drops them, so this reads the layers as the user made them. Fused layers and composed chunks have
    the name of their last, so its declaration holds for them.

    Parameters
    ----------
    dsk : Expr
        As `dask.compute` makes it.
    tasks : mapping, optional
        The low-level graph, if Dask has fused tasks in it: it gives them new names, with aliases from the old.
    """
    found: dict[str, Declared] = {}
    for graph in _high_level_graphs(dsk):
        for name, layer in graph.layers.items():
            said = layer.collection_annotations
            # The shape of other arrays than NumPy's, such as sparse ones, does not determine their size.
            if said and said.get("chunk_type") in _DENSE and "chunks" in said and said.get("dtype") is not None:
                found[name] = Declared(said["dtype"], _reduced(layer, said["chunks"]), _is_broadcast(layer))
    if found and tasks is not None:
        for key, target in alias_targets(tasks).items():
            declared = found.get(_layer_name(key))
            if declared is not None:
                found.setdefault(_layer_name(target), declared)
    return found


def _is_broadcast(layer: Layer) -> bool:
    """Return whether the chunks of a layer repeat one element, or the elements of their inputs."""
    if isinstance(layer, Blockwise):
        # Its arguments were bound in several steps.
        return isinstance(layer.task, Task) and called_by(layer.task.func) is broadcast_trick
    if not layer.is_materialized() or not layer:
        return False
    task = next(iter(layer.values()))
    return (task[0] if type(task) is tuple and task else getattr(task, "func", None)) is np.broadcast_to


def _reduced(layer: Layer, chunks: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Return the sizes of reduced chunks, which Dask declares as large as their inputs."""
    arguments = getattr(layer.task, "kwargs", {}) if isinstance(layer, Blockwise) else {}
    axes = arguments.get("axis")
    if arguments.get("keepdims") is not True or not isinstance(axes, tuple):
        return chunks
    return tuple([(1,) * len(sizes) if axis in axes else sizes for axis, sizes in enumerate(chunks)])


def _high_level_graphs(dsk: Any) -> Iterator[HighLevelGraph]:
    """Yield the graphs as the user made them: optimisation drops annotations."""
    if isinstance(dsk, HighLevelGraph):
        yield dsk
    elif isinstance(dsk, HLGExpr):
        yield dsk.hlg
    elif isinstance(dsk, (_HLGExprSequence, _ExprSequence)):
        for operand in dsk.operands:
            yield from _high_level_graphs(operand)


def _layer_name(key: Key) -> str:
    return str(key[0]) if isinstance(key, tuple) and key else str(key)


def annotate(graph: ChunkGraph, annotations: dict[str, dict[str, Any]]) -> None:
    """Record the user's annotations of chunks."""
    if not annotations:
        return
    for chunk, key in enumerate(graph.keys):
        wanted = annotations.get(_layer_name(key))
        if wanted is None:
            continue
        if (retries := _value_for(wanted.get("retries"), key)) is not None:
            graph.retries[chunk] = int(retries)
        if (priority := _value_for(wanted.get("priority"), key)) is not None:
            graph.priorities[chunk] = float(priority)
        if (saves := _value_for(wanted.get("checkpoint"), key)) is not None:
            graph.saves[chunk] = bool(saves)
        workers = _value_for(wanted.get("workers"), key)
        resources = _value_for(wanted.get("resources"), key)
        if workers is not None or resources:
            graph.restrictions[chunk] = Restriction(
                _names(workers),
                bool(_value_for(wanted.get("allow_other_workers"), key)),
                tuple(sorted((resources or {}).items())),
            )


def _names(workers: Any) -> tuple[str, ...]:
    """Return annotated workers, one or several, as strings; a name may be a number, too."""
    if workers is None:
        return ()
    # Dask makes a list of a set, in an order that varies between runs.
    return tuple(sorted(map(str, workers))) if isinstance(workers, list | tuple | set) else (str(workers),)


def _value_for(annotation: Callable[[Key], Any] | Any, key: Key) -> Any:
    value = annotation(key) if callable(annotation) else annotation
    # In a layer fused from several, Dask marks keys that none of them had annotated.
    return None if isinstance(value, _AnnotationsTombstone) else value


def alias_targets(dsk: Mapping[Key, Any]) -> dict[Key, Key]:
    """Return the target of every alias in a graph."""
    return {key: node.target for key, node in dsk.items() if isinstance(node, Alias)}


def flatten(keys: Any) -> list[Key]:
    """List the keys in an arbitrarily nested list of keys."""
    if not isinstance(keys, list):
        return [keys]
    flat: list[Key] = []
    stack = [iter(keys)]
    while stack:
        for item in stack[-1]:
            if isinstance(item, list):
                stack.append(iter(item))
                break
            flat.append(item)
        else:
            stack.pop()
    return flat


def replace_cached(dsk: Mapping[Key, Any], cache: Mapping[Key, Any]) -> dict[Key, Any]:
    """Return a graph with the cached values in place of tasks."""
    return {**dsk, **{key: DataNode(key, value) for key, value in cache.items()}}


__all__ = [
    "HONOURED",
    "alias_targets",
    "annotate",
    "declarations",
    "flatten",
    "low_level_graph",
    "replace_cached",
    "symbolic_graph",
]
