"""The state of a runtime for the web service: one snapshot serves all viewers for a while."""

from __future__ import annotations

import ast
import contextlib
import math
import time
from typing import TYPE_CHECKING, Any

from dask_mars.client.records import OVER, Record
from dask_mars.client.summaries import remaining_s, summary
from dask_mars.errors import MarsError
from dask_mars.extensions import missing_extensions
from dask_mars.locking import Lock
from dask_mars.observe.counts import LayerCounts
from dask_mars.version import __version__
from dask_mars.web import answers
from dask_mars.web.api import page_of
from dask_mars.web.monitor import Json
from dask_mars.web.recorder import PageRecorder

if TYPE_CHECKING:
    from dask_mars.engine.engine import Engine
    from dask_mars.engine.listeners import EngineView
    from dask_mars.runtimes import Runtime

#: Interval between snapshots: minimum in seconds, minimum as a multiple of a snapshot's processor time, and
#: maximum in seconds.
_LOOK_S, _COSTS, _LONGEST_S = 0.5, 50.0, 2.0
#: Longest wait for a busy engine, in seconds.
_PATIENCE_S = 0.03
#: Interval for measuring memory while the engine does not, in seconds.
_MEASURE_S = 5.0
_NO_TIME = "the engine takes in a graph, and has no time to say more"


class RuntimeMonitor:
    """Monitor of one runtime; see `Monitor`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = Lock()
        self._look_s = self._measured_s = -math.inf
        self._revision = 1
        self._state: Json = {}
        self._workers: list[Json] = []
        self._summaries: dict[str, Json] = {}
        self._layers: dict[str, list[LayerCounts]] = {}
        self._edges: dict[str, list[tuple[int, int]]] = {}
        self._recorder = PageRecorder(self._view)

    def revision(self) -> int:
        """Return a number that grows with each visible change."""
        self._look()
        return self._revision

    def state(self) -> Json:
        """Return workers, memory, and the number of computations in each state."""
        self._look()
        return {**self._state, "revision": self._revision}

    def computations(self, state: str | None, before: str | None, limit: int) -> Json:
        """Return summaries, the newest first; see `Monitor.computations`."""
        self._look()
        return page_of(list(self._summaries.copy().values()), state, before, limit)

    def computation(self, id: str) -> Json:
        """Return the summary of one computation, and its layers."""
        id = self._looked_at(id).id
        return {**self._summaries[id], "layers": [layer._asdict() for layer in self._layers.get(id, ())]}

    def cancel(self, id: str) -> bool:
        """Cancel a computation; return False if it is over."""
        cancelled = self._find(id).cancel()
        self.look_again()
        return cancelled

    def error(self, id: str) -> Json:
        """Return the error of a computation: ``type``, ``message``, ``traceback``; empty texts without one."""
        failure = self._find(id).failure
        return {name: getattr(failure, name, "") for name in ("type", "message", "traceback")}

    def log(self, id: str) -> Json:
        """Return the output lines of a computation's tasks, the oldest first."""
        lines, truncated = self._find(id).log
        return {
            "lines": [{"time": line.time_s, "stream": line.stream, "text": line.text} for line in lines],
            "truncated": truncated,
        }

    def timeline(self, id: str) -> Json:
        """Return when each worker ran tasks of which layer, for recorded periods."""
        return self._recorder.timeline(self._looked_at(id))

    def watch(self) -> None:
        """Record the engine's events for a while."""
        self._recorder.watch()

    def _view(self) -> EngineView | None:
        engine = self._runtime.running_engine()
        return None if engine is None else engine.view

    def look_again(self) -> None:
        """Take a new snapshot at the next request, after a change."""
        self._look_s = -math.inf

    def close(self) -> None:
        """Stop recording the engine's events until the next request."""
        self._recorder.close()

    def graph(self, id: str, layer: str | None) -> Json:
        """Return the layers and the edges between them, or the blocks of one layer."""
        record = self._looked_at(id)
        layers = self._layers.get(record.id, [])
        if layer is None:
            edges = self._edges.get(record.id, ())
            return {"layers": list(map(_node, layers)), "edges": [list(edge) for edge in edges]}
        label = {one.name: one.label for one in layers}[layer]
        source = record.source
        if source is None:
            raise KeyError(layer)
        return {"name": layer, "label": label, **source.blocks(layer)._asdict()}

    def explain(self, id: str | None, key: str | None) -> Json:
        """Return why a computation, all of them, or one chunk waits, as rows of text."""
        explain = self._explain if id is None else self._find(id).explain
        try:
            if key is None:
                return {"rows": explain(None, _PATIENCE_S).splitlines()}
            for candidate in _keys_of(key):
                with contextlib.suppress(KeyError, TypeError):
                    return {"rows": explain(candidate, _PATIENCE_S).splitlines()}
        except TimeoutError:
            return {"rows": [_NO_TIME]}
        raise KeyError(key)

    def _explain(self, key: object, patience_s: float) -> str:
        engine = self._runtime.running_engine()
        return "no workers are running" if engine is None else engine.inspection.explain(key, patience_s)

    # -- snapshots --------------------------------------------------------------------------------------------

    def _find(self, id: str) -> Record:
        return self._runtime.records.find(id)

    def _looked_at(self, id: str) -> Record:
        """Return a computation that the snapshot has."""
        record = self._find(id)
        if record.id not in self._summaries:
            # It is newer than the snapshot.
            self.look_again()
        self._look()
        return record

    def _look(self) -> None:
        """Take a snapshot of the runtime, unless the last one is recent."""
        if time.monotonic() < self._look_s:
            return
        with self._lock:
            if time.monotonic() < self._look_s:
                return
            begun_s = time.thread_time()
            engine = self._runtime.running_engine()
            self.watch()
            has_changed = self._look_at_computations()
            state = self._state_of(engine)
            if state != self._state:
                self._state, has_changed = state, True
            if has_changed:
                self._revision += 1
            cost_s = time.thread_time() - begun_s
            self._look_s = time.monotonic() + max(_LOOK_S, min(_COSTS * cost_s, _LONGEST_S))

    def _look_at_computations(self) -> bool:
        """Update the summaries of changed computations, and drop those that the runtime no longer keeps."""
        found: dict[str, Json] = {}
        revision = self._revision + 1
        has_changed = False
        for record in self._runtime.records:
            id = record.id
            before = self._summaries.get(id)
            if before is not None and before["state"] in OVER:
                found[id] = before
                continue
            self._recorder.link(record)
            now = self._summary(record)
            if before is None or now != {**before, "revision": None, "remaining": now["remaining"]}:
                has_changed = True
                now["revision"] = revision
            else:
                now["revision"] = before["revision"]
            found[id] = now
        has_changed = has_changed or found.keys() != self._summaries.keys()
        for id in self._layers.keys() - found.keys():
            del self._layers[id], self._edges[id]
        self._recorder.keep(found)
        self._summaries = found
        return has_changed

    def _look_at_layers(self, record: Record) -> None:
        id, source = record.id, record.source
        if source is None:
            return
        self._layers[id] = list(record.layers())
        if id not in self._edges:
            self._edges[id] = source.edges()

    def _summary(self, record: Record) -> Json:
        # The state first: so the last counts of an ended computation are final.
        known = summary(record)
        del known["graph"]
        self._look_at_layers(record)
        counts, layers = record.counts(), self._layers.get(record.id, ())
        return {
            **known,
            "attempt": 1,
            "revision": None,
            "chunks": counts._asdict(),
            "remaining": remaining_s(record, counts, layers, time.time()),
            "result": record.result,
        }

    def _workers_of(self, engine: Engine) -> list[Json]:
        # While the engine takes in a large graph, the last state of its workers is used.
        with contextlib.suppress(TimeoutError):
            self._workers = [
                {**worker, "running": None if worker["running"] is None else str(worker["running"])}
                for worker in engine.inspection.workers(_PATIENCE_S)
            ]
        return self._workers

    def _state_of(self, engine: Engine | None) -> Json:
        counts = self._runtime.records.counts()
        can = ["cancel"]
        memory = dict.fromkeys(answers.MemoryAnswer.__annotations__, 0) | {
            "limit_bytes": self._runtime.settings.memory_limit
        }
        state: Json = {"version": __version__, "can": can, "workers": [], "memory": memory, "counts": counts}
        if missing := missing_extensions():
            state["missing_extensions"] = list(missing)
        if engine is None:
            return state
        try:
            state["workers"] = self._workers_of(engine)
            if not counts["running"] and time.monotonic() - self._measured_s >= _MEASURE_S:
                # During computations the engine measures its memory anyway.
                self._measured_s = time.monotonic()
                engine.inspection.memory()
        except MarsError:
            # The engine is just ending.
            return state
        used, store = engine.view.memory(), engine.view.store()
        state["memory"] = {
            **used,
            "store_bytes": store["stored_bytes"],
            "store_limit_bytes": store["limit_bytes"],
            "promised_bytes": store["reserved_bytes"],
            "spilled_bytes": store["spilled_bytes"],
        }
        return state


def _node(layer: LayerCounts) -> Json:
    """Return a layer in a graph, with the number of its waiting chunks."""
    waiting = max(layer.total - layer.finished - layer.running - layer.failed, 0)
    shown = {name: getattr(layer, name) for name in answers.LayerNode.__annotations__ if name != "waiting"}
    return {**shown, "waiting": waiting}


def _keys_of(text: str) -> list[Any]:
    """Return the keys that a text may mean."""
    with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        return [ast.literal_eval(text), text]
    return [text]
