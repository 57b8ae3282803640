"""One computation by an engine, from its calling thread: submit a graph, serve messages, read results."""

from __future__ import annotations

import contextlib
import contextvars
import errno
import functools
import os
import pickle
import queue
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from dask.utils import format_bytes

from dask_mars.client.assembling import (
    in_threads,
    input_to_assemble,
    is_assembly,
    is_large_assembly,
    is_xarrays_assembly,
)
from dask_mars.client.callbacks import Observer
from dask_mars.client.lending import FRAMES_LIMIT_BYTES, Lent, Limits, lent_chunks
from dask_mars.client.local_tasks import raised_by, run_chunk
from dask_mars.engine import graph_run as client_messages
from dask_mars.engine.engine import Engine
from dask_mars.engine.graph_run import GraphRun, Saver
from dask_mars.errors import ResourcesMissing
from dask_mars.graph.callables import attribute
from dask_mars.graph.chunks import ChunkGraph, DeclaredSizes, Operand
from dask_mars.locking import Lock
from dask_mars.optimize.known import appends, temporaries_of
from dask_mars.optimize.library_code import FRAMES, code_origin
from dask_mars.protocol import tracebacks
from dask_mars.protocol.deferred import Deferred, defer
from dask_mars.protocol.failures import FailureRecord, unpack_error
from dask_mars.protocol.object_ref import ObjectRef, is_stored
from dask_mars.protocol.pickling import is_picklable
from dask_mars.scheduler.events import GraphPlan, Resources
from dask_mars.store.persisted import PersistedChunk, value_of
from dask_mars.store.store import bytes_to_store

#: Interval at which a waiting thread checks that the engine is alive, in seconds.
_LIVENESS_S = 2.0
#: Longest wait, after the end of a computation, for busy workers to close its files, in seconds.
_RELEASE_S = 2.0


def run_graph(
    engine: Engine,
    graph: ChunkGraph,
    retries: int | None = None,
    started: Callable[[int], None] | None = None,
    observer: Observer | None = None,
    saver: Saver | None = None,
) -> dict[int, Any]:
    """Compute a chunk graph, and leave the outputs in the store."""
    # Return each output's reference in the store, or its value if it is small.
    computation = GraphComputation(
        engine, graph, observer, retries=retries, persists=True, defers=True, saver=saver
    )
    begun = None if started is None else lambda run: started(run.id)
    return computation.results(begun)


class GraphComputation:
    """The computation of one graph, from its calling thread."""

    def __init__(
        self,
        engine: Engine,
        graph: ChunkGraph,
        observer: Observer | None,
        num_workers: int | None = None,
        retries: int | None = None,
        rerun_locally: bool = False,
        persists: bool = False,
        defers: bool = False,
        note: Callable[[str, str], None] | None = None,
        saver: Saver | None = None,
    ) -> None:
        self._engine = engine
        self._saver = saver
        self._note = note
        #: Whether this is an agent's process: values that cannot be pickled are deferred to the user's process.
        self._defers = defers
        self._graph = graph
        self._observer = observer
        self._rerun_locally, self._persists = rerun_locally, persists
        #: Names of the library modules that its tasks need.
        self._modules: Collection[str] = ()
        #: Why threads may not compute it, in words; empty if they may, or the engine wants none.
        self._why_processes = ""
        #: Chunks that read much of the user's memory, which threads compute beside processes.
        self._lent: Lent | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._pool_size = num_workers or engine.settings.num_workers
        self._plan = self._planned(num_workers, engine.settings.retries if retries is None else int(retries))
        #: Guards the two below: reporting a chunk and removing it there must be atomic.
        self._lock = Lock()
        #: Chunks that threads of the pool are computing and have not reported.
        self._computed_in_client: set[int] = set()
        #: Whether threads of the pool must not begin another chunk.
        self._cancelled = False

    def _planned(self, num_workers: int | None, retries: int) -> GraphPlan:
        """Return the graph as the scheduler sees it; known values from elsewhere are loaded."""
        engine, graph, observer = self._engine, self._graph, self._observer
        operands, inline_bytes = graph.operands, engine.settings.inline_bytes
        objects, copied_bytes = {}, {}
        for chunk, value in graph.values.items():
            if type(value) is PersistedChunk and value.engine is engine:
                objects[chunk] = value.graph, value.chunk
                continue
            value = graph.values[chunk] = value_of(value)
            size_bytes = bytes_to_store(value)
            if size_bytes > inline_bytes:
                copied_bytes[chunk] = size_bytes
        in_client = graph.chunks_for_client() | graph.in_client
        unrepeatable = frozenset(operand_id for operand_id, operand in enumerate(operands) if appends(operand))
        are_threads_wanted = not self._defers and engine.wants_threads
        if are_threads_wanted:
            self._why_processes = self._find_why_processes(bool(unrepeatable))
        is_library_code = are_threads_wanted and not self._why_processes
        if copied_bytes and not (is_library_code or unrepeatable) and engine.lends and not self._defers:
            self._lent = lent_chunks(graph, copied_bytes, Limits.of(engine.settings), in_client, self._persists)
            in_client |= self._lent.chunks
            # Other chunks read in place, and need no measurement of the memory that is left for copies.
            read = {at for chunk, sources in enumerate(graph.inputs) if chunk not in in_client for at in sources}
            read.update(graph.outputs)
            copied_bytes = {chunk: size_bytes for chunk, size_bytes in copied_bytes.items() if chunk in read}
        return GraphPlan(
            inputs=graph.inputs,
            outputs=graph.outputs,
            operand_of=graph.operand_of,
            in_client=frozenset(in_client),
            lends=self._lent is not None and bool(self._lent.chunks),
            retries=graph.retries,
            default_retries=retries,
            priorities=graph.priorities,
            # As with Dask's own schedulers, 0 is no limit.
            worker_limit=num_workers or None,
            objects=objects,
            copied_bytes=copied_bytes,
            run_ahead=observer is None or not observer.in_order,
            declared_bytes=DeclaredSizes(graph, inline_bytes),
            resources=_resources(graph, engine.settings.resources),
            temporaries=temporaries_of(operands),
            unrepeatable=unrepeatable,
            is_library_code=is_library_code,
            keeps_data_on_failure=self._rerun_locally,
        )

    def _find_why_processes(self, is_unrepeatable: bool) -> str:
        """Return why threads of this process may not compute the graph; empty if they may."""
        graph, limits = self._graph, Limits.of(self._engine.settings)
        if is_unrepeatable:
            # A failure in a thread repeats chunks that have begun.
            return "a task appends to a file, and cannot be repeated"
        origin = code_origin(graph)
        if origin.other:
            return origin.other
        self._modules = origin.modules
        # Threads have no quotas.
        if not limits.allow_frames and any(name.startswith(FRAMES) for name in origin.modules):
            return f"threads compute dataframes from a memory limit of {format_bytes(FRAMES_LIMIT_BYTES)} on"
        sizes = DeclaredSizes(graph)
        largest_bytes = max((sizes[chunk] or 0 for chunk in range(len(graph))), default=0)
        if largest_bytes > limits.chunk_bytes:
            largest, most = format_bytes(largest_bytes), format_bytes(limits.chunk_bytes)
            return f"a chunk takes {largest}, and threads compute chunks of at most {most}"
        return ""

    def results(self, started: Callable[[GraphRun], None] | None = None) -> dict[int, Any]:
        """Compute, and return the value or the reference of each output."""
        # `started` is called after submission, and may raise.
        observer = self._observer
        engine = self._engine
        run = engine.prepare(
            self._graph,
            self._plan,
            observed=observer is not None and observer.wants_tasks,
            values_wanted=observer is not None and observer.values_wanted,
        )
        run.modules, run.why_processes = self._modules, self._why_processes
        if self._saver is not None:
            engine.save_by(run, self._saver)
        # Until the engine reports the end, Ctrl-C or the engine's end may interrupt at any point.
        try:
            engine.submit(run)
            if started is not None:
                started(run)
            self._serve(run)
            if self._persists:
                values = self._persist(run)
            else:
                values = {chunk: self._value(run, chunk) for chunk in self._graph.outputs}
                # The user owns the values now, and may free them at once.
                for chunk in values:
                    run.values.pop(chunk, None)
                with contextlib.suppress(Exception):
                    engine.results_taken(run)
            self._wait_for_release(run)
        except BaseException:
            with self._lock:
                self._cancelled = True
                computed_in_client = frozenset(self._computed_in_client)
            with contextlib.suppress(Exception):
                engine.cancel(run, computed_in_client)
            self._wait_for_release(run)
            raise
        finally:
            if self._pool is not None:
                self._leave_pool(self._pool)
        return values

    def _persist(self, run: GraphRun) -> dict[int, Any]:
        """Let the engine keep results in its arenas and files; keep small values here."""
        outputs = self._graph.outputs
        values = {chunk: run.values[chunk] for chunk in outputs if chunk in run.values}
        stored = [chunk for chunk in outputs if chunk not in values and is_stored(_ref(run, chunk))]
        for chunk in outputs:
            if chunk not in values and chunk not in stored:
                values[chunk] = self._value(run, chunk)
        if stored:
            values.update(zip(stored, self._engine.persist(run, stored), strict=True))
        else:
            self._engine.results_taken(run)
        return values

    def _wait_for_release(self, run: GraphRun) -> None:
        """Wait until workers have closed the graph's files: the user may write or remove them next."""
        if not run.may_hold_files:
            return
        deadline_s = time.monotonic() + _RELEASE_S
        while self._engine.alive and (left_s := deadline_s - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                # Output of tasks after the end is dropped.
                if type(run.inbox.get(timeout=left_s)) is client_messages.Released:
                    return

    # -- while it runs ----------------------------------------------------------------------------------------

    def _serve(self, run: GraphRun) -> None:
        """Handle the engine's messages until the outputs are computed."""
        inbox = run.inbox
        while True:
            try:
                message = inbox.get(timeout=_LIVENESS_S)
            except queue.Empty:
                if not self._engine.alive:
                    raise self._engine.why_stopped() from None
                continue
            kind = type(message)
            if kind is client_messages.Finished:
                return
            self._handlers[kind](self, run, message)

    def _run_in_client(self, run: GraphRun, message: client_messages.RunInClient) -> None:
        if message.is_alone:
            # No other task can become ready that this one might wait for, and starting a thread takes longer.
            contextvars.copy_context().run(self._run_chunk, run, message.chunks[0])
            return
        if self._pool is None:
            self._pool = self._engine.spare_threads.take(self._pool_size)
        are_submitted = threading.Event()
        try:
            for chunk in message.chunks:
                # As in Dask's thread pool: NumPy's error state and other context variables hold in tasks.
                self._pool.submit(contextvars.copy_context().run, self._run_in_pool, run, chunk, are_submitted)
        finally:
            are_submitted.set()

    def _run_in_pool(self, run: GraphRun, chunk: int, are_submitted: threading.Event) -> None:
        # A first chunk that keeps the GIL would hold up the start of the other threads.
        are_submitted.wait()
        with self._lock:
            # `cancel` has told the engine that no further chunk begins.
            if self._cancelled:
                return
            self._computed_in_client.add(chunk)
        self._run_chunk(run, chunk)

    def _leave_pool(self, pool: ThreadPoolExecutor) -> None:
        with self._lock:
            # What is still queued there does not begin any more.
            self._cancelled = True
            is_busy = bool(self._computed_in_client)
        if is_busy:
            # As under Dask's threads, running tasks continue.
            pool.shutdown(wait=False, cancel_futures=True)
        else:
            self._engine.spare_threads.give_back(self._pool_size, pool)

    @contextlib.contextmanager
    def _reporting(self, chunk: int) -> Iterator[None]:
        with self._lock:
            self._computed_in_client.discard(chunk)
            yield

    def _run_chunk(self, run: GraphRun, chunk: int) -> None:
        """Compute a chunk in this process."""
        graph, engine = self._graph, self._engine
        start = time.perf_counter()
        try:
            operand = graph.operands[graph.operand_of[chunk]]
            # Assembly copies its inputs, and keeps none of them.
            copies = is_assembly(operand) or is_xarrays_assembly(operand, graph.literals[chunk])
            in_place = copies and not self._defers
            with contextlib.ExitStack() as acquired:
                inputs = [
                    self._input(run, source, operand, acquired if in_place else None)
                    for source in graph.inputs[chunk]
                ]
                loaded = time.perf_counter()
                value = (self._value_or_deferred if self._defers else self._fresh_value)(run, chunk, inputs)
        except Exception as error:
            with self._reporting(chunk):
                engine.client_failed(run, chunk, error)
        except BaseException as error:
            # Ctrl-C or SystemExit: the calling thread handles it.
            with self._reporting(chunk):
                engine.client_failed(run, chunk, error)
            raise
        else:
            if run.observed:
                run.inbox.put(client_messages.Done([chunk], os.getpid(), {chunk: value}))
            steps_s = start, loaded, time.perf_counter()
            with self._reporting(chunk):
                engine.client_finished(run, chunk, value, steps_s)

    def _fresh_value(self, run: GraphRun, chunk: int, inputs: list[Any]) -> Any:
        if self._lent is not None and chunk in self._lent.chunks:
            return self._lent.run(chunk, inputs)
        operand = self._graph.operands[self._graph.operand_of[chunk]]
        if is_large_assembly(operand, inputs):
            return in_threads(operand, self._call_all).run(inputs, ())
        return run_chunk(self._graph, chunk, inputs)

    def _call_all(self, calls: Sequence[Callable[[], None]]) -> None:
        """Call functions that need no more than a moment each, in several threads."""
        threads = self._engine.spare_threads
        pool = threads.take(self._pool_size)
        try:
            for each in [pool.submit(call) for call in calls]:
                each.result()
        except BaseException:
            # Nothing writes any more into memory that is given back now.
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        threads.give_back(self._pool_size, pool)

    def _value_or_deferred(self, run: GraphRun, chunk: int, inputs: list[Any]) -> Any:
        """Compute a chunk in this process; return a deferred task if the result cannot be pickled."""
        graph = self._graph
        if chunk not in run.client_only and not any(type(value) is Deferred for value in inputs):
            value = run_chunk(graph, chunk, inputs.copy())
            if is_picklable(value):
                return value
        return defer(graph.keys[chunk], graph.operands[graph.operand_of[chunk]], graph.literals[chunk], inputs)

    def _input(
        self, run: GraphRun, chunk: int, operand: Operand, acquired: contextlib.ExitStack | None = None
    ) -> Any:
        """Return an input: a copy, or in place until `acquired` is closed."""
        value = run.values.get(chunk, run)
        if value is run:
            ref, store = _ref(run, chunk), self._engine.store
            return store.load_copy(ref) if acquired is None else input_to_assemble(store, ref, operand)
        if type(value) is PersistedChunk and acquired is not None:
            store, ref = acquired.enter_context(value.acquired())
            return input_to_assemble(store, ref, operand)
        return value_of(value)

    def _input_again(self, run: GraphRun, chunk: int) -> Any:
        """Return a copy of an input of a failed chunk, which may be spilled at any moment."""
        if chunk in run.values:
            return value_of(run.values[chunk])
        ref = self._engine.acquire(run.id, chunk)
        try:
            return self._engine.store.load_copy(ref)
        finally:
            self._engine.release(ref)

    def _value(self, run: GraphRun, chunk: int) -> Any:
        if chunk in run.values:
            return value_of(run.values[chunk])
        return self._engine.store.load_copy(_ref(run, chunk))

    def _on_started(self, run: GraphRun, message: client_messages.Started) -> None:
        if self._observer:
            self._observer.begun(self._graph, message.chunks)

    def _on_done(self, run: GraphRun, message: client_messages.Done) -> None:
        if self._observer:
            self._observer.ended(self._graph, message.chunks, message.values, message.worker)

    def _on_printed(self, run: GraphRun, message: client_messages.Printed) -> None:
        if self._note is not None:
            self._note(message.stream, message.text)
        stream = sys.stderr if message.stream == "stderr" else sys.stdout
        if stream is not None:
            stream.write(message.text)
            try:
                stream.flush()
            except OSError as error:
                # The program has closed the descriptor; its own prints stay in the buffer as well.
                if error.errno != errno.EBADF:
                    raise

    def _on_warned(self, run: GraphRun, message: client_messages.Warned) -> None:
        text, category, filename, line = pickle.loads(message.payload)
        if isinstance(text, FailureRecord):
            warning = unpack_error(text)
            text, category = (warning, category) if isinstance(warning, Warning) else (text.summary, UserWarning)
        if self._note is not None:
            self._note("warning", f"{filename}:{line}: {category.__name__}: {text}\n")
        # Module and registry decide on repetition.
        module = _module_of(filename, len(sys.modules))
        registry = _registries.setdefault(module, {})
        warnings.warn_explicit(text, category, filename, line, module=module, registry=registry)

    def _on_failed(self, run: GraphRun, message: client_messages.Failed) -> None:
        if self._rerun_locally:
            inputs = [self._input_again(run, source) for source in self._graph.inputs[message.chunk]]
            run_chunk(self._graph, message.chunk, inputs)
        error = message.error
        if isinstance(error, FailureRecord):
            error = unpack_error(error)
        tracebacks.add_note(error, raised_by(self._graph, message.chunk, run.subtask_ids[message.chunk]))
        raise error

    def _on_stopped(self, run: GraphRun, message: client_messages.Stopped) -> None:
        raise message.error

    _handlers: ClassVar[dict[type, Callable[[GraphComputation, GraphRun, Any], None]]] = {
        client_messages.RunInClient: _run_in_client,
        client_messages.Started: _on_started,
        client_messages.Done: _on_done,
        client_messages.Printed: _on_printed,
        client_messages.Warned: _on_warned,
        client_messages.Failed: _on_failed,
        client_messages.Stopped: _on_stopped,
    }


def _resources(graph: ChunkGraph, available: Mapping[str, float]) -> dict[int, Resources]:
    """Return the resources of each chunk; none where the user allows others and too few exist."""
    taken: dict[int, Resources] = {}
    if not available:
        return taken
    for chunk, restriction in graph.restrictions.items():
        if not restriction.resources:
            continue
        if all(amount <= available.get(name, 0.0) for name, amount in restriction.resources):
            taken[chunk] = restriction.resources
        elif not restriction.loose:
            raise ResourcesMissing(graph.keys[chunk], dict(restriction.resources), dict(available))
    return taken


@functools.lru_cache(maxsize=64)
def _module_of(filename: str, modules: int) -> str:
    """Return the module that has a file, by which filters choose warnings; anew when there are other `modules`."""
    # To ask a module that is loaded lazily would load it.
    found = (name for name, module in list(sys.modules.items()) if attribute(module, "__file__") == filename)
    # Cells of notebooks and lines of a prompt have no file of a module. Python drops warnings of the module None.
    return next(found, "__main__")


#: Warnings of workers that were shown, by module, in the form of its ``__warningregistry__``.
_registries: dict[str, dict[Any, Any]] = {}


def _ref(run: GraphRun, chunk: int) -> ObjectRef:
    ref = run.refs[chunk]
    assert ref is not None, f"chunk {chunk} is nowhere"
    return ref
