"""Prepares a Dask graph, expression or collection as the chunk graph that the engine runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from dask_mars.dask_api import warn_of_differences
from dask_mars.errors import Cancelled
from dask_mars.graph.chunks import ChunkGraph, Key
from dask_mars.optimize.convert import convert
from dask_mars.optimize.declarations import annotate, annotations_of, declarations
from dask_mars.optimize.fronts import ReadOptions, symbolic_graph
from dask_mars.optimize.fronts.base import Symbolic
from dask_mars.optimize.fronts.parts import RESIDENT_SHARE
from dask_mars.optimize.fronts.tasks import low_level_graph, replace_cached
from dask_mars.optimize.passes import Limits, OnPass, run_passes
from dask_mars.optimize.read_sizes import with_reads

#: Returns the chunks of a graph that have to stay as they are.
SelectUnmergeable = Callable[[ChunkGraph], Collection[int]]
#: Returns the Dask tasks to run, given those of a graph.
TransformTasks = Callable[[Mapping[Key, Any]], Mapping[Key, Any]]


class PrepareOptions(NamedTuple):
    """Options of `prepare`."""

    #: Limits of the passes. By default chunks that could run in parallel stay apart.
    limits: Limits = Limits()
    #: Returns the value of a key that the graph refers to and does not have, None if unknown.
    resolve_missing: Callable[[Key], Any] | None = None
    #: Selects chunks that no pass changes. Stores under a lock are then separate, too.
    select_unmergeable: SelectUnmergeable | None = None
    #: Leave shuffles through files and between workers as Dask makes them. Otherwise they go through the store.
    keep_shuffles: bool = False
    #: Called periodically; it raises `Cancelled` if the graph is cancelled.
    checkpoint: Callable[[], None] = lambda: None
    #: Called after each pass with its name, and the number of chunks before and after it.
    on_pass: OnPass = lambda name, before, after: None


#: Options for an executor of which nothing is known.
DEFAULT_OPTIONS = PrepareOptions()


def engine_options(workers: int, store_limit: Callable[[], int]) -> PrepareOptions:
    """Return the options for graphs that an engine of this machine runs."""
    return PrepareOptions(Limits(workers, lambda: store_limit() // RESIDENT_SHARE, recomputes=True))


def prepare(
    dsk: Any,
    wanted: Iterable[Key],
    options: PrepareOptions = DEFAULT_OPTIONS,
    *,
    composed: bool = True,
    cache: Mapping[Key, Any] | None = None,
    transform_tasks: TransformTasks | None = None,
) -> ChunkGraph:
    """Return the chunk graph that computes keys of a Dask graph."""
    # With a `cache` of values or with `transform_tasks` the graph has the tasks that Dask's own schedulers would
    # run, and no chains. Unless `composed`, each block of each layer that the user has made is a chunk of its own.
    if cache or transform_tasks is not None:
        options = options._replace(keep_shuffles=True)
        return _graph_of_tasks(dsk, list(wanted), options, cache, transform_tasks)
    graph = _prepare(dsk, list(wanted), composed, options)
    warn_of_differences()
    return graph


def _prepare(dsk: Any, wanted: list[Key], composed: bool, options: PrepareOptions) -> ChunkGraph:
    try:
        symbolic = symbolic_graph(dsk, ReadOptions(composed, options.limits.resident_bytes))
    except (AttributeError, ImportError, TypeError) as error:
        # Another release of Dask may have other expressions; its own graph of them is right.
        graph = _graph_of_tasks(dsk, wanted, options)
        warn_of_differences(error)
        return graph
    if symbolic is None:
        return _graph_of_tasks(dsk, wanted, options)
    try:
        return _graph_of_layers(dsk, symbolic, wanted, composed, options)
    except (KeyError, ValueError, RuntimeError) as error:
        # Where several layers make the same keys, Dask may choose the one that can be computed.
        try:
            return _graph_of_tasks(dsk, wanted, options)
        except Cancelled:
            raise
        except Exception:
            raise error from None


def _graph_of_tasks(
    dsk: Any,
    wanted: list[Key],
    options: PrepareOptions,
    cache: Mapping[Key, Any] | None = None,
    transform_tasks: TransformTasks | None = None,
) -> ChunkGraph:
    """Convert the graph of tasks that Dask's own schedulers would run."""
    annotations = annotations_of(dsk)
    tasks = low_level_graph(dsk, bool(annotations))
    if cache:
        tasks = replace_cached(tasks, cache)
    if transform_tasks is not None:
        tasks = transform_tasks(tasks)
    graph = convert(
        tasks,
        wanted,
        resolve_missing=options.resolve_missing,
        split_locked_stores=options.select_unmergeable is not None,
        keep_shuffles=options.keep_shuffles,
        checkpoint=options.checkpoint,
    )
    annotate(graph, annotations)
    graph.declared = with_reads(graph, declarations(dsk, tasks))
    return graph


def _graph_of_layers(
    dsk: Any, symbolic: Symbolic, wanted: list[Key], composed: bool, options: PrepareOptions
) -> ChunkGraph:
    """Convert a graph without materialising its layers, and run the passes."""
    select = options.select_unmergeable
    graph = _converted(symbolic, wanted, options)
    fixed = () if select is None else select(graph)
    if select and any(len(graph.operands[graph.operand_of[chunk]].steps) > 1 for chunk in fixed):
        # Dask may have fused chunks that have to stay separate.
        symbolic = symbolic_graph(dsk, ReadOptions(fuse_layers=False)) or symbolic
        graph = _converted(symbolic, wanted, options)
        fixed = select(graph)
    options.checkpoint()
    annotate(graph, annotations_of(dsk))
    graph.declared = with_reads(graph, declarations(dsk if symbolic.declared is None else symbolic.declared))
    options.checkpoint()
    if not (composed and symbolic.composable):
        return graph

    def on_pass(name: str, before: int, after: int) -> None:
        options.on_pass(name, before, after)
        options.checkpoint()

    return run_passes(graph, options.limits, fixed, on_pass=on_pass, fuses_slices=symbolic.fuses_slices)


def _converted(symbolic: Symbolic, wanted: list[Key], options: PrepareOptions) -> ChunkGraph:
    return convert(
        symbolic.tasks,
        wanted,
        symbolic.layers,
        options.resolve_missing,
        options.select_unmergeable is not None,
        options.keep_shuffles,
        options.checkpoint,
    )
