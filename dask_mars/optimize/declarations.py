"""Annotations by users, and shapes and dtypes that collections declare, by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import dask
from dask.highlevelgraph import HighLevelGraph, Layer

from dask_mars.dask_api.core import HLGExpr, Task, _AnnotationsTombstone, _ExprSequence, _HLGExprSequence
from dask_mars.dask_api.loaded import Blockwise, arrays
from dask_mars.graph.callables import called_by
from dask_mars.graph.chunks import ChunkGraph, Declared, Key, Restriction, layer_of
from dask_mars.lazy_numpy import np
from dask_mars.optimize.fronts.tasks import alias_targets

#: Annotations that we honour.
HONOURED = ("retries", "priority", "workers", "allow_other_workers", "resources", "checkpoint")


def annotations_of(dsk: Any) -> dict[str, dict[str, Any]]:
    """Return the user's annotations that we honour, by the names of layers."""
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
                        found[layer_of(key)] = honoured
    return found


def annotate(graph: ChunkGraph, annotations: dict[str, dict[str, Any]]) -> None:
    """Record the user's annotations of chunks."""
    if not annotations:
        return
    for chunk, key in enumerate(graph.keys):
        wanted = annotations.get(layer_of(key))
        if wanted is not None:
            _annotate(graph, chunk, wanted)


def annotate_all(graph: ChunkGraph, annotations: Mapping[str, Any]) -> None:
    """Record annotations of a whole call for chunks that have none of their own."""
    if annotations and not annotations.keys().isdisjoint(HONOURED):
        for chunk, operand in enumerate(graph.operand_of):
            if operand >= 0:
                _annotate(graph, chunk, annotations)


def _annotate(graph: ChunkGraph, chunk: int, wanted: Mapping[str, Any]) -> None:
    key = graph.keys[chunk]
    if (retries := _value_for(wanted.get("retries"), key)) is not None:
        graph.retries.setdefault(chunk, int(retries))
    if (priority := _value_for(wanted.get("priority"), key)) is not None:
        graph.priorities.setdefault(chunk, float(priority))
    if (saves := _value_for(wanted.get("checkpoint"), key)) is not None:
        graph.saves.setdefault(chunk, bool(saves))
    workers = _value_for(wanted.get("workers"), key)
    resources = _value_for(wanted.get("resources"), key)
    if workers is not None or resources:
        restriction = Restriction(
            _names(workers),
            bool(_value_for(wanted.get("allow_other_workers"), key)),
            tuple(sorted((resources or {}).items())),
        )
        graph.restrictions.setdefault(chunk, restriction)


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


#: Declared types of arrays that hold memory for each element.
_DENSE = frozenset({"numpy.ndarray", "numpy.ma.MaskedArray", "numpy.ma.core.MaskedArray"})


def declarations(dsk: Any, tasks: Mapping[Key, Any] | None = None) -> dict[str, Declared]:
    """Return the declarations of an expression's arrays about their chunks, by the names of their layers."""
    # Optimisation drops them, so this reads the layers as the user made them. Fused layers and composed chunks
    # have the name of their last, so its declaration holds for them.
    found: dict[str, Declared] = {}
    for graph in _high_level_graphs(dsk):
        for name, layer in graph.layers.items():
            said = layer.collection_annotations
            # The shape of other arrays than NumPy's, such as sparse ones, does not determine their size.
            if said and said.get("chunk_type") in _DENSE and "chunks" in said and said.get("dtype") is not None:
                found[name] = Declared(said["dtype"], _reduced(layer, said["chunks"]), _is_broadcast(layer))
    if found and tasks is not None:
        for key, target in alias_targets(tasks).items():
            declared = found.get(layer_of(key))
            if declared is not None:
                found.setdefault(layer_of(target), declared)
    return found


def _is_broadcast(layer: Layer) -> bool:
    """Return whether the chunks of a layer repeat one element, or the elements of their inputs."""
    if isinstance(layer, Blockwise):
        # Its arguments were bound in several steps.
        called = called_by(layer.task.func) if isinstance(layer.task, Task) else None
        return called is arrays.broadcast_trick or called is np.broadcast_to
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
