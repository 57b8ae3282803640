"""The file of an event log in Chrome's trace event format: its rows, and the thread that writes events.

Input times are in seconds, output times in microseconds with three decimals, so that nested events stay nested.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from json.encoder import encode_basestring_ascii as quoted
from pathlib import Path
from typing import Any

from dask_mars.graph.chunks import Key, layer_of
from dask_mars.graph.ids import SubtaskIds, decode_subtask_id
from dask_mars.labels import worker_label
from dask_mars.protocol.object_ref import ObjectRef, size_of
from dask_mars.scheduler.events import CLIENT

logger = logging.getLogger(__name__)

#: Interval between two writes, in seconds.
_WRITE_S = 0.5

#: Times of start, loaded inputs, computed value, sealed result.
Times = tuple[float, float, float, float]

#: Names of counters, by their names in `EngineView.store` and `EngineView.memory`.
_COUNTERS = {
    "stored_bytes": "bytes stored",
    "reserved_bytes": "bytes reserved",
    "spilled_bytes": "bytes spilled",
    "in_use_bytes": "bytes in use",
}


class TraceFile:
    """Writes trace events to a file, in a thread of its own."""

    def __init__(self, path: Path) -> None:
        self.process = os.getpid()
        self._path = path
        self._noted: deque[tuple[Callable[..., Iterator[str]], tuple[Any, ...]]] = deque()
        #: Number of each row, by its purpose.
        self._rows: dict[tuple[Any, ...], int] = {}
        #: End of the last event in each row of the user's process.
        self._lanes_s: list[float] = []
        #: Last values of counters.
        self._counts: dict[tuple[int, str], int] = {}
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._put("[\n" + self._event("M", "process_name", args={"name": "dask_mars"}))
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_on, name="dask-mars-event-log", daemon=True)
        self._thread.start()

    def note(self, words: Callable[..., Iterator[str]], *arguments: Any) -> None:
        """Queue a call of one of the methods below; the writing thread writes its events."""
        self._noted.append((words, arguments))

    def close(self) -> None:
        """Write remaining events, and close the file."""
        self._closing.set()
        self._thread.join()
        self._put("\n]\n")
        os.close(self._file)

    # -- in the writing thread --------------------------------------------------------------------------------

    def _write_on(self) -> None:
        while not self._closing.wait(_WRITE_S):
            self._write()
        self._write()

    def _write(self) -> None:
        lines: list[str] = []
        while self._noted:
            words, arguments = self._noted.popleft()
            try:
                lines += words(*arguments)
            except Exception:
                # A key may be of any class, and its text may raise.
                logger.exception("an event is missing in %s", self._path)
        if lines:
            self._put("".join([f",\n{line}" for line in lines]))

    def _put(self, text: str) -> None:
        data = memoryview(text.encode())
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            logger.warning("the event log %s has gaps: %s", self._path, error)

    def worker(self, pid: int, label: str) -> Iterator[str]:
        """Name the row of a worker with a system process or thread id, unless it has a name."""
        yield from self._row((pid,), label)[1]

    def worker_chunks(
        self,
        pid: int,
        ids: SubtaskIds,
        chunks: Sequence[int],
        keys: Sequence[Key],
        times: Sequence[Times],
        refs: Sequence[ObjectRef | None],
    ) -> Iterator[str]:
        """Return the events of a worker's chunks."""
        row = self._rows[pid,]
        for chunk, key, times_s, ref in zip(chunks, keys, times, refs, strict=True):
            size = None if ref is None else size_of(ref)
            yield from _chunk_steps(layer_of(key), self.process, row, ids[chunk], str(key), size, times_s)

    def client_chunk(
        self, ids: SubtaskIds, chunk: int, key: Key, times_s: Times, size: int | None
    ) -> Iterator[str]:
        """Return the events of a chunk in the user's process, whose threads share rows where possible."""
        lane = next((n for n, until_s in enumerate(self._lanes_s) if until_s <= times_s[0]), len(self._lanes_s))
        self._lanes_s[lane : lane + 1] = [times_s[-1]]
        name = worker_label(CLIENT)
        row, naming = self._row(("user", lane), name if lane == 0 else f"{name}, {lane + 1}")
        yield from naming
        yield from _chunk_steps(layer_of(key), self.process, row, ids[chunk], str(key), size, times_s)

    def instant(
        self, name: str, engine: int, pid: int | None, time_s: float, args: Mapping[str, Any]
    ) -> Iterator[str]:
        """Return an instantaneous event, in the row of a worker or of the engine."""
        row, naming = self._row(("engine", engine), "engine") if pid is None else (self._rows[pid,], [])
        yield from naming
        # A loss is marked in all rows.
        scope = "g" if name == "worker lost" else "t"
        yield self._event("i", name, tid=row, ts=_microseconds(time_s), s=scope, args=args)

    def spill(
        self,
        engine: int,
        began_s: float,
        ended_s: float,
        args: Mapping[str, Any],
        ids: SubtaskIds | None,
        chunk: int,
    ) -> Iterator[str]:
        """Return the event of a spill."""
        row, naming = self._row(("disk", engine), "disk")
        yield from naming
        if ids is not None:
            args = {**args, "id": ids[chunk].hex()}
        times = {"ts": _microseconds(began_s), "dur": _microseconds(ended_s - began_s)}
        yield self._event("X", "spill", cat="spill", tid=row, **times, args=args)

    def counters(self, engine: int, time_s: float, values: Mapping[str, int]) -> Iterator[str]:
        """Return the events of changed counters."""
        for name, value in values.items():
            title = _COUNTERS.get(name)
            if title is not None and self._counts.get((engine, name)) != value:
                self._counts[engine, name] = value
                yield self._event("C", title, ts=_microseconds(time_s), args={"bytes": value})

    def _row(self, what: tuple[Any, ...], name: str) -> tuple[int, list[str]]:
        """Return the number of a row, and the events that name a new one."""
        known = self._rows.get(what)
        if known is not None:
            return known, []
        row = self._rows[what] = len(self._rows) + 1
        # Rows are below those with smaller ids.
        return row, [
            self._event("M", "thread_name", tid=row, args={"name": name}),
            self._event("M", "thread_sort_index", tid=row, args={"sort_index": row}),
        ]

    def _event(self, kind: str, name: str, **fields: Any) -> str:
        return json.dumps({"ph": kind, "name": name, "pid": self.process, **fields})


def _microseconds(time_s: float) -> float:
    return round(time_s * 1e6, 3)


def _chunk_steps(
    layer: str, process: int, row: int, id: bytes, chunk: str, stored: int | None, times_s: Times
) -> list[str]:
    """Return the events of a chunk and its steps: loading, computing, sealing."""
    graph = decode_subtask_id(id).graph
    began, loaded, computed, ended = [round(time_s * 1e9) for time_s in times_s]
    where = f'"pid": {process}, "tid": {row}'
    size = "" if stored is None else f', "bytes": {stored}'
    events = [
        f'{{"ph": "X", "cat": "chunk", "name": {quoted(layer)}, {where}, "ts": {began / 1000:.3f}, '
        f'"dur": {(ended - began) / 1000:.3f}, '
        f'"args": {{"graph": {graph}, "id": "{id.hex()}", "chunk": {quoted(chunk)}{size}}}}}'
    ]
    for step, start, end in (("load", began, loaded), ("compute", loaded, computed), ("seal", computed, ended)):
        if end > start:
            events.append(
                f'{{"ph": "X", "cat": "step", "name": "{step}", {where}, "ts": {start / 1000:.3f}, '
                f'"dur": {(end - start) / 1000:.3f}}}'
            )
    return events
