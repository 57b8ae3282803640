"""Data of a report: recorded from events, and summed at the end."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from dask.utils import key_split

from dask_mars.diagnostics.timeline import Row, merged
from dask_mars.engine.listeners import EngineView, Listener, ListenerEvent, ProcessesMeasured
from dask_mars.graph.chunks import Key, layer_of
from dask_mars.labels import WorkerRows
from dask_mars.protocol.failures import FailureRecord
from dask_mars.protocol.object_ref import size_of
from dask_mars.scheduler.events import (
    CLIENT,
    ChunkFailed,
    ChunksFinished,
    FailGraph,
    FinishGraph,
    GraphCancelled,
    GraphSubmitted,
    ObjectSpilled,
    WorkerLost,
)

#: Most batches before they are summed, single happenings, and points of memory.
_MOST_BATCHES, _MOST_HAPPENINGS, _MOST_POINTS = 2_000, 500, 20_000
#: Most rows of the timeline in memory, and on a page.
_KEPT_ROWS, _DRAWN_ROWS = 40_000, 4_000
_MESSAGE_CHARACTERS = 300


class Happening(NamedTuple):
    """An instantaneous event: a failure, a death, an end."""

    time_s: float
    kind: str
    what: str
    worker: int | None = None


class MemoryPoint(NamedTuple):
    """Memory in use, its part for results, and bytes spilled so far."""

    time_s: float
    in_use_bytes: int
    stored_bytes: int
    spilled_bytes: int


@dataclass(slots=True)
class LayerSums:
    """Costs of a layer's chunks."""

    count: int = 0
    load_s: float = 0.0
    compute_s: float = 0.0
    seal_s: float = 0.0
    stored_bytes: int = 0
    failed: int = 0

    @property
    def total_s(self) -> float:
        """Time of all steps together."""
        return self.load_s + self.compute_s + self.seal_s


@dataclass(slots=True)
class ComputationSums:
    """One computation: start, end, outcome, and number of chunks."""

    number: int
    began_s: float
    chunks: int
    done: int = 0
    ended_s: float | None = None
    outcome: str = "running"


@dataclass(slots=True)
class Recorded:
    """All data of a page. Times are in seconds since the start.

    Attributes
    ----------
    length_s : float
        From the start of the first computation to the end of the last one.
    rows : list of Row
        Chunks run by each worker, with time and layer.
    labels : dict
        Label of each row's worker.
    layers : dict
        Sums by the layer's name, in the order of `rows`.
    computations, happenings, memory
        Sorted by time.
    limit_bytes, peak_bytes, spilled_bytes : int
        Memory limit, peak memory, and bytes written to disk.
    spills : list of tuple
        Start, end and size of each spill.
    retried : int
        Number of tasks that failed and were computed later.
    is_truncated : bool
        Whether more happened than the page lists.
    """

    length_s: float = 0.0
    rows: list[Row] = field(default_factory=list)
    labels: Mapping[int, str] = field(default_factory=dict)
    layers: dict[str, LayerSums] = field(default_factory=dict)
    computations: list[ComputationSums] = field(default_factory=list)
    happenings: list[Happening] = field(default_factory=list)
    memory: list[MemoryPoint] = field(default_factory=list)
    spills: list[tuple[float, float, int]] = field(default_factory=list)
    limit_bytes: int = 0
    peak_bytes: int = 0
    spilled_bytes: int = 0
    retried: int = 0
    is_truncated: bool = False

    @property
    def workers(self) -> list[int]:
        """The workers that ran chunks; the user's process is `CLIENT`."""
        return sorted({row[0] for row in self.rows})

    def busy_share(self) -> float:
        """Return the busy fraction of the workers' time, from the first chunk to the last."""
        rows = [row for row in self.rows if row[0] != CLIENT]
        if not rows:
            return 0.0
        length_s = max([row[2] for row in rows]) - min([row[1] for row in rows])
        workers = len({row[0] for row in rows})
        return min(sum([row[2] - row[1] for row in rows]) / max(length_s * workers, 1e-9), 1.0)


class _Batch(NamedTuple):
    worker: int
    keys: list[Key]
    steps_s: Sequence[tuple[float, float, float]]
    durations_s: Sequence[float]
    sizes: list[int]


class Recording(Listener):
    """Records the events of this process's engines."""

    wants_steps = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began_s = time.perf_counter()
        self._batches: deque[_Batch] = deque()
        self._worker_rows = WorkerRows()
        self._found = Recorded(labels=self._worker_rows.labels)
        #: Number of each layer by name; `rows` have numbers.
        self._numbers: dict[str, int] = {}
        self._computations: dict[tuple[int, int], ComputationSums] = {}
        self._failed: set[tuple[int, int, int]] = set()
        self._spilled_before: dict[int, int] = {}

    def result(self) -> Recorded:
        """Sum the recorded events, and return the data."""
        with self._lock:
            self._add_up()
            found = self._found
            found.rows = merged(_split_over(found.rows), _DRAWN_ROWS)
            found.computations = list(self._computations.values())
            return _from_zero(found)

    # -- in the engines' threads ------------------------------------------------------------------------------

    def on_event(self, engine: EngineView, event: ListenerEvent) -> None:
        """Record an event."""
        now_s = time.perf_counter() - self._began_s
        with self._lock:
            if isinstance(event, ChunksFinished):
                self._on_finished(engine, event)
            elif isinstance(event, ProcessesMeasured):
                self._measure(engine, now_s, event.in_use_bytes)
            elif isinstance(event, GraphSubmitted):
                self._on_submitted(engine, event, now_s)
            elif isinstance(event, ObjectSpilled):
                self._on_spilled(engine, event)
            elif isinstance(event, ChunkFailed):
                self._on_failed(engine, event, now_s)
            elif isinstance(event, WorkerLost):
                self._on_lost(engine, event, now_s)
            elif isinstance(event, FinishGraph | FailGraph | GraphCancelled):
                self._on_end(engine, event, now_s)

    def _on_submitted(self, engine: EngineView, event: GraphSubmitted, now_s: float) -> None:
        chunks = sum([operand >= 0 for operand in event.plan.operand_of])
        self._computations[engine.number, event.graph] = ComputationSums(event.graph, now_s, chunks)
        self._measure(engine, now_s, engine.memory()["in_use_bytes"])

    def _on_finished(self, engine: EngineView, event: ChunksFinished) -> None:
        run = engine.runs[event.graph]
        keys = [run.graph.keys[chunk] for chunk in event.chunks]
        if (known := self._computations.get((engine.number, event.graph))) is not None:
            known.done += len(keys)
        if self._failed:
            retried = {(engine.number, event.graph, chunk) for chunk in event.chunks} & self._failed
            self._found.retried += len(retried)
            self._failed -= retried
        refs = [run.refs[chunk] for chunk in event.chunks]
        sizes = [0 if ref is None or event.worker == CLIENT else size_of(ref) or 0 for ref in refs]
        self._batches.append(
            _Batch(self._row(engine, event.worker), keys, event.steps_s, event.durations_s, sizes)
        )
        if len(self._batches) > _MOST_BATCHES:
            self._add_up()

    def _on_spilled(self, engine: EngineView, event: ObjectSpilled) -> None:
        if event.ended_s and event.written and len(self._found.spills) < _MOST_POINTS:
            began_s = self._began_s
            self._found.spills.append((event.began_s - began_s, event.ended_s - began_s, event.size_bytes))

    def _on_failed(self, engine: EngineView, event: ChunkFailed, now_s: float) -> None:
        run = engine.runs[event.graph]
        self._failed.add((engine.number, event.graph, event.chunk))
        self._layer(_layer_name(run.graph.keys[event.chunk])).failed += 1
        what = f"{_cut(str(run.graph.keys[event.chunk]))}: {_error(run.errors.get(event.chunk))}"
        self._tell(Happening(now_s, "task failed", what, self._row(engine, event.worker)))

    def _on_lost(self, engine: EngineView, event: WorkerLost, now_s: float) -> None:
        what = f"{engine.labels[event.worker]} died"
        if event.running is not None and (run := engine.runs.get(event.running[0])) is not None:
            what += f" while it ran {_cut(str(run.graph.keys[event.running[1]]))}"
            self._failed.add((engine.number, *event.running))
        self._tell(Happening(now_s, "worker died", what, self._row(engine, event.worker)))

    def _on_end(self, engine: EngineView, event: FinishGraph | FailGraph | GraphCancelled, now_s: float) -> None:
        known = self._computations.get((engine.number, event.graph))
        if known is None or known.ended_s is not None:
            return
        known.ended_s = now_s
        known.outcome = _OUTCOMES[type(event)]
        if known.outcome != "finished":
            self._tell(Happening(now_s, known.outcome, f"computation {event.graph} {known.outcome}"))
        self._measure(engine, now_s, engine.memory()["in_use_bytes"])

    def _measure(self, engine: EngineView, now_s: float, in_use_bytes: int) -> None:
        found, store = self._found, engine.store()
        before = self._spilled_before.setdefault(engine.number, store["spilled_bytes"])
        spilled = store["spilled_bytes"] - before
        found.limit_bytes = engine.memory()["limit_bytes"]
        found.peak_bytes = max(found.peak_bytes, in_use_bytes)
        found.spilled_bytes = max(found.spilled_bytes, spilled)
        if len(found.memory) >= _MOST_POINTS:
            # Half of the resolution is enough for long computations.
            del found.memory[::2]
        found.memory.append(MemoryPoint(now_s, in_use_bytes, store["stored_bytes"], spilled))

    def _tell(self, happening: Happening) -> None:
        if len(self._found.happenings) < _MOST_HAPPENINGS:
            self._found.happenings.append(happening)
        else:
            self._found.is_truncated = True

    def _row(self, engine: EngineView, worker: int) -> int:
        return self._worker_rows.number(engine.labels[worker])

    def _layer(self, name: str) -> LayerSums:
        if name not in self._numbers:
            self._numbers[name] = len(self._numbers)
        return self._found.layers.setdefault(name, LayerSums())

    # -- adding up --------------------------------------------------------------------------------------------

    def _add_up(self) -> None:
        rows = self._found.rows
        while self._batches:
            batch = self._batches.popleft()
            if not batch.steps_s:
                # They started before the engine measured steps.
                continue
            for key, steps, duration_s, size in zip(
                batch.keys, batch.steps_s, batch.durations_s, batch.sizes, strict=True
            ):
                name = _layer_name(key)
                sums = self._layer(name)
                began_s, loaded_s, computed_s = steps
                sums.count += 1
                sums.load_s += max(loaded_s - began_s, 0.0)
                sums.compute_s += max(computed_s - loaded_s, 0.0)
                sums.seal_s += max(began_s + duration_s - computed_s, 0.0)
                sums.stored_bytes += size
                start_s = began_s - self._began_s
                rows.append((batch.worker, start_s, start_s + duration_s, self._numbers[name], 1))
        if len(rows) > _KEPT_ROWS:
            self._found.rows = merged(rows, _KEPT_ROWS // 2)


def _from_zero(found: Recorded) -> Recorded:
    """Return the data with times relative to the start of the first computation."""
    begins = [one.began_s for one in found.computations]
    first_s = min(begins, default=0.0)
    ends = [row[2] for row in found.rows] + [one.time_s for one in found.happenings]
    ends += [one.ended_s for one in found.computations if one.ended_s is not None]
    for one in found.computations:
        one.began_s -= first_s
        one.ended_s = None if one.ended_s is None else one.ended_s - first_s
    return replace(
        found,
        length_s=max([*ends, *begins], default=0.0) - first_s,
        rows=[(row[0], row[1] - first_s, row[2] - first_s, row[3], row[4]) for row in found.rows],
        happenings=[one._replace(time_s=one.time_s - first_s) for one in found.happenings],
        memory=[point._replace(time_s=point.time_s - first_s) for point in found.memory],
        spills=[(began_s - first_s, ended_s - first_s, size) for began_s, ended_s, size in found.spills],
    )


def _layer_name(key: Key) -> str:
    """Return the layer of a key; for a key without a layer its kind, which many keys share."""
    return layer_of(key) if isinstance(key, tuple) else str(key_split(key))


def _split_over(rows: list[Row]) -> list[Row]:
    """Return rows without overlaps of the user's process, whose threads run side by side."""
    own = sorted([row for row in rows if row[0] == CLIENT], key=lambda row: row[1])
    found = [row for row in rows if row[0] != CLIENT]
    last = None
    for row in own:
        start_s = row[1] if last is None else max(row[1], last)
        if row[2] > start_s:
            found.append((row[0], start_s, row[2], row[3], row[4]))
            last = row[2]
    return found


def _cut(text: str) -> str:
    return text if len(text) <= _MESSAGE_CHARACTERS else f"{text[: _MESSAGE_CHARACTERS - 1]}…"


def _error(error: Any) -> str:
    if error is None:
        return "no error is known"
    described = error.summary if isinstance(error, FailureRecord) else f"{type(error).__name__}: {error}"
    return _cut(described)


_OUTCOMES: dict[type, str] = {FinishGraph: "finished", FailGraph: "failed", GraphCancelled: "cancelled"}

__all__ = ["ComputationSums", "Happening", "LayerSums", "MemoryPoint", "Recorded", "Recording"]
