"""Runs one chunk after the other: loads inputs, computes, seals the result, reports what has gone wrong."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from dask_mars.errors import QuotaExceeded, SpillError, StoreFull
from dask_mars.graph.chunks import Operand
from dask_mars.graph.functions import FunctionRegistry
from dask_mars.graph.ids import SUBTASK_ID_BYTES, write_subtask_id
from dask_mars.protocol import messages, tracebacks
from dask_mars.protocol.columns import unpack_operand
from dask_mars.protocol.control import (
    COMPUTE,
    LOAD,
    POSTPONED,
    PREPARE,
    SEAL,
    STEP_AT,
    STOPPED,
    granted_bytes,
    quota_figures,
)
from dask_mars.protocol.failures import pack_error
from dask_mars.protocol.object_ref import Block, ObjectRef, blocks_of, is_pickled, is_spilled, is_stored
from dask_mars.protocol.pickling import dumps, loads
from dask_mars.store.arena import Bytes
from dask_mars.store.reader import still_used
from dask_mars.store.spill_files import SpillFiles
from dask_mars.store.store import Store
from dask_mars.worker import forked
from dask_mars.worker.fast_operands import made_fast
from dask_mars.worker.known_graph import KnownGraph, is_source
from dask_mars.worker.outbox import Outbox, OutputStream
from dask_mars.worker.reruns import is_about_file_lock, is_about_main, is_about_memory, is_about_writing
from dask_mars.worker.surroundings import Surroundings
from dask_mars.worker.trimmer import Trimmer

#: Inputs of a chunk: their blocks, and the memory that refers to them.
Owners = list[tuple[Block, Bytes]]
#: Maximum bytes of the pickle of a result that the next chunk gets as an object.
_MOST_HANDED = 1 << 20


class _ReturnChunk(BaseException):
    """A chunk cannot be computed here; the argument is the reason for the engine."""


class ChunkRunner:
    """Runs chunks of one worker."""

    def __init__(
        self,
        store: Store,
        outbox: Outbox,
        part: memoryview,
        surroundings: Surroundings,
        trimmer: Trimmer,
        overflow: Callable[[], SpillFiles | None],
        fast_s: float,
    ) -> None:
        self._store, self._outbox, self._part = store, outbox, part
        self._note, self._step = part[:SUBTASK_ID_BYTES], part[STEP_AT:][:1]
        self._surroundings, self._trimmer = surroundings, trimmer
        self._overflow = overflow
        #: Maximum duration of an operand whose result may wait for others in a batch, in seconds.
        self._fast_s = fast_s
        #: Functions by the ids that operands have for them.
        self.functions = FunctionRegistry()
        #: Whether a listener asks for the steps of operands.
        self.timed = False
        #: Time at which the present operand had loaded its inputs.
        self._loaded_s = 0.0
        #: Graph, chunk and value of the last result if it is a small object: the next chunk, if it reads it, need
        #: not unpickle it.
        self.handed: tuple[int, int, Any] | None = None
        #: Graph and chunk that run, (-1, -1) for none.
        self.running: tuple[int, int] = (-1, -1)
        #: Graph and chunk of the last interruption. A task is interrupted once, so that it can clean up.
        self.interrupted: tuple[int, int] | None = None
        #: Whether this process was forked by a task.
        self.is_forked = False
        #: Streams for the tasks' output. The end of a task flushes an incomplete line.
        self.streams: tuple[OutputStream, ...] = ()

    def forget_handed(self, graph: int | None = None, chunks: Collection[int] = ()) -> None:
        """Forget the last result, or only if it is one of some chunks."""
        if graph is None or (self.handed is not None and self.handed[0] == graph and self.handed[1] in chunks):
            self.handed = None

    def turn_to(self, graph: KnownGraph) -> None:
        """Set a graph's names of `__main__`, restore what the last graph's tasks changed, and send warnings."""
        for text in self._surroundings.turn_to(graph):
            self._outbox.send(messages.Warning(graph.id, dumps((text, RuntimeWarning, __file__, 0))))

    def loads(self, payload_and_parts: tuple[bytes, tuple[Block, ...]]) -> Any:
        """Unpickle an object whose buffers are in arenas."""
        payload, parts = payload_and_parts
        views = []
        for arena, offset, size in parts:
            base = self._store.arenas[arena].view(offset, size)
            base.flags.writeable = False
            views.append(base.data)
        return loads(payload, buffers=views)

    def run(
        self,
        graph: KnownGraph,
        context: int,
        chunk: int,
        operand_id: int,
        inputs: tuple[int, ...],
        literals: tuple[Any, ...],
    ) -> bool:
        """Run a chunk and report it; return whether it was given up because its graph is to stop."""
        if not self._prepare(graph, context, chunk, operand_id):
            return False
        self.running = (graph.id, chunk)
        owners: Owners = []
        self._store.begin()
        start_s = time.perf_counter()
        try:
            # Only the list refers to the result, so that sealing can release it.
            results = [self._compute(graph, operand_id, inputs, literals, owners)]
        except _ReturnChunk as reason:
            self._return(graph, chunk, owners, reason.args[0])
            return False
        except BaseException as error:
            if self.interrupted == self.running:
                return self._give_up(graph, chunk, error, owners)
            return self._refused_or_failed(graph, chunk, error, owners)
        finally:
            for stream in self.streams:
                stream.flush()
            self.running = (-1, -1)
        computed_s = time.perf_counter() if self.timed else 0.0
        peak_bytes = self._store.peak_bytes
        ref = self._seal(graph, chunk, results, owners)
        ended_s = time.perf_counter()
        if ended_s - start_s < self._fast_s:
            graph.fast_operands.add(operand_id)
        else:
            graph.fast_operands.discard(operand_id)
        if ref is None:
            return self._store.refusal[0] == STOPPED
        batch = self._outbox.batch(graph.id)
        batch.chunks.append(chunk)
        batch.refs.append(ref)
        # Durations include sealing, as the engine estimates the time of the queue from them.
        batch.durations_s.append(ended_s - start_s)
        if self.timed:
            batch.steps_s.append((start_s, self._loaded_s, computed_s))
        # A grown peak is reported again, but not for every few bytes.
        if peak_bytes > 1.1 * graph.peaks.get(operand_id, 0):
            batch.peaks[operand_id] = graph.peaks[operand_id] = peak_bytes
        return False

    def _prepare(self, graph: KnownGraph, context: int, chunk: int, operand_id: int) -> bool:
        """Set the context, and unpack a new operand; return False, and the chunk, if it does not run here."""
        write_subtask_id(self._note, graph.id, 0, chunk)
        if self._surroundings.graph != graph.id:
            self.turn_to(graph)
        if self._surroundings.context != context:
            self._surroundings.enter(context)
        try:
            operand = graph.operands[operand_id]
            unpacked = None
            if type(operand) is tuple:
                self._step[0] = PREPARE
                unpacked = unpack_operand(operand, self.functions, self.loads)
        except BaseException:
            self._outbox.return_chunks(graph.id, [chunk], "unreadable")
            return False
        if unpacked is not None:
            graph.operands[operand_id] = made_fast(unpacked)
        if operand_id in graph.needs_client:
            self._outbox.return_chunks(graph.id, [chunk], "client_only")
            return False
        self._trimmer.is_due = True
        return True

    def _compute(
        self,
        graph: KnownGraph,
        operand_id: int,
        inputs: tuple[int, ...],
        literals: tuple[Any, ...],
        owners: Owners,
    ) -> Any:
        """Run an operand; if it writes into its inputs, again with copies, or in the user's process."""
        operand = graph.operands[operand_id]
        assert isinstance(operand, Operand)
        copies = self._surroundings.writable_inputs or operand_id in graph.needs_copies
        while True:
            try:
                values = self._load_inputs(graph, inputs, owners, copies)
            except _ReturnChunk:
                raise
            except BaseException:
                if self._store.refusal[0]:
                    raise
                # The value may be of a class that only the user's process can import.
                raise _ReturnChunk("unreadable") from None
            if self.timed:
                self._loaded_s = time.perf_counter()
            self._store.mark()
            self._step[0] = COMPUTE
            try:
                # As under threads, each task has its own copy of context variables.
                result = self._surroundings.variables.copy().run(operand.run, values, literals)
            except BaseException as error:
                if self.is_forked:
                    forked.exit_process(error)
                is_for_client = is_about_file_lock(error) or is_about_main(error)
                if not is_for_client and not is_about_writing(error):
                    raise
                if is_for_client or copies:
                    # Under threads the task would write into the user's array, or find what only that process has.
                    graph.needs_client.add(operand_id)
                    raise _ReturnChunk("client_only") from None
                tracebacks.forget(error)
            else:
                if self.is_forked:
                    forked.exit_process(None)
                return result
            # Under threads a task may write into its inputs, so it gets copies of its own.
            copies = True
            graph.needs_copies.add(operand_id)
            values.clear()

    def _load_inputs(self, graph: KnownGraph, inputs: tuple[int, ...], owners: Owners, copies: bool) -> list[Any]:
        store = self._store
        users_arena = len(store.arenas) - 1
        values = []
        handed, self.handed = self.handed, None
        if inputs:
            self._step[0] = LOAD
        for source in inputs:
            if source not in graph.values:
                # An earlier chunk should have computed it here.
                raise _ReturnChunk("missing")
            if source in graph.restores:
                self._restore_input(graph, source)
            value, ref = graph.values[source]
            if handed is not None and handed[:2] == (graph.id, source) and not copies:
                value = handed[2]
            elif ref is not None:
                if copies and all(arena != users_arena for arena, _, _ in blocks_of(ref)):
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

    def _restore_input(self, graph: KnownGraph, chunk: int) -> None:
        """Put a value from disk into the store; without room, leave it there to be read in place."""
        graph.restores.remove(chunk)
        _, ref = graph.values[chunk]
        if ref is not None and is_spilled(ref):
            with contextlib.suppress(StoreFull):
                ref = self._store.restore(ref)
                graph.values[chunk] = (None, ref)
                self._outbox.outgoing.append(messages.Restored(graph.id, {chunk: ref}))

    # -- results ----------------------------------------------------------------------------------------------

    def _seal(self, graph: KnownGraph, chunk: int, results: list[Any], owners: Owners) -> ObjectRef | None:
        """Put a result into the store and return its location; return None, and the chunk, if that fails."""
        self._step[0] = SEAL
        try:
            ref = self._put(graph, chunk, results, owners)
        except (StoreFull, SpillError, MemoryError) as error:
            self._refused_or_failed(graph, chunk, error, owners, final=True)
            return None
        except BaseException as error:
            # The value cannot be pickled: only the user's process can make and use it.
            tracebacks.forget(error)
            self._return(graph, chunk, owners, "client_only")
            return None
        if owners:
            self._outbox.retain(owners)
        return ref

    def _put(self, graph: KnownGraph, chunk: int, results: list[Any], owners: Owners) -> ObjectRef:
        """Put a result into the store, or on disk if memory has no room."""
        inputs = [block for block, _ in owners]
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
            ref = self._store.seal_on_disk(result, inputs, f"{graph.id}-{chunk}", files)
        # Arrays are loaded anew for each task, so that no task sees what another wrote into one.
        if not is_stored(ref) and type(result) is not np.ndarray:
            keeps_inputs = bool(owners) and still_used(owners)
            graph.values[chunk] = (None, ref) if keeps_inputs else (result, None)
        else:
            # Buffers of arrays and frames are read in place instead.
            if (
                not owners
                and is_pickled(ref)
                and len(blocks := blocks_of(ref)) == 1
                and blocks[0][2] <= _MOST_HANDED
            ):
                self.handed = graph.id, chunk, result
            del result
            ref = self._store.finish(ref, inputs)
            graph.values[chunk] = (None, ref)
        if files is not None:
            # The readers may need the memory that it took here.
            self._trimmer.trim()
        return ref

    # -- what goes wrong --------------------------------------------------------------------------------------

    def _refused_or_failed(
        self, graph: KnownGraph, chunk: int, error: BaseException, owners: Owners, final: bool = False
    ) -> bool:
        """Report a chunk that failed, or whose memory could not grow; return whether its graph is to stop."""
        reason, growth_bytes = self._store.refusal
        if not reason or not (reason == POSTPONED or is_about_memory(error)):
            self._failed(graph, chunk, error, owners, final)
        elif reason == STOPPED:
            return self._give_up(graph, chunk, error, owners)
        elif reason == POSTPONED:
            # The frames hold memory that has to be free.
            tracebacks.forget(error, whole=True)
            self._return(graph, chunk, owners, "postponed")
        else:
            exceeded = QuotaExceeded(growth_bytes, granted_bytes(self._part), *quota_figures(self._part))
            exceeded.__cause__ = error
            self._failed(graph, chunk, exceeded.with_traceback(error.__traceback__), owners, final=True)
        return False

    def _failed(
        self, graph: KnownGraph, chunk: int, error: BaseException, owners: Owners, final: bool = False
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
        # The engine may free the inputs once the failure is reported.
        self._outbox.retain(owners)
        self._outbox.close_batches()
        self._outbox.outgoing.append(messages.Failed(graph.id, chunk, record, final))

    def _return(self, graph: KnownGraph, chunk: int, owners: Owners, reason: messages.Reason) -> None:
        self._outbox.retain(owners)
        self._outbox.return_chunks(graph.id, [chunk], reason)

    def _give_up(self, graph: KnownGraph, chunk: int, error: BaseException, owners: Owners) -> bool:
        """Report an interrupted chunk as dropped, and return True."""
        # The frames hold the task's objects.
        tracebacks.forget(error, whole=True)
        self._return(graph, chunk, owners, "dropped")
        # The task may have been about to restore a setting, so the next one enters its context again.
        self._surroundings.context = None
        return True


#: By this code the signal handler recognises where operands run.
COMPUTE_CODE = ChunkRunner._compute.__code__
