"""Records when workers of this process's engines computed chunks, while a page is open."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from dask.utils import format_bytes

from dask_mars.client.layer_index import LayerIndex
from dask_mars.client.records import CANCELLED, Record
from dask_mars.diagnostics.timeline import Row, merged
from dask_mars.engine.listeners import EngineView, Listener, ListenerEvent, ProcessesMeasured, listeners
from dask_mars.labels import WorkerRows, label_of
from dask_mars.scheduler.events import (
    ChunkFailed,
    ChunksFinished,
    ForgetGraph,
    GraphCancelled,
    ObjectSpilled,
    WorkerLost,
)
from dask_mars.web.monitor import Json
from dask_mars.web.turns import turns

#: Time after the last request when recording ends, in seconds.
_LISTEN_S = 60.0
#: Most rows of one computation, during the run and after it.
_MOST_ROWS, _KEPT_ROWS = 20_000, 5_000
#: Most unread batches, events of one computation, and measurements of memory.
_MOST_BATCHES, _MOST_EVENTS, _MOST_MEASURED = 50_000, 1_000, 20_000
#: Most computations with rows.
_MOST_TRACKS = 50
#: Largest gap between chunks of a layer in one row, in seconds.
_SAME_S = 1e-3
#: Most points of memory in one answer.
_MOST_POINTS = 2_000


@dataclass(slots=True)
class _Track:
    """The record of one computation; `index` is set while its keys are needed."""

    index: LayerIndex | None
    batches: deque[tuple[float, int, Sequence[int], Sequence[float]]] = field(
        default_factory=lambda: deque(maxlen=_MOST_BATCHES)
    )
    rows: list[Row] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    is_over: bool = False


class PageRecorder(Listener):
    """Records when chunks were computed, from the first request until some time after the last.

    Parameters
    ----------
    find_engine : callable
        Returns the view of the engine to listen to, None while there is none; also called in engines' threads.
    """

    def __init__(self, find_engine: Callable[[], EngineView | None]) -> None:
        self._find_engine = find_engine
        self._asked_s = 0.0
        #: Number of the current engine.
        self._engine = 0
        self._is_listening = False
        self._lock = threading.Lock()
        self._tracks: dict[int, _Track] = {}
        #: Records by computation id, which stays unique when numbers repeat.
        self._of_id: dict[str, _Track] = {}
        self._events: deque[tuple[float, int | None, str, str]] = deque(maxlen=_MOST_EVENTS)
        self._worker_rows = WorkerRows()
        self._memory: deque[tuple[float, int, int, int]] = deque(maxlen=_MOST_MEASURED)

    def watch(self) -> None:
        """Listen to the engine for a while from now on."""
        self._asked_s = time.monotonic()
        if not self._is_listening:
            self._is_listening = True
            listeners.add(self)
            turns.begin(self)

    def close(self) -> None:
        """Stop listening."""
        self._is_listening = False
        listeners.remove(self)
        turns.end(self)

    def link(self, record: Record) -> None:
        """Associate a computation's number with its id."""
        if record.graph is not None and record.id not in self._of_id:
            with self._lock:
                track = self._tracks.get(record.graph)
                if track is not None:
                    self._of_id[record.id] = track
                    # A second index would give the same numbers to layers, at the cost of a pass over all chunks.
                    track.index = getattr(record.source, "index", track.index)

    def keep(self, ids: Container[str]) -> None:
        """Forget all computations but some, and reduce the rows of ended ones."""
        with self._lock:
            for track in self._of_id.values():
                if track.is_over:
                    _digest(track)
            for id in [id for id in self._of_id if id not in ids]:
                del self._of_id[id]

    # -- in the engines' threads ------------------------------------------------------------------------------

    def on_event(self, engine: EngineView, event: ListenerEvent) -> None:
        """Record an event."""
        if engine.number != self._engine and not self._is_new(engine):
            return
        if isinstance(event, ChunksFinished):
            track = self._tracks.get(event.graph)
            if track is None:
                track = self._begin(engine, event.graph)
            if track is not None:
                row = self._worker_rows.number(engine.labels[event.worker])
                track.batches.append((time.time(), row, event.chunks, event.durations_s))
        elif isinstance(event, ProcessesMeasured):
            self._stop_unless_asked()
            stored = engine.store()["stored_bytes"]
            self._memory.append((time.time(), event.in_use_bytes, stored, engine.on_disk_bytes()))
        elif isinstance(event, ForgetGraph):
            # Computations may be too short for measurements.
            self._stop_unless_asked()
            track = self._tracks.get(event.graph)
            if track is not None:
                track.is_over = True
        elif isinstance(event, WorkerLost):
            graph = None if event.running is None else event.running[0]
            self._note(graph, "death", f"{engine.labels[event.worker]} has ended")
        elif isinstance(event, ChunkFailed):
            self._note(event.graph, "retry", f"{_key(engine, event.graph, event.chunk)} raised")
        elif isinstance(event, ObjectSpilled):
            if event.written and event.ended_s:
                text = f"{format_bytes(event.size_bytes)} written to disk: {engine.key_of(event.object)}"
                self._note(event.object[0], "spill", text)
        elif isinstance(event, GraphCancelled):
            self._note(event.graph, "cancel", "cancelled")

    def _stop_unless_asked(self) -> None:
        if time.monotonic() - self._asked_s > _LISTEN_S:
            self.close()

    def _is_new(self, engine: EngineView) -> bool:
        """Return whether to listen to this engine from now on; it may have started after `watch`."""
        if engine is not self._find_engine():
            return False
        with self._lock:
            # Another engine reuses the numbers of computations.
            self._tracks.clear()
            self._engine = engine.number
        return True

    def _begin(self, engine: EngineView, graph: int) -> _Track | None:
        run = engine.runs.get(graph)
        if run is None:
            return None
        track = _Track(LayerIndex(run.graph.keys, run.graph.operand_of))
        with self._lock:
            self._tracks[graph] = track
            while len(self._tracks) > _MOST_TRACKS:
                del self._tracks[next(iter(self._tracks))]
        return track

    def _note(self, graph: int | None, kind: str, text: str) -> None:
        self._events.append((time.time(), graph, kind, text))

    # -- for requests -----------------------------------------------------------------------------------------

    def timeline(self, record: Record) -> Json:
        """Return when each worker computed chunks of which layer."""
        # A failure also cancels the rest, which is not worth an entry.
        unsaid = None if record.state == CANCELLED else "cancel"
        start = record.started_s or record.created_s
        end = record.ended_s or time.time()
        rows: list[Row] = []
        names: list[str] = []
        with self._lock:
            track = self._of_id.get(record.id)
            if track is not None:
                _digest(track)
                rows, names = track.rows, list(track.names)
        workers = sorted({row[0] for row in rows})
        labels = self._worker_rows.labels
        return {
            "start": start,
            "workers": workers,
            "labels": [labels[worker] for worker in workers],
            "layers": [label_of(name) for name in names],
            "tasks": [
                [worker, round(began - start, 6), round(ended - start, 6), layer, chunks]
                for worker, began, ended, layer, chunks in rows
            ],
            "memory": self._memory_between(start, end),
            "events": [
                [round(max(at - start, 0.0), 6), kind, text]
                for at, graph, kind, text in list(self._events)
                if kind != unsaid and record.created_s <= at <= end and (graph is None or graph == record.graph)
            ],
        }

    def _memory_between(self, start: float, end: float) -> list[list[float]]:
        measured = list(self._memory)
        first = bisect_left(measured, (start, 0, 0, 0))
        last = bisect_right(measured, (end, 0, 0, 0))
        step = max((last - first) // _MOST_POINTS, 1)
        return [[round(at - start, 6), *values] for at, *values in measured[first:last:step]]


def _digest(track: _Track) -> None:
    """Convert new batches to rows."""
    index = track.index
    if index is None:
        return
    is_over = track.is_over
    index.look()
    numbers = index.known()
    rows = track.rows
    #: Index of each worker's last row.
    last = {row[0]: place for place, row in enumerate(rows)}
    while track.batches:
        ended, worker, chunks, durations_s = track.batches.popleft()
        layers = numbers[np.asarray(chunks)]
        # Chunks of one report ran one after the other.
        ends = ended - sum(durations_s) + np.cumsum(durations_s)
        begins = [0, *(np.flatnonzero(np.diff(layers)) + 1).tolist(), len(layers)]
        for begin, end in pairwise(begins):
            began, until, layer = float(ends[begin] - durations_s[begin]), float(ends[end - 1]), int(layers[begin])
            place = last.get(worker, -1)
            before = rows[place] if place >= 0 else None
            if before is not None and before[3] == layer and began - before[2] < _SAME_S:
                # A busy engine reads two batches at once, and the second then seems to start before the first
                # ends.
                rows[place] = (
                    worker,
                    min(before[1], began),
                    max(before[2], until),
                    layer,
                    before[4] + end - begin,
                )
            else:
                last[worker] = len(rows)
                rows.append((worker, began, until, layer, end - begin))
    if is_over:
        track.rows, track.index = merged(rows, _KEPT_ROWS), None
    elif len(rows) > _MOST_ROWS:
        track.rows = merged(rows, _MOST_ROWS // 2)
    track.names = index.names


def _key(engine: EngineView, graph: int, chunk: int) -> str:
    run = engine.runs.get(graph)
    return "a task" if run is None else str(run.graph.keys[chunk])


__all__ = ["PageRecorder"]
