"""From Dask's call to its result on a backend for chunk graphs: prepare, run, arrange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import dask

from dask_mars import config, gc_control
from dask_mars.backend import Options
from dask_mars.client.callbacks import CallbackObserver, CountingObserver, as_tasks, only_count, without_values
from dask_mars.client.computation import Computation
from dask_mars.client.records import Record, Records
from dask_mars.client.tracking import EngineSource
from dask_mars.dask_api.core import local_callbacks, nested_get
from dask_mars.engine.graph_run import GraphRun, Saver
from dask_mars.engine.loop import Engine
from dask_mars.errors import SavedChunkLost
from dask_mars.graph.chunks import ChunkGraph, Key, flatten
from dask_mars.optimize.defaults import engine_options
from dask_mars.optimize.prepare import PrepareOptions, prepare
from dask_mars.store.persisted import as_node, value_of

if TYPE_CHECKING:
    from dask_mars.checkpointing.session import Session
    from dask_mars.checkpointing.settings import CheckpointSettings

#: Longest wait of a cancellation for a busy engine, in seconds; the engine stops the computation later.
_PATIENCE_S = 0.05


class ToComputeAnew(Exception):
    """Internal: all unsaved results were lost; restart from the checkpoint."""


class GraphBackend(ABC):
    """A backend that runs chunk graphs.

    Attributes
    ----------
    is_remote : bool
        Whether no engine of this process computes, so that the values of tasks are not available.
    records : Records or None
        The list that its computations appear in.
    record : Record or None
        The record of the next computation, if it is listed already.
    checkpoint : CheckpointSettings or None
        Settings for saving results.
    saver : Saver or None
        Saves the chunks of the current computation.
    session : Session or None
        The session of the current computation, if it is saved.
    check : callable or None
        Called with each graph before it is computed; raises to refuse it.
    """

    is_remote: ClassVar[bool] = False
    records: Records | None = None
    record: Record | None = None
    checkpoint: CheckpointSettings | None = None
    saver: Saver | None = None
    session: Session | None = None
    check: Callable[[ChunkGraph], None] | None = None

    @abstractmethod
    def prepare_options(self, options: Options) -> PrepareOptions:
        """Return the options for preparing graphs."""

    @abstractmethod
    def run(
        self,
        graph: ChunkGraph,
        observer: CallbackObserver | None,
        options: Options,
        persist: bool,
        record: Record,
    ) -> dict[int, Any]:
        """Compute a graph.

        Parameters
        ----------
        graph : ChunkGraph
            What to compute.
        observer : CallbackObserver or None
            Receives the progress.
        options : Options
            The options of Dask's call.
        persist : bool
            Whether to leave results in the store.
        record : Record
            The record of the computation.

        Returns
        -------
        dict
            The value of each output chunk, or its reference.
        """

    def compute(self, dsk: Any, keys: Any, options: Options, persist: bool = False) -> Any:
        """Compute keys of a Dask graph; see `Backend`."""
        record, self.record = self.record, None
        if record is None:
            record = Record() if self.records is None else self.records.new()
        with record:
            return self._compute(dsk, keys, options, persist, record)

    def _compute(self, dsk: Any, keys: Any, options: Options, persist: bool, record: Record) -> Any:
        wanted = flatten(keys)
        if not wanted:
            return nested_get(keys, {})
        with local_callbacks(options.callbacks) as active:
            if self.is_remote:
                active = without_values(active)
            observation = _Observation(active, self.is_remote)
            failed = True
            try:
                prepare_options = self.prepare_options(options)._replace(checkpoint=record.checkpoint)
                graph = observation.prepared(dsk, wanted, options, prepare_options)
                record.checkpoint()
                values = self._values(graph, observation.observer, options, persist, record)
                failed = False
            finally:
                observation.finish(failed)
        ids = graph.ids
        if persist:
            return nested_get(keys, {key: as_node(key, values[ids[key]]) for key in wanted})
        return _arranged(keys, ids, values)

    def _values(
        self,
        graph: ChunkGraph,
        observer: CallbackObserver | None,
        options: Options,
        persist: bool,
        record: Record,
    ) -> Mapping[int, Any]:
        if any(graph.operand_of[chunk] >= 0 for chunk in graph.outputs):
            if self.check is not None:
                self.check(graph)
            with gc_control.collect_less_often(len(graph)):
                if self.checkpoint is not None and self._is_saved(self.checkpoint, graph, persist, record):
                    return self._run_saved(self.checkpoint, graph, observer, options, persist, record)
                return self.run(graph, observer, options, persist, record)
        return self._known(graph, persist)

    def _is_saved(self, checkpoint: CheckpointSettings, graph: ChunkGraph, persist: bool, record: Record) -> bool:
        """Return whether to save results of a graph."""
        # Most computations are not saved, and need no import.
        from dask_mars.checkpointing.session import is_worth_saving

        return is_worth_saving(checkpoint, graph)

    @staticmethod
    def _known(graph: ChunkGraph, persist: bool) -> dict[int, Any]:
        """Return the outputs of a graph without chunks to run."""
        values = {chunk: graph.values[chunk] for chunk in graph.outputs}
        return values if persist else {chunk: value_of(value) for chunk, value in values.items()}

    def _run_saved(
        self,
        checkpoint: CheckpointSettings,
        graph: ChunkGraph,
        observer: CallbackObserver | None,
        options: Options,
        persist: bool,
        record: Record,
    ) -> dict[int, Any]:
        """Compute the chunks of a graph that are not saved, and save those worth it."""
        from dask_mars.checkpointing.session import Session

        with Session(checkpoint, graph) as session:
            while True:
                left = session.graph
                self.saver, self.session = session.saver, session
                try:
                    if any(left.operand_of[chunk] >= 0 for chunk in left.outputs):
                        values = self.run(left, observer, options, persist, record)
                    else:
                        values = self._known(left, persist)
                except SavedChunkLost as error:
                    session.restore_again(error)
                    continue
                except ToComputeAnew:
                    session.restore_anew()
                    continue
                session.succeed()
                if left is graph:
                    return values
                return {chunk: values[other] for chunk, other in zip(graph.outputs, left.outputs, strict=True)}


class _Observation:
    """Dask's callbacks during one computation."""

    def __init__(self, callbacks: Any, is_remote: bool) -> None:
        self._callbacks = callbacks
        self._is_remote = is_remote
        self.observer: CallbackObserver | None = None

    def prepared(
        self, dsk: Any, wanted: list[Key], options: Options, prepare_options: PrepareOptions
    ) -> ChunkGraph:
        """Prepare a graph; callbacks for single tasks see those that Dask's own schedulers would run."""
        cache = options.cache if options.cache is not None else dask.config.get("cache", None)
        if not self._callbacks:
            return prepare(dsk, wanted, prepare_options, cache=cache)
        if only_count(self._callbacks):
            counter = self.observer = CountingObserver(self._callbacks, self._is_remote)
            counter.start()
            graph = prepare(dsk, wanted, prepare_options, cache=cache)
            if counter.wants_tasks:
                counter.start_counting(graph)
            return graph
        graph = prepare(dsk, wanted, prepare_options, cache=cache, transform_tasks=self._show)
        if self.observer is not None:
            self.observer.start_state(set(wanted))
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
    """Computes on an engine of this process.

    Parameters
    ----------
    engine_for : callable
        Returns the engine to use, given the requested number of workers.
    store_limit : callable
        Returns the limit for results in memory, in bytes.
    """

    def __init__(self, engine_for: Callable[[int | None], Engine], store_limit: Callable[[], int]) -> None:
        self._engine_for = engine_for
        self._store_limit = store_limit

    def prepare_options(self, options: Options) -> PrepareOptions:
        """Return the options for preparing graphs."""
        return engine_options(config.worker_count(options.num_workers or None), self._store_limit)

    def run(
        self,
        graph: ChunkGraph,
        observer: CallbackObserver | None,
        options: Options,
        persist: bool,
        record: Record,
    ) -> dict[int, Any]:
        """Compute a graph, as `GraphBackend.run` describes."""
        rerun = options.rerun_exceptions_locally
        if rerun is None:
            rerun = bool(dask.config.get("rerun_exceptions_locally", False))
        engine, workers = self._engine_for(options.num_workers), options.num_workers

        def started(run: GraphRun) -> None:
            stop = partial(engine.cancel_graph, run.number, _PATIENCE_S)
            record.run(EngineSource(engine, run), stop, run.number)

        computation = Computation(
            engine, graph, observer, workers, options.retries, rerun, note=record.note, saver=self.saver
        )
        return computation.results(persist, started)


__all__ = ["EngineBackend", "GraphBackend"]
