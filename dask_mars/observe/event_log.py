"""An event log for trace viewers: the activity of each process, and the content of the store."""

from __future__ import annotations

import atexit
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from dask_mars import units
from dask_mars.engine.listeners import EngineView, Listener, ListenerEvent, ProcessesMeasured, listeners
from dask_mars.locking import Lock
from dask_mars.observe.recording import OUTCOMES, error_text
from dask_mars.observe.trace_file import TraceFile
from dask_mars.scheduler.events import (
    CLIENT,
    ChunkFailed,
    ChunksFinished,
    FailGraph,
    FinishGraph,
    ForgetGraph,
    GraphCancelled,
    GraphSubmitted,
    ObjectSpilled,
    WorkerLost,
    WorkerRetired,
    WorkerStarted,
)
from dask_mars.tables import Table, Tabular

#: Shortest interval between two records of the store's content, in seconds.
_COUNT_S = 0.001
#: Shortest interval between two records of an engine's memory in use, in seconds.
_MEMORY_S = 0.09
#: Names of sums since a log was opened.
_SUMS = ("chunks", "failed", "lost", "spills", "spilled_bytes")
#: Descriptions of events of workers.
_WORKERS = {WorkerStarted: "worker started", WorkerLost: "worker lost", WorkerRetired: "worker retired"}


class EventLog(Tabular, Listener):
    """Writes the activity of this process's engines to a file for a trace viewer, while it is open.

    The file is in Chrome's trace event format, which Perfetto (https://ui.perfetto.dev) and ``chrome://tracing``
    open. It is written twice a second: if the process is killed, the file lacks the last half second and the
    closing bracket, which viewers do not need.

    Parameters
    ----------
    path : str or Path
        Path of the file, which is replaced. ``{pid}`` in it stands for the process id.

    Attributes
    ----------
    path : Path
        Path of the file.
    chunks, failed, lost : int
        Number of computed chunks, failed attempts, and lost workers since it was opened.
    spills, spilled_bytes : int
        Number and bytes of spills.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_mars
    >>> from dask_mars.diagnostics import EventLog
    >>> with EventLog("trace.json"):  # doctest: +SKIP
    ...     da.ones((2000, 2000), chunks=500).sum().compute(scheduler=dask_mars.get)
    """

    wants_steps = True

    def __init__(self, path: str | Path) -> None:
        self.path = Path(str(path).replace("{pid}", str(os.getpid()))).expanduser()
        self.chunks = self.failed = self.lost = self.spills = self.spilled_bytes = 0
        self._file: TraceFile | None = None
        #: Prevents that one thread closes `_file` while another uses it.
        self._lock = Lock()
        #: Process ids of the workers of each engine.
        self._pids: dict[tuple[int, int], int] = {}
        #: Graphs that have not ended.
        self._open: set[tuple[int, int]] = set()
        self._counted_s = 0.0
        #: Time of the last record of each engine's memory in use.
        self._memory_noted_s: dict[int, float] = {}

    def open(self) -> EventLog:
        """Create the file, and record from now on."""
        if self._file is not None:
            raise ValueError(f"the event log {self.path} is open already")
        self.chunks = self.failed = self.lost = self.spills = self.spilled_bytes = 0
        self._pids.clear()
        self._open.clear()
        self._memory_noted_s.clear()
        self._file = TraceFile(self.path)
        listeners.add(self)
        return self

    def close(self) -> None:
        """Write remaining events, and close the file."""
        listeners.remove(self)
        if self._file is None or self._file.process != os.getpid():
            # In a forked process the file is the parent's, and a thread of the parent may have held the lock.
            return
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            file.close()

    def __enter__(self) -> EventLog:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def to_dict(self) -> dict[str, Any]:
        """Return the sums so far."""
        state = {"path": str(self.path), "is_open": self._file is not None}
        return {**state, **{name: getattr(self, name) for name in _SUMS}}

    def events(self) -> list[dict[str, Any]]:
        """Return the events of the file as trace viewers read them; the file may be incomplete.

        Raises
        ------
        OSError
            The file does not exist.
        """
        lines = self.path.read_text(encoding="utf-8").splitlines()
        # The last line of an open file may be incomplete.
        texts = [line.rstrip(",") for line in lines if line.startswith("{") and line.rstrip(",").endswith("}")]
        return [json.loads(text) for text in texts]

    records = events

    def tables(self) -> list[Table]:
        """Return its tables."""
        state = "open" if self._file is not None else "closed"
        rows = [("chunks computed", f"{self.chunks:,}"), ("attempts failed", f"{self.failed:,}")]
        rows += [("workers lost", f"{self.lost:,}")]
        rows += [("written to disk", f"{units.size(self.spilled_bytes)} in {self.spills:,}")]
        return [Table(("what", "how much"), rows, f"Event log {self.path}, {state}")]

    # -- in the engines' threads ------------------------------------------------------------------------------

    def on_event(self, engine: EngineView, event: ListenerEvent) -> None:
        """Record an event."""
        write = self._handlers.get(type(event))
        if write is not None:
            now_s = time.perf_counter()
            with self._lock:
                file = self._file
                if file is not None:
                    write(self, file, engine, event, now_s)
                    if now_s - self._counted_s > _COUNT_S:
                        self._counted_s = now_s
                        file.note(file.counters, engine.id, now_s, engine.store())

    def _pid(self, file: TraceFile, engine: EngineView, worker: int) -> int:
        """Return a worker's process, and name its row."""
        pid = self._pids.get((engine.id, worker))
        if pid is None:
            pid = self._pids[engine.id, worker] = engine.pids()[worker]
            file.note(file.worker, pid, engine.labels[worker])
        return pid

    def _on_submitted(self, file: TraceFile, engine: EngineView, event: GraphSubmitted, now_s: float) -> None:
        for worker in engine.pids():
            self._pid(file, engine, worker)
        self._open.add((engine.id, event.graph))
        args = {"graph": event.graph, "chunks": sum(operand >= 0 for operand in event.plan.operand_of)}
        file.note(file.instant, "graph submitted", engine.id, None, now_s, args)

    def _on_finished(self, file: TraceFile, engine: EngineView, event: ChunksFinished, now_s: float) -> None:
        self.chunks += len(event.chunks)
        if not event.steps_s:
            # They started before the engine measured steps.
            return
        run = engine.runs[event.graph]
        keys = [run.graph.keys[chunk] for chunk in event.chunks]
        times = [
            (*steps, steps[0] + duration) for steps, duration in zip(event.steps_s, event.durations_s, strict=True)
        ]
        if event.worker == CLIENT:
            for key, chunk, times_s in zip(keys, event.chunks, times, strict=True):
                size = getattr(run.values[chunk], "nbytes", None)
                stored = size if isinstance(size, int) else None
                file.note(file.client_chunk, run.subtask_ids, chunk, key, times_s, stored)
        else:
            refs = [run.refs[chunk] for chunk in event.chunks]
            pid = self._pid(file, engine, event.worker)
            file.note(file.worker_chunks, pid, run.subtask_ids, event.chunks, keys, times, refs)

    def _on_failed(self, file: TraceFile, engine: EngineView, event: ChunkFailed, now_s: float) -> None:
        self.failed += 1
        pid = None if event.worker == CLIENT else self._pid(file, engine, event.worker)
        args = _failure(engine, event.graph, event.chunk)
        file.note(file.instant, "chunk failed", engine.id, pid, now_s, args)

    def _on_worker(
        self, file: TraceFile, engine: EngineView, event: WorkerStarted | WorkerLost | WorkerRetired, now_s: float
    ) -> None:
        args: dict[str, Any] = {"worker": event.worker}
        if isinstance(event, WorkerStarted):
            pid: int | None = self._pid(file, engine, event.worker)
        else:
            pid = self._pids.pop((engine.id, event.worker), None)
        if isinstance(event, WorkerLost):
            self.lost += 1
            if event.running is not None:
                args |= _failure(engine, *event.running)
        file.note(file.instant, _WORKERS[type(event)], engine.id, pid, now_s, args)

    def _on_spilled(self, file: TraceFile, engine: EngineView, event: ObjectSpilled, now_s: float) -> None:
        if event.ended_s:
            if event.written:
                self.spills += 1
                self.spilled_bytes += event.size_bytes
            graph, chunk = event.object
            args: dict[str, Any] = {"graph": graph, "bytes": event.size_bytes, "written": event.written}
            key = engine.key_of(event.object)
            if key is not None:
                args["chunk"] = str(key)
            run = engine.runs.get(graph)
            # A persisted object outlives its graph, which knows the depths in its id.
            ids = None if run is None else run.subtask_ids
            file.note(file.spill, engine.id, event.began_s, event.ended_s, args, ids, chunk)

    def _on_measured(self, file: TraceFile, engine: EngineView, event: ProcessesMeasured, now_s: float) -> None:
        # While workers wait for memory the engine measures more often.
        if now_s - self._memory_noted_s.get(engine.id, 0.0) > _MEMORY_S:
            self._memory_noted_s[engine.id] = now_s
            file.note(file.counters, engine.id, now_s, {"in_use_bytes": event.in_use_bytes})

    def _on_end(
        self, file: TraceFile, engine: EngineView, event: FinishGraph | FailGraph | GraphCancelled, now_s: float
    ) -> None:
        # A failure also cancels the graph: one end is enough.
        if (engine.id, event.graph) in self._open:
            self._open.remove((engine.id, event.graph))
            args = _failure(engine, event.graph, event.chunk) if isinstance(event, FailGraph) else {}
            name = f"graph {OUTCOMES[type(event)]}"
            file.note(file.instant, name, engine.id, None, now_s, {"graph": event.graph, **args})

    def _on_graph_forgotten(self, file: TraceFile, engine: EngineView, event: ForgetGraph, now_s: float) -> None:
        # The freed bytes must be recorded, even shortly after the last record.
        self._counted_s = 0.0

    _handlers: ClassVar[dict[type, Callable[[EventLog, TraceFile, EngineView, Any, float], None]]] = {
        GraphSubmitted: _on_submitted,
        ChunksFinished: _on_finished,
        ChunkFailed: _on_failed,
        WorkerStarted: _on_worker,
        WorkerLost: _on_worker,
        WorkerRetired: _on_worker,
        ObjectSpilled: _on_spilled,
        ProcessesMeasured: _on_measured,
        FinishGraph: _on_end,
        FailGraph: _on_end,
        GraphCancelled: _on_end,
        ForgetGraph: _on_graph_forgotten,
    }


def _failure(engine: EngineView, graph: int, chunk: int) -> dict[str, Any]:
    """Return the failed chunk, and its error."""
    run = engine.runs[graph]
    id, error = run.subtask_ids[chunk].hex(), error_text(run.errors.get(chunk))
    return {"graph": graph, "id": id, "chunk": str(run.graph.keys[chunk]), "error": error}


_configured: dict[str, EventLog] = {}
_configured_lock = Lock()


def open_configured(path: str) -> None:
    """Log all activity of this process's engines, as configured."""
    log = EventLog(path)
    # A forked process logs only to a path of its own, by {pid}: the file is its parent's.
    with _configured_lock:
        if str(log.path) not in _configured:
            _configured[str(log.path)] = log.open()
            # atexit runs in reverse order: engines register later, and so end before the log.
            atexit.register(log.close)
