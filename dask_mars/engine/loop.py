"""The embedded engine: the scheduler's thread and its worker processes, in the user's process.

A thin shell around `Machine`. The engine owns all sockets, processes and memory. Client threads send it commands
through a queue, and it answers through each graph's inbox. It keeps every arena open, so that chunks outlive the
worker that sealed them.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import itertools
import logging
import os
import pickle
import selectors
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from dask_mars import greenlets, process_role
from dask_mars.config import Settings
from dask_mars.descriptors import hold_streams
from dask_mars.engine import graph_run as client_messages
from dask_mars.engine.cancellation import Cancellation
from dask_mars.engine.executor import Executor
from dask_mars.engine.graph_run import ChunkMeasurements, GraphRun, Saver
from dask_mars.engine.idle import EndingWorkers, IdleClock
from dask_mars.engine.inspection import Inspection
from dask_mars.engine.listeners import EngineView, ListenerEvent, ProcessesMeasured, listeners
from dask_mars.engine.memory_account import MemoryAccount, measure_processes
from dask_mars.engine.memory_watch import LEAST_SHARE_BYTES, MemoryWatch
from dask_mars.engine.processes import ProcessHandle, is_launching
from dask_mars.engine.receiver import ProtocolError, Receiver
from dask_mars.engine.recorder import Recorder
from dask_mars.engine.registry import Registry, ReservationRecord
from dask_mars.engine.start_watch import StartWatch
from dask_mars.engine.startup import Startup
from dask_mars.engine.threads import ThreadHandle
from dask_mars.engine.worker_handle import WorkerHandle
from dask_mars.errors import (
    Cancelled,
    EngineStartFailed,
    EngineStopped,
    MemoryLimitTooLow,
    SpillError,
    Stalled,
    WorkerDied,
    WorkerOverLimit,
    WorkerStartFailed,
    WorkerStartTimeout,
    describe_exit,
    has_crashed,
)
from dask_mars.extensions import warn_of_missing_extensions
from dask_mars.graph.chunks import ChunkGraph
from dask_mars.graph.ids import GRAPH_LIMIT
from dask_mars.limits import PROC, address_space, arena_bytes, estimate_memory, library_bytes
from dask_mars.protocol.channel import UnreadableStream
from dask_mars.protocol.context import Context
from dask_mars.protocol.control import POSTPONED, REFUSED, ControlPage, QuotaFigures, page_bytes
from dask_mars.protocol.locks import InterprocessLock
from dask_mars.protocol.main_module import main_origin
from dask_mars.protocol.messages import Exit, Start, Trim
from dask_mars.protocol.object_ref import ObjectRef, is_map_output, is_stored, needed_bytes, size_of
from dask_mars.scheduler.events import (
    CLIENT,
    ChunkFailed,
    ChunksFinished,
    ChunksReturned,
    Event,
    GraphCancelled,
    GraphPlan,
    GraphSubmitted,
    Instruction,
    MemoryMeasured,
    ObjectsPut,
    ObjectsReleased,
    PrivateMeasured,
    QuotaRequested,
    ReservationReleased,
    ReservationRequested,
    ResultsPersisted,
    ResultsTaken,
    TimePassed,
    WorkerLost,
    WorkerRetired,
    WorkersRenewed,
    WorkerStarted,
)
from dask_mars.scheduler.machine import Machine, Parameters
from dask_mars.scheduler.policies.plugins import load_policy
from dask_mars.store import arena as arenas
from dask_mars.store.arena_capacity import arena_capacity, not_mapped
from dask_mars.store.in_place_sealing import has_object_quotas, has_quotas
from dask_mars.store.persisted import PersistedChunk, PersistedWeakRef, weak_reference_to
from dask_mars.store.store import Store, bytes_to_store
from dask_mars.worker import thread as worker_thread

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

#: Interval between memory measurements, in seconds; and fraction of the limit from which free memory returns to
#: the system.
_WATCH_S = 0.1 if PROC.exists() else 1.0
_PRESSURE = 0.875
#: Minimum size of the store, however much the workers use: a fraction of its limits, and bytes.
_LEAST_STORE = 0.25
_LEAST_STORE_BYTES = 1 << 25
#: Growth of all workers' memory that needs no request: divisor of the limit, and maximum bytes per worker. The
#: store's limit is lower by it.
_SLACK_SHARE, _MOST_SLACK_BYTES = 32, 1 << 26
#: Poll interval for released persisted objects, in seconds: normally, and after a long time without work.
_PERSISTED_S, _PERSISTED_IDLE_S = 0.05, 1.0
#: Interval at which a waiting thread checks that the engine lives, in seconds.
_ANSWER_S = 0.5
#: Poll interval for computations that can make no progress, in seconds.
_LIVENESS_S = 2.0
#: Time that workers have to give memory back before idle ones are replaced, and poll interval, in seconds.
_RENEWAL_S, _RENEWAL_LOOK_S = 0.05, 0.005
#: Time that worker processes have for their exit handlers, in seconds.
_EXIT_S = 5.0


#: Facts about a worker that exceeded the limit: its bytes, the limit, bytes of other processes, bytes of shared
#: memory.
_OverLimit = tuple[int, int, int, int]


class Engine:
    """Runs chunk graphs on its own worker processes.

    Parameters
    ----------
    settings : Settings
        Number of workers, memory, policy.
    is_agent : bool, optional
        Whether the engine computes subtasks of a cluster.
    """

    def __init__(self, settings: Settings, is_agent: bool = False) -> None:
        if greenlets.has_eventlet():
            raise EngineStartFailed(
                "eventlet has replaced threads by greenlets, in which dask_mars would wait for ever. Compute with "
                'scheduler="threads", or start the program without eventlet.monkey_patch().'
            )
        warn_of_missing_extensions()
        count = settings.num_workers
        self._capacity_bytes = arena_capacity(settings.memory_limit, count, address_space())
        # All arenas together hold no more than this.
        most = min(self._capacity_bytes * count, settings.memory_limit)
        settings = dataclasses.replace(settings, store_limit=min(settings.store_limit, most))
        self.settings = settings
        self.pid = os.getpid()
        load_policy(settings.policy)
        parameters = Parameters(
            policy=settings.policy,
            assignment=settings.assignment,
            num_workers=settings.num_workers,
            resources=settings.resources,
            store_limit=settings.store_limit,
            memory_limit=most,
            result_limit=self._capacity_bytes if self._capacity_bytes < settings.memory_limit else None,
            quota_slack_bytes=_slack_bytes(settings) if has_quotas(settings.arena_threshold_bytes) else None,
        )
        self._slack_bytes = (parameters.quota_slack_bytes or 0) * settings.num_workers
        self._machine = Machine(parameters)
        self._watched_s = self._trimmed_s = 0.0
        #: While workers give memory back: the deadline, and whether they give back all or only what exceeds their
        #: share.
        self._renewal: tuple[float, bool] | None = None
        #: Current limit of the store, in bytes.
        self._limit_bytes = settings.store_limit
        self._hard_limit_bytes = settings.memory_limit
        self._commands: deque[Callable[[], None]] = deque()
        #: References to persisted objects that the user has dropped.
        self._gone: deque[PersistedWeakRef] = deque()
        self._numbers = itertools.count(1)
        self._context: tuple[int, Context] | None = None
        self._lock = threading.Lock()
        #: Guards `_released`: the system may reuse the numbers of closed descriptors.
        self._descriptors_lock = threading.Lock()
        self._released = False
        self._starts = StartWatch(settings.start_timeout_s)
        #: Whether a worker has come up and left some of the memory free.
        self._is_up = False
        self._closing = False
        self._stopped: BaseException | None = None
        self._pumping = False
        self._events: deque[Event] = deque()

        self._control_bytes = page_bytes(count)
        sizes = [self._capacity_bytes] * (count + 1) + [self._control_bytes]
        hold_streams()
        descriptors: list[int] = []
        try:
            for number, size in enumerate(sizes):
                descriptors.append(arenas.create(f"dask-mars-{number}", size))
            *views, control = [arenas.Arena(*made) for made in zip(descriptors, sizes, strict=True)]
            self._locks_file = _locks_file()
        except OSError as error:
            for descriptor in descriptors:
                os.close(descriptor)
            raise not_mapped(error, settings.memory_limit, count, self._capacity_bytes) from error
        *self._arena_files, self._control_file = descriptors
        self._memory_watch = MemoryWatch(settings.memory_limit, count, self.pid, self._arena_files)
        self._control = ControlPage(control.view(0, self._control_bytes).data)
        self.store = Store(views, count, inline_bytes=settings.inline_bytes)
        registry = Registry(self.store, settings.spill_directory, settings.memory_limit)
        self._runs, self._workers = registry.runs, registry.workers
        self._blocks, self._sender, self._spill_writer = registry.blocks, registry.sender, registry.spill_writer
        self._receiver = Receiver(registry, self._machine.holds, self._handle)
        self._cancellation = Cancellation(
            self._workers, self._control, self._machine.in_hand, settings.cancel_grace_s
        )
        self.view = EngineView(registry, self._machine.memory, self._control, is_agent, settings.memory_limit)
        path = settings.scheduler_log
        self._recorder = None if path is None else Recorder(path, self.view.number, parameters)
        self._registry = registry
        object_quotas = has_object_quotas(settings.arena_threshold_bytes)
        self._inspection = Inspection(
            self._machine, registry, self._control, self.view, self._arena_files, object_quotas
        )
        self._instructions = Executor(
            registry,
            self._handle,
            self._call_soon,
            self._cancellation.add_stop_deadline,
            self._request_recall,
            self._notify,
            self._grant_quota,
            self._refuse_quota,
            self._renew_workers,
        )

        # Greenlets would compute one after the other, and none could wait for its socket alone.
        starts_in_threads = settings.starts_in_threads and not is_agent and not greenlets.has_gevent()
        self._startup = Startup(starts_in_threads, settings.memory_limit, count)
        self._idle = IdleClock(settings.idle_trim_s, settings.idle_timeout_s)
        self._ending = EndingWorkers(_EXIT_S)
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_reader, selectors.EVENT_READ, None)
        #: The last answer that a caller gave up on: until it arrives, the thread is busy.
        self._late: Future[Any] | None = None
        # `is_alive` is unreliable: once Ctrl-C interrupts it (CPython 3.11 and 3.12), the thread counts as ended.
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._main, name="dask-mars-engine", daemon=True)
        _engines.add(self)
        self._thread.start()

    # -- for client threads -----------------------------------------------------------------------------------

    def prepare(self, graph: ChunkGraph, plan: GraphPlan, observed: bool, values_wanted: bool) -> GraphRun:
        """Give a graph a number.

        Separate from `submit`, so that the caller can cancel a graph whose submission was interrupted.
        """
        number, copied_bytes = self._next_number(), dict(plan.copied_bytes)
        return GraphRun(number, graph, plan, 0, observed, values_wanted, copied_bytes=copied_bytes)

    def _next_number(self) -> int:
        # Subtask ids have four bytes for the number. Objects with an old number are gone before it recurs.
        return 1 + next(self._numbers) % (GRAPH_LIMIT - 1)

    def submit(self, run: GraphRun) -> None:
        """Start computing a graph. Its results and messages arrive in the run's inbox."""
        with self._lock:
            given = run.graph.surroundings
            if self._context is None or not self._context[1].is_current(given):
                previous = None if self._context is None else self._context[1]
                self._context = next(self._numbers), Context(previous, given)
            context = self._context
        run.context, run.variables = context[0], contextvars.copy_context()

        def command() -> None:
            self._sender.add_context(*context)
            self._runs[run.number] = run
            if run.copied_bytes:
                # Values in the user's process leave less room for copies of them.
                self._measure_memory()
            self._handle(GraphSubmitted(run.number, run.plan))

        self._call_soon(command)

    def cancel(self, run: GraphRun, computed_in_client: Collection[int] = ()) -> None:
        """Stop a graph: queued chunks at once, running ones within the grace period.

        The user's process still reports the chunks in `computed_in_client`, and no others.
        """

        def command() -> None:
            self._handle(GraphCancelled(run.number))
            in_hand = [chunk for number, chunk in self._machine.in_hand(CLIENT) if number == run.number]
            if abandoned := [chunk for chunk in in_hand if chunk not in computed_in_client]:
                self._handle(ChunksReturned(CLIENT, run.number, abandoned, to_client=False))

        self._call_soon(command)

    @property
    def wants_threads(self) -> bool:
        """Return whether threads of this process may compute a graph that is submitted now."""
        return self._startup.is_wanted and (not self._workers or self._has_threads())

    def start_processes(self) -> None:
        """Start the worker processes now instead of with the first computation."""

        def command() -> None:
            for number in range(self.settings.num_workers):
                if number not in self._workers and number not in self._ending:
                    self._start_process(number)

        self._call_soon(command)

    def save_by(self, run: GraphRun, saver: Saver) -> None:
        """Have a saver save the chunks of a graph before its submission."""
        # The run owns the saver, which must not refer to it: only the garbage collector would free its values
        # then.
        inbox = run.inbox

        def warn(text: str) -> None:
            inbox.put(client_messages.Warned(pickle.dumps((text, RuntimeWarning, __file__, 0))))

        blocks, limit_bytes = self._blocks, self.settings.store_limit
        saver.begin(self.store, limit_bytes, blocks.incref_object, blocks.decref_object, self._call_soon, warn)
        run.saver = saver

    def results_taken(self, run: GraphRun) -> None:
        """Release a finished graph's data."""
        self._call_soon(lambda: self._handle(ResultsTaken(run.number)))

    def persist(self, run: GraphRun, chunks: list[int]) -> list[PersistedChunk]:
        """Release a finished graph's data except for some chunks, which stay while anything refers to them."""
        # The engine pins a finished graph's results until the client takes or persists them.
        refs = [ref for chunk in chunks if (ref := run.refs[chunk]) is not None]
        keys = [run.graph.keys[chunk] for chunk in chunks]
        persisted, weak_refs = self._make_persisted(run.number, chunks, keys, refs)

        def command() -> None:
            if run.number in self._runs:
                for chunk, key, reference in zip(chunks, keys, weak_refs, strict=True):
                    ref = run.refs[chunk]
                    assert ref is not None
                    self._registry.persist((run.number, chunk), key, ref, reference)
                self._handle(ResultsPersisted(run.number, chunks))

        self._call_soon(command)
        return persisted

    def _make_persisted(
        self, graph: int, chunks: Iterable[int], keys: Sequence[Hashable], refs: Sequence[ObjectRef]
    ) -> tuple[list[PersistedChunk], list[PersistedWeakRef]]:
        """Return the user's handles of objects, and weak references that report when a handle is gone."""
        persisted = [
            PersistedChunk(self, graph, chunk, key, size_of(ref))
            for chunk, key, ref in zip(chunks, keys, refs, strict=True)
        ]
        return persisted, [weak_reference_to(chunk, self._gone.append) for chunk in persisted]

    def put(self, name: str, values: Sequence[Any]) -> list[Any]:
        """Put values into the shared store, where they stay as long as anything refers to them.

        Parameters
        ----------
        name : str
            Name of the values, for inspection of the engine.
        values : sequence
            Copied at once, even while workers are busy.

        Returns
        -------
        list
            A handle for each stored value; small values themselves.

        Raises
        ------
        StoreFull
            There is no room, not even on disk.
        """
        number = self._next_number()

        def command() -> list[Any] | Exception:
            try:
                refs = self._registry.put(values)
            except Exception as error:
                return error
            stored = [position for position, ref in enumerate(refs) if is_stored(ref)]
            keys = [(name, position) for position in stored]
            persisted, weak_refs = self._make_persisted(
                number, stored, keys, [refs[position] for position in stored]
            )
            for position, key, reference in zip(stored, keys, weak_refs, strict=True):
                self._registry.persist((number, position), key, refs[position], reference)
            for ref in refs:
                self._blocks.decref_object(ref)
            if stored:
                sizes = {(number, position): needed_bytes(refs[position]) for position in stored}
                self._handle(ObjectsPut(sizes, [id for id in sizes if is_map_output(refs[id[1]])]))
            found = dict(zip(stored, persisted, strict=True))
            return [found.get(position, value) for position, value in enumerate(values)]

        answer = self._call(command)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def has_persisted(self) -> bool:
        """Return whether the engine has persisted objects."""
        return bool(self._registry.persisted)

    def ref_of(self, graph: int, chunk: int) -> ObjectRef | None:
        """Return an object's current location; None before the engine has run `persist`, and after its end."""
        return self._registry.ref_of((graph, chunk))

    def acquire(self, graph: int, chunk: int) -> ObjectRef:
        """Return the location of an object, persisted or of a running graph, and pin it until `release`."""

        def acquired() -> ObjectRef | None:
            ref = self._registry.ref_of((graph, chunk))
            if ref is not None:
                self._blocks.incref_object(ref)
            return ref

        ref = self._call(acquired)
        if ref is None:
            raise self.why_stopped()
        return ref

    def release(self, ref: ObjectRef) -> None:
        """Unpin a location that `acquire` returned."""
        self._call_soon(lambda: self._blocks.decref_object(ref))

    def reserve(self, key: Hashable, size_bytes: int, answer: Callable[[Exception | None], None]) -> int:
        """Request bytes of the store, see `Reservation`; return the number of the reservation."""
        number = self._next_number()

        def command() -> None:
            self._registry.reservations[number] = ReservationRecord(key, size_bytes, answer)
            self._handle(ReservationRequested(number, size_bytes))

        self._call_soon(command)
        return number

    def release_reservation(self, number: int) -> None:
        """Release a reservation, granted or not."""

        def command() -> None:
            if self._registry.reservations.pop(number, None) is not None:
                self._handle(ReservationReleased(number))

        self._call_soon(command)

    def client_finished(self, run: GraphRun, chunk: int, value: Any, steps_s: tuple[float, float, float]) -> None:
        """Receive the value of a chunk that the user's process computed."""
        duration_s = steps_s[-1] - steps_s[0]
        copied_bytes = bytes_to_store(value)
        # The command may outlive the computation by a moment, and must not keep the value.
        values = [value]

        def command() -> None:
            if run.number in self._runs:
                run.values[chunk] = values.pop()
                run.measurements.durations_s[chunk] = duration_s
                sizes = {chunk: copied_bytes} if copied_bytes > self.settings.inline_bytes else {}
                run.copied_bytes.update(sizes)
                if run.saver is not None:
                    run.saver.computed_in_client(chunk)
                self._handle(ChunksFinished(CLIENT, run.number, [chunk], [duration_s], sizes, steps_s=[steps_s]))

        self._call_soon(command)

    def client_failed(self, run: GraphRun, chunk: int, error: BaseException) -> None:
        """Record that a chunk's computation raised in the user's process."""

        def command() -> None:
            run.errors[chunk] = error
            final = not isinstance(error, Exception)
            self._handle(ChunkFailed(CLIENT, run.number, chunk, final))

        self._call_soon(command)

    @property
    def is_up(self) -> bool:
        """Return whether a worker has come up; raise `EngineStartFailed` if none will."""
        if not self._is_up and not self.alive:
            raise self.why_stopped()
        return self._is_up

    @property
    def alive(self) -> bool:
        """Return whether the engine accepts work."""
        return not self._ended.is_set() and not self._closing and self.pid == os.getpid()

    def why_stopped(self) -> BaseException:
        """Return the reason why the engine accepts no work."""
        return self._stopped or EngineStopped()

    def memory_bytes(self) -> int:
        """Return the memory that this process and the workers use, the store included."""
        return estimate_memory([self.pid, *self.worker_pids()], self._arena_files)

    @property
    def spilled_bytes(self) -> int:
        """Return the bytes written to disk since the start."""
        return self._spill_writer.spilled_bytes

    def worker_pids(self) -> list[int]:
        """Return the process ids of the workers."""
        handles = [*self._workers.values(), *self._startup.loading.values()]
        return [handle.pid for handle in handles if handle.is_process]

    def explain(self, key: Any = None, patience_s: float | None = None) -> str:
        """Describe what waits for what.

        Parameters
        ----------
        key : key, optional
            Explain why this key is not computed; by default describe the progress of each graph.
        patience_s : float, optional
            Maximum seconds to wait for the engine's thread; by default without limit.

        Raises
        ------
        KeyError
            No running graph has the key.
        EngineStopped
            The engine has ended.
        TimeoutError
            The engine's thread did not answer in time.
        """
        if key is None:
            return self._call(self._inspection.explain, patience_s)
        # The calling thread looks the key up: comparing a user's objects may run any code, for any time.
        for number, run in list(self._runs.items()):
            chunk = run.graph.ids.get(key)
            if chunk is not None:
                return self._call(partial(self._inspection.explain_chunk, number, chunk), patience_s)
        raise KeyError(
            f"no computation that goes on has the key {key!r}; of a chain that runs as one it is the last's"
        )

    def state(self) -> dict[str, Any]:
        """Return running graphs, workers and memory use; see `Runtime.state`."""
        return self._call(self._inspection.state)

    def workers(self, patience_s: float | None = None) -> list[dict[str, Any]]:
        """Return each worker's entry in `state`; raise `TimeoutError` if the engine does not answer in time."""
        return self._call(self._inspection.workers, patience_s)

    def memory(self) -> MemoryAccount:
        """Return the uses of memory; see `Runtime.memory`."""
        # The calling thread measures: without /proc each process takes a while. Threads own no memory besides
        # their process's.
        workers = {number: handle.pid for number, handle in list(self._workers.items()) if handle.is_process}
        processes = measure_processes(self.pid, workers)
        return self._call(partial(self._inspection.memory, processes))

    def measurements(self) -> list[ChunkMeasurements]:
        """Return the measurements of the present computations and of the last finished one."""
        return self._call(self._inspection.measurements)

    def in_hand_of(self, number: int, patience_s: float | None = None) -> list[int]:
        """Return the chunks of a graph in hand; raise `TimeoutError` if the engine does not answer in time."""
        return self._call(lambda: self._inspection.in_hand_of(number), patience_s)

    def cancel_graph(self, number: int, patience_s: float | None = None) -> bool:
        """Cancel a graph by its number; return False if it is done or unknown.

        Raises
        ------
        TimeoutError
            The engine's thread did not answer in time. It still cancels the graph later, unless the graph is done.
        """

        def cancel() -> bool:
            run = self._runs.get(number)
            # The client may be reading the results of a graph that is done.
            if run is None or self._machine.is_done(number):
                return False
            run.inbox.put(client_messages.Stopped(Cancelled(number)))
            self._handle(GraphCancelled(number))
            return True

        return self._answer(self._ask(cancel), patience_s)

    def _call(self, function: Callable[[], Answer], patience_s: float | None = None) -> Answer:
        """Run a function in the engine's thread and return its result; raise `TimeoutError` after `patience_s`."""
        if threading.current_thread() is self._thread:
            return function()
        if any(engine._thread is threading.current_thread() for engine in _engines):
            raise RuntimeError("engines do not wait for each other")
        if patience_s is not None and self._late is not None and not self._late.done():
            # While an earlier question is unanswered, another one would wait as long.
            raise TimeoutError("the engine has no time")
        return self._answer(self._ask(function), patience_s)

    def _ask(self, function: Callable[[], Answer]) -> Future[Answer]:
        """Queue a function for the engine's thread, and return the future of its result."""
        answer: Future[Answer] = Future()

        def command() -> None:
            try:
                answer.set_result(function())
            except BaseException as error:
                # The function changes nothing before it is sure to succeed, so the error concerns the caller only.
                answer.set_exception(error)

        self._call_soon(command)
        return answer

    def _answer(self, answer: Future[Answer], patience_s: float | None) -> Answer:
        while True:
            try:
                return answer.result(timeout=_ANSWER_S if patience_s is None else patience_s)
            except TimeoutError:
                if not self.alive:
                    raise self.why_stopped() from None
                if patience_s is not None:
                    # An observer has an earlier answer, and need not wait while the engine receives a large graph.
                    self._late = answer
                    raise

    def close(self) -> None:
        """End the workers and release everything. Running computations raise `EngineStopped`."""
        if self.pid != os.getpid():
            return
        self._closing = True
        if not self._ended.is_set():
            with contextlib.suppress(Exception):
                # The engine may be ending by itself.
                self._call_soon(lambda: None)
            self._ended.wait()
            self._thread.join()

    def _call_soon(self, command: Callable[[], None]) -> None:
        if self._ended.is_set():
            raise self.why_stopped()
        with self._descriptors_lock:
            if self._released:
                raise self.why_stopped()
            self._commands.append(command)
            with contextlib.suppress(BlockingIOError, OSError):
                # A full pipe wakes the thread as well.
                os.write(self._wake_writer, b"\0")

    # -- engine thread ----------------------------------------------------------------------------------------

    def _main(self) -> None:
        reason: BaseException = EngineStopped()
        process_role.enter_engine()
        try:
            if self._capacity_bytes < self.settings.memory_limit:
                self._offer_disk()
            if not self._startup.is_wanted:
                for number in range(self.settings.num_workers):
                    self._start_process(number)
            self._spill_writer.clear_abandoned()
            while not self._closing:
                self._run_once()
        except BaseException as error:
            if not isinstance(error, EngineStartFailed):
                logger.exception("the scheduler of dask_mars has failed")
            reason = error
        finally:
            self._stopped = reason
            self._closing = True
            self._shut_down()
            self._registry.note_gone()
            for run in list(self._runs.values()):
                run.inbox.put(client_messages.Stopped(reason))
            self._runs.clear()
            for reservation in list(self._registry.reservations.values()):
                if reservation.answer is not None:
                    reservation.answer(reason if isinstance(reason, Exception) else EngineStopped())
            self._ended.set()

    def _run_once(self) -> None:
        """Wait for the next event and handle it."""
        ready = self._selector.select(self._timeout_s())
        woken = False
        for key, mask in ready:
            if key.data is None:
                woken = True
                with contextlib.suppress(BlockingIOError):
                    while os.read(self._wake_reader, 4096):
                        pass
            else:
                handle: WorkerHandle = key.data
                if self._workers.get(handle.number) is not handle and not self._is_loading(handle):
                    continue
                if key.fileobj is handle.exit_descriptor or mask & selectors.EVENT_READ:
                    self._read(handle, ended=key.fileobj is handle.exit_descriptor)
        # References that are unknown after the commands queued before them were never persisted.
        gone = len(self._gone)
        while self._commands:
            self._commands.popleft()()
        if gone:
            self._release_persisted([self._gone.popleft() for _ in range(gone)])
        now = time.monotonic()
        self._see_to_workers(now)
        if woken:
            self._see_to_quotas()
        self._see_to_renewal(now)
        due = self._machine.next_due_s()
        if due is not None and due <= now:
            self._handle(TimePassed())
        if not ready and self._runs:
            self._end_stalled()
        if self._runs and now >= self._memory_watch.next_s:
            self._look_at_memory(now)
        for handle in self._workers.values():
            handle.flush_due_frees()
            self._write(handle)
        # After the messages: an interrupted worker reads its recalls before it continues.
        self._cancellation.enforce(now)
        self._end_stuck(now)
        self._give_back(now)

    def _release_persisted(self, gone: list[PersistedWeakRef]) -> None:
        known = self._registry.persisted
        if released := [id for reference in gone if (id := (reference.graph, reference.chunk)) in known]:
            self._handle(ObjectsReleased(released))

    def _look_at_memory(self, now: float) -> None:
        """Measure the processes' memory and keep it within the limit."""
        watch = self._memory_watch
        is_due = now - self._watched_s >= _WATCH_S
        watch.look(self.worker_pids(), self._in_hands_of, self._asked_bytes, with_libraries=is_due)
        self._registry.note_in_use(watch.used_bytes)
        if is_due:
            self._notify(ProcessesMeasured(watch.used_bytes))
        if is_due or watch.is_short:
            self._watched_s = now
            self._adjust_limits()
        growths, over_share = watch.growths(), watch.over_share() if watch.is_short else []
        if growths or over_share != self._machine.over_share:
            self._handle(PrivateMeasured(growths, over_share))
        elif watch.is_short and self._machine.memory.missing_bytes(0):
            # Stored objects have to go to disk.
            self._handle(TimePassed())
        may_shrink = bool(self._machine.memory.spilling_bytes) or any(
            worker.running is not None and worker.paused_s is None and not self._machine.is_growing(number)
            for number, worker in watch.workers.items()
        )
        orders = watch.decide(may_shrink, now)
        for number in orders.pause:
            watch.workers[number].paused_s = now
            self._process(number).pause()
        for number in orders.resume:
            watch.workers[number].paused_s = None
            self._process(number).resume()
        for number in orders.end:
            # An idle worker may have received a chunk since the measurement, which does not count that chunk.
            if watch.workers[number].running is not None or not self._machine.in_hand(number):
                self._end_over_limit(number)

    def _in_hands_of(self, number: int) -> tuple[int, int] | None:
        """Return graph and chunk that a worker computes or will begin next."""
        running = self._inspection.running(number)
        if running is None:
            running = next(iter(self._machine.in_hand(number)), None)
        return running

    def _asked_bytes(self, number: int) -> int:
        """Return the bytes of private memory that a worker was granted for its present chunk."""
        # Requests between operands are not counted.
        return 0 if self._inspection.running(number) is None else self._control.private_growth_bytes(number)

    def _end_over_limit(self, number: int) -> None:
        """End a worker that has exceeded its memory."""
        watch, handle = self._memory_watch, self._process(number)
        worker_bytes = watch.workers[number].private_bytes
        logger.log(
            logging.INFO if self._in_hands_of(number) is None else logging.WARNING,
            "worker %d is ended: it has taken %d bytes for itself, and all processes %d of %d",
            number,
            worker_bytes,
            watch.used_bytes,
            self.settings.memory_limit,
        )
        others_bytes, store_bytes = watch.private_bytes - worker_bytes, arena_bytes(self._arena_files)
        handle.kill()
        handle.process.wait()
        # The reports that it has sent still count.
        facts = worker_bytes, self.settings.memory_limit, others_bytes, store_bytes
        self._read(handle, ended=True, over_limit=facts)

    def _renew_workers(self, is_strict: bool) -> None:
        """Ask workers to give back memory left over from earlier chunks, and allow them a moment."""
        self._measure_memory()
        watch = self._memory_watch
        # Memory that workers keep is warm for the next chunk, so they give it back only when it is in the way.
        if (is_strict or watch.grown(is_strict)) and watch.may_shrink(self._machine.growing()):
            self._renewal = (time.monotonic() + _RENEWAL_S, is_strict)
            for handle in self._workers.values():
                handle.send(Trim())
        else:
            self._handle(WorkersRenewed())

    def _see_to_renewal(self, now: float) -> None:
        """Replace idle workers that have not given their memory back in time."""
        if self._renewal is None:
            return
        due_s, is_strict = self._renewal
        self._measure_memory()
        if now < due_s and self._memory_watch.may_shrink(self._machine.growing()):
            return
        self._renewal = None
        if grown := self._memory_watch.grown(is_strict):
            for number in grown:
                self._end_over_limit(number)
            self._measure_memory()
        self._handle(WorkersRenewed())

    def _measure_memory(self, asked_bytes: int = 0) -> None:
        """Update the limits to the processes' present memory, before a decision that takes much."""
        self._memory_watch.look(self.worker_pids(), self._in_hands_of, self._asked_bytes)
        self._adjust_limits(asked_bytes)

    def _adjust_limits(self, asked_bytes: int = 0) -> None:
        """Adjust the store's limit to the processes' private memory; when memory is short, free unused pages."""
        settings, watch = self.settings, self._memory_watch
        # Reserved growth is not counted a second time when the worker takes it.
        expected = sum(
            [
                min(worker.growth_bytes, worker.asked_bytes + self._machine.expected_private_bytes(number))
                for number, worker in watch.workers.items()
            ]
        )
        private = watch.private_bytes
        held = sum([self._control.held_bytes(number) for number in self._workers])
        room = settings.memory_limit - private + expected - held - self._slack_bytes
        # Where the user's process takes most of the limit, the minimum shrinks, too.
        most_least = max(watch.room_bytes // 2, _LEAST_STORE_BYTES)
        least = max(int(settings.store_limit * _LEAST_STORE), _LEAST_STORE_BYTES)
        self._limit_bytes = max(min(settings.store_limit, room), min(least, most_least, settings.store_limit))
        # This may exceed the arenas: results that do not fit there are private memory or go to disk.
        least = max(min(int(settings.memory_limit * _LEAST_STORE), most_least), LEAST_SHARE_BYTES)
        self._hard_limit_bytes = max(room, self._limit_bytes, least)
        wanted = self._machine.memory.awaited_bytes + asked_bytes
        is_eager = watch.used_bytes + wanted > _PRESSURE * settings.memory_limit
        self._registry.is_short = is_eager
        for number in self._workers:
            self._control.set_eager(number, is_eager)
        now = time.monotonic()
        if is_eager and (asked_bytes or now - self._trimmed_s >= _WATCH_S):
            self._trimmed_s = now
            self.store.trim()
            for handle in self._workers.values():
                handle.send(Trim())

    def _timeout_s(self) -> float | None:
        now_s = time.monotonic()
        idle_s = self._idle.next_s(self.store.is_trimmed, bool(self._workers))
        times = [self._cancellation.next_s(), self._starts.next_s(), idle_s, self._ending.next_s(now_s)]
        if self._runs:
            if self._has_threads() and not self._startup.loading:
                times.append(self._startup.due_s(self._runs.values(), now_s))
            times += [self._machine.next_due_s(), self._memory_watch.next_s, now_s + _LIVENESS_S]
        if self._renewal is not None:
            times.append(now_s + _RENEWAL_LOOK_S)
        if self._registry.persisted:
            times.append(now_s + (_PERSISTED_IDLE_S if self._idle.is_trim_due(now_s) else _PERSISTED_S))
        next_s = min([due_s for due_s in times if due_s is not None], default=None)
        return None if next_s is None else max(next_s - now_s, 0.0)

    def _end_stalled(self) -> None:
        """Fail computations that would wait for ever."""
        if self._startup.loading or self._ending or self._renewal is not None:
            # New workers or free memory will come.
            return
        for number in self._machine.stalled():
            self._runs[number].inbox.put(client_messages.Stopped(Stalled(self._inspection.explain())))
            self._handle(GraphCancelled(number))

    def _write(self, handle: WorkerHandle) -> None:
        events = selectors.EVENT_READ
        if handle.write():
            events |= selectors.EVENT_WRITE
        if self._selector.get_key(handle.socket).events != events:
            self._selector.modify(handle.socket, events, handle)

    def _handle(self, event: Event) -> None:
        """Feed an event to the machine and execute its instructions, and those of the events that they cause."""
        self._events.append(event)
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._events:
                now = time.monotonic()
                event = self._events[0]
                if type(event) is ChunksFinished:
                    self._startup.note_finished(self._runs.get(event.graph), len(event.chunks))
                    if event.on_disk:
                        # The worker has freed the private memory that was in the way.
                        self._measure_memory()
                machine = self._machine
                stored = self._blocks.stored_bytes
                known = machine.memory
                if (stored, self._limit_bytes, self._hard_limit_bytes) != (
                    known.stored_bytes,
                    known.limit_bytes,
                    known.hard_limit_bytes,
                ):
                    self._decide(MemoryMeasured(stored, self._limit_bytes, self._hard_limit_bytes), now)
                self._events.popleft()
                if listeners.active:
                    listeners.notify(self.view, event)
                for instruction in self._decide(event, now):
                    self._instructions.carry_out(instruction)
                if machine.blocked and not self._events and self._blocks.stored_bytes < stored:
                    # The bytes just freed may admit a waiting chunk.
                    self._events.append(TimePassed())
        finally:
            self._pumping = False
            if self._recorder is not None:
                self._recorder.write()

    def _decide(self, event: Event, now_s: float) -> list[Instruction]:
        instructions = self._machine.handle(event, now_s)
        if self._recorder is not None:
            self._recorder.note(now_s, event, instructions)
        return instructions

    def _notify(self, event: ListenerEvent) -> None:
        if listeners.active:
            listeners.notify(self.view, event)

    # -- quotas -----------------------------------------------------------------------------------------------

    def _see_to_quotas(self) -> None:
        """Answer workers that ask for more memory."""
        for number, asked_bytes in self._control.asking():
            handle = self._workers.get(number)
            if handle is None or (asked_bytes == handle.asked_bytes and self._machine.is_growing(number)):
                continue
            running = self._inspection.running(number)
            if running is None:
                # The worker runs no chunk, so nothing counts this memory.
                self._control.grant(number, asked_bytes)
                continue
            handle.asked_bytes = asked_bytes
            self._measure_memory(asked_bytes)
            self._handle(QuotaRequested(number, *running, asked_bytes))
            if handle.asked_bytes and not self._machine.is_growing(number):
                # No later event will answer this request.
                self._grant_quota(number, asked_bytes)

    def _grant_quota(self, worker: int, growth_bytes: int) -> None:
        self._control.grant(worker, growth_bytes)
        handle = self._workers.get(worker)
        if handle is not None and growth_bytes >= handle.asked_bytes:
            handle.asked_bytes = 0

    def _refuse_quota(self, worker: int, is_postponed: bool) -> None:
        asked_bytes = self._workers[worker].asked_bytes
        if self._memory_watch.is_hopeless and asked_bytes <= LEAST_SHARE_BYTES:
            self._grant_quota(worker, asked_bytes)
            return
        memory = self._machine.memory
        others_bytes = memory.reserved_bytes - memory.reserved_by_worker.get(worker, 0)
        if self._control.step(worker) == "seal":
            # The result exists, and can go to disk as it is.
            self._offer_disk()
        private_bytes = self._memory_watch.private_bytes
        figures = QuotaFigures(self.settings.memory_limit, memory.stored_bytes, others_bytes, private_bytes)
        self._workers[worker].asked_bytes = 0
        self._control.refuse(worker, POSTPONED if is_postponed else REFUSED, figures)

    def _offer_disk(self) -> None:
        """Let workers write results to disk if memory has no room; without a disk these fail."""
        with contextlib.suppress(SpillError):
            self._control.spill_directory = self._spill_writer.make_directory()

    # -- workers ----------------------------------------------------------------------------------------------

    def _process(self, number: int) -> ProcessHandle:
        handle = self._workers[number]
        assert isinstance(handle, ProcessHandle)
        return handle

    def _is_loading(self, handle: WorkerHandle) -> bool:
        return self._startup.loading.get(handle.number) is handle

    def _start_process(self, number: int) -> None:
        """Start a worker process and queue work for it: the socket buffers messages until it is up."""
        self._put_to_work(self._launch(number))

    def _launch(self, number: int) -> ProcessHandle:
        """Launch a worker process, which imports modules and then waits for its start message."""
        inherited = (self._locks_file, self._wake_writer, *self._arena_files)
        self._control.clear_progress(number)
        try:
            modules = sorted({module for run in self._runs.values() for module in run.modules})
            handle = ProcessHandle(number, self._control_file, inherited, modules)
        except OSError as error:
            raise WorkerStartFailed(1, f"could not be run ({error})") from error
        self._listen_to(handle)
        self._starts.begin(number, 0, time.monotonic())
        return handle

    def _listen_to(self, handle: WorkerHandle) -> None:
        self._selector.register(handle.socket, selectors.EVENT_READ, handle)
        if handle.exit_descriptor is not None:
            self._selector.register(handle.exit_descriptor, selectors.EVENT_READ, handle)

    def _put_to_work(self, handle: ProcessHandle) -> None:
        """Send a worker process its start message, and let the machine give it work."""
        self._control.clear(handle.number)
        handle.start(self._start_message(handle.number))
        self._starts.begin(handle.number, self._control.progress(handle.number), time.monotonic())
        self._workers[handle.number] = handle
        self.view.labels[handle.number] = handle.label
        # The process waits for this message before it does anything else.
        self._write(handle)
        self._handle(WorkerStarted(handle.number))

    def _start_thread(self, number: int) -> None:
        """Let a thread of this process compute until a worker process replaces it."""
        self._control.clear(number)
        start = self._start_message(number)
        serve = partial(
            worker_thread.serve,
            start=start,
            arenas=self.store.arenas,
            page=self._control,
            lent_array=lambda graph, chunk: self._runs[graph].values[chunk],
            variables_of=lambda graph: self._runs[graph].variables,
        )
        handle = self._workers[number] = ThreadHandle(number, serve)
        self.view.labels[number] = handle.label
        self._listen_to(handle)
        self._is_up = True
        self._handle(WorkerStarted(number, is_thread=True))

    def _start_message(self, number: int) -> Start:
        return Start(
            number=number,
            arguments=list(sys.argv),
            main=main_origin(),
            arenas=self._arena_files,
            capacity_bytes=self._capacity_bytes,
            memory_limit=self.settings.memory_limit,
            live=self._blocks.live(number),
            control=self._control_file,
            control_bytes=self._control_bytes,
            locks=self._locks_file,
            wake=self._wake_writer,
            inline_bytes=self.settings.inline_bytes,
            arena_threshold_bytes=self.settings.arena_threshold_bytes,
            idle_trim_s=self.settings.idle_trim_s,
        )

    def _request_recall(self, handle: WorkerHandle) -> None:
        if handle.ready:
            self._control.request_recall(handle.number)
            handle.interrupt()

    def _read(self, handle: WorkerHandle, ended: bool, over_limit: _OverLimit | None = None) -> None:
        try:
            received, goes_on = handle.read()
            was_ready = handle.ready
            for message in received:
                self._receiver.take(handle, message)
                if not was_ready and handle.ready and handle.is_process:
                    was_ready = True
                    self._starts.came_up()
                    self._memory_watch.add(handle.number, handle.pid)
                    self._check_memory_limit(handle)
        except (ProtocolError, UnreadableStream) as error:
            # As text: a stored log record with the exception's frames would keep the engine alive.
            logger.warning("worker %d is replaced for what it has reported: %s", handle.number, str(error))
            self._lose(handle)
            return
        if handle.is_process and (handle.ready or (handle.is_loaded and not handle.is_started)):
            # The process waits for the engine.
            self._starts.end(handle.number)
        if ended or not goes_on:
            self._lose(handle, over_limit)

    def _check_memory_limit(self, handle: WorkerHandle) -> None:
        """Raise if processes take all memory before they have computed anything, as the first worker shows.

        The check precedes the worker's first result, so that either all computations fail or none. The user's own
        data do not count: they may fill most of the machine's memory.
        """
        if self._is_up:
            return
        settings = self.settings
        error = MemoryLimitTooLow(
            settings.memory_limit,
            settings.num_workers,
            estimate_memory([handle.pid]),
            library_bytes([handle.pid]),
        )
        if error.least_bytes > settings.memory_limit:
            raise error
        self._is_up = True

    def _lose(self, handle: WorkerHandle, over_limit: _OverLimit | None = None) -> None:
        """Replace a worker that has ended, perhaps because it exceeded its memory."""
        if isinstance(handle, ThreadHandle):
            # Its arena stays reserved until the thread has really ended.
            self._retire_thread(handle)
            return
        number = handle.number
        is_loading = self._is_loading(handle)
        if self._workers.get(number) is not handle and not is_loading:
            return
        self._leave(handle)
        self._starts.end(number)
        code = handle.close()
        self._registry.note_gone(handle)
        if not handle.ready:
            self._note_start_failure(handle, code)
        if is_loading:
            return
        running = self._inspection.running(number) if over_limit is None else self._in_hands_of(number)
        self._record_death(number, code, running, over_limit)
        for block in handle.retained:
            self._blocks.decref(block)
        self._registry.trim_arena(number)
        self._handle(WorkerLost(number, running, handle.ready, over_limit is not None, has_crashed(code)))
        self._start_process(number)

    def _end_stuck(self, now: float) -> None:
        """End processes that make no progress while they start."""
        for number in self._starts.stuck(self._control.progress, now):
            handle = self._startup.loading.get(number) or self._process(number)
            module = self._control.importing(number)
            handle.stuck_in = f"importing {module}" if module else "starting Python"
            timeout_s = self.settings.start_timeout_s
            text = "worker %d is replaced: it made no progress for %g s (dask-mars.start-timeout) while %s"
            logger.warning(text, number, timeout_s, handle.stuck_in)
            handle.kill()

    def _note_start_failure(self, handle: WorkerHandle, code: int) -> None:
        """Record that a process ended before it was up; raise if no worker computes and none will."""
        attempts = self._starts.failed(handle.number)
        stuck_in = handle.stuck_in if isinstance(handle, ProcessHandle) else None
        error = handle.start_error or (
            WorkerStartFailed(attempts, describe_exit(code))
            if stuck_in is None
            else WorkerStartTimeout(attempts, self.settings.start_timeout_s, stuck_in)
        )
        threads_suffice = self._startup.may_use_threads(self._runs.values())
        are_up = any(worker.ready and (worker.is_process or threads_suffice) for worker in self._workers.values())
        if self._starts.is_hopeless(handle.number):
            if not are_up:
                raise error
            logger.warning("worker %d: %s", handle.number, error)

    def _leave(self, handle: WorkerHandle) -> None:
        """Unregister a worker."""
        if self._is_loading(handle):
            del self._startup.loading[handle.number]
        else:
            del self._workers[handle.number]
            self._memory_watch.remove(handle.number)
        self._selector.unregister(handle.socket)
        if handle.exit_descriptor is not None:
            self._selector.unregister(handle.exit_descriptor)

    def _record_death(
        self, number: int, code: int, running: tuple[int, int] | None, over_limit: _OverLimit | None
    ) -> None:
        """Record the errors of the chunks that may fail with a worker's death."""

        def death_of(run: GraphRun, chunk: int, attempts: int, repeatable: bool) -> Exception:
            key = repr(run.graph.keys[chunk])
            if over_limit is not None:
                return WorkerOverLimit(key, *over_limit, repeatable)
            return WorkerDied(key, code, attempts, repeatable)

        for graph, chunk in self._machine.in_hand(number):
            owner = self._runs[graph]
            if not owner.plan.is_repeatable(chunk):
                owner.errors[chunk] = death_of(owner, chunk, 1, repeatable=False)
        if running is not None:
            graph, chunk = running
            run = self._runs[graph]
            if logger.isEnabledFor(logging.INFO):
                logger.info("worker %d %s while it ran %s", number, describe_exit(code), run.name_of(chunk))
            if run.plan.is_repeatable(chunk):
                attempts = self._machine.parameters.allowed_losses(has_crashed(code)) + 1
                run.errors[chunk] = death_of(run, chunk, attempts, repeatable=True)

    # -- idle engines -----------------------------------------------------------------------------------------

    def _give_back(self, now_s: float) -> None:
        """Return unused resources: free memory after some time without work, the workers after more."""
        has_work = bool(self._runs or self._registry.reservations)
        # A worker that is starting may never be ready, and the client has to hear of that.
        self._idle.note(has_work or not all(handle.ready for handle in self._workers.values()), now_s)
        if self._idle.is_trim_due(now_s) and not self.store.is_trimmed:
            self.store.trim()
        if self._idle.is_end_due(now_s):
            for handle in list(self._workers.values()):
                self._leave(handle)
                self._ending.add(handle)
                self._registry.note_gone(handle)
                self._handle(WorkerRetired(handle.number))
            self._startup.restart()

    def _see_to_workers(self, now_s: float) -> None:
        """Release the blocks of ended workers; if there is work, start or replace workers."""
        for handle in self._ending.collect(now_s):
            if isinstance(handle, ThreadHandle):
                # Objects in this process may refer to these blocks for the rest of its life.
                for offset, size_bytes in handle.pinned:
                    self._blocks.incref((handle.number, offset, size_bytes))
                # For the same reason blocks that the thread has retained stay referenced.
            else:
                for block in handle.retained:
                    self._blocks.decref(block)
            self._registry.trim_arena(handle.number)
        startup, runs = self._startup, self._runs.values()
        startup.note(runs, now_s)
        if not (self._runs or startup.loading):
            return
        if len(self._workers) < self.settings.num_workers:
            self._start_missing()
        threads = [handle for handle in self._workers.values() if isinstance(handle, ThreadHandle)]
        if threads:
            startup.note_lost(startup.lost_time.look(threads, now_s))
            startup.note_lent(self._registry.sender.lent_bytes)
            if (count := startup.wanted_processes(runs, self._registry.is_short, now_s)) or startup.loading:
                joins = self._registry.is_short or startup.is_worth_joining(runs, now_s)
                self._replace_threads(count, joins)

    def _has_threads(self) -> bool:
        return any(not handle.is_process for handle in list(self._workers.values()))

    def _start_missing(self) -> None:
        """Start a worker for each vacant number."""
        for number in range(self.settings.num_workers):
            if number in self._workers or number in self._ending:
                continue
            loading = self._startup.loading.pop(number, None)
            if loading is not None:
                self._put_to_work(loading)
            elif self._startup.may_use_threads(self._runs.values()):
                self._start_thread(number)
            else:
                self._start_process(number)

    def _replace_threads(self, count: int, joins: bool) -> None:
        """Replace threads by processes that have imported their modules, up to `count` processes in all.

        With `joins` processes that are ready take part in running computations.
        """
        there = sum([handle.is_process for handle in self._workers.values()])
        missing = count - there - len(self._startup.loading)
        threads_suffice = self._startup.may_use_threads(self._runs.values())
        for handle in self._workers.values():
            if not isinstance(handle, ThreadHandle) or handle.is_leaving:
                continue
            loading = self._startup.loading.get(handle.number)
            if loading is None:
                # Where threads suffice, nothing waits for processes that do not come up.
                if missing > 0 and not (threads_suffice and self._starts.is_hopeless(handle.number)):
                    missing -= 1
                    loading = self._startup.loading[handle.number] = self._launch(handle.number)
            elif loading.is_loaded and joins:
                handle.is_leaving = True
                handle.send(Exit())

    def _retire_thread(self, handle: ThreadHandle) -> None:
        """Unregister a thread that computes no more."""
        if self._workers.get(handle.number) is not handle:
            return
        if not handle.is_leaving:
            # The thread has failed, and so would the next one.
            self._startup.is_wanted = False
        self._leave(handle)
        handle.close_descriptors()
        self._registry.note_gone(handle)
        self._ending.await_end(handle)
        self._handle(WorkerRetired(handle.number))

    # -- shutdown ---------------------------------------------------------------------------------------------

    def _shut_down(self) -> None:
        """Ask the workers to exit, end those that do not, and close everything."""
        for loading in self._startup.loading.values():
            loading.close()
        handles = [*self._workers.values(), *self._ending]
        for handle in handles:
            handle.send(Exit())
            with contextlib.suppress(OSError):
                handle.socket.setblocking(True)
                handle.socket.settimeout(0.5)
                handle.write()
        # This thread is the workers' parent: if it ended first, the system would kill them.
        deadline = time.monotonic() + _EXIT_S
        for handle in handles:
            while not handle.has_ended() and time.monotonic() < deadline:
                # A worker that is not up yet has nothing to finish either.
                if self._busy(handle) or not handle.ready:
                    break
                with contextlib.suppress(OSError, UnreadableStream):
                    handle.read()
                time.sleep(0.002)
            handle.close()
        self._spill_writer.close()
        self._close_descriptors()

    def _busy(self, handle: WorkerHandle) -> bool:
        """Return whether a worker is in the middle of a task, and so would not read EXIT."""
        return self._control.running(handle.number) is not None

    def _close_descriptors(self) -> None:
        with self._descriptors_lock:
            if self._released:
                return
            self._released = True
        self._selector.close()
        if self._recorder is not None:
            self._recorder.close()
        descriptors: Iterable[int] = (
            *self._arena_files,
            self._control_file,
            self._wake_reader,
            self._wake_writer,
        )
        for descriptor in descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        for view in self.store.arenas:
            view.close()
        self._control.detach()

    def abandon(self) -> None:
        """In a process forked from the user's, release what belongs to the parent."""
        self._closing = True
        # A thread that does not exist here may have held the lock.
        self._descriptors_lock = threading.Lock()
        for handle in [*self._workers.values(), *self._ending, *self._startup.loading.values()]:
            with contextlib.suppress(OSError):
                handle.close_descriptors()
            if isinstance(handle, ProcessHandle):
                # The worker is not a child of this process.
                handle.process.returncode = 0
        with contextlib.suppress(OSError):
            self._close_descriptors()


def _slack_bytes(settings: Settings) -> int:
    """Return by how much each worker's memory may grow without a request."""
    return min(_MOST_SLACK_BYTES, settings.memory_limit // (_SLACK_SHARE * settings.num_workers))


_locks_guard = threading.Lock()


def _locks_file() -> int:
    """Return the descriptor of the file whose bytes serve as locks.

    All engines of a process share the file, so that one lock is the same in all. It stays open: closing a
    descriptor of it would release every lock of the process.
    """
    with _locks_guard:
        if InterprocessLock.descriptor is None:
            InterprocessLock.descriptor = arenas.create("dask-mars-locks", 4096)
        return InterprocessLock.descriptor


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _abandon_engines() -> None:
    # Python forks gevent's processes and runs its hooks.
    if is_launching():
        return
    for engine in list(_engines):
        engine.abandon()


os.register_at_fork(after_in_child=_abandon_engines)
