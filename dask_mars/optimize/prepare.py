"""Prepares a Dask graph, expression or collection as the chunk graph that the engine runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import dask

from dask_mars import gc_control
from dask_mars.dask_api import warn_of_differences
from dask_mars.errors import Cancelled
from dask_mars.graph.chunks import ChunkGraph, Key
from dask_mars.optimize.common_sources import join_common_sources
from dask_mars.optimize.compose import compose
from dask_mars.optimize.convert import convert
from dask_mars.optimize.expression import (
    Symbolic,
    annotate,
    declarations,
    low_level_graph,
    replace_cached,
    symbolic_graph,
)
from dask_mars.optimize.folding import fold_initial
from dask_mars.optimize.read_sizes import with_reads
from dask_mars.optimize.remaking import Remaking, remake
from dask_mars.optimize.siblings import join_siblings
from dask_mars.optimize.slices import join_slices
from dask_mars.optimize.symmetry import mirror_products

#: Returns the chunks of a graph that have to stay as they are.
SelectUnmergeable = Callable[[ChunkGraph], Collection[int]]
#: Returns the tasks of Dask's to run, given those of a graph.
TransformTasks = Callable[[Mapping[Key, Any]], Mapping[Key, Any]]


def _no_checkpoint() -> None:
    """Continue without a check for cancellation."""


class PrepareOptions(NamedTuple):
    """Options of `prepare`."""

    fold_from: int | None = None
    resolve_missing: Callable[[Key], Any] | None = None
    select_unmergeable: SelectUnmergeable | None = None
    keep_file_shuffles: bool = False
    remaking: Remaking | None = None
    workers: int | None = None
    resident_bytes: Callable[[], int] | None = None
    checkpoint: Callable[[], None] = _no_checkpoint


#: Minimum number of equal groups of siblings per worker for joining.
_GROUPS_PER_WORKER = 4


def prepare(
    dsk: Any,
    wanted: Iterable[Key],
    composed: bool = True,
    fold_from: int | None = None,
    resolve_missing: Callable[[Key], Any] | None = None,
    select_unmergeable: SelectUnmergeable | None = None,
    keep_file_shuffles: bool = False,
    remaking: Remaking | None = None,
    workers: int | None = None,
    resident_bytes: Callable[[], int] | None = None,
    checkpoint: Callable[[], None] = _no_checkpoint,
    cache: Mapping[Key, Any] | None = None,
    transform_tasks: TransformTasks | None = None,
) -> ChunkGraph:
    """Return the chunk graph that computes keys of a Dask graph.

    Parameters
    ----------
    dsk : Expr, HighLevelGraph or mapping
        As Dask calls a scheduler.
    wanted : iterable of Key
        The requested keys, flattened.
    composed : bool, optional
        Merge chains of chunks, as every computation does. Otherwise each block of each layer that the user has
        made is a chunk of its own, which shows the effect of composing.
    fold_from : int, optional
        Minimum number of equal chunks into which initial chunks are folded, where these have other inputs too. By
        default none are folded.
    resolve_missing : callable, optional
        Returns the value of a key that the graph refers to and does not have, None if unknown.
    select_unmergeable : callable, optional
        Selects chunks that are neither composed nor folded. Stores under a lock are then separate, too.
    keep_file_shuffles : bool, optional
        Leave shuffles through files as Dask makes them. Otherwise they go through the store.
    remaking : Remaking, optional
        Describes chunks that each reader may recompute. By default none are.
    workers : int, optional
        Number of workers: chunks that could run in parallel are joined only if enough remain for all workers. By
        default none are joined.
    resident_bytes : callable, optional
        Returns how many bytes of a graph's chunks may stay in memory for readers of parts in place, which need
        shared memory. By default each part is a chunk of its own.
    checkpoint : callable, optional
        Called now and then; it raises `Cancelled` if the graph is cancelled.
    cache : mapping, optional
        Known values of keys. The graph then has the tasks that Dask's own schedulers would run, so that the keys
        with known values can be found.
    transform_tasks : callable, optional
        Takes these tasks, and returns those to run. The graph then has these tasks, too, and no chains.

    Raises
    ------
    KeyError, ValueError, RuntimeError
        As `convert`.
    """
    with gc_control.collect_rarely():
        prepare_options = PrepareOptions(
            fold_from,
            resolve_missing,
            select_unmergeable,
            keep_file_shuffles,
            remaking,
            workers,
            resident_bytes,
            checkpoint,
        )
        if cache or transform_tasks is not None:
            prepare_options = prepare_options._replace(keep_file_shuffles=True)
            return _graph_of_tasks(dsk, list(wanted), prepare_options, cache, transform_tasks)
        graph = _prepare(dsk, list(wanted), composed, prepare_options)
    warn_of_differences()
    return graph


def _prepare(dsk: Any, wanted: list[Key], composed: bool, prepare_options: PrepareOptions) -> ChunkGraph:
    try:
        symbolic = symbolic_graph(dsk, composed, prepare_options.resident_bytes)
    except (AttributeError, ImportError, TypeError) as error:
        # Another release of Dask may have other expressions; its own graph of them is right.
        graph = _graph_of_tasks(dsk, wanted, prepare_options)
        warn_of_differences(error)
        return graph
    if symbolic is None:
        return _graph_of_tasks(dsk, wanted, prepare_options)
    try:
        return _graph_of_layers(dsk, symbolic, wanted, composed, prepare_options)
    except (KeyError, ValueError, RuntimeError) as error:
        # Where several layers make the same keys, Dask may choose the one that can be computed.
        try:
            return _graph_of_tasks(dsk, wanted, prepare_options)
        except Cancelled:
            raise
        except Exception:
            raise error from None


def _graph_of_tasks(
    dsk: Any,
    wanted: list[Key],
    prepare_options: PrepareOptions,
    cache: Mapping[Key, Any] | None = None,
    transform_tasks: TransformTasks | None = None,
) -> ChunkGraph:
    """Convert the graph of tasks that Dask's own schedulers would run."""
    tasks, annotations = low_level_graph(dsk)
    if cache:
        tasks = replace_cached(tasks, cache)
    if transform_tasks is not None:
        tasks = transform_tasks(tasks)
    graph = convert(
        tasks,
        wanted,
        resolve_missing=prepare_options.resolve_missing,
        split_locked_stores=prepare_options.select_unmergeable is not None,
        keep_file_shuffles=prepare_options.keep_file_shuffles,
        checkpoint=prepare_options.checkpoint,
    )
    annotate(graph, annotations)
    graph.declared = with_reads(graph, declarations(dsk, tasks))
    return graph


def _graph_of_layers(
    dsk: Any,
    symbolic: Symbolic,
    wanted: list[Key],
    composed: bool,
    prepare_options: PrepareOptions,
) -> ChunkGraph:
    """Convert a graph without materialising its layers, and merge its chains."""
    fold_from, resolve_missing, select_unmergeable, file_shuffles = prepare_options[:4]
    remaking, workers, resident_bytes, checkpoint = prepare_options[4:]
    split = select_unmergeable is not None
    graph = convert(symbolic.tasks, wanted, symbolic.layers, resolve_missing, split, file_shuffles, checkpoint)
    alone = () if select_unmergeable is None else select_unmergeable(graph)
    if select_unmergeable and any(len(graph.operands[graph.operand_of[chunk]].steps) > 1 for chunk in alone):
        # Dask may have fused chunks that have to stay separate.
        symbolic = symbolic_graph(dsk, fuse_layers=False) or symbolic
        graph = convert(symbolic.tasks, wanted, symbolic.layers, resolve_missing, True, file_shuffles, checkpoint)
        alone = select_unmergeable(graph)
    checkpoint()
    annotate(graph, symbolic.annotations)
    graph.declared = with_reads(graph, declarations(dsk))
    if not (composed and symbolic.composable):
        return graph
    alone_keys = [graph.keys[chunk] for chunk in alone]
    checkpoint()
    graph = compose(graph, join_slices, alone)
    checkpoint()
    if resident_bytes is not None and dask.config.get("dask-mars.expressions.reductions", True):
        graph = mirror_products(graph, resident_bytes, {graph.ids[key] for key in alone_keys})
    if workers is not None:
        graph = _with_siblings(graph, workers, alone_keys, 0 if resident_bytes is None else resident_bytes())
        checkpoint()
    if remaking is not None:
        graph = remake(graph, remaking, {graph.ids[key] for key in alone_keys})
        checkpoint()
    if fold_from is None:
        return graph
    return fold_initial(graph, fold_from, {graph.ids[key] for key in alone_keys})


def _with_siblings(graph: ChunkGraph, workers: int, alone_keys: list[Key], resident_bytes: int) -> ChunkGraph:
    """Join siblings, and fold in the chunks that they alone need, if all workers have room for them."""
    fewest = _GROUPS_PER_WORKER * workers

    def alone() -> set[int]:
        return {graph.ids[key] for key in alone_keys}

    for join in (join_common_sources, join_siblings):
        joined = join(graph, fewest, alone())
        if joined is not graph:
            graph = compose(joined, join_slices, alone())
    if not graph.joined_bytes:
        return graph
    fitting = [
        chunk
        for chunk in graph.joined_bytes
        if workers * sum([graph.declared_bytes(source) or 0 for source in graph.inputs[chunk]]) <= resident_bytes
    ]
    return fold_initial(graph, fewest, alone(), fitting)
