"""From what Dask hands a scheduler to the chunk graph that the engine runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dask_mars import collector
from dask_mars.graph import ChunkGraph, Key
from dask_mars.optimize.compose import compose
from dask_mars.optimize.convert import convert
from dask_mars.optimize.expression import annotate, declarations, low_level_graph, symbolic_graph
from dask_mars.optimize.folding import fold_initial
from dask_mars.optimize.slices import join_slices


def prepare(
    dsk: Any,
    wanted: Iterable[Key],
    composed: bool = True,
    fold_from: int | None = None,
    elsewhere: Callable[[Key], Any] | None = None,
) -> ChunkGraph:
    """Return the chunk graph that computes keys of a Dask graph.

    Parameters
    ----------
    dsk : Expr, HighLevelGraph or mapping
        As Dask calls a scheduler.
    wanted : iterable of Key
        The requested keys, flattened.
    composed : bool, optional
        Merge chains of chunks, as every computation does. Without it each block of each layer that the user has
        made is a chunk of its own: for those who want to see what composing does.
    fold_from : int, optional
        Fold initial chunks into chunks that need others too, where there are at least so many of these. By default
        that is not done.
    elsewhere : callable, optional
        Returns what stands for a key that the graph refers to and does not have, None if that is not known.

    Raises
    ------
    KeyError, ValueError, RuntimeError
        As `convert`.
    """
    with collector.paused():
        return _prepare(dsk, wanted, composed, fold_from, elsewhere)


def _prepare(
    dsk: Any,
    wanted: Iterable[Key],
    composed: bool,
    fold_from: int | None,
    elsewhere: Callable[[Key], Any] | None,
) -> ChunkGraph:
    symbolic = symbolic_graph(dsk, fuse_layers=composed)
    if symbolic is None:
        tasks, annotations = low_level_graph(dsk)
        graph = convert(tasks, wanted, elsewhere=elsewhere)
        annotate(graph, annotations)
        graph.declared = declarations(dsk, tasks)
        return graph
    graph = convert(symbolic.tasks, wanted, symbolic.layers, elsewhere)
    annotate(graph, symbolic.annotations)
    graph.declared = declarations(dsk)
    if not (composed and symbolic.composable):
        return graph
    graph = compose(graph, join_slices)
    return graph if fold_from is None else fold_initial(graph, fold_from)
