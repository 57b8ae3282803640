"""A monitor of computations that there are not."""

from __future__ import annotations

import threading
import uuid
from typing import Any

from dask_mars.web import answers
from dask_mars.web.api import page_of
from dask_mars.web.monitor import OVER, STATES, Json


class FakeMonitor:
    """Says what a test has told it, and how often it was asked."""

    def __init__(self) -> None:
        self.summaries: dict[str, Json] = {}
        self.asked: list[str] = []
        self.cancelled: list[str] = []
        self._revision = 0
        self._lock = threading.Lock()

    def add(self, state: str = "running", **facts: Any) -> str:
        """Have another computation."""
        id = str(uuid.uuid4())
        chunks = {"total": 10, "waiting": 3, "running": 2, "finished": 5, "failed": 0}
        with self._lock:
            self.summaries[id] = {
                "id": id,
                "name": "",
                "state": state,
                "created": float(len(self.summaries)),
                "started": None,
                "ended": None,
                "attempt": 1,
                "revision": 1,
                "chunks": chunks,
                "remaining": None,
                "error": None,
                "result": None,
                **facts,
            }
            self._revision += 1
        return id

    def change(self, id: str, **facts: Any) -> None:
        """Have something happen to a computation."""
        with self._lock:
            self._revision += 1
            now = self.summaries[id]
            self.summaries[id] = {**now, "revision": now["revision"] + 1, **facts}

    def revision(self) -> int:
        return self._revision

    def state(self) -> Json:
        self.asked.append("state")
        states = [one["state"] for one in self.summaries.values()]
        return {
            "revision": self._revision,
            "version": "0",
            "can": ["cancel"],
            "workers": [
                {
                    "worker": 0,
                    "label": "worker 0 (process 1)",
                    "pid": 1,
                    "running": "('sum', 0)",
                    "step": "compute",
                    "dispatched": 3,
                }
            ],
            "memory": dict.fromkeys(answers.MemoryAnswer.__annotations__, 0),
            "counts": {state: states.count(state) for state in STATES},
        }

    def computations(self, state: str | None, before: str | None, limit: int) -> Json:
        self.asked.append("computations")
        return page_of([*self.summaries.values()], state, before, limit)

    def computation(self, id: str) -> Json:
        self.asked.append("computation")
        layer = {"name": "sum-1", "label": "sum", "total": 10, "finished": 5, "running": 2, "failed": 0}
        return {**self.summaries[id], "layers": [{**layer, "seconds": 1.5, "bytes": 80}]}

    def cancel(self, id: str) -> bool:
        if self.summaries[id]["state"] in OVER:
            return False
        self.cancelled.append(id)
        self.change(id, state="cancelled")
        return True

    def error(self, id: str) -> Json:
        self.summaries[id]
        return {"type": "ValueError", "message": "no", "traceback": "Traceback"}

    def log(self, id: str) -> Json:
        self.summaries[id]
        return {"lines": [{"time": 1.0, "stream": "stdout", "text": "hello"}], "truncated": False}

    def timeline(self, id: str) -> Json:
        self.summaries[id]
        return {
            "start": 1.0,
            "workers": [0],
            "labels": ["worker 0 (process 1)"],
            "layers": ["sum"],
            "tasks": [[0, 0.0, 1.0, 0, 5]],
            "memory": [[0.5, 1, 1, 0]],
            "events": [[0.5, "spill", "of 5 chunks"]],
        }

    def graph(self, id: str, layer: str | None) -> Json:
        self.summaries[id]
        if layer is None:
            of_layer = {"name": "sum-1", "label": "sum", "total": 10, "waiting": 3, "running": 2, "finished": 5}
            return {"layers": [{**of_layer, "failed": 0}], "edges": []}
        if layer != "sum-1":
            raise KeyError(layer)
        return {"name": layer, "label": "sum", "numblocks": [2, 5], "states": "fffffrrwww", "truncated": False}

    def explain(self, id: str | None, key: str | None) -> Json:
        if id is not None:
            self.summaries[id]
        if key == "missing":
            raise KeyError(key)
        return {"rows": [f"of {key}"]}
