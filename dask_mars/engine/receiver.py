"""Takes the reports of workers: records the locations of results, and makes events for the state machine."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Collection
from typing import Any, ClassVar

from dask_mars.engine import graph_run as client_messages
from dask_mars.engine.registry import Registry
from dask_mars.engine.worker_handle import WorkerHandle
from dask_mars.protocol import messages
from dask_mars.protocol.messages import for_engine
from dask_mars.protocol.object_ref import (
    ObjectRef,
    is_map_output,
    is_spilled,
    is_stored,
    may_hold_files,
    needed_bytes,
    size_of,
)
from dask_mars.scheduler.events import ChunkFailed, ChunksFinished, ChunksRestored, ChunksReturned, Event

logger = logging.getLogger(__name__)


class ProtocolError(Exception):
    """A worker's report is impossible, as when a task wrote into its socket. The report has no effect."""


class Receiver:
    """Takes the messages of workers."""

    def __init__(
        self,
        registry: Registry,
        holds: Callable[[int, int, Collection[int]], bool],
        post: Callable[[Event], None],
        is_agent: bool,
    ) -> None:
        self._holds = holds
        #: Whether this process owns the shared memory of tasks: an agent may end before the user's process.
        self._tracks = not is_agent
        self._post = post
        self._registry = registry
        self._store, self._blocks = registry.store, registry.blocks
        self._runs, self._workers = registry.runs, registry.workers

    def take(self, handle: WorkerHandle, plain: tuple[Any, ...]) -> None:
        """Take a message as it has travelled; raise `ProtocolError` if it makes no sense."""
        try:
            message = for_engine(plain)
            event = self._handlers[type(message)](self, handle, message)
        except ProtocolError:
            raise
        except Exception as error:
            raise ProtocolError(f"{str(plain)[:200]}: {error!r}") from error
        if event is not None:
            self._post(event)

    def _check(self, handle: WorkerHandle, graph_id: int, chunks: Collection[int]) -> None:
        if not self._holds(handle.id, graph_id, chunks):
            raise ProtocolError(f"it was not given all of {str(chunks)[:200]} of graph {graph_id}")

    def _on_loaded(self, handle: WorkerHandle, message: messages.Loaded) -> None:
        handle.is_loaded = True

    def _on_ready(self, handle: WorkerHandle, message: messages.Ready) -> None:
        handle.ready = True

    def _on_cannot_start(self, handle: WorkerHandle, message: messages.CannotStart) -> None:
        handle.start_error = message.error

    def _on_finished(self, handle: WorkerHandle, message: messages.Finished) -> Event:
        graph_id, chunks, refs, durations_s, peaks, steps_s = message
        self._check(handle, graph_id, chunks)
        run = self._runs[graph_id]
        sizes: dict[int, int] = {}
        fresh: dict[int, int] = {}
        map_outputs: list[int] = []
        on_disk: list[int] = []
        durations, stored_bytes = run.measurements.durations_s, run.measurements.stored_bytes
        known_by, bit = run.known_by, handle.bit_in(graph_id, run.workers)
        for chunk, ref, duration_s in zip(chunks, refs, durations_s, strict=True):
            run.refs[chunk] = ref
            known_by[chunk] |= bit
            durations[chunk] = duration_s
            if is_stored(ref):
                before = self._blocks.stored_bytes
                self._blocks.incref_object(ref)
                if is_spilled(ref):
                    # The worker's arena had no room, though later results of its operand may fit.
                    sizes[chunk] = stored_bytes[chunk] = fresh[chunk] = size_of(ref)
                    on_disk.append(chunk)
                    self._registry.objects.add_file((graph_id, chunk), ref)
                    self._registry.spill_writer.add_written(ref)
                else:
                    sizes[chunk] = stored_bytes[chunk] = needed_bytes(ref)
                    fresh[chunk] = self._blocks.stored_bytes - before
                if is_map_output(ref):
                    map_outputs.append(chunk)
            elif may_hold_files(ref):
                run.may_hold_files = True
        if run.saver is not None:
            run.saver.computed(chunks, refs, durations_s)
        if run.observed:
            values = self._copies(chunks, refs) if run.values_wanted else {}
            run.inbox.put(client_messages.Done(chunks, handle.pid, values))
        return ChunksFinished(
            handle.id, graph_id, chunks, durations_s, sizes, fresh, peaks, steps_s, map_outputs, on_disk
        )

    def _copies(self, chunks: list[int], refs: list[ObjectRef]) -> dict[int, Any]:
        """Copy values for observers, before they may be freed."""
        values = {}
        for chunk, ref in zip(chunks, refs, strict=True):
            # A value that cannot be read here fails where it is needed.
            with contextlib.suppress(Exception):
                values[chunk] = self._store.load_copy(ref)
        return values

    def _on_restored(self, handle: WorkerHandle, message: messages.Restored) -> Event:
        graph_id, refs = message
        # The chunk that read it is reported later, so neither the graph nor its chunks can be gone.
        if None in map(self._runs[graph_id].refs.__getitem__, refs):
            raise ProtocolError(f"it restored values of graph {graph_id} that are not stored: {str(refs)[:200]}")
        for chunk, ref in refs.items():
            self._registry.objects.move([(graph_id, chunk)], ref, besides=handle)
        return ChunksRestored(handle.id, graph_id, list(refs))

    def _on_forgotten(self, handle: WorkerHandle, message: messages.Forgotten) -> None:
        self._registry.note_forgotten(message.graph, handle)

    def _on_failed(self, handle: WorkerHandle, message: messages.Failed) -> Event:
        graph_id, chunk, record, final = message
        self._check(handle, graph_id, [chunk])
        self._runs[graph_id].errors[chunk] = record
        return ChunkFailed(handle.id, graph_id, chunk, final)

    def _on_returned(self, handle: WorkerHandle, message: messages.Returned) -> Event:
        graph_id, chunks, reason = message
        self._check(handle, graph_id, chunks)
        run = self._runs[graph_id]
        to_client = False
        if reason == "client_only":
            to_client = True
            run.client_only.update(chunks)
        elif reason == "unreadable":
            # Only a chunk sent alone identifies itself as the unreadable one.
            to_client = len(chunks) == 1
            run.one_by_one = True
        if to_client and logger.isEnabledFor(logging.DEBUG):
            name = run.name_of(chunks[0])
            logger.debug("%s runs in the user's process: it is %s between processes", name, reason)
        return ChunksReturned(handle.id, graph_id, chunks, to_client)

    def _on_retained(self, handle: WorkerHandle, message: messages.Retained) -> None:
        for block in message.blocks:
            self._blocks.incref(block)
        handle.retained += message.blocks

    def _on_unretained(self, handle: WorkerHandle, message: messages.Unretained) -> None:
        for block in message.blocks:
            handle.retained.remove(block)
            self._blocks.decref(block)

    def _on_output(self, handle: WorkerHandle, message: messages.Output) -> None:
        run = self._runs.get(message.graph)
        if run is not None:
            run.inbox.put(client_messages.Printed(message.stream, message.text))
        else:
            # The printing code has outlived its task, so no caller receives its text.
            stream = sys.__stderr__ if message.stream == "stderr" else sys.__stdout__
            if stream is not None:
                # A program may have closed it.
                with contextlib.suppress(OSError, ValueError):
                    stream.write(message.text)

    def _on_warning(self, handle: WorkerHandle, message: messages.Warning) -> None:
        run = self._runs.get(message.graph)
        if run is not None:
            run.inbox.put(client_messages.Warned(message.payload))

    def _on_tracked(self, handle: WorkerHandle, message: messages.Tracked) -> None:
        if self._tracks:
            from multiprocessing import resource_tracker

            note = resource_tracker.register if message.is_open else resource_tracker.unregister
            note(message.name, "shared_memory")

    _handlers: ClassVar[dict[type, Callable[[Receiver, WorkerHandle, Any], Event | None]]] = {
        messages.Loaded: _on_loaded,
        messages.Ready: _on_ready,
        messages.CannotStart: _on_cannot_start,
        messages.Finished: _on_finished,
        messages.Restored: _on_restored,
        messages.Forgotten: _on_forgotten,
        messages.Failed: _on_failed,
        messages.Returned: _on_returned,
        messages.Retained: _on_retained,
        messages.Unretained: _on_unretained,
        messages.Output: _on_output,
        messages.Warning: _on_warning,
        messages.Tracked: _on_tracked,
    }
