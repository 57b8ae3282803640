"""From Dask's call to its result: prepare the graph, give it to the engine, serve it while it runs."""

from __future__ import annotations

import contextlib
import contextvars
import os
import pickle
import queue
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar

import dask
from dask.callbacks import local_callbacks
from dask.local import nested_get

from dask_mars import config, gc_control
from dask_mars.client.assembling import is_assembly, part
from dask_mars.client.callbacks import CountingObserver, Observer, Watcher, as_tasks, only_count, without_values
from dask_mars.engine import computation as messages
from dask_mars.engine.computation import GraphRun
from dask_mars.engine.loop import Engine
from dask_mars.graph.chunks import ChunkGraph, Key, Operand
from dask_mars.optimize.convert import convert
from dask_mars.optimize.effects import appends
from dask_mars.optimize.expression import annotate, declarations, flatten, low_level_graph, replace_cached
from dask_mars.optimize.prepare import Apart, prepare
from dask_mars.protocol.deferred import Deferred, defer
from dask_mars.protocol.locks import interprocess
from dask_mars.protocol.object_ref import ARRAY, ObjectRef
from dask_mars.protocol.pickling import FailureRecord, can_travel, unpack_error
from dask_mars.scheduler.events import GraphPlan
from dask_mars.store.persisted import Persisted, as_node, value_of

#: How often a waiting thread makes sure that the engine still lives.
_LIVENESS_S = 2.0


def compute(
    engine_for: Callable[[int | None], Engine],
    dsk: Any,
    keys: Any,
    *,
    num_workers: int | None = None,
    retries: int | None = None,
    callbacks: Any = None,
    cache: Mapping[Key, Any] | None = None,
    rerun_exceptions_locally: bool | None = None,
    keep: bool = False,
) -> Any:
    """Compute keys of a Dask graph.

    Parameters
    ----------
    engine_for : callable
        Returns the engine to use, given `num_workers`.
    dsk, keys
        As Dask calls a scheduler.
    num_workers : int, optional
        Most workers to use.
    retries : int, optional
        How often a task that raises is tried again.
    callbacks : iterable of tuple, optional
        In place of those registered with Dask.
    cache : mapping, optional
        Values of keys that are known already.
    rerun_exceptions_locally : bool, optional
        Run a task that raises once more in this process, for a debugger.
    keep : bool, optional
        Leave values in the engine's store, and return nodes for graphs in their place.

    Returns
    -------
    tuple or object
        As Dask's own schedulers: nested lists of keys become nested tuples of values.
    """
    if rerun_exceptions_locally is None:
        rerun_exceptions_locally = bool(dask.config.get("rerun_exceptions_locally", False))

    def run(graph: ChunkGraph, observer: Observer | None) -> dict[int, Any]:
        computation = _Computation(
            engine_for(num_workers), graph, observer, num_workers, retries, rerun_exceptions_locally
        )
        return computation.results(keep)

    alike = fold_from(config.worker_count(num_workers or None))
    return compute_with(run, dsk, keys, alike, callbacks, cache, keep)


def compute_with(
    run: Callable[[ChunkGraph, Observer | None], dict[int, Any]],
    dsk: Any,
    keys: Any,
    fold_initial_from: int | None = None,
    callbacks: Any = None,
    cache: Mapping[Key, Any] | None = None,
    keep: bool = False,
    elsewhere: Callable[[Key], Any] | None = None,
    remote: bool = False,
    apart: Apart | None = None,
) -> Any:
    """Compute keys of a Dask graph by something that can run chunk graphs.

    Parameters
    ----------
    run : callable
        Returns the value of each output of a graph, and tells an observer how it gets on.
    dsk, keys
        As Dask calls a scheduler.
    fold_initial_from : int, optional
        As `prepare` takes it under the name of ``fold_from``.
    callbacks, cache, keep
        As `compute` takes them.
    elsewhere : callable, optional
        As `prepare` takes it.
    remote : bool, optional
        It is not computed by an engine of this process, and the values of tasks are not at hand.
    apart : callable, optional
        As `prepare` takes it.

    Returns
    -------
    tuple or object
        As `compute`.
    """
    wanted = flatten(keys)
    if not wanted:
        return nested_get(keys, {})
    cache = cache if cache is not None else dask.config.get("cache", None)
    with local_callbacks(callbacks) as active:
        observer: Observer | None = None
        if remote:
            active = without_values(active)
        counter = CountingObserver(active, remote) if active and only_count(active) else None
        failed = True
        try:
            if counter:
                observer = counter
                counter.start()
            if (counter or not active) and not cache:
                graph = prepare(dsk, wanted, fold_from=fold_initial_from, elsewhere=elsewhere, apart=apart)
            else:
                # Callbacks and caches are shown the graph that Dask's own schedulers would run.
                graph_of_dask, annotations = low_level_graph(dsk)
                if cache:
                    graph_of_dask = replace_cached(graph_of_dask, cache)
                if active and not counter:
                    graph_of_dask = as_tasks(graph_of_dask)
                    observer = Observer(active, graph_of_dask, remote)
                    observer.start()
                graph = convert(graph_of_dask, wanted, elsewhere=elsewhere)
                annotate(graph, annotations)
                graph.declared = declarations(dsk, graph_of_dask)
                if observer and not counter:
                    observer.start_state(set(wanted))
            if counter and counter.wants_tasks:
                counter.start_counting(graph)
            if all(graph.operand_of[chunk] < 0 for chunk in graph.outputs):
                # Nothing to run: the values are in the graph.
                values = {chunk: graph.values[chunk] for chunk in graph.outputs}
                if not keep:
                    values = {chunk: value_of(value) for chunk, value in values.items()}
            else:
                with gc_control.patient(len(graph)):
                    values = run(graph, observer)
            failed = False
        finally:
            if observer:
                observer.finish(failed)
    ids = graph.ids
    if keep:
        return nested_get(keys, {key: as_node(key, values[ids[key]]) for key in wanted})
    return _arranged(keys, ids, values)


def _arranged(keys: Any, ids: Mapping[Key, int], values: Mapping[int, Any]) -> Any:
    """Return values as `dask.local.nested_get` does, with one look at each key: there may be a million."""
    if isinstance(keys, list):
        return tuple([_arranged(key, ids, values) if isinstance(key, list) else values[ids[key]] for key in keys])
    return values[ids[keys]]


def run_graph(
    engine: Engine,
    graph: ChunkGraph,
    retries: int | None = None,
    started: Callable[[int], None] | None = None,
    watcher: Watcher | None = None,
) -> dict[int, Any]:
    """Compute a chunk graph, and leave the outputs in the store.

    Parameters
    ----------
    engine : Engine
        What computes it.
    graph : ChunkGraph
        At least one of its outputs is not known.
    retries : int, optional
        How often a task that raises is tried again.
    started : callable, optional
        Told the number that the engine gives the computation.
    watcher : Watcher, optional
        Told in this thread what becomes of chunks.

    Returns
    -------
    dict
        What stands for each output, or its value where that is small.
    """
    computation = _Computation(engine, graph, watcher, None, retries, rerun_locally=False, defers=True)
    return computation.results(keep=True, started=started)


def fold_from(slots: int) -> int | None:
    """Return how many chunks must be alike for initial chunks to be folded into them, None for never."""
    per_worker = config.get("fold-initial")
    return None if per_worker is None else int(per_worker) * slots


def _stored_bytes(graph: ChunkGraph, inline_bytes: int, chunk: int) -> int | None:
    """Return the bytes that a chunk is declared to take in the store, where small ones never are."""
    declared = graph.declared_bytes(chunk)
    return 0 if declared is not None and declared <= inline_bytes else declared


class _Computation:
    """One graph's computation as its calling thread sees it."""

    def __init__(
        self,
        engine: Engine,
        graph: ChunkGraph,
        observer: Watcher | None,
        num_workers: int | None,
        retries: int | None,
        rerun_locally: bool,
        defers: bool = False,
    ) -> None:
        self._engine = engine
        #: Whether this is not the user's process, and what cannot be pickled is to be computed there.
        self._defers = defers
        self._graph = graph
        self._observer = observer
        self._rerun_locally = rerun_locally
        self._pool: ThreadPoolExecutor | None = None
        self._pool_size = num_workers or engine.settings.num_workers
        operands = graph.operands
        borrowed = {}
        for chunk, value in graph.values.items():
            if type(value) is Persisted and value.engine is engine:
                borrowed[chunk] = value.graph, value.chunk
            else:
                graph.values[chunk] = value_of(value)
        in_client = graph.chunks_for_client()
        self._plan = GraphPlan(
            inputs=graph.inputs,
            outputs=graph.outputs,
            operand_of=graph.operand_of,
            in_client=frozenset(in_client | graph.in_client),
            retries=graph.retries,
            default_retries=engine.settings.retries if retries is None else int(retries),
            priorities=graph.priorities,
            # As with Dask's own schedulers, 0 is no limit.
            worker_limit=num_workers or None,
            borrowed=borrowed,
            run_ahead=observer is None or not observer.in_order,
            declared_bytes=partial(_stored_bytes, graph, engine.settings.inline_bytes),
            unrepeatable=frozenset(number for number, operand in enumerate(operands) if appends(operand)),
            keeps_failed=rerun_locally,
        )
        # With one such task at a time the calling thread itself will do.
        self._single = len(in_client) <= 1
        #: Guards the two below, and makes reporting a chunk one thing with taking it from them.
        self._lock = threading.Lock()
        #: Chunks that threads of the pool are computing and have not reported.
        self._computed_here: set[int] = set()
        #: Whether no thread of the pool is to begin another.
        self._cancelled = False

    def results(self, keep: bool, started: Callable[[int], None] | None = None) -> dict[int, Any]:
        """Compute, and return the value of each output chunk, or what stands for it in the store."""
        observer = self._observer
        engine = self._engine
        run = engine.prepare(
            self._graph,
            self._plan,
            observed=observer is not None and observer.wants_tasks,
            values_wanted=observer is not None and observer.values_wanted,
        )
        # From here on until the engine knows that all is done Ctrl-C may come at any moment, or the engine's end.
        try:
            engine.submit(run)
            if started is not None:
                started(run.number)
            self._serve(run)
            if keep:
                return self._kept(run)
            values = {chunk: self._value(run, chunk) for chunk in self._graph.outputs}
            with contextlib.suppress(Exception):
                engine.results_taken(run)
        except BaseException:
            with self._lock:
                self._cancelled = True
                computed_here = frozenset(self._computed_here)
            with contextlib.suppress(Exception):
                engine.cancel(run, computed_here)
            raise
        finally:
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)
        return values

    def _kept(self, run: GraphRun) -> dict[int, Any]:
        """Have the engine keep what is in its arenas and files; small values are kept here."""
        outputs = self._graph.outputs
        values = {chunk: run.values[chunk] for chunk in outputs if chunk in run.values}
        stored = [chunk for chunk in outputs if chunk not in values and _ref(run, chunk)[0] >= ARRAY]
        for chunk in outputs:
            if chunk not in values and chunk not in stored:
                values[chunk] = self._value(run, chunk)
        if stored:
            values.update(zip(stored, self._engine.keep(run, stored), strict=True))
        else:
            self._engine.results_taken(run)
        return values

    # -- while it runs ----------------------------------------------------------------------------------------

    def _serve(self, run: GraphRun) -> None:
        """See to the engine's messages until the outputs are there."""
        inbox = run.inbox
        while True:
            try:
                message = inbox.get(timeout=_LIVENESS_S)
            except queue.Empty:
                if not self._engine.alive:
                    raise self._engine.why_stopped() from None
                continue
            kind = type(message)
            if kind is messages.Finished:
                return
            self._actions[kind](self, run, message)

    def _run_here(self, run: GraphRun, message: messages.RunHere) -> None:
        if self._single and len(message.chunks) == 1 and self._pool is None:
            self._run_chunk(run, message.chunks[0])
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._pool_size, thread_name_prefix="dask-mars-client")
        for chunk in message.chunks:
            # As Dask's thread pool does, so that NumPy's error state and the like hold in tasks.
            self._pool.submit(contextvars.copy_context().run, self._run_in_pool, run, chunk)

    def _run_in_pool(self, run: GraphRun, chunk: int) -> None:
        with self._lock:
            # The engine was told that what has not begun never will.
            if self._cancelled:
                return
            self._computed_here.add(chunk)
        self._run_chunk(run, chunk)

    @contextlib.contextmanager
    def _reporting(self, chunk: int) -> Iterator[None]:
        with self._lock:
            self._computed_here.discard(chunk)
            yield

    def _run_chunk(self, run: GraphRun, chunk: int) -> None:
        """Compute a chunk in this process."""
        graph, engine = self._graph, self._engine
        start = time.perf_counter()
        try:
            operand = graph.operands[graph.operand_of[chunk]]
            # Assembly copies what it is lent, and keeps none of it.
            in_place = is_assembly(operand) and not self._defers
            with contextlib.ExitStack() as lent:
                inputs = [
                    self._input(run, source, operand, lent if in_place else None) for source in graph.inputs[chunk]
                ]
                literals = tuple([interprocess(literal) for literal in graph.literals[chunk]])
                loaded = time.perf_counter()
                if self._defers:
                    value = self._value_or_deferred(run, chunk, operand, inputs, literals)
                else:
                    value = operand.run(inputs, literals)
        except Exception as error:
            with self._reporting(chunk):
                engine.client_failed(run, chunk, error)
        except BaseException as error:
            # Ctrl-C, or a task that wants to leave: the calling thread sees to it.
            with self._reporting(chunk):
                engine.client_failed(run, chunk, error)
            raise
        else:
            if run.observed:
                run.inbox.put(messages.Done([chunk], os.getpid(), {chunk: value}))
            steps_s = start, loaded, time.perf_counter()
            with self._reporting(chunk):
                engine.client_finished(run, chunk, value, steps_s)

    def _value_or_deferred(
        self, run: GraphRun, chunk: int, operand: Operand, inputs: list[Any], literals: tuple[Any, ...]
    ) -> Any:
        """Compute a chunk in this process if its result can leave that, else return what stands for it."""
        if chunk not in run.unpicklable and not any(type(value) is Deferred for value in inputs):
            value = operand.run(inputs.copy(), literals)
            if can_travel(value):
                return value
        return defer(self._graph.keys[chunk], operand, self._graph.literals[chunk], inputs)

    def _input(self, run: GraphRun, chunk: int, operand: Operand, lent: contextlib.ExitStack | None = None) -> Any:
        """Return an input: a copy, or in place as long as all that is `lent` is not given back."""
        value = run.values.get(chunk, run)
        if value is run:
            ref, store = _ref(run, chunk), self._engine.store
            return store.load_copy(ref) if lent is None else part(store, ref, operand)
        if type(value) is Persisted and lent is not None:
            store, ref = lent.enter_context(value.lent())
            return part(store, ref, operand)
        return value_of(value)

    def _input_again(self, run: GraphRun, chunk: int) -> Any:
        """Return a copy of an input of a chunk that has failed, which could go to disk at any moment."""
        if chunk in run.values:
            return value_of(run.values[chunk])
        ref = self._engine.borrow(run.number, chunk)
        try:
            return self._engine.store.load_copy(ref)
        finally:
            self._engine.give_back(ref)

    def _value(self, run: GraphRun, chunk: int) -> Any:
        if chunk in run.values:
            return value_of(run.values[chunk])
        return self._engine.store.load_copy(_ref(run, chunk))

    def _on_started(self, run: GraphRun, message: messages.Started) -> None:
        if self._observer:
            self._observer.begun(self._graph, message.chunks)

    def _on_done(self, run: GraphRun, message: messages.Done) -> None:
        if self._observer:
            self._observer.ended(self._graph, message.chunks, message.values, message.worker)

    def _on_printed(self, run: GraphRun, message: messages.Printed) -> None:
        stream = sys.stderr if message.stream == "stderr" else sys.stdout
        if stream is not None:
            stream.write(message.text)
            stream.flush()

    def _on_warned(self, run: GraphRun, message: messages.Warned) -> None:
        text, category, filename, line = pickle.loads(message.payload)
        # Module and registry decide on repetition; the file name stands in for the module that warned.
        warnings.warn_explicit(text, category, filename, line, registry=_registry)

    def _on_failed(self, run: GraphRun, message: messages.Failed) -> None:
        if self._rerun_locally:
            operand = self._graph.operands[self._graph.operand_of[message.chunk]]
            inputs = [self._input_again(run, source) for source in self._graph.inputs[message.chunk]]
            operand.run(inputs, self._graph.literals[message.chunk])
        error = message.error
        if isinstance(error, FailureRecord):
            error = unpack_error(error)
        error.add_note(raised_by(self._graph, message.chunk))
        raise error

    def _on_stopped(self, run: GraphRun, message: messages.Stopped) -> None:
        raise message.error

    _actions: ClassVar[dict[type, Callable[[_Computation, GraphRun, Any], None]]] = {
        messages.RunHere: _run_here,
        messages.Started: _on_started,
        messages.Done: _on_done,
        messages.Printed: _on_printed,
        messages.Warned: _on_warned,
        messages.Failed: _on_failed,
        messages.Stopped: _on_stopped,
    }


#: Which warnings of workers have been shown, as Python notes it for each module.
_registry: dict[Any, Any] = {}


def _ref(run: GraphRun, chunk: int) -> ObjectRef:
    ref = run.refs[chunk]
    assert ref is not None, f"chunk {chunk} is nowhere"
    return ref


def raised_by(graph: ChunkGraph, chunk: int) -> str:
    """Return the note that an exception gets about where it comes from."""
    return f"dask_mars: raised by task {graph.keys[chunk]!r} of layer {graph.layer_of(chunk)!r}"


__all__ = ["compute", "compute_with", "fold_from", "raised_by", "run_graph"]
