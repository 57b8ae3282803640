"""What workers report, taken note of and told to the state machine."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Collection
from typing import Any, ClassVar

from dask_mars.engine import computation as messages
from dask_mars.engine.processes import WorkerHandle
from dask_mars.engine.registry import Registry
from dask_mars.protocol import channel
from dask_mars.protocol.object_ref import ARRAY, Block, ObjectRef, needed_bytes
from dask_mars.scheduler.events import ChunkFailed, ChunksFinished, ChunksLoaded, ChunksReturned, Event

logger = logging.getLogger(__name__)


class SenselessReport(Exception):
    """A worker says what cannot be, as when a task has written into its socket. Nothing was taken note of."""


class Receiver:
    """Takes the messages of workers.

    Parameters
    ----------
    registry : Registry
        What the engine holds.
    holds : callable
        Says of a worker, a graph and chunks whether the worker has the chunks in hand.
    post : callable
        Feeds an event to the state machine.
    """

    def __init__(
        self,
        registry: Registry,
        holds: Callable[[int, int, Collection[int]], bool],
        post: Callable[[Event], None],
    ) -> None:
        self._holds = holds
        self._post = post
        self._store, self._blocks = registry.store, registry.blocks
        self._runs, self._workers = registry.runs, registry.workers

    def take(self, handle: WorkerHandle, message: tuple[Any, ...]) -> None:
        """Take a message, which is one of those in `channel`.

        Raises
        ------
        SenselessReport
            It is none of them, or about what the worker was not given.
        """
        try:
            event = self._receive[message[0]](self, handle, *message[1:])
        except SenselessReport:
            raise
        except Exception as error:
            raise SenselessReport(f"{str(message)[:200]}: {error!r}") from error
        if event is not None:
            self._post(event)

    def _check(self, handle: WorkerHandle, number: int, chunks: Collection[int]) -> None:
        if not self._holds(handle.number, number, chunks):
            raise SenselessReport(f"it was not given all of {str(chunks)[:200]} of graph {number}")

    def _on_ready(self, handle: WorkerHandle, pid: int) -> None:
        handle.ready = True

    def _on_finished(
        self,
        handle: WorkerHandle,
        number: int,
        chunks: list[int],
        refs: list[ObjectRef],
        durations_s: list[float],
        peaks: dict[int, int],
        steps_s: list[tuple[float, float, float]],
    ) -> Event:
        self._check(handle, number, chunks)
        run = self._runs[number]
        sizes: dict[int, int] = {}
        fresh: dict[int, int] = {}
        durations, stored_bytes = run.figures.durations_s, run.figures.stored_bytes
        for chunk, ref, duration_s in zip(chunks, refs, durations_s, strict=True):
            run.refs[chunk] = ref
            durations[chunk] = duration_s
            if ref[0] >= ARRAY:
                before = self._blocks.stored_bytes
                self._blocks.incref_object(ref)
                sizes[chunk] = stored_bytes[chunk] = needed_bytes(ref)
                fresh[chunk] = self._blocks.stored_bytes - before
        handle.known[number].update(chunks)
        if run.observed:
            values = self._copies(chunks, refs) if run.values_wanted else {}
            run.inbox.put(messages.Done(chunks, handle.process.pid, values))
        return ChunksFinished(handle.number, number, chunks, durations_s, sizes, fresh, peaks, steps_s)

    def _copies(self, chunks: list[int], refs: list[ObjectRef]) -> dict[int, Any]:
        """Copy values for observers, before they may be freed."""
        values = {}
        for chunk, ref in zip(chunks, refs, strict=True):
            # What cannot be read here is a matter for those who need it.
            with contextlib.suppress(Exception):
                values[chunk] = self._store.load_copy(ref)
        return values

    def _on_loaded(self, handle: WorkerHandle, number: int, refs: dict[int, ObjectRef]) -> Event:
        # What it was loaded for is reported later, so that neither the graph nor its chunks can be gone.
        run = self._runs[number]
        for chunk, ref in refs.items():
            spilled = run.refs[chunk]
            assert spilled is not None
            self._blocks.incref_object(ref)
            run.refs[chunk] = ref
            if chunk in run.spilled:
                self._blocks.decref_object(spilled)
            else:
                # The file is another graph's, which has persisted the chunk. It serves this one as well.
                run.spilled[chunk] = spilled
        for other in self._workers.values():
            known = other.known.get(number, ())
            moved = {chunk: ref for chunk, ref in refs.items() if chunk in known}
            if moved and other is not handle:
                other.send((channel.MOVED, number, moved))
        return ChunksLoaded(handle.number, number, list(refs))

    def _on_failed(self, handle: WorkerHandle, number: int, chunk: int, record: Any, final: bool) -> Event:
        self._check(handle, number, [chunk])
        self._runs[number].errors[chunk] = record
        return ChunkFailed(handle.number, number, chunk, final)

    def _on_returned(self, handle: WorkerHandle, number: int, chunks: list[int], reason: str) -> Event:
        self._check(handle, number, chunks)
        run = self._runs[number]
        to_client = False
        if reason == channel.UNSENDABLE:
            to_client = True
            run.unpicklable.update(chunks)
        elif reason == channel.UNREADABLE:
            # Only alone can a chunk be told from its companions.
            to_client = len(chunks) == 1
            run.one_by_one = True
        if to_client:
            logger.debug(
                "%r runs in the user's process: it is %s between processes", run.graph.keys[chunks[0]], reason
            )
        return ChunksReturned(handle.number, number, chunks, to_client)

    def _on_held(self, handle: WorkerHandle, blocks: list[Block]) -> None:
        for block in blocks:
            self._blocks.keep(block)
        handle.held += blocks

    def _on_unheld(self, handle: WorkerHandle, blocks: list[Block]) -> None:
        for block in blocks:
            handle.held.remove(block)
            self._blocks.drop(block)

    def _on_output(self, handle: WorkerHandle, number: int, stream: str, text: str) -> None:
        run = self._runs.get(number)
        if run is not None:
            run.inbox.put(messages.Printed(stream, text))
        else:
            # Printed by something that outlived its task: nobody in particular is listening.
            print(text, end="", file=sys.__stderr__ if stream == "stderr" else sys.__stdout__)

    def _on_warning(self, handle: WorkerHandle, number: int, payload: bytes) -> None:
        run = self._runs.get(number)
        if run is not None:
            run.inbox.put(messages.Warned(payload))

    _receive: ClassVar[dict[int, Callable[..., Event | None]]] = {
        channel.READY: _on_ready,
        channel.FINISHED: _on_finished,
        channel.LOADED: _on_loaded,
        channel.FAILED: _on_failed,
        channel.RETURNED: _on_returned,
        channel.HELD: _on_held,
        channel.UNHELD: _on_unheld,
        channel.OUTPUT: _on_output,
        channel.WARNING: _on_warning,
    }
