"""The recording: rows of computed chunks by worker and time, incidents, and memory in use, from engines' events.

Engines' threads only append. Readers turn batches into rows; without readers, engines' threads do so periodically.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dask_mars.engine.listeners import EngineView, Listener, ListenerEvent, ProcessesMeasured
from dask_mars.labels import WorkerRows
from dask_mars.locking import Lock
from dask_mars.observe.counts import LayerCounts
from dask_mars.observe.layers import LayerIndex
from dask_mars.observe.timeline import Row, merged
from dask_mars.protocol.failures import FailureRecord
from dask_mars.scheduler.events import (
    ChunkFailed,
    ChunksFinished,
    FailGraph,
    FinishGraph,
    ForgetGraph,
    GraphCancelled,
    GraphSubmitted,
    ObjectSpilled,
    WorkerLost,
)
from dask_mars.tables import cut

#: Maximum numbers for one computation: batches before they become rows, happenings, and points of memory.
_MOST_BATCHES, _MOST_HAPPENINGS, _MOST_POINTS = 10_000, 1_000, 20_000
#: Maximum numbers of rows: of one computation while it runs and after it, and of all together.
_MOST_ROWS, _KEPT_ROWS, _ALL_ROWS = 20_000, 5_000, 250_000
#: Maximum number of chunks of ended computations that are not yet added up.
_MOST_CHUNKS = 200_000
#: Largest gap between chunks of a layer in one row, in seconds.
_SAME_S = 1e-3
_MESSAGE_CHARACTERS = 300

#: Outcomes of computations by the events that end them.
OUTCOMES: dict[type, str] = {FinishGraph: "finished", FailGraph: "failed", GraphCancelled: "cancelled"}


class Happening(NamedTuple):
    """An instantaneous event: ``"failure"``, ``"death"``, or the outcome of a computation."""

    time_s: float
    kind: str
    text: str
    graph: int | None = None
    #: Row of the worker.
    worker: int | None = None


class MemoryPoint(NamedTuple):
    """Memory in use, its part for results, bytes on disk now, and bytes spilled so far."""

    time_s: float
    in_use_bytes: int
    stored_bytes: int
    on_disk_bytes: int
    spilled_bytes: int


class SpillTimes(NamedTuple):
    """Start, end and size of a spill, the computation, and the key."""

    began_s: float
    ended_s: float
    size_bytes: int
    graph: int
    key: str


class LayerCosts(NamedTuple):
    """Costs of a layer's computed chunks, and its number of failed attempts."""

    chunks: int = 0
    load_s: float = 0.0
    compute_s: float = 0.0
    seal_s: float = 0.0
    stored_bytes: int = 0
    failed: int = 0

    @property
    def total_s(self) -> float:
        """Time of all steps together."""
        return self.load_s + self.compute_s + self.seal_s


class _Batch(NamedTuple):
    """Chunks that one report of a worker names, as they came; `steps_s` is empty if no listener asked for it."""

    time_s: float
    worker: int
    chunks: Sequence[int]
    durations_s: Sequence[float]
    steps_s: Sequence[tuple[float, float, float]] = ()


@dataclass(slots=True)
class Track:
    """The record of one computation."""

    graph: int
    began_s: float
    index: LayerIndex
    durations_s: array[float]
    stored_bytes: array[int]
    total: int = 0
    #: Number of reported chunks.
    done: int = 0
    ended_s: float | None = None
    outcome: str = "running"
    #: Whether the engine has forgotten it.
    is_over: bool = False
    batches: deque[_Batch] = field(default_factory=deque)
    rows: list[Row] = field(default_factory=list)
    #: Names of the layers, by the ids in `rows`.
    names: list[str] = field(default_factory=list)
    failed: Counter[int] = field(default_factory=Counter)
    #: Time of loading and of sealing by layer.
    _load_s: np.ndarray = field(default_factory=lambda: np.zeros(0))
    _seal_s: np.ndarray = field(default_factory=lambda: np.zeros(0))
    _costs: dict[str, LayerCosts] | None = None

    def digest(self) -> None:
        """Turn new batches into rows, and after the end drop all that concerns single chunks."""
        if self._costs is not None:
            return
        is_over = self.is_over
        layer_ids = self.index.layer_ids
        self.names = self.index.names
        for sums in ("_load_s", "_seal_s"):
            old = getattr(self, sums)
            setattr(self, sums, np.concatenate([old, np.zeros(len(self.names) - len(old))]))
        #: Place of each worker's last row.
        last = {row[0]: place for place, row in enumerate(self.rows)}
        while self.batches:
            self._add(self.batches.popleft(), layer_ids, last)
        if is_over:
            self._costs = self.costs()
            self.rows = merged(self.rows, _KEPT_ROWS)
            self.index, self.durations_s, self.stored_bytes = LayerIndex((), ()), array("f"), array("q")
        elif len(self.rows) > _MOST_ROWS:
            self.rows = merged(self.rows, _MOST_ROWS // 2)

    def _add(self, batch: _Batch, layer_ids: np.ndarray, last: dict[int, int]) -> None:
        layers, durations_s = layer_ids[np.asarray(batch.chunks)], np.asarray(batch.durations_s)
        if batch.steps_s:
            began, loaded, computed = np.asarray(batch.steps_s).T
            ends = began + durations_s
            known = layers >= 0
            np.add.at(self._load_s, layers[known], np.maximum(loaded - began, 0)[known])
            np.add.at(self._seal_s, layers[known], np.maximum(ends - computed, 0)[known])
        else:
            # Chunks of one report ran one after the other.
            ends = batch.time_s - durations_s.sum() + np.cumsum(durations_s)
        begins = ends - durations_s
        is_break = np.diff(layers) != 0
        if batch.steps_s:
            is_break |= begins[1:] - ends[:-1] >= _SAME_S
        places = [0, *(np.flatnonzero(is_break) + 1).tolist(), len(layers)]
        for start, stop in pairwise(places):
            row = (batch.worker, float(begins[start]), float(ends[stop - 1]), int(layers[start]), stop - start)
            self._append(row, last)

    def _append(self, row: Row, last: dict[int, int]) -> None:
        worker, began_s, ended_s, layer, count = row
        place = last.get(worker, -1)
        before = self.rows[place] if place >= 0 else None
        if before is not None and before[3] == layer and began_s - before[2] < _SAME_S:
            # A busy engine reads two batches at once, and the second then seems to start before the first ends.
            began_s, ended_s = min(before[1], began_s), max(before[2], ended_s)
            self.rows[place] = (worker, began_s, ended_s, layer, before[4] + count)
        else:
            last[worker] = len(self.rows)
            self.rows.append(row)

    def costs(self) -> dict[str, LayerCosts]:
        """Return the costs of each layer by name, after `digest`."""
        if self._costs is not None:
            return self._costs
        layer_ids = self.index.layer_ids
        failed = Counter(dict.fromkeys(range(len(self.names)), 0))
        for chunk, times in self.failed.items():
            failed[int(layer_ids[chunk])] += times
        counted = self.index.count(self.durations_s, self.stored_bytes)
        return {layer.name: self._costs_of(id, layer, failed[id]) for id, layer in enumerate(counted)}

    def _costs_of(self, layer_id: int, layer: LayerCounts, failed: int) -> LayerCosts:
        load_s, seal_s = float(self._load_s[layer_id]), float(self._seal_s[layer_id])
        compute_s = max(layer.seconds - load_s - seal_s, 0.0)
        return LayerCosts(layer.finished, load_s, compute_s, seal_s, layer.bytes, failed)


class Recording(Listener):
    """Records the events of this process's engines; all times are of `time.perf_counter`."""

    def __init__(
        self,
        accepts: Callable[[EngineView], bool] = lambda engine: True,
        most_tracks: int | None = None,
        wants_steps: bool = True,
    ) -> None:
        self.wants_steps = wants_steps
        self._accepts, self._most_tracks = accepts, most_tracks
        self.lock = Lock()
        #: Computations by the ids of engine and graph.
        self.tracks: dict[tuple[int, int], Track] = {}
        self.happenings: deque[Happening] = deque()
        self.memory: list[MemoryPoint] = []
        self.spills: deque[SpillTimes] = deque(maxlen=_MOST_POINTS)
        #: `retried` tasks failed and were computed later; `dropped` happenings were too many.
        self.limit_bytes = self.peak_bytes = self.spilled_bytes = self.retried = self.dropped = 0
        self._worker_rows = WorkerRows()
        self.labels = self._worker_rows.labels
        self._failed: set[tuple[int, int, int]] = set()
        #: Number of chunks of ended computations that are not yet added up.
        self._undigested = 0
        self._spilled_before: dict[int, int] = {}

    def digest(self) -> None:
        """Turn all batches into rows; the caller holds the lock."""
        for track in self.tracks.values():
            track.digest()
        self._undigested = 0
        if sum([len(track.rows) for track in self.tracks.values()]) > _ALL_ROWS:
            for track in self.tracks.values():
                track.rows = merged(track.rows, max(len(track.rows) // 2, 1))

    # -- in the engines' threads ------------------------------------------------------------------------------

    def on_event(self, engine: EngineView, event: ListenerEvent) -> None:
        """Record an event."""
        record = self._handlers.get(type(event))
        if record is not None and self._accepts(engine):
            with self.lock:
                record(self, engine, event, time.perf_counter())

    def _on_submitted(self, engine: EngineView, event: GraphSubmitted, now_s: float) -> None:
        self._track(engine, event.graph, now_s)
        self._measure(engine, now_s, engine.memory()["in_use_bytes"])

    def _track(self, engine: EngineView, graph: int, now_s: float) -> Track | None:
        """Return the track of a computation, which may have begun before the recording."""
        track = self.tracks.get((engine.id, graph))
        run = engine.runs.get(graph)
        if track is None and run is not None:
            index, measured = LayerIndex(run.graph.keys, run.graph.operand_of), run.measurements
            track = Track(graph, now_s, index, measured.durations_s, measured.stored_bytes)
            track.total = len(run.graph) - len(run.graph.values)
            self.tracks[engine.id, graph] = track
            if self._most_tracks is not None and len(self.tracks) > self._most_tracks:
                del self.tracks[next(iter(self.tracks))]
        return track

    def _on_finished(self, engine: EngineView, event: ChunksFinished, now_s: float) -> None:
        track = self._track(engine, event.graph, now_s)
        if track is None:
            return
        track.done += len(event.chunks)
        if self._failed:
            retried = {(engine.id, event.graph, chunk) for chunk in event.chunks} & self._failed
            self.retried += len(retried)
            self._failed -= retried
        row = self._row(engine, event.worker)
        track.batches.append(_Batch(now_s, row, event.chunks, event.durations_s, event.steps_s))
        if len(track.batches) > _MOST_BATCHES:
            track.digest()

    def _on_failed(self, engine: EngineView, event: ChunkFailed, now_s: float) -> None:
        run, track = engine.runs[event.graph], self._track(engine, event.graph, now_s)
        self._failed.add((engine.id, event.graph, event.chunk))
        if track is not None:
            track.failed[event.chunk] += 1
        text = f"{_cut(run.graph.keys[event.chunk])}: {_cut(error_text(run.errors.get(event.chunk)))}"
        self._note(Happening(now_s, "failure", text, event.graph, self._row(engine, event.worker)))

    def _on_lost(self, engine: EngineView, event: WorkerLost, now_s: float) -> None:
        text, graph = f"{engine.labels[event.worker]} died", None
        if event.running is not None:
            graph, chunk = event.running
            self._failed.add((engine.id, graph, chunk))
            if graph in engine.runs:
                text += f" while it ran {_cut(engine.runs[graph].graph.keys[chunk])}"
        self._note(Happening(now_s, "death", text, graph, self._row(engine, event.worker)))

    def _on_spilled(self, engine: EngineView, event: ObjectSpilled, now_s: float) -> None:
        if event.ended_s and event.written:
            key = _cut(engine.key_of(event.object))
            self.spills.append(SpillTimes(event.began_s, event.ended_s, event.size_bytes, event.object[0], key))

    def _on_end(self, engine: EngineView, event: FinishGraph | FailGraph | GraphCancelled, now_s: float) -> None:
        track = self._track(engine, event.graph, now_s)
        if track is not None and track.ended_s is None:
            track.ended_s, track.outcome = now_s, OUTCOMES[type(event)]
            if track.outcome != "finished":
                text = f"computation {event.graph} {track.outcome}"
                self._note(Happening(now_s, track.outcome, text, event.graph))
            self._measure(engine, now_s, engine.memory()["in_use_bytes"])

    def _on_forgotten(self, engine: EngineView, event: ForgetGraph, now_s: float) -> None:
        track = self.tracks.get((engine.id, event.graph))
        if track is not None:
            track.is_over = True
            self._undigested += len(track.durations_s)
            if self._undigested > _MOST_CHUNKS:
                self.digest()

    def _on_measured(self, engine: EngineView, event: ProcessesMeasured, now_s: float) -> None:
        self._measure(engine, now_s, event.in_use_bytes)

    def _measure(self, engine: EngineView, now_s: float, in_use_bytes: int) -> None:
        store = engine.store()
        spilled = store["spilled_bytes"]
        spilled -= self._spilled_before.setdefault(engine.id, spilled)
        self.limit_bytes = engine.memory()["limit_bytes"]
        self.peak_bytes = max(self.peak_bytes, in_use_bytes)
        self.spilled_bytes = max(self.spilled_bytes, spilled)
        if len(self.memory) >= _MOST_POINTS:
            # Half of the resolution is enough for long computations.
            del self.memory[::2]
        self.memory.append(
            MemoryPoint(now_s, in_use_bytes, store["stored_bytes"], engine.on_disk_bytes(), spilled)
        )

    def _note(self, happening: Happening) -> None:
        self.happenings.append(happening)
        if len(self.happenings) > _MOST_HAPPENINGS:
            self.happenings.popleft()
            self.dropped += 1

    def _row(self, engine: EngineView, worker: int) -> int:
        return self._worker_rows.row_of(engine.labels[worker])

    _handlers: ClassVar[dict[type, Callable[[Recording, EngineView, Any, float], None]]] = {
        GraphSubmitted: _on_submitted,
        ChunksFinished: _on_finished,
        ChunkFailed: _on_failed,
        WorkerLost: _on_lost,
        ObjectSpilled: _on_spilled,
        FinishGraph: _on_end,
        FailGraph: _on_end,
        GraphCancelled: _on_end,
        ForgetGraph: _on_forgotten,
        ProcessesMeasured: _on_measured,
    }


def error_text(error: Any) -> str:
    """Return the text of a failed chunk's error."""
    if error is None:
        return "no error is known"
    return error.summary if isinstance(error, FailureRecord) else f"{type(error).__name__}: {error}"


def _cut(value: Any) -> str:
    return cut(str(value), _MESSAGE_CHARACTERS)
