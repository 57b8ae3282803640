"""The data of a service: the rows of its store, and the runner's reports about its computations."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from dask_mars.version import __version__
from dask_mars.web import answers
from dask_mars.web.monitor import OVER, STATES, Json
from dask_mars.web.service.store import ServiceStore
from dask_mars.web.service.supervisor import Supervisor

#: Bytes of bodies and results in memory, for each request.
PIECE_BYTES = 1 << 18
_NO_CHUNKS = dict.fromkeys(answers.Chunks.__annotations__, 0)
_NO_MEMORY = dict.fromkeys(answers.MemoryAnswer.__annotations__, 0)
#: Answers about a computation without records of its run.
_NOTHING: dict[str, Json] = {
    "log": {"lines": [], "truncated": False},
    "timeline": {"start": 0.0, "workers": [], "labels": [], "layers": [], "tasks": [], "memory": [], "events": []},
    "graph": {"layers": [], "edges": []},
    "explain": {"rows": []},
}


class ServiceMonitor:
    """Monitor of a service's past, current and queued computations."""

    def __init__(self, store: ServiceStore, supervisor: Supervisor) -> None:
        self._store = store
        self._supervisor = supervisor

    def revision(self) -> int:
        """Return a number that grows with each visible change."""
        return self._store.revision

    def state(self) -> Json:
        """Return workers, memory, and the number of computations in each state."""
        revision = self._store.revision
        told: Json = {}
        # The runner may be starting, or too busy to answer.
        with contextlib.suppress(KeyError, TimeoutError):
            told = self._supervisor.ask("state")
        return {
            "revision": revision,
            "version": __version__,
            "can": ["cancel", "submit"],
            "workers": told.get("workers", []),
            "memory": told.get("memory", _NO_MEMORY),
            "counts": {**dict.fromkeys(STATES, 0), **self._store.counts()},
            **{name: told[name] for name in ("missing_extensions",) if name in told},
        }

    def computations(self, state: str | None, before: str | None, limit: int) -> Json:
        """Return summaries, the newest first."""
        if before is not None and not (before.isascii() and before.isdecimal() and len(before) < 19):
            raise ValueError("no cursor")
        rows = self._store.listed(state, None if before is None else int(before), limit + 1)
        shown = rows[:limit]
        more = str(shown[-1]["number"]) if len(rows) > limit else None
        return {"computations": [self._summary(row) for row in shown], "next": more}

    def _summary(self, row: sqlite3.Row) -> Json:
        live = {} if row["state"] in OVER else self._supervisor.live(row["number"])
        progress = {**json.loads(row["progress"]), **live}
        error, result = row["error"], row["result"]
        if error is not None:
            told = json.loads(error)
            error = {"type": told["type"], "message": told["message"]}
        if result is not None:
            result = {**json.loads(result), "evicted": bool(row["evicted"])}
        return {
            **{name: row[name] for name in ("id", "name", "state", "created", "started", "ended", "attempt")},
            "revision": max(row["revision"], live.get("revision", 0)),
            "chunks": progress.get("chunks", _NO_CHUNKS),
            "remaining": live.get("remaining"),
            "error": error,
            "result": result,
        }

    def computation(self, id: str) -> Json:
        """Return the summary of one computation, and its layers."""
        row = self._store.row(id)
        told = self._facet(row, "computation")
        return {**self._summary(row), "layers": told.get("layers", [])}

    def cancel(self, id: str) -> bool:
        """Cancel a computation; return False if it is over."""
        return self._supervisor.cancel(self._store.row(id)["number"])

    def error(self, id: str) -> Json:
        """Return the error of a computation."""
        told = self.failure(self._store.row(id))
        return {name: told.get(name, "") for name in ("type", "message", "traceback")}

    def failure(self, row: sqlite3.Row) -> Json:
        """Return the description of a computation's exception; empty without one."""
        if row["error"] is None:
            return {}
        told: Json = json.loads(row["error"])
        return told | (self._store.kept(row["number"]).get("error") or {})

    def log(self, id: str) -> Json:
        """Return the output lines of a computation's tasks."""
        return self._facet(self._store.row(id), "log")

    def timeline(self, id: str) -> Json:
        """Return when each worker ran tasks of which layer, and the memory in use meanwhile."""
        return self._facet(self._store.row(id), "timeline")

    def graph(self, id: str, layer: str | None) -> Json:
        """Return the layers and the edges between them, or the blocks of one layer."""
        row = self._store.row(id)
        if layer is None:
            return self._facet(row, "graph", None)
        # Blocks of layers are not stored, as there may be millions; the runner keeps some.
        try:
            told: Json = self._supervisor.ask("graph", row["number"], layer)
        except TimeoutError:
            raise KeyError(layer) from None
        return told

    def explain(self, id: str | None, key: str | None) -> Json:
        """Return why a computation, all of them, or one chunk waits."""
        if id is None:
            try:
                told: Json = self._supervisor.ask("explain", None, key)
            except TimeoutError:
                return {"rows": ["the process that computes does not answer at the moment"]}
            return told
        row = self._store.row(id)
        if row["state"] == "queued":
            before = self._supervisor.waiting()
            queued = "1 computation is" if before == 1 else f"{before} computations are"
            return {"rows": [f"it waits for its turn: {queued} queued"]}
        if row["state"] in OVER:
            if key is not None:
                raise KeyError(key)
            return {"rows": [f"it is over: {row['state']}"]}
        return self._facet(row, "explain", key)

    def _facet(self, row: sqlite3.Row, name: str, *arguments: Any) -> Json:
        """Return the runner's answer about a computation, or the stored one after its end."""
        if row["state"] in OVER:
            return dict(self._store.kept(row["number"]).get(name) or _NOTHING.get(name, {}))
        try:
            return dict(self._supervisor.ask(name, row["number"], *arguments))
        except (KeyError, TimeoutError):
            if arguments and arguments[0] is not None:
                raise KeyError(arguments[0]) from None
            return dict(_NOTHING.get(name, {}))


@dataclass(frozen=True)
class ServiceContext:
    """The shared objects of a service's handlers."""

    store: ServiceStore
    supervisor: Supervisor
    monitor: ServiceMonitor
    #: Threads for files, so that the event loop never waits for a slow disk.
    executor: Executor
    versions: dict[str, str]
    body_limit_bytes: int

    async def run(self, function: Any, *arguments: Any) -> Any:
        """Call a function that waits for the disk."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, function, *arguments)
