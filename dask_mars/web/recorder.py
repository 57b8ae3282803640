"""The recording of one runtime, from the first request of a page until some time after the last."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container
from typing import Any

from dask.utils import format_bytes

from dask_mars.client.records import Record
from dask_mars.engine.listeners import EngineView, listeners
from dask_mars.labels import label_of
from dask_mars.observe.recording import Recording, Track
from dask_mars.web.monitor import Json

#: Time after the last request when recording ends, in seconds.
_LISTEN_S = 60.0
#: Maximum numbers of computations with rows, and of points of memory in one answer.
_MOST_TRACKS, _MOST_POINTS = 50, 2_000
#: Words of the API for happenings; it names no other.
_KINDS = {"failure": "retry", "death": "death", "cancelled": "cancel"}


class PageRecorder:
    """Records a runtime's engine while a page is open."""

    def __init__(self, find_engine: Callable[[], EngineView | None]) -> None:
        self._find_engine = find_engine
        self._asked_s = 0.0
        #: Number of the current engine.
        self._engine = 0
        self._is_listening = False
        self._recording = Recording(self._accepts, _MOST_TRACKS, wants_steps=False)
        #: Computations by id, which stays unique when engines and graph ids change.
        self._of_id: dict[str, Track] = {}
        #: Wall-clock time at 0 of the recording's clock.
        self._zero_s = time.time() - time.perf_counter()

    def watch(self) -> None:
        """Listen to the engine for a while from now on."""
        self._asked_s = time.monotonic()
        if not self._is_listening:
            self._is_listening = True
            listeners.add(self._recording)

    def close(self) -> None:
        """Stop listening."""
        self._is_listening = False
        listeners.remove(self._recording)

    def _accepts(self, engine: EngineView) -> bool:
        if time.monotonic() - self._asked_s > _LISTEN_S:
            self.close()
        if engine.id == self._engine:
            return True
        # It may have started after `watch`.
        is_ours = engine is self._find_engine()
        if is_ours:
            self._engine = engine.id
        return is_ours

    def link(self, record: Record) -> None:
        """Associate a computation's graph id with its id."""
        if record.graph is not None and record.id not in self._of_id:
            with self._recording.lock:
                track = self._recording.tracks.get((self._engine, record.graph))
                if track is not None:
                    self._of_id[record.id] = track
                    # A second index would give the same ids to layers, at the cost of a pass over all chunks.
                    track.index = getattr(record.source, "index", track.index)

    def keep(self, ids: Container[str]) -> None:
        """Forget all computations but some, and reduce the rows of ended ones."""
        with self._recording.lock:
            for id, track in list(self._of_id.items()):
                if track.is_over:
                    track.digest()
                if id not in ids:
                    del self._of_id[id]

    def timeline(self, record: Record) -> Json:
        """Return when each worker computed chunks of which layer."""
        recording = self._recording
        start = (record.started_s or record.created_s) - self._zero_s
        end = (record.ended_s or time.time()) - self._zero_s
        with recording.lock:
            track = self._of_id.get(record.id)
            if track is not None:
                track.digest()
            rows, names = ([], []) if track is None else (list(track.rows), list(track.names))
            events = self._events(record, start, end)
            memory = self._memory_between(start, end)
        workers = sorted({row[0] for row in rows})
        return {
            "start": start + self._zero_s,
            "workers": workers,
            "labels": [recording.labels[worker] for worker in workers],
            "layers": [label_of(name) for name in names],
            "tasks": [
                [worker, round(began - start, 6), round(ended - start, 6), layer, chunks]
                for worker, began, ended, layer, chunks in rows
            ],
            "memory": memory,
            "events": events,
        }

    def _events(self, record: Record, start: float, end: float) -> list[list[Any]]:
        begin = record.created_s - self._zero_s
        found = [
            (one.time_s, _KINDS[one.kind], one.text)
            for one in self._recording.happenings
            if one.kind in _KINDS and begin <= one.time_s <= end and one.graph in (None, record.graph)
        ]
        found += [
            (one.ended_s, "spill", f"{format_bytes(one.size_bytes)} written to disk: {one.key}")
            for one in self._recording.spills
            if begin <= one.ended_s <= end and one.graph == record.graph
        ]
        return [[round(max(at - start, 0.0), 6), kind, text] for at, kind, text in sorted(found)]

    def _memory_between(self, start: float, end: float) -> list[list[float]]:
        measured = self._recording.memory
        first, last = bisect_left(measured, (start,)), bisect_right(measured, (end,))
        step = max((last - first) // _MOST_POINTS, 1)
        return [[round(point.time_s - start, 6), *point[1:4]] for point in measured[first:last:step]]
