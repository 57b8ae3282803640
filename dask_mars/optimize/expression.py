"""Reads what Dask hands a scheduler: graph, requested keys, annotations."""

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
    """Return the low-level graph of whatever a getter may be called with, and annotations by layer.

    Parameters
    ----------
    dsk : Expr, HighLevelGraph, mapping or collection
        A Dask expression as `dask.compute` makes it, or a graph as users and tests write it.

    Returns
    -------
    graph : mapping
        Key to task.
    annotations : dict
        Layer name to those of its annotations that are honoured.
    """
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
        Tasks of the layers that are materialised anyway.
    layers : list of LazyLayer
        The layers that are not.
    annotations : dict
        As with `low_level_graph`, what the user has annotated.
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
    """Return the graph of a Dask expression with those of its layers left as they are that can be.

    Dask would make a task object for each block; what its array optimizer does for a graph's layers is done here,
    and what it does for tasks is left to `compose`.

    Parameters
    ----------
    dsk : Expr
        As `dask.compute` makes it.
    fuse_layers : bool, optional
        Make one of blockwise layers that follow each other, as Dask's optimizer does.
    resident_bytes : callable, optional
        Returns how many bytes may stay in memory for those that read parts of them in place. By default they read
        copies of the parts, each a value of its own.

    Returns
    -------
    Symbolic or None
        None if the expression is of another kind, or its user wants no optimisation: then `low_level_graph` has to
        do.
    """
    composable = True
    if isinstance(dsk, _HLGExprSequence):
        found = _graph_of_layers(dsk, optimize_arrays, fuse_layers, resident_bytes)
        if found is None:
            # All that Dask does for delayed values is to leave out what is not needed, as the conversion does: in
            # Dask it takes time that grows with the square of their number. Each stays a task of its own: what one
            # of them does, or cannot do elsewhere than here, is no matter of its neighbours.
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
        # Dask would lose layers that go in circles. Left as they are, they show which keys do.
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
    """Have what puts results together depend on all layers that it reads.

    Dask says that these are the ones that nothing else reads, and so loses those variables of an xarray.Dataset
    that others of its variables are made of.
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
    """Have Dask fuse no layers whose annotations differ: fused, those of the one would hold for the other too.

    It goes by a setting of its own, which holds in all threads, and for ever if Ctrl-C comes while it is restored.
    So the layers get a mark among their annotations that Dask does not know how to fuse.
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
    """Return the tasks of those layers that have them, or have to have them, and the other layers.

    Collections that `dask.optimize` has been at hold keys of those that they were made from, in another spelling.
    As in Dask the last layer wins that makes a key.
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
    """Return the names that keys of several layers begin with, at least one of which has no tasks yet."""
    names = [name for layer in layers for name in layer.names]
    known = set(names)
    found = {key[0] for key in tasks if type(key) is tuple and key and key[0] in known} if known else set()
    if len(known) < len(names):
        found |= {name for name, count in Counter(names).items() if count > 1}
    return found


def in_circles(graph: HighLevelGraph) -> bool:
    """Say whether a layer depends on itself, be it by way of others."""
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
    # What is fused has another name, and so has what depends on it.
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
    """Return a layer as one that is compiled when it is needed, or None if all of its tasks have to be made."""
    if type(layer) is DirectRechunk:
        return lazy_rechunk(layer)
    if layer.is_materialized():
        return None
    # What a subclass makes of its blocks in another way is not known.
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
                # What it is said of need not stay apart.
                del honoured["checkpoint"]
            if honoured:
                found[name] = honoured
                # Materialised layers may hold keys that do not carry the layer's name.
                if layer.is_materialized():
                    for key in layer:
                        found[_layer_name(key)] = honoured
    return found


#: What arrays of collections say that they are made of, as long as it is memory for each element.
_DENSE = frozenset({"numpy.ndarray", "numpy.ma.MaskedArray", "numpy.ma.core.MaskedArray"})


def declarations(dsk: Any, tasks: Mapping[Key, Any] | None = None) -> dict[str, Declared]:
    """Return what the arrays of an expression say of their chunks, by the names of their layers.

    Optimisation drops it, so it is read from the layers as the user made them. A fused layer has the name of its
    last, and so has a composed chunk: what is declared of that holds for it.

    Parameters
    ----------
    dsk : Expr
        As `dask.compute` makes it.
    tasks : mapping, optional
        The low-level graph, if Dask has fused tasks in it: to those it gives new names, with aliases from the old.
    """
    found: dict[str, Declared] = {}
    for graph in _high_level_graphs(dsk):
        for name, layer in graph.layers.items():
            said = layer.collection_annotations
            # Of other arrays than NumPy's, such as sparse ones, the shape does not say how large they are.
            if said and said.get("chunk_type") in _DENSE and "chunks" in said and said.get("dtype") is not None:
                found[name] = Declared(said["dtype"], _reduced(layer, said["chunks"]), _is_broadcast(layer))
    if found and tasks is not None:
        for key, target in alias_targets(tasks).items():
            declared = found.get(_layer_name(key))
            if declared is not None:
                found.setdefault(_layer_name(target), declared)
    return found


def _is_broadcast(layer: Layer) -> bool:
    """Say whether the chunks of a layer are of one element that is repeated, or repeat those of their inputs."""
    if isinstance(layer, Blockwise):
        # It has been given its arguments in several steps.
        return isinstance(layer.task, Task) and called_by(layer.task.func) is broadcast_trick
    if not layer.is_materialized() or not layer:
        return False
    task = next(iter(layer.values()))
    return (task[0] if type(task) is tuple and task else getattr(task, "func", None)) is np.broadcast_to


def _reduced(layer: Layer, chunks: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Return the sizes of chunks that are reduced along axes, which Dask declares as large as what they reduce."""
    arguments = getattr(layer.task, "kwargs", {}) if isinstance(layer, Blockwise) else {}
    axes = arguments.get("axis")
    if arguments.get("keepdims") is not True or not isinstance(axes, tuple):
        return chunks
    return tuple([(1,) * len(sizes) if axis in axes else sizes for axis, sizes in enumerate(chunks)])


def _high_level_graphs(dsk: Any) -> Iterator[HighLevelGraph]:
    """Find the graphs as the user made them: optimisation drops annotations."""
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
    """Note with chunks what the user has said of them."""
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
    """Return workers as they are annotated: one or several; a name may be a number, too."""
    if workers is None:
        return ()
    # Dask makes a list of a set, in an order that is another in each run.
    return tuple(sorted(map(str, workers))) if isinstance(workers, list | tuple | set) else (str(workers),)


def _value_for(annotation: Callable[[Key], Any] | Any, key: Key) -> Any:
    value = annotation(key) if callable(annotation) else annotation
    # In the one layer that Dask makes of several, it says so of keys that were annotated in none of them.
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
    """Return a graph in which the cache's keys are values that are known."""
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
