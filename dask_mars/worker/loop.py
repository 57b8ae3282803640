"""A worker process: reads messages from its socket, has their chunks run, and reports in batches.

One thread does everything. Between operands it polls the socket only when the last poll is old enough, so that
system calls do not slow small operands.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from itertools import repeat
from types import FrameType
from typing import Any, ClassVar

from dask_mars.errors import ExecutionInterrupted
from dask_mars.graph.ids import NO_SUBTASK, SUBTASK_ID_BYTES, write_subtask_id
from dask_mars.protocol import channel, messages
from dask_mars.protocol.columns import unpack_chunks, unpack_numbers
from dask_mars.protocol.control import NO_CHUNK, ControlPage, recall_attempts, to_stop
from dask_mars.protocol.failures import pack_error
from dask_mars.protocol.pickling import dumps, loads
from dask_mars.store.codec import lz4_codec
from dask_mars.store.spill_files import SpillFiles
from dask_mars.store.store import Store
from dask_mars.worker import forked
from dask_mars.worker.interrupts import SIGNAL, is_in_task, may_interrupt
from dask_mars.worker.known_graph import KnownGraph
from dask_mars.worker.outbox import Outbox, OutputStream
from dask_mars.worker.runner import COMPUTE_CODE, ChunkRunner
from dask_mars.worker.surroundings import Surroundings
from dask_mars.worker.trimmer import Trimmer

#: Interval at which an idle worker checks whether inputs of finished tasks are still in use, in seconds; checks
#: before it collects garbage; and maximum interval of the exponential back-off after that, in seconds.
_RETAINED_LOOK_S, _LOOKS_BEFORE_COLLECTION, _LONGEST_LOOK_S = 0.05, 5, 1.0


class WorkerProcess:
    """The loop of one worker process."""

    def __init__(
        self,
        connection: socket.socket,
        store: Store,
        part: memoryview,
        idle_trim_s: float,
        overflow: Callable[[], SpillFiles | None] = lambda: None,
        surroundings: Surroundings | None = None,
        trimmer: Trimmer | None = None,
    ) -> None:
        self._connection = connection
        self._store = store
        self._part = part
        self._note = part[:SUBTASK_ID_BYTES]
        self._idle_trim_s = idle_trim_s
        self._reader = channel.FrameReader()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._graphs: dict[int, KnownGraph] = {}
        #: (graph, context, chunk, operand, inputs, literals) in the order of execution.
        self._queue: deque[tuple[int, int, int, int, tuple[int, ...], tuple[Any, ...]]] = deque()
        self._outbox = Outbox(connection)
        self._surroundings = surroundings or Surroundings()
        self._trimmer = trimmer or Trimmer(store)
        self._runner = ChunkRunner(
            store, self._outbox, part, self._surroundings, self._trimmer, overflow, self.flush_s
        )
        self._last_look = 0.0
        #: Whether an interruption hit a section that must not be interrupted.
        self._postponed = False
        #: Number of recalls answered.
        self._recall_attempts = recall_attempts(part)

    #: Maximum time that results wait for others before they are sent, in seconds. A busy worker polls its socket
    #: twice as often.
    flush_s: ClassVar[float] = 0.001

    # -- main loop --------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Work until the engine says EXIT or is gone."""
        outbox, runner = self._outbox, self._runner
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
                graph_id, context, chunk, operand, inputs, literals = self._queue.popleft()
                # No variable refers to the graph: forgetting it closes its files at once.
                if outbox.finished and operand not in self._graphs[graph_id].fast_operands:
                    # The engine may be waiting for these results.
                    outbox.flush(now)
                if runner.run(self._graphs[graph_id], context, chunk, operand, inputs, literals):
                    # The engine has sent a message that drops the rest of the graph.
                    self._last_look = 0.0
                # A source among the literals would stay open until the next chunk.
                literals = ()
                self._note[:] = NO_SUBTASK
                now = clock()
                if now - outbox.flushed_s > self.flush_s:
                    outbox.flush(now)
            else:
                outbox.flush(clock())
                if self._surroundings.graph:
                    # Now, while nothing waits for this worker.
                    self._surroundings.restore()
                if not self._wait_for_messages():
                    return

    def forget_all(self) -> None:
        """Forget all graphs, and with them the user's objects."""
        self._queue.clear()
        self._graphs.clear()
        self._runner.forget_handed()
        self._surroundings.restore()

    def _wait_for_messages(self) -> bool:
        """Wait for messages; return False at the end."""
        looks, look_s = 0, _RETAINED_LOOK_S
        trim_due_s = time.perf_counter() + self._idle_trim_s
        while True:
            timeouts_s = [look_s] if self._outbox.retained else []
            if self._trimmer.is_due:
                timeouts_s.append(max(trim_due_s - time.perf_counter(), 0.0))
            # In whole milliseconds, rounded up, so that it does not return early.
            if self._poll.poll(math.ceil(min(timeouts_s) * 1000) if timeouts_s else None):
                return self._receive(wait=True)
            if self._outbox.retained:
                looks += 1
                if looks == _LOOKS_BEFORE_COLLECTION:
                    self._trimmer.collect_garbage()
                elif looks > _LOOKS_BEFORE_COLLECTION:
                    look_s = min(2 * look_s, _LONGEST_LOOK_S)
                self._outbox.check_retained()
                self._outbox.flush(time.perf_counter())
            if self._trimmer.is_due and time.perf_counter() >= trim_due_s:
                # Garbage may hold memory that should go back.
                self._runner.forget_handed()
                self._trimmer.collect_garbage()
                self._trimmer.trim()

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
            self._runner.forget_handed(message.graph, message.chunks)
            for chunk in message.chunks:
                graph.values.pop(chunk, None)
                graph.borrowed.discard(chunk)
                graph.restores.discard(chunk)
            self._trimmer.is_due = True

    def _on_moved(self, message: messages.Moved) -> None:
        graph = self._graphs.get(message.graph)
        if graph is not None:
            for chunk, ref in message.refs.items():
                graph.values[chunk] = (None, ref)

    def _on_release(self, message: messages.Release) -> None:
        for offset in message.offsets:
            self._store.release(offset)
        self._trimmer.is_due = True

    def _on_trim(self, message: messages.Trim) -> None:
        self._runner.forget_handed()
        self._trimmer.trim()

    def _on_drop(self, message: messages.Drop) -> None:
        self._drop(message.graph)

    def _on_forget(self, message: messages.Forget) -> None:
        self._graphs.pop(message.graph, None)
        self._runner.forget_handed()
        self._trimmer.is_due = True
        if message.answers:
            if not self._graphs:
                self._trimmer.close_garbage()
            self._outbox.send_now(messages.Forgotten(message.graph))

    def _on_context(self, message: messages.Context) -> None:
        self._surroundings.add(message.id, message.payload)

    def _on_run(self, message: messages.Run) -> None:
        graph_id, context_id, timed, packed_chunks, records, refs, restores, borrowed, operands, paths = message
        if timed != self._runner.timed:
            # Either all chunks of a report have times, or none.
            self._outbox.close_batches()
            self._runner.timed = timed
        graph = self._graphs.get(graph_id)
        if graph is None:
            graph = self._graphs[graph_id] = self._new_graph(graph_id)
        for chunk, ref in refs.items():
            graph.values.setdefault(chunk, (None, ref))
        graph.restores.update(restores)
        self._borrow(graph, borrowed)
        # Operands stay packed until first used, in the context of their graph.
        graph.operands.update(operands)
        for function_id, path in paths.items():
            self._runner.functions.learn(function_id, path)
        if self._surroundings.graph != graph_id:
            self._runner.turn_to(graph)
        self._surroundings.enter(context_id)
        chunks = unpack_numbers(packed_chunks)
        # Loading may import for long; the note names the graph for the engine.
        write_subtask_id(self._note, graph_id, 0, NO_CHUNK)
        try:
            columns = unpack_chunks(records, self._runner.loads)
        except BaseException:
            self._outbox.return_chunks(graph_id, list(chunks), "unreadable")
            return
        finally:
            self._note[:] = NO_SUBTASK
        self._queue.extend(zip(repeat(graph_id), repeat(context_id), chunks, *columns, strict=False))

    def _new_graph(self, id: int) -> KnownGraph:
        return KnownGraph(id)

    def _borrow(self, graph: KnownGraph, chunks: list[int]) -> None:
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

    def _drop(self, graph_id: int) -> None:
        dropped = [chunk for owner, _, chunk, *_ in self._queue if owner == graph_id]
        if dropped:
            others = zip(self._queue, [owner != graph_id for owner, *_ in self._queue], strict=True)
            self._queue = deque(record for record, stays in others if stays)
            self._outbox.return_chunks(graph_id, dropped, "dropped")

    # -- interruption -----------------------------------------------------------------------------------------

    def interrupt(self, signal_number: int, frame: FrameType | None) -> None:
        """Handle the engine's signal."""
        # Return queued chunks if the engine recalls them. Raise in the running task if its graph is cancelled, or
        # if its objects have exceeded the quota.
        if self._recall_attempts != recall_attempts(self._part) and is_in_task(frame, COMPUTE_CODE, (_SEND_NOW,)):
            self._recall_attempts = recall_attempts(self._part)
            self._return_queued()
        is_interruptible = may_interrupt(frame, COMPUTE_CODE, (_SEND_NOW, _RETURN_QUEUED))
        if is_interruptible and self._store.raise_exceeded():
            raise MemoryError
        runner = self._runner
        running = runner.running
        if running[0] != to_stop(self._part) or running == runner.interrupted:
            return
        if is_interruptible:
            runner.interrupted = running
            raise ExecutionInterrupted(running[0])
        self._postponed = True

    def _return_queued(self) -> None:
        waiting: dict[int, list[int]] = {}
        # The next signal may interrupt this loop and take the rest, so each record is popped once.
        with contextlib.suppress(IndexError):
            while True:
                graph_id, _, chunk, *_ = self._queue.popleft()
                waiting.setdefault(graph_id, []).append(chunk)
        for graph_id, chunks in waiting.items():
            self._outbox.send_now(messages.Returned(graph_id, chunks, "dropped"))

    def _raise_postponed(self) -> None:
        """Raise in a task whose interruption hit a section that must not be interrupted."""
        if self._postponed:
            self._postponed = False
            signal.raise_signal(SIGNAL)

    def leave_engine(self) -> None:
        """In a process forked by a task, release what only the worker may use."""
        self._runner.is_forked = True
        forked.restore_streams()
        self._connection.close()

    # -- output of tasks ---------------------------------------------------------------------------------------

    def use_streams(self, *streams: OutputStream) -> None:
        """Receive the streams for the tasks' output."""
        # The runner has no reference back: without a cycle a thread's arena is released at once.
        self._runner.streams = streams

    def send_output(self, stream: str, text: str) -> None:
        """Send the engine text that a task printed."""
        self._outbox.send_now(messages.Output(self._runner.running[0], stream, text))
        self._raise_postponed()

    def send_tracked(self, name: str, is_open: bool) -> bool:
        """Tell the engine of shared memory that a task has opened or removed; return False in another process."""
        if not self._runner.is_forked:
            self._outbox.send(messages.Tracked(name, is_open))
        return not self._runner.is_forked

    def send_warning(self, message: Warning | str, category: Any, filename: str, line: int) -> None:
        """Send the engine a warning of a task."""
        try:
            # As errors: constructors may take other arguments than `args`.
            sent = pack_error(message) if isinstance(message, Warning) else message
            payload = dumps((sent, category, filename, line))
        except Exception:
            payload = dumps((str(message), UserWarning, filename, line))
        self._outbox.send(messages.Warning(self._runner.running[0], payload))


def overflow_files(page: ControlPage) -> SpillFiles | None:
    """Return the files for results for which memory has no room, or None without a directory."""
    directory = page.spill_directory
    return None if directory is None else SpillFiles(directory, lz4_codec())


# Code objects by which the signal handler recognises its position.
_SEND_NOW = Outbox.send_now.__code__
_RETURN_QUEUED = WorkerProcess._return_queued.__code__
