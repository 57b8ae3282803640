"""A worker process: reads operands from its socket, computes them, seals the results, reports in batches.

One thread does everything. Between operands it polls the socket only when the last poll is old enough, so that
system calls do not slow small operands.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from contextvars import Context
from itertools import repeat
from types import FrameType
from typing import Any, ClassVar

import dask
import numpy as np

from dask_mars.errors import ExecutionInterrupted, QuotaExceeded, SpillError, StoreFull
from dask_mars.graph.chunks import Operand
from dask_mars.graph.functions import FunctionRegistry
from dask_mars.graph.ids import NO_SUBTASK, SUBTASK_ID_BYTES, write_subtask_id
from dask_mars.protocol import channel, main_module, messages, tracebacks
from dask_mars.protocol.columns import (
    unpack_chunks,
    unpack_numbers,
    unpack_operand,
)
from dask_mars.protocol.context import TaskContext
from dask_mars.protocol.control import (
    COMPUTE,
    LOAD,
    NO_CHUNK,
    POSTPONED,
    PREPARE,
    SEAL,
    STEP_AT,
    STOPPED,
    ControlPage,
    granted_bytes,
    quota_figures,
    recall_attempts,
    to_stop,
)
from dask_mars.protocol.failures import pack_error
from dask_mars.protocol.object_ref import Block, blocks_of, is_spilled, is_stored
from dask_mars.protocol.pickling import dumps, loads
from dask_mars.store.arena import Bytes
from dask_mars.store.codec import lz4_codec
from dask_mars.store.reader import still_used
from dask_mars.store.spill_files import SpillFiles
from dask_mars.store.store import Store
from dask_mars.worker import forked
from dask_mars.worker.fast_operands import made_fast
from dask_mars.worker.interrupts import SIGNAL, is_in_task, may_interrupt
from dask_mars.worker.known_graph import KnownGraph, is_source
from dask_mars.worker.outbox import Outbox, OutputStream
from dask_mars.worker.reruns import is_about_file_lock, is_about_main, is_about_memory, is_about_writing

#: Interval at which an idle worker checks whether inputs of finished tasks are still in use, in seconds; checks
#: before it collects garbage; and maximum interval of the exponential back-off after that, in seconds.
_RETAINED_LOOK_S, _LOOKS_BEFORE_COLLECTION, _LONGEST_LOOK_S = 0.05, 5, 1.0


class _ReturnChunk(BaseException):
    """A chunk cannot be computed here; the argument is the reason for the engine."""


class WorkerProcess:
    """The loop of one worker process."""

    def __init__(
        self,
        connection: socket.socket,
        store: Store,
        part: memoryview,
        idle_trim_s: float,
        overflow: Callable[[], SpillFiles | None] = lambda: None,
    ) -> None:
        self._connection = connection
        self._store = store
        self._part = part
        self._note, self._step = part[:SUBTASK_ID_BYTES], part[STEP_AT:][:1]
        self._idle_trim_s = idle_trim_s
        self._overflow = overflow
        self._reader = channel.FrameReader()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._graphs: dict[int, KnownGraph] = {}
        self._contexts: dict[int, bytes] = {}
        self._context: int | None = None
        self._task_context = TaskContext()
        #: The graph whose loads or tasks may have changed the surroundings since they were last restored; 0 for
        #: none.
        self._graph = 0
        #: Whether the context asks for copies of arrays, which tasks may write into.
        self._writable_inputs = False
        self._mapping = FunctionRegistry()
        #: (graph, context, chunk, operand, inputs, literals) in the order of execution.
        self._queue: deque[tuple[int, int, int, int, tuple[int, ...], tuple[Any, ...]]] = deque()
        self._outbox = Outbox(connection)
        #: Whether a listener asks for the steps of operands; and when the present one had loaded its inputs.
        self._timed = False
        self._loaded_s = 0.0
        self._last_look = 0.0
        self._trimmed = True
        self._running: tuple[int, int] = (-1, -1)
        #: Graph and chunk of the last interruption. A task is interrupted once, so that it can clean up.
        self._interrupted: tuple[int, int] | None = None
        #: Whether an interruption hit a section that must not be interrupted.
        self._postponed = False
        #: Number of recalls answered.
        self._recall_attempts = recall_attempts(part)
        #: Open descriptors when this worker last had no graph.
        self._open_descriptors = 0
        #: Whether this process was forked by a task.
        self._forked = False
        #: Streams for the tasks' output. The end of a task flushes an incomplete line.
        self.streams: tuple[OutputStream, ...] = ()

    #: Maximum time that results wait for others before they are sent, in seconds. A busy worker polls its socket
    #: twice as often.
    flush_s: ClassVar[float] = 0.001

    # -- main loop --------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Work until the engine says EXIT or is gone."""
        outbox = self._outbox
        self._open_descriptors = _open_descriptors()
        outbox.outgoing.append(messages.Ready(os.getpid()))
        clock = time.perf_counter
        while True:
            if self._queue:
                now = clock()
                if now - self._last_look > self.flush_s / 2:
                    self._last_look = now
                    if not self._receive(wait=False):
                        return
                    if not self._queue:
                        continue
                number, context, chunk, operand, inputs, literals = self._queue.popleft()
                if outbox.finished and operand not in self._graphs[number].fast_operands:
                    # The engine may be waiting for these results.
                    outbox.flush(now)
                self._run(number, context, chunk, operand, inputs, literals)
                # A source among the literals would stay open until the next chunk.
                literals = ()
                self._note[:] = NO_SUBTASK
                now = clock()
                if now - outbox.flushed_s > self.flush_s:
                    outbox.flush(now)
            else:
                outbox.flush(clock())
                if self._graph:
                    # Now, while nothing waits for this worker.
                    self._restore_context()
                if not self._wait_for_messages():
                    return

    def _wait_for_messages(self) -> bool:
        """Wait for messages; return False at the end."""
        looks, look_s = 0, _RETAINED_LOOK_S
        trim_due_s = time.perf_counter() + self._idle_trim_s
        while True:
            timeouts_s = [look_s] if self._outbox.retained else []
            if not self._trimmed:
                timeouts_s.append(max(trim_due_s - time.perf_counter(), 0.0))
            # In whole milliseconds, rounded up, so that it does not return early.
            if self._poll.poll(math.ceil(min(timeouts_s) * 1000) if timeouts_s else None):
                return self._receive(wait=True)
            if self._outbox.retained:
                looks += 1
                if looks == _LOOKS_BEFORE_COLLECTION:
                    # Exceptions and their frames form cycles, and an idle process would not collect them.
                    self._collect_garbage()
                elif looks > _LOOKS_BEFORE_COLLECTION:
                    look_s = min(2 * look_s, _LONGEST_LOOK_S)
                self._outbox.check_retained()
                self._outbox.flush(time.perf_counter())
            if not self._trimmed and time.perf_counter() >= trim_due_s:
                # Garbage may hold memory that should go back, and an idle process would not collect it.
                self._collect_garbage()
                self._trim()

    def _receive(self, wait: bool) -> bool:
        data = channel.receive(self._connection, wait)
        if data is None:
            return True
        if not data:
            return False
        for payload in self._reader.feed(data):
            message = messages.for_worker(loads(payload))
            if type(message) is messages.Exit:
                return False
            self._handlers[type(message)](self, message)
        return True

    def _on_free(self, message: messages.Free) -> None:
        graph = self._graphs.get(message.graph)
        if graph is not None:
            for chunk in message.chunks:
                graph.values.pop(chunk, None)
                graph.borrowed.discard(chunk)
                graph.restores.discard(chunk)
            self._trimmed = False

    def _on_moved(self, message: messages.Moved) -> None:
        graph = self._graphs.get(message.graph)
        if graph is not None:
            for chunk, ref in message.refs.items():
                graph.values[chunk] = (None, ref)

    def _on_release(self, message: messages.Release) -> None:
        for offset in message.offsets:
            self._store.release(offset)
        self._trimmed = False

    def _on_trim(self, message: messages.Trim) -> None:
        self._trim()

    def _on_drop(self, message: messages.Drop) -> None:
        self._drop(message.graph)

    def _on_forget(self, message: messages.Forget) -> None:
        self._graphs.pop(message.graph, None)
        self._trimmed = False
        if message.answers:
            if not self._graphs:
                self._close_garbage()
            self._outbox.send_now(messages.Forgotten(message.graph))

    def _on_context(self, message: messages.Context) -> None:
        self._contexts = {message.number: message.payload, **self._contexts}
        while len(self._contexts) > 16:
            self._contexts.popitem()

    def _on_run(self, message: messages.Run) -> None:
        number, context_number, timed, packed_chunks, records, refs, restores, borrowed, operands, paths = message
        if timed != self._timed:
            # Either all chunks of a report have times, or none.
            self._outbox.close_batches()
            self._timed = timed
        graph = self._graphs.get(number)
        if graph is None:
            graph = self._graphs[number] = KnownGraph()
        for chunk, ref in refs.items():
            graph.values.setdefault(chunk, (None, ref))
        graph.restores.update(restores)
        self._borrow(number, graph, borrowed)
        # Operands stay packed until first used, in the context of their graph.
        graph.operands.update(operands)
        for function_id, path in paths.items():
            self._mapping.learn(function_id, path)
        if self._graph != number:
            self._turn_to(number)
        self._enter(context_number)
        chunks = unpack_numbers(packed_chunks)
        # Loading may import for long; the note names the graph for the engine.
        write_subtask_id(self._note, number, 0, NO_CHUNK)
        try:
            columns = unpack_chunks(records, self._loads)
        except BaseException:
            self._outbox.return_chunks(number, list(chunks), "unreadable")
            return
        finally:
            self._note[:] = NO_SUBTASK
        self._queue.extend(zip(repeat(number), repeat(context_number), chunks, *columns, strict=False))

    def _borrow(self, number: int, graph: KnownGraph, chunks: list[int]) -> None:
        """Borrow arrays of the user's process. Only thread workers receive any."""
        assert not chunks

    _handlers: ClassVar[dict[type, Callable[[WorkerProcess, Any], None]]] = {
        messages.Run: _on_run,
        messages.Free: _on_free,
        messages.Moved: _on_moved,
        messages.Release: _on_release,
        messages.Trim: _on_trim,
        messages.Drop: _on_drop,
        messages.Forget: _on_forget,
        messages.Context: _on_context,
    }

    def _loads(self, payload_and_parts: tuple[bytes, tuple[Block, ...]]) -> Any:
        payload, parts = payload_and_parts
        views = []
        for arena, offset, size in parts:
            base = self._store.arenas[arena].view(offset, size)
            base.flags.writeable = False
            views.append(base.data)
        return loads(payload, buffers=views)

    def _drop(self, number: int) -> None:
        dropped = [chunk for owner, _, chunk, *_ in self._queue if owner == number]
        if dropped:
            others = zip(self._queue, [owner != number for owner, *_ in self._queue], strict=True)
            self._queue = deque(record for record, stays in others if stays)
            self._outbox.return_chunks(number, dropped, "dropped")

    # -- one operand ------------------------------------------------------------------------------------------

    def _run(
        self,
        number: int,
        context_number: int,
        chunk: int,
        operand_number: int,
        inputs: tuple[int, ...],
        literals: tuple[Any, ...],
    ) -> None:
        graph = self._graphs[number]
        operand = graph.operands[operand_number]
        write_subtask_id(self._note, number, 0, chunk)
        if self._graph != number:
            self._turn_to(number)
        if self._context != context_number:
            self._enter(context_number)
        if type(operand) is tuple:
            self._step[0] = PREPARE
            try:
                operand = unpack_operand(operand, self._mapping, self._loads)
            except BaseException:
                self._outbox.return_chunks(number, [chunk], "unreadable")
                return
            operand = graph.operands[operand_number] = made_fast(operand)
        if operand_number in graph.needs_client:
            self._outbox.return_chunks(number, [chunk], "client_only")
            return
        self._running = (number, chunk)
        self._trimmed = False
        owners: list[tuple[Block, Bytes]] = []
        self._store.begin()
        start = time.perf_counter()
        try:
            # Only the list refers to the result, so that sealing can release it.
            results = [self._compute(number, operand_number, inputs, literals, owners)]
        except _ReturnChunk as reason:
            self._outbox.retain(owners)
            self._outbox.return_chunks(number, [chunk], reason.args[0])
            return
        except BaseException as error:
            if self._interrupted == self._running:
                self._give_up(number, chunk, error, owners)
            elif not self._was_refused(number, chunk, error, owners):
                self._failed(number, chunk, error, owners)
            return
        finally:
            for stream in self.streams:
                stream.flush()
            self._running = (-1, -1)
        computed_s = time.perf_counter() if self._timed else 0.0
        peak_bytes = self._store.peak_bytes
        sealed = self._seal(number, graph, chunk, results, owners, start)
        if time.perf_counter() - start < self.flush_s:
            graph.fast_operands.add(operand_number)
        else:
            graph.fast_operands.discard(operand_number)
        if self._timed and sealed:
            self._outbox.batch(number).steps_s.append((start, self._loaded_s, computed_s))
        # A grown peak is reported again, but not for every few bytes.
        if sealed and peak_bytes > 1.1 * graph.peaks.get(operand_number, 0):
            self._outbox.batch(number).peaks[operand_number] = graph.peaks[operand_number] = peak_bytes

    def _compute(
        self,
        number: int,
        operand_number: int,
        inputs: tuple[int, ...],
        literals: tuple[Any, ...],
        owners: list[tuple[Block, Bytes]],
    ) -> Any:
        """Run an operand; if it writes into its inputs, again with copies, or in the user's process."""
        graph = self._graphs[number]
        operand = graph.operands[operand_number]
        assert isinstance(operand, Operand)
        copies = self._writable_inputs or operand_number in graph.needs_copies
        while True:
            try:
                values = self._load_inputs(number, inputs, owners, copies)
            except _ReturnChunk:
                raise
            except BaseException:
                if self._store.refusal[0]:
                    raise
                # The value may be of a class that only the user's process can import.
                raise _ReturnChunk("unreadable") from None
            if self._timed:
                self._loaded_s = time.perf_counter()
            self._store.mark()
            self._step[0] = COMPUTE
            try:
                # As under threads, each task has its own copy of context variables.
                result = self._variables_of(number).copy().run(operand.run, values, literals)
            except BaseException as error:
                if self._forked:
                    forked.exit_process(error)
                is_for_client = is_about_file_lock(error) or is_about_main(error)
                if not is_for_client and not is_about_writing(error):
                    raise
                if is_for_client or copies:
                    # Under threads the task would write into the user's array, or find what only that process has.
                    graph.needs_client.add(operand_number)
                    raise _ReturnChunk("client_only") from None
                tracebacks.forget(error)
            else:
                if self._forked:
                    forked.exit_process(None)
                return result
            # Under threads a task may write into its inputs, so it gets copies of its own.
            copies = True
            graph.needs_copies.add(operand_number)
            values.clear()

    def _load_inputs(
        self,
        number: int,
        inputs: tuple[int, ...],
        owners: list[tuple[Block, Bytes]],
        copies: bool,
    ) -> list[Any]:
        graph, store = self._graphs[number], self._store
        users_arena = len(store.arenas) - 1
        values = []
        if inputs:
            self._step[0] = LOAD
        for source in inputs:
            if source not in graph.values:
                # An earlier chunk should have computed it here.
                raise _ReturnChunk("missing")
            if source in graph.restores:
                self._restore_input(number, source)
            value, ref = graph.values[source]
            if ref is not None:
                blocks = blocks_of(ref)
                if copies and all(arena != users_arena for arena, _, _ in blocks):
                    value = store.load_copy(ref)
                else:
                    value = store.load(ref, owners)
                    if not is_stored(ref) and not is_spilled(ref) and is_source(value):
                        # Keep the source: its last reference may close the file, and opening takes longer than
                        # reading a chunk.
                        graph.values[source] = (value, None)
            elif source in graph.borrowed:
                store.borrow(value)
            values.append(value)
        return values

    def _restore_input(self, number: int, chunk: int) -> None:
        """Put a value from disk into the store; without room, leave it there to be read in place."""
        graph = self._graphs[number]
        graph.restores.remove(chunk)
        _, ref = graph.values[chunk]
        if ref is not None and is_spilled(ref):
            with contextlib.suppress(StoreFull):
                ref = self._store.restore(ref)
                graph.values[chunk] = (None, ref)
                self._outbox.outgoing.append(messages.Restored(number, {chunk: ref}))

    def _seal(
        self,
        number: int,
        graph: KnownGraph,
        chunk: int,
        results: list[Any],
        owners: list[tuple[Block, Bytes]],
        start_s: float,
    ) -> bool:
        """Put a result into the store and report it; return False if that fails."""
        inputs = [block for block, _ in owners]
        self._step[0] = SEAL
        try:
            result = results.pop()
            files = None
            try:
                ref = self._store.seal(result, inputs, in_place=True)
            except StoreFull as error:
                # Disk does not help results larger than an arena, and cancelled results are not needed.
                useless = error.requested_bytes > error.capacity_bytes or self._store.refusal[0] == STOPPED
                files = None if useless else self._overflow()
                if files is None:
                    raise
            if files is not None:
                # After the exception has released the pickle.
                ref = self._store.seal_on_disk(result, inputs, f"{number}-{chunk}", files)
            # Arrays are loaded anew for each task, so that no task sees what another wrote into one.
            if not is_stored(ref) and type(result) is not np.ndarray:
                graph.values[chunk] = (result, None)
                if owners and still_used(owners):
                    graph.values[chunk] = (None, ref)
                del result
            else:
                del result
                ref = self._store.finish(ref, inputs)
                graph.values[chunk] = (None, ref)
            if files is not None:
                # The readers may need the memory that it took here.
                self._trim()
        except (StoreFull, SpillError, MemoryError) as error:
            result = None
            if not self._was_refused(number, chunk, error, owners):
                self._failed(number, chunk, error, owners, final=True)
            return False
        except BaseException:
            # The value cannot be pickled: only the user's process can make and use it.
            result = None
            self._outbox.retain(owners)
            self._outbox.return_chunks(number, [chunk], "client_only")
            return False
        if owners:
            self._outbox.retain(owners)
        batch = self._outbox.batch(number)
        batch.chunks.append(chunk)
        batch.refs.append(ref)
        # Durations include sealing, as the engine estimates the time of the queue from them.
        batch.durations_s.append(time.perf_counter() - start_s)
        return True

    def _failed(
        self,
        number: int,
        chunk: int,
        error: BaseException,
        owners: list[tuple[Block, Bytes]],
        final: bool = False,
    ) -> None:
        traceback = error.__traceback__
        # Frames of the worker do not concern the user: the traceback starts in Operand.run.
        while traceback is not None and traceback.tb_frame.f_globals.get("__name__") == __name__:
            traceback = traceback.tb_next
        record = pack_error(error.with_traceback(traceback))
        # SystemExit and its like ask to leave; a retry would do the same.
        final = final or not isinstance(error, Exception)
        del traceback
        tracebacks.forget(error)
        del error
        # The engine may free the inputs when it hears of the failure.
        self._outbox.retain(owners)
        self._outbox.close_batches()
        self._outbox.outgoing.append(messages.Failed(number, chunk, record, final))

    def _was_refused(
        self, number: int, chunk: int, error: BaseException, owners: list[tuple[Block, Bytes]]
    ) -> bool:
        """Return whether a chunk failed because its memory could not grow, and report it then."""
        reason, growth_bytes = self._store.refusal
        if not reason or not (reason == POSTPONED or is_about_memory(error)):
            return False
        if reason == STOPPED:
            self._give_up(number, chunk, error, owners)
        elif reason == POSTPONED:
            # The frames hold memory that has to be free.
            tracebacks.forget(error, chain=True)
            self._outbox.retain(owners)
            self._outbox.return_chunks(number, [chunk], "postponed")
        else:
            exceeded = QuotaExceeded(growth_bytes, granted_bytes(self._part), *quota_figures(self._part))
            exceeded.__cause__ = error
            self._failed(number, chunk, exceeded.with_traceback(error.__traceback__), owners, final=True)
        return True

    # -- interruption -----------------------------------------------------------------------------------------

    def interrupt(self, signal_number: int, frame: FrameType | None) -> None:
        """Handle the engine's signal.

        Return queued chunks if the engine recalls them. Raise in the running task if its graph is cancelled, or if
        its objects have exceeded the quota.
        """
        if self._recall_attempts != recall_attempts(self._part) and is_in_task(frame, _COMPUTE, (_SEND_NOW,)):
            self._recall_attempts = recall_attempts(self._part)
            self._return_queued()
        is_interruptible = may_interrupt(frame, _COMPUTE, (_SEND_NOW, _RETURN_QUEUED))
        if is_interruptible and self._store.raise_exceeded():
            raise MemoryError
        running = self._running
        if running[0] != to_stop(self._part) or running == self._interrupted:
            return
        if is_interruptible:
            self._interrupted = running
            raise ExecutionInterrupted(running[0])
        self._postponed = True

    def _return_queued(self) -> None:
        waiting: dict[int, list[int]] = {}
        # The next signal may interrupt this loop and take the rest, so each record is popped once.
        with contextlib.suppress(IndexError):
            while True:
                number, _, chunk, *_ = self._queue.popleft()
                waiting.setdefault(number, []).append(chunk)
        for number, chunks in waiting.items():
            self._outbox.send_now(messages.Returned(number, chunks, "dropped"))

    def _raise_postponed(self) -> None:
        """Raise in a task whose interruption hit a section that must not be interrupted."""
        if self._postponed:
            self._postponed = False
            signal.raise_signal(SIGNAL)

    def _give_up(self, number: int, chunk: int, error: BaseException, owners: list[tuple[Block, Bytes]]) -> None:
        """Report an interrupted chunk as dropped."""
        # The frames hold the task's objects.
        tracebacks.forget(error, chain=True)
        self._outbox.retain(owners)
        self._outbox.return_chunks(number, [chunk], "dropped")
        # The task may have been about to restore a setting, so the next one enters its context again.
        self._context = None
        # The engine has sent a message that drops the rest of the graph.
        self._last_look = 0.0

    def leave_engine(self) -> None:
        """In a process forked by a task, release what only the worker may use."""
        self._forked = True
        forked.restore_streams()
        self._connection.close()

    # -- output of tasks ---------------------------------------------------------------------------------------

    def send_output(self, stream: str, text: str) -> None:
        """Send the engine text that a task printed."""
        self._outbox.send_now(messages.Output(self._running[0], stream, text))
        self._raise_postponed()

    def send_warning(self, message: Warning | str, category: Any, filename: str, line: int) -> None:
        """Send the engine a warning of a task."""
        try:
            # As errors: constructors may take other arguments than `args`.
            sent = pack_error(message) if isinstance(message, Warning) else message
            payload = dumps((sent, category, filename, line))
        except Exception:
            payload = dumps((str(message), UserWarning, filename, line))
        self._outbox.send(messages.Warning(self._running[0], payload))

    # -- surroundings -----------------------------------------------------------------------------------------

    def _enter(self, number: int) -> None:
        payload = self._contexts.get(number)
        if self._context != number and payload is not None:
            self._context = number
            self._task_context.enter(payload)
            self._writable_inputs = bool(dask.config.get("dask-mars.writable-inputs", False))

    def _turn_to(self, number: int) -> None:
        """Show a graph's tasks their names of `__main__`."""
        if self._graph:
            self._restore_context()
        self._graph = number
        main_module.show(self._graphs[number].main_names)
        self._tell_failures(number)

    def _restore_context(self) -> None:
        """Restore the surroundings that tasks of the last graph may have changed."""
        self._graph = 0
        main_module.show({})
        self._task_context.restore()

    def _variables_of(self, number: int) -> Context:
        """Return the context variables for tasks of a graph."""
        return self._task_context.variables

    def _tell_failures(self, number: int) -> None:
        """Send warnings about settings that could not be applied, as warnings of a graph."""
        for text in self._task_context.failures:
            self._outbox.send(messages.Warning(number, dumps((text, RuntimeWarning, __file__, 0))))
        self._task_context.failures.clear()

    def _collect_garbage(self) -> None:
        gc.collect()

    def _close_garbage(self) -> None:
        """Close files that only garbage refers to: exceptions and their frames form cycles."""
        if _open_descriptors() > self._open_descriptors:
            self._collect_garbage()
        self._open_descriptors = _open_descriptors()

    def _trim(self) -> None:
        self._trimmed = True
        self._store.trim()
        # Arrow has its own allocator, which keeps the memory of pandas' strings.
        arrow = sys.modules.get("pyarrow")
        if arrow is not None:
            # Its import may have failed half way.
            with contextlib.suppress(Exception):
                arrow.default_memory_pool().release_unused()
        # Only glibc has this function.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def overflow_files(page: ControlPage) -> SpillFiles | None:
    """Return the files for results for which memory has no room, or None without a directory."""
    directory = page.spill_directory
    return None if directory is None else SpillFiles(directory, lz4_codec())


# Code objects by which the signal handler recognises its position.
_COMPUTE = WorkerProcess._compute.__code__
_SEND_NOW = Outbox.send_now.__code__
_RETURN_QUEUED = WorkerProcess._return_queued.__code__


def _open_descriptors() -> int:
    """Return the number of open descriptors of this process."""
    # Systems without this directory have no Unix sockets either.
    return len(os.listdir("/dev/fd"))  # noqa: PTH208 (a third of the time)
