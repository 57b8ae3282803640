"""From what Dask hands a scheduler to the chunk graph that the engine runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from dask_mars import gc_control
from dask_mars.graph.chunks import ChunkGraph, Key
from dask_mars.optimize.compose import compose
from dask_mars.optimize.convert import convert
from dask_mars.optimize.expression import Symbolic, annotate, declarations, low_level_graph, symbolic_graph
from dask_mars.optimize.folding import fold_initial
from dask_mars.optimize.read_sizes import with_reads
from dask_mars.optimize.slices import join_slices

#: Returns the chunks of a graph that are to stay as they are.
Apart = Callable[[ChunkGraph], Collection[int]]


def prepare(
    dsk: Any,
    wanted: Iterable[Key],
    composed: bool = True,
    fold_from: int | None = None,
    elsewhere: Callable[[Key], Any] | None = None,
    apart: Apart | None = None,
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
    apart : callable, optional
        Says which chunks are to be neither composed nor folded. What stores under a lock is then apart, too.

    Raises
    ------
    KeyError, ValueError, RuntimeError
        As `convert`.
    """
    with gc_control.paused():
        return _prepare(dsk, list(wanted), composed, fold_from, elsewhere, apart)


def _prepare(
    dsk: Any,
    wanted: list[Key],
    composed: bool,
    fold_from: int | None,
    elsewhere: Callable[[Key], Any] | None,
    apart: Apart | None,
) -> ChunkGraph:
    symbolic = symbolic_graph(dsk, fuse_layers=composed)
    if symbolic is None:
        return _graph_of_tasks(dsk, wanted, elsewhere, apart)
    try:
        return _graph_of_layers(dsk, symbolic, wanted, composed, fold_from, elsewhere, apart)
    except (KeyError, ValueError, RuntimeError) as error:
        # Where several layers make the same keys, Dask's choice among them may be one that can be computed.
        try:
            return _graph_of_tasks(dsk, wanted, elsewhere, apart)
        except Exception:
            raise error from None


def _graph_of_tasks(
    dsk: Any, wanted: list[Key], elsewhere: Callable[[Key], Any] | None, apart: Apart | None
) -> ChunkGraph:
    """Convert the graph of tasks that Dask's own schedulers would run."""
    tasks, annotations = low_level_graph(dsk)
    graph = convert(tasks, wanted, elsewhere=elsewhere, locked_apart=apart is not None)
    annotate(graph, annotations)
    graph.declared = with_reads(graph, declarations(dsk, tasks))
    return graph


def _graph_of_layers(
    dsk: Any,
    symbolic: Symbolic,
    wanted: list[Key],
    composed: bool,
    fold_from: int | None,
    elsewhere: Callable[[Key], Any] | None,
    apart: Apart | None,
) -> ChunkGraph:
    """Convert a graph whose layers are left as they are, and merge its chains."""
    graph = convert(symbolic.tasks, wanted, symbolic.layers, elsewhere, apart is not None)
    alone = () if apart is None else apart(graph)
    if apart and any(len(graph.operands[graph.operand_of[chunk]].steps) > 1 for chunk in alone):
        # Dask may have put together what is to stay apart.
        symbolic = symbolic_graph(dsk, fuse_layers=False) or symbolic
        graph = convert(symbolic.tasks, wanted, symbolic.layers, elsewhere, locked_apart=True)
        alone = apart(graph)
    annotate(graph, symbolic.annotations)
    graph.declared = with_reads(graph, declarations(dsk))
    if not (composed and symbolic.composable):
        return graph
    alone_keys = [graph.keys[chunk] for chunk in alone]
    graph = compose(graph, join_slices, alone)
    if fold_from is None:
        return graph
    return fold_initial(graph, fold_from, {graph.ids[key] for key in alone_keys})
