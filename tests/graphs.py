"""What Dask hands over, as chunk graphs."""

from __future__ import annotations

from typing import Any

from dask._task_spec import Alias

from dask_mars.graph.chunks import ChunkGraph
from dask_mars.optimize.convert import convert
from dask_mars.optimize.fronts import ReadOptions, symbolic_graph
from studies.graphs import handed_over


def symbolic(*collections: Any) -> tuple[ChunkGraph, set[Any]]:
    """Return the chunk graph of collections, and the keys that Dask had made tasks of before."""
    dsk, wanted = handed_over(*collections)
    tasks, lazy, *_ = symbolic_graph(dsk, ReadOptions())
    return convert(tasks, wanted, lazy), set(tasks)


def dependencies_of(graph: ChunkGraph) -> dict[Any, set[Any]]:
    keys = graph.keys
    return {keys[chunk]: {keys[source] for source in sources} for chunk, sources in enumerate(graph.inputs)}


def resolved(dsk: dict[Any, Any]) -> dict[Any, set[Any]]:
    """Return dependencies with aliases replaced by what they stand for."""

    def target(key: Any) -> Any:
        while isinstance(dsk[key], Alias):
            key = dsk[key].target
        return key

    return {
        key: {target(dependency) for dependency in node.dependencies}
        for key, node in dsk.items()
        if not isinstance(node, Alias)
    }
