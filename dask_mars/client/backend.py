"""From Dask's call to its result on a backend for chunk graphs: prepare, run, arrange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import dask

from dask_mars import config
from dask_mars.client.at_once import compute_at_once, is_small
from dask_mars.client.callbacks import CallbackObserver, CountingObserver, as_tasks, only_count, without_values
from dask_mars.client.computation import GraphComputation
from dask_mars.client.lending import Limits
from dask_mars.client.records import Record, Records
from dask_mars.client.request import Options, Request
from dask_mars.client.tracking import EngineSource
from dask_mars.dask_api.core import local_callbacks, nested_get
from dask_mars.engine.engine import Engine
from dask_mars.engine.graph_run import GraphRun
from dask_mars.engine.listeners import listeners
from dask_mars.errors import SavedChunkLost
from dask_mars.graph.chunks import ChunkGraph, Key, flatten
from dask_mars.optimize.prepare import PrepareOptions, engine_options, prepare
from dask_mars.store.persisted import as_node, value_of

if TYPE_CHECKING:
    from dask_mars.checkpointing.block import CheckpointSettings
    from dask_mars.checkpointing.session import Session

#: Longest wait of a cancellation for a busy engine, in seconds; the engine stops the computation later.
_PATIENCE_S = 0.05


class RestartComputation(Exception):
    """Internal: all unsaved results were lost; restart from the checkpoint."""


class Work(NamedTuple):
    """A request with its prepared graph."""

    request: Request
    #: The chunks to compute.
    graph: ChunkGraph
    record: Record
    #: Receives the progress.
    observer: CallbackObserver | None = None
    #: The checkpoint, if results are saved.
    session: Session | None = None

    @property
    def computes(self) -> bool:
        """Return whether any output is not known already."""
        graph = self.graph
        return any(graph.operand_of[chunk] >= 0 for chunk in graph.outputs)


class GraphBackend(ABC):
    """A backend that runs chunk graphs."""

    #: Whether no engine of this process computes, so that the values of tasks are not available.
    is_remote: ClassVar[bool] = False

    def __init__(self, records: Records | None = None) -> None:
        self.records = Records() if records is None else records

    @abstractmethod
    def prepare_options(self, options: Options) -> PrepareOptions:
        """Return the options for preparing graphs."""

    @abstractmethod
    def run(self, work: Work) -> dict[int, Any]:
        """Compute a graph; return the value of each output chunk, or its reference."""

    def compute(self, request: Request) -> Any:
        """Return the requested values; see `Backend`."""
        with request.record or self.records.new() as record:
            return self._compute(request, record)

    def _compute(self, request: Request, record: Record) -> Any:
        keys, options = request.keys, request.options
        requested = flatten(keys)
        if not requested:
            return nested_get(keys, {})
        with local_callbacks(options.callbacks) as active:
            if self.is_remote:
                active = without_values(active)
            observation = _Observation(active, self.is_remote)
            failed = True
            try:
                prepare_options = self.prepare_options(options)._replace(checkpoint=record.raise_if_cancelled)
                graph = observation.prepared(request.graph, requested, options, prepare_options)
                record.raise_if_cancelled()
                values = self._values(Work(request, graph, record, observation.observer))
                failed = False
            finally:
                observation.finish(failed)
        ids = graph.ids
        if request.persist:
            return nested_get(keys, {key: as_node(key, values[ids[key]]) for key in requested})
        return _arranged(keys, ids, values)

    def _values(self, work: Work) -> Mapping[int, Any]:
        if not work.computes:
            return _known_values(work)
        if work.request.on_graph is not None:
            work.request.on_graph(work.graph)
        if work.request.checkpoint is not None and self._is_saved(work, work.request.checkpoint):
            return self._run_saved(work, work.request.checkpoint)
        return self.run(work)

    def _is_saved(self, work: Work, checkpoint: CheckpointSettings) -> bool:
        """Return whether to save results of a graph."""
        # Most computations are not saved, and need no import.
        from dask_mars.checkpointing.session import is_worth_saving

        return is_worth_saving(checkpoint, work.graph)

    def _run_saved(self, work: Work, checkpoint: CheckpointSettings) -> dict[int, Any]:
        """Compute the chunks of a graph that are not saved, and save those worth it."""
        from dask_mars.checkpointing.session import Session

        with Session(checkpoint, work.graph) as session:
            while True:
                left = work._replace(graph=session.graph, session=session)
                try:
                    values = self.run(left) if left.computes else _known_values(left)
                except SavedChunkLost as error:
                    session.restore_again(error)
                    continue
                except RestartComputation:
                    session.restore_anew()
                    continue
                session.succeed()
                return _values_of(work.graph, left.graph, values)


def _values_of(whole: ChunkGraph, left: ChunkGraph, values: dict[int, Any]) -> dict[int, Any]:
    """Return the values of a graph's outputs by those of the graph that was left to compute."""
    if left is whole:
        return values
    return {chunk: values[other] for chunk, other in zip(whole.outputs, left.outputs, strict=True)}


def _known_values(work: Work) -> dict[int, Any]:
    """Return the outputs of a graph without chunks to run."""
    values = {chunk: work.graph.values[chunk] for chunk in work.graph.outputs}
    return values if work.request.persist else {chunk: value_of(value) for chunk, value in values.items()}


class _Observation:
    """Dask's callbacks during one computation."""

    def __init__(self, callbacks: Any, is_remote: bool) -> None:
        self._callbacks = callbacks
        self._is_remote = is_remote
        self.observer: CallbackObserver | None = None

    def prepared(
        self, dsk: Any, requested: list[Key], options: Options, prepare_options: PrepareOptions
    ) -> ChunkGraph:
        """Prepare a graph; callbacks for single tasks see those that Dask's own schedulers would run."""
        cache = options.cache if options.cache is not None else dask.config.get("cache", None)
        if not self._callbacks:
            return prepare(dsk, requested, prepare_options, cache=cache)
        if only_count(self._callbacks):
            counter = self.observer = CountingObserver(self._callbacks, self._is_remote)
            counter.start()
            graph = prepare(dsk, requested, prepare_options, cache=cache)
            if counter.wants_tasks:
                counter.start_counting(graph)
            return graph
        graph = prepare(dsk, requested, prepare_options, cache=cache, transform_tasks=self._show)
        if self.observer is not None:
            self.observer.start_state(set(requested))
        return graph

    def _show(self, tasks: Mapping[Key, Any]) -> Mapping[Key, Any]:
        changeable = as_tasks(tasks)
        self.observer = CallbackObserver(self._callbacks, changeable, self._is_remote)
        self.observer.start()
        return changeable

    def finish(self, failed: bool) -> None:
        """Call the finish hook of all callbacks."""
        if self.observer is not None:
            self.observer.finish(failed)


def _arranged(keys: Any, ids: Mapping[Key, int], values: Mapping[int, Any]) -> Any:
    """Return values as `dask.local.nested_get` does, with one look-up per key: there may be a million."""
    if isinstance(keys, list):
        return tuple([_arranged(key, ids, values) if isinstance(key, list) else values[ids[key]] for key in keys])
    return values[ids[keys]]


class EngineBackend(GraphBackend):
    """Computes on an engine of this process."""

    def __init__(
        self,
        engine_for: Callable[[int | None], Engine],
        store_limit: Callable[[], int],
        records: Records | None = None,
    ) -> None:
        super().__init__(records)
        self._engine_for = engine_for
        self._store_limit = store_limit

    def prepare_options(self, options: Options) -> PrepareOptions:
        """Return the options for preparing graphs."""
        return engine_options(config.worker_count(options.num_workers or None), self._store_limit)

    def run(self, work: Work) -> dict[int, Any]:
        """Compute a graph; see `GraphBackend.run`."""
        options, record = work.request.options, work.record
        rerun = options.rerun_exceptions_locally
        if rerun is None:
            rerun = bool(dask.config.get("rerun_exceptions_locally", False))
        engine, workers, graph = self._engine_for(options.num_workers), options.num_workers, work.graph
        if self._is_at_once(work, engine):
            size = workers or engine.settings.num_workers
            graph = compute_at_once(graph, record.raise_if_cancelled, engine.spare_threads, size)

        def started(run: GraphRun) -> None:
            stop = partial(engine.cancel_graph, run.id, _PATIENCE_S)
            record.run(EngineSource(engine, run), stop, run.id)

        left = work._replace(graph=graph)
        if left.computes:
            saver = None if work.session is None else work.session.saver
            computation = GraphComputation(
                engine,
                graph,
                work.observer,
                workers,
                options.retries,
                rerun,
                work.request.persist,
                note=record.note,
                saver=saver,
            )
            values = computation.results(started)
        else:
            values = _known_values(left)
        return _values_of(work.graph, graph, values)

    def _is_at_once(self, work: Work, engine: Engine) -> bool:
        """Return whether to compute a graph in one thread of this process."""
        request, settings = work.request, engine.settings
        is_watched = work.observer is not None or work.session is not None or bool(listeners.active)
        is_special = request.persist or request.record is not None or request.options.retries or settings.retries
        if is_watched or is_special or not engine.lends:
            return False
        return is_small(work.graph, with_frames=Limits.of(settings).allow_frames)
