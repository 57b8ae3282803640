"""What workers report, taken note of and told to the state machine."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable
from typing import Any, ClassVar

from dask_mars.scheduler import run as messages
from dask_mars.scheduler.events import ChunksLoaded, Event, OperandFailed, OperandsFinished, OperandsReturned
from dask_mars.scheduler.holdings import Holdings
from dask_mars.scheduler.workers import WorkerHandle
from dask_mars.worker import channel
from dask_mars.worker.locations import ARRAY, Block, Location, needed_bytes

logger = logging.getLogger(__name__)


class Reports:
    """Takes the messages of workers.

    Parameters
    ----------
    holdings : Holdings
        What the engine holds.
    post : callable
        Feeds an event to the state machine.
    """

    def __init__(self, holdings: Holdings, post: Callable[[Event], None]) -> None:
        self._post = post
        self._store, self._blocks = holdings.store, holdings.blocks
        self._runs, self._workers = holdings.runs, holdings.workers

    def take(self, handle: WorkerHandle, message: tuple[Any, ...]) -> None:
        """Take a message, which is one of those in `channel`."""
        self._receive[message[0]](self, handle, *message[1:])

    def _on_ready(self, handle: WorkerHandle, pid: int) -> None:
        handle.ready = True

    def _on_finished(
        self,
        handle: WorkerHandle,
        number: int,
        chunks: list[int],
        locations: list[Location],
        durations_s: list[float],
        peaks: dict[int, int],
        steps_s: list[tuple[float, float, float]],
    ) -> None:
        run = self._runs[number]
        sizes: dict[int, int] = {}
        fresh: dict[int, int] = {}
        durations, stored_bytes = run.figures.durations_s, run.figures.stored_bytes
        for chunk, location, duration_s in zip(chunks, locations, durations_s, strict=True):
            run.locations[chunk] = location
            durations[chunk] = duration_s
            if location[0] >= ARRAY:
                before = self._blocks.stored_bytes
                self._blocks.keep_location(location)
                sizes[chunk] = stored_bytes[chunk] = needed_bytes(location)
                fresh[chunk] = self._blocks.stored_bytes - before
        handle.known[number].update(chunks)
        if run.observed:
            values = self._copies(chunks, locations) if run.values_wanted else {}
            run.inbox.put(messages.Done(chunks, handle.process.pid, values))
        self._post(OperandsFinished(handle.number, number, chunks, durations_s, sizes, fresh, peaks, steps_s))

    def _copies(self, chunks: list[int], locations: list[Location]) -> dict[int, Any]:
        """Copy values for observers, before they may be freed."""
        values = {}
        for chunk, location in zip(chunks, locations, strict=True):
            # What cannot be read here is a matter for those who need it.
            with contextlib.suppress(Exception):
                values[chunk] = self._store.load_copy(location)
        return values

    def _on_loaded(self, handle: WorkerHandle, number: int, locations: dict[int, Location]) -> None:
        # What it was loaded for is reported later, so that neither the graph nor its chunks can be gone.
        run = self._runs[number]
        for chunk, location in locations.items():
            spilled = run.locations[chunk]
            assert spilled is not None
            self._blocks.keep_location(location)
            run.locations[chunk] = location
            if chunk in run.spilled:
                self._blocks.drop_location(spilled)
            else:
                # The file is another graph's, which has persisted the chunk. It serves this one as well.
                run.spilled[chunk] = spilled
        for other in self._workers.values():
            known = other.known.get(number, ())
            moved = {chunk: location for chunk, location in locations.items() if chunk in known}
            if moved and other is not handle:
                other.send((channel.MOVED, number, moved))
        self._post(ChunksLoaded(handle.number, number, list(locations)))

    def _on_failed(self, handle: WorkerHandle, number: int, chunk: int, record: Any, final: bool) -> None:
        self._runs[number].errors[chunk] = record
        self._post(OperandFailed(handle.number, number, chunk, final))

    def _on_returned(self, handle: WorkerHandle, number: int, chunks: list[int], reason: str) -> None:
        run = self._runs[number]
        to_client = False
        if reason == channel.UNSENDABLE:
            to_client = True
        elif reason == channel.UNREADABLE:
            # Only alone can a chunk be told from its companions.
            to_client = len(chunks) == 1
            run.one_by_one = True
        if to_client:
            logger.debug(
                "%r runs in the user's process: it is %s between processes", run.graph.keys[chunks[0]], reason
            )
        self._post(OperandsReturned(handle.number, number, chunks, to_client))

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

    _receive: ClassVar[dict[int, Callable[..., None]]] = {
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
