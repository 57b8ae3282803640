"""Slices and transposes of the user's arrays are taken by their readers.

A chunk of its own would copy the view into the store, as the user may change the array later. Readers of a view,
as in ``x[1:] - x[:-1]`` or in Xarray's groups of times, need no copy. Whole arrays stay in memory until their last
reader, so all that are viewed must fit into the budget of parts that are read in place.
"""

from __future__ import annotations

import operator

from dask_mars.dask_api.loaded import arrays
from dask_mars.graph.chunks import DATA, ChunkGraph, Operand
from dask_mars.lazy_numpy import np
from dask_mars.optimize.passes.edit import GraphEdit, Limits
from dask_mars.optimize.passes.folding import Folder


def fold_views(edit: GraphEdit, limits: Limits) -> None:
    """Fold views of the user's arrays into their readers."""
    graph = edit.graph
    viewing = [_only_views(operand) for operand in graph.operands]
    if limits.resident_bytes is None or not any(viewing):
        return
    cut = {
        graph.inputs[chunk][0]
        for chunk, operand in enumerate(graph.operand_of)
        if operand != DATA and viewing[operand]
    }
    if sum([graph.values[source].nbytes for source in cut if _is_array(graph, source)]) > limits.resident_bytes():
        return
    kept = edit.fixed.union(graph.outputs)
    folder, uses = Folder(edit), edit.count_uses()
    views: dict[int, int] = {}
    for chunk, sources in enumerate(graph.inputs):
        operand = graph.operand_of[chunk]
        if operand == DATA or chunk in edit.fixed or graph.operands[operand].in_client:
            continue
        if not views.keys().isdisjoint(sources) and folder.fold(chunk, tuple([views.get(at) for at in sources])):
            for source in sources:
                uses[source] -= 1
                if source in views and not uses[source]:
                    edit.remove(source)
            operand = graph.operand_of[chunk]
            viewing += map(_only_views, graph.operands[len(viewing) :])
        if viewing[operand] and chunk not in kept and _is_view(graph, chunk):
            views[chunk] = operand


def _only_views(operand: Operand) -> bool:
    return operand.input_count == 1 and all(
        function in (operator.getitem, arrays.getitem, np.transpose) for function in operand.functions
    )


def _is_array(graph: ChunkGraph, chunk: int) -> bool:
    return type(value := graph.values.get(chunk)) is np.ndarray and not value.dtype.hasobject


def _is_view(graph: ChunkGraph, chunk: int) -> bool:
    """Return whether a chunk of such an operand is a view of an array of the user's."""
    operand, literals = graph.operands[graph.operand_of[chunk]], graph.literals[chunk]
    for step in operand.steps:
        if operand.functions[step.function] is not np.transpose:
            index = literals[at] if (at := step.slots[1] - 1) < len(literals) else None
            if not all(type(each) is slice for each in (index if type(index) is tuple else (None,))):
                return False
    return _is_array(graph, graph.inputs[chunk][0])
