"""A worker process: reads operands from its socket, computes them, seals the results, reports in batches.

One thread does everything. Between two operands it looks for messages when the last look is old enough, so that
small operands are not slowed by system calls.
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
from functools import partial
from itertools import repeat
from types import FrameType
from typing import Any, ClassVar

import dask
import numpy as np

from dask_mars.errors import ExecutionInterrupted, QuotaExceeded, SpillError, StoreFull
from dask_mars.graph.callables import attribute
from dask_mars.graph.chunks import Operand
from dask_mars.graph.functions import FunctionRegistry
from dask_mars.graph.ids import NO_SUBTASK, SUBTASK_ID_BYTES, write_subtask_id
from dask_mars.protocol import channel, main_module, messages, tracebacks
from dask_mars.protocol.columns import (
    PackedOperand,
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
from dask_mars.protocol.object_ref import Block, ObjectRef, blocks_of, is_spilled, is_stored
from dask_mars.protocol.pickling import dumps, loads, pack_error
from dask_mars.store.arena import Bytes
from dask_mars.store.codec import lz4_codec
from dask_mars.store.spill_files import SpillFiles
from dask_mars.store.store import Store, still_used
from dask_mars.worker import forked
from dask_mars.worker.grouped_sums import grouped_sums
from dask_mars.worker.interrupts import SIGNAL, is_in_task, may_interrupt
from dask_mars.worker.outbox import Outbox, Output
from dask_mars.worker.reruns import is_about_file_lock, is_about_main, is_about_writing
from dask_mars.worker.running_sums import running_sums
from dask_mars.worker.substitutes import with_substitutes
from dask_mars.worker.zarr_reads import direct_reads

#: How often an idle worker looks whether inputs of tasks that have ended are still in use, before it collects
#: garbage. After that it looks less and less often.
_RETAINED_LOOK_S, _LOOKS_BEFORE_COLLECTION, _LONGEST_LOOK_S = 0.05, 5, 1.0


class KnownGraph:
    """What a worker keeps of one graph."""

    __slots__ = (
        "borrowed",
        "fast_operands",
        "main_names",
        "needs_client",
        "needs_copies",
        "operands",
        "peaks",
        "restores",
        "values",
    )

    def __init__(self) -> None:
        #: Operands by number; as they came until first used.
        self.operands: dict[int, Operand | PackedOperand] = {}
        #: Known values by chunk: (object, None) for small ones made here, else (None, reference).
        self.values: dict[int, tuple[Any, ObjectRef | None]] = {}
        #: Those of them that are arrays of the user's, which could be written when they came.
        self.borrowed: set[int] = set()
        #: Operands that took next to no time when they were last run here.
        self.fast_operands: set[int] = set()
        #: Most bytes of the arena that an operand was seen to take while it ran.
        self.peaks: dict[int, int] = {}
        #: Chunks that are to be put into the store when they are read from disk.
        self.restores: set[int] = set()
        #: Operands that were seen to write into their inputs.
        self.needs_copies: set[int] = set()
        #: Operands that were seen to need the user's process: its arrays, files or ``__main__``.
        self.needs_client: set[int] = set()
        #: What has arrived of the user's ``__main__``, by name.
        self.main_names: dict[str, Any] = {}


class _ReturnChunk(BaseException):
    """A chunk cannot be computed here; its argument is the reason for the engine."""


class WorkerProcess:
    """The loop of one worker process.

    Parameters
    ----------
    connection : socket.socket
        To the engine.
    store : Store
        This process's view of the shared store.
    part : memoryview
        Of the control page, this worker's.
    idle_trim_s : float
        After how many idle seconds unused memory goes back to the system.
    overflow : callable, optional
        Returns where results go that there is no room for at the moment, None if that is nowhere; by default they
        fail.
    """

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
        #: The graph of which something was loaded or run since the surroundings were last looked at, 0 for none.
        self._graph = 0
        #: Whether tasks get copies of arrays that they may write into, as the context says.
        self._writable_inputs = False
        self._mapping = FunctionRegistry()
        #: (graph, context, chunk, operand, inputs, literals) in the order in which they will run.
        self._queue: deque[tuple[int, int, int, int, tuple[int, ...], tuple[Any, ...]]] = deque()
        self._outbox = Outbox(connection)
        #: Whether somebody wants to know the steps of operands, and when the inputs of this one were there.
        self._timed = False
        self._loaded_s = 0.0
        self._last_look = 0.0
        self._trimmed = True
        self._running: tuple[int, int] = (-1, -1)
        #: The graph and chunk that was last interrupted. Once: what it does then, to clean up, is left alone.
        self._interrupted: tuple[int, int] | None = None
        #: Whether a task was to be interrupted in the middle of something that has to be whole.
        self._postponed = False
        #: How often it has been asked to give back what waits in its queue.
        self._recall_attempts = recall_attempts(part)
        #: How many descriptors it had open when it had no graph last.
        self._open_descriptors = 0
        #: Whether this is a process that a task has forked.
        self._forked = False
        #: Where tasks print; what has no end of line yet is sent when its task ends.
        self.streams: tuple[Output, ...] = ()

    #: How long results may wait for company before they are sent, in seconds. While there is work the socket is
    #: looked at twice as often.
    flush_s: ClassVar[float] = 0.001

    # -- the loop ---------------------------------------------------------------------------------------------

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
                    # Somebody may be waiting for what is done.
                    outbox.flush(now)
                self._run(number, context, chunk, operand, inputs, literals)
                # A source among them would stay open until the next chunk.
                literals = ()
                self._note[:] = NO_SUBTASK
                now = clock()
                if now - outbox.flushed_s > self.flush_s:
                    outbox.flush(now)
            else:
                outbox.flush(clock())
                if self._graph:
                    # Now, while nobody waits.
                    self._restore_context()
                if not self._wait_for_messages():
                    return

    def _wait_for_messages(self) -> bool:
        """Wait for messages; False at the end."""
        looks, look_s = 0, _RETAINED_LOOK_S
        trim_due_s = time.perf_counter() + self._idle_trim_s
        while True:
            timeouts_s = [look_s] if self._outbox.retained else []
            if not self._trimmed:
                timeouts_s.append(max(trim_due_s - time.perf_counter(), 0.0))
            # In whole milliseconds, rounded up: it is not to come back before it is time.
            if self._poll.poll(math.ceil(min(timeouts_s) * 1000) if timeouts_s else None):
                return self._receive(wait=True)
            if self._outbox.retained:
                looks += 1
                if looks == _LOOKS_BEFORE_COLLECTION:
                    # Exceptions go in circles with their frames, and an idle process has no reason to collect.
                    self._collect_garbage()
                elif looks > _LOOKS_BEFORE_COLLECTION:
                    look_s = min(2 * look_s, _LONGEST_LOOK_S)
                self._outbox.check_retained()
                self._outbox.flush(time.perf_counter())
            if not self._trimmed and time.perf_counter() >= trim_due_s:
                # Garbage that nobody collects while there is nothing to do may hold what is to go back.
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
        number, context_number, timed, packed_chunks, records, refs, restores, lent, operands, paths = message
        if timed != self._timed:
            # All that a report tells of is timed, or nothing.
            self._outbox.close_batches()
            self._timed = timed
        graph = self._graphs.get(number)
        if graph is None:
            graph = self._graphs[number] = KnownGraph()
        for chunk, ref in refs.items():
            graph.values.setdefault(chunk, (None, ref))
        graph.restores.update(restores)
        self._borrow(number, graph, lent)
        # They are read when first used, and then in the context of their graph.
        graph.operands.update(operands)
        for function_id, path in paths.items():
            self._mapping.learn(function_id, path)
        if self._graph != number:
            self._turn_to(number)
        self._enter(context_number)
        chunks = unpack_numbers(packed_chunks)
        # It may import what takes long, of which the graph is to be known.
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
        """Have arrays of the user's process, of which none but its threads are sent any."""
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
            operand = graph.operands[operand_number] = self._made_fast(operand)
        if operand_number in graph.needs_client:
            self._outbox.return_chunks(number, [chunk], "client_only")
            return
        self._running = (number, chunk)
        self._trimmed = False
        owners: list[tuple[Block, Bytes]] = []
        self._store.begin()
        start = time.perf_counter()
        try:
            # Nothing but the list refers to the result, so that whoever takes it out can let go of it.
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
        # It is told anew if it has grown, but not for every few bytes.
        if sealed and peak_bytes > 1.1 * graph.peaks.get(operand_number, 0):
            self._outbox.batch(number).peaks[operand_number] = graph.peaks[operand_number] = peak_bytes

    @staticmethod
    def _made_fast(operand: Operand) -> Operand:
        """Call faster functions of ours, and evaluate chains of elementwise ones as the configuration says."""
        reductions = dask.config.get("dask-mars.expressions.reductions", True)
        sums = partial(grouped_sums, reductions=reductions)
        operand = with_substitutes(operand, direct_reads, sums, running_sums)
        # A step alone gains nothing, but for Dask's moments, which are partial, its random numbers and histograms.
        if len(operand.steps) < 2:
            function = operand.functions[0]
            if type(function) is not partial and attribute(function, "__module__") not in _WORTH_A_LOOK:
                return operand
        if not ("dask.array" in sys.modules or any(map(_is_elementwise, operand.functions))):
            return operand
        # It takes Dask's arrays along, for which other work need not wait.
        from dask_mars.expressions.rewrite import with_expressions

        return with_expressions(
            operand,
            dask.config.get("dask-mars.expressions.evaluator", "auto"),
            reductions,
        )

    def _compute(
        self,
        number: int,
        operand_number: int,
        inputs: tuple[int, ...],
        literals: tuple[Any, ...],
        owners: list[tuple[Block, Bytes]],
    ) -> Any:
        """Run an operand; if it may not write, with copies, or where the user's arrays and files are."""
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
                # Of a class, say, that only the user's own process can import.
                raise _ReturnChunk("unreadable") from None
            if self._timed:
                self._loaded_s = time.perf_counter()
            self._store.mark()
            self._step[0] = COMPUTE
            try:
                # As under threads, what a task sets in variables of the context holds for itself alone.
                result = self._variables_of(number).copy().run(operand.run, values, literals)
            except BaseException as error:
                if self._forked:
                    forked.exit_process(error)
                is_for_client = is_about_file_lock(error) or is_about_main(error)
                if not is_for_client and not is_about_writing(error):
                    raise
                if is_for_client or copies:
                    # Under threads it would write into an array of the user's, or find what only that process has.
                    graph.needs_client.add(operand_number)
                    raise _ReturnChunk("client_only") from None
                tracebacks.forget(error)
            else:
                if self._forked:
                    forked.exit_process(None)
                return result
            # Under threads it may write into its inputs: it gets copies of its own.
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
                # It was to be computed here before this.
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
                    if not is_stored(ref) and not is_spilled(ref) and _is_source(value):
                        # Its last reference may close the file, and to open one takes longer than to read a chunk.
                        graph.values[source] = (value, None)
            elif source in graph.borrowed:
                store.borrow(value)
            values.append(value)
        return values

    def _restore_input(self, number: int, chunk: int) -> None:
        """Put a value that is on disk into the store; if there is no room, it will be read where it is."""
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
        """Put a result into the store and note that it is there; False if that could not be done."""
        inputs = [block for block, _ in owners]
        self._step[0] = SEAL
        try:
            result = results.pop()
            files = None
            try:
                ref = self._store.seal(result, inputs, in_place=True)
            except StoreFull as error:
                # No disk helps what fits no arena, and nobody wants what is to stop.
                useless = error.requested_bytes > error.capacity_bytes or self._store.refusal[0] == STOPPED
                files = None if useless else self._overflow()
                if files is None:
                    raise
            if files is not None:
                # Not before the exception has let go of the pickle.
                ref = self._store.seal_on_disk(result, inputs, f"{number}-{chunk}", files)
            # An array is read anew each time: what one task writes into it is not for others to see.
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
                # Whoever reads it may need what it took here.
                self._trim()
        except (StoreFull, SpillError, MemoryError) as error:
            result = None
            if not self._was_refused(number, chunk, error, owners):
                self._failed(number, chunk, error, owners, final=True)
            return False
        except BaseException:
            # It cannot be pickled: only the user's own process can make it and use it.
            result = None
            self._outbox.retain(owners)
            self._outbox.return_chunks(number, [chunk], "client_only")
            return False
        if owners:
            self._outbox.retain(owners)
        batch = self._outbox.batch(number)
        batch.chunks.append(chunk)
        batch.refs.append(ref)
        # Sealing is part of it: what the worker's queue is worth in time is judged by this.
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
        # Our own frames say nothing to the user: the traceback starts in Operand.run.
        while traceback is not None and traceback.tb_frame.f_globals.get("__name__") == __name__:
            traceback = traceback.tb_next
        record = pack_error(error.with_traceback(traceback))
        # SystemExit and its like mean to leave: trying again would not.
        final = final or not isinstance(error, Exception)
        del traceback
        tracebacks.forget(error)
        del error
        # What it was computed from may be freed when the engine hears of the failure.
        self._outbox.retain(owners)
        self._outbox.close_batches()
        self._outbox.outgoing.append(messages.Failed(number, chunk, record, final))

    def _was_refused(
        self, number: int, chunk: int, error: BaseException, owners: list[tuple[Block, Bytes]]
    ) -> bool:
        """Say whether a chunk failed because its memory could not grow, and see to it then."""
        reason, growth_bytes = self._store.refusal
        if not reason or not (reason == POSTPONED or _is_about_memory(error)):
            return False
        if reason == STOPPED:
            self._give_up(number, chunk, error, owners)
        elif reason == POSTPONED:
            # Its frames hold what is to be free.
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

        Give back what waits behind the task that runs, if that is asked for, and raise in the task, if it is one
        of the graph that is to stop, or if its objects have taken what was refused.
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
        # The next signal may come in the middle of this, and take what is left. So each record has one taker.
        with contextlib.suppress(IndexError):
            while True:
                number, _, chunk, *_ = self._queue.popleft()
                waiting.setdefault(number, []).append(chunk)
        for number, chunks in waiting.items():
            self._outbox.send_now(messages.Returned(number, chunks, "dropped"))

    def _raise_postponed(self) -> None:
        """In a task that would be interrupted now, had it not been in the middle of something: do it after all."""
        if self._postponed:
            self._postponed = False
            signal.raise_signal(SIGNAL)

    def _give_up(self, number: int, chunk: int, error: BaseException, owners: list[tuple[Block, Bytes]]) -> None:
        """Leave a chunk that was interrupted."""
        # Its frames hold what the task has made.
        tracebacks.forget(error, chain=True)
        self._outbox.retain(owners)
        self._outbox.return_chunks(number, [chunk], "dropped")
        # It may have been about to restore a setting: whatever comes next gets all of them anew.
        self._context = None
        # A message says that the rest of the graph is to be given back.
        self._last_look = 0.0

    def leave_engine(self) -> None:
        """In a process that a task has forked: let go of what only the worker itself may do."""
        self._forked = True
        forked.restore_streams()
        self._connection.close()

    # -- what tasks say ----------------------------------------------------------------------------------------

    def send_output(self, stream: str, text: str) -> None:
        """Send what a task printed."""
        self._outbox.send_now(messages.Output(self._running[0], stream, text))
        self._raise_postponed()

    def send_warning(self, message: Warning | str, category: Any, filename: str, line: int) -> None:
        """Send a warning that a task has given."""
        try:
            payload = dumps((message, category, filename, line))
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
        """Have the tasks of a graph find what they are to find."""
        if self._graph:
            self._restore_context()
        self._graph = number
        main_module.show(self._graphs[number].main_names)
        self._tell_failures(number)

    def _restore_context(self) -> None:
        """Have the next graph's tasks find what they are to find, whatever those of the last one have changed."""
        self._graph = 0
        main_module.show({})
        self._task_context.restore()

    def _variables_of(self, number: int) -> Context:
        """Return the context variables that tasks of a graph find."""
        return self._task_context.variables

    def _tell_failures(self, number: int) -> None:
        """Warn of settings that could not be put in force, in the name of a graph."""
        for text in self._task_context.failures:
            self._outbox.send(messages.Warning(number, dumps((text, RuntimeWarning, __file__, 0))))
        self._task_context.failures.clear()

    def _collect_garbage(self) -> None:
        gc.collect()

    def _close_garbage(self) -> None:
        """Close files that only garbage refers to: exceptions go in circles with their frames."""
        if _open_descriptors() > self._open_descriptors:
            self._collect_garbage()
        self._open_descriptors = _open_descriptors()

    def _trim(self) -> None:
        self._trimmed = True
        self._store.trim()
        # Arrow has an allocator of its own, which keeps what pandas' strings had.
        arrow = sys.modules.get("pyarrow")
        if arrow is not None:
            # Its import may have failed half way.
            with contextlib.suppress(Exception):
                arrow.default_memory_pool().release_unused()
        # Without glibc there is no such function, and its allocator has ways of its own.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def overflow_files(page: ControlPage) -> SpillFiles | None:
    """Return where results go that there is no room for at the moment, None if that is nowhere."""
    directory = page.spill_directory
    return None if directory is None else SpillFiles(directory, lz4_codec())


# By these a signal's handler knows where it is.
_COMPUTE = WorkerProcess._compute.__code__
_SEND_NOW = Outbox.send_now.__code__
_RETURN_QUEUED = WorkerProcess._return_queued.__code__


def _is_about_memory(error: BaseException | None) -> bool:
    """Say whether an exception, or one that it was raised from, says that there is no memory."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, (MemoryError, StoreFull)):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _open_descriptors() -> int:
    """Count the open descriptors of this process."""
    # Systems without this directory have no Unix sockets either.
    return len(os.listdir("/dev/fd"))  # noqa: PTH208 (a third of the time)


#: Of functions that are rewritten even where they are all of an operand.
_WORTH_A_LOOK = frozenset({"dask.array.random", "dask.array.reductions", "dask.array.routines"})


def _is_elementwise(function: Any) -> bool:
    """Say whether a function looks like one that an expression may have."""
    return type(function) is np.ufunc or attribute(function, "__module__") == "_operator"


def _is_source(value: Any) -> bool:
    """Say whether a value is what arrays are read from, such as zarr's and Xarray's, and no array itself."""
    kind = type(value)
    return (
        hasattr(kind, "shape")
        and hasattr(kind, "dtype")
        and hasattr(kind, "__getitem__")
        # Tasks may write into arrays, and into what pandas has.
        and not hasattr(kind, "__array_ufunc__")
        and not hasattr(kind, "__array_function__")
        and not issubclass(kind, np.generic)
    )
