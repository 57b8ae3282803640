"""Progress of computations by chunk, from the view of Dask's scheduler.

The scheduler sees subtasks as tasks, and agents' heartbeats report the progress of running ones. This sends no
further messages, and no result depends on it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import time
from typing import Any

from dask.utils import key_split
from distributed import Scheduler, SchedulerPlugin

from dask_mars.cluster.marks import CANCELLED_ON_PAGE, MARK
from dask_mars.cluster.metrics import SUBTASKS

#: Ended computations that are kept, and rows of a computation's timeline.
_KEPT_COMPUTATIONS, _KEPT_ROWS = 100, 20_000


@dataclass(slots=True)
class TrackedLayer:
    """Progress of the subtasks whose results belong to one layer."""

    counts: Counter[str] = field(default_factory=Counter)
    #: Time that agents have computed them.
    seconds: float = 0.0


@dataclass(slots=True)
class _Subtask:
    chunks: int
    #: Layer of its result: the key without its token.
    layer: str = ""
    #: State in Dask's scheduler; "memory" stays even after the result is released.
    state: str = "waiting"
    #: Address of the worker that computes or has computed it.
    worker: str = ""


@dataclass(slots=True)
class TrackedComputation:
    """A computation some of whose tasks the scheduler knows or has known."""

    client: str
    created: float = 0.0
    #: Id and name of the user's handle, if there is one.
    id: str = ""
    title: str = ""
    subtasks: dict[Any, _Subtask] = field(default_factory=dict)
    #: Number of subtasks that the scheduler has not forgotten.
    left: int = 0
    #: Chunks by the states of their subtasks; updated incrementally, as pages request them often.
    counts: Counter[str] = field(default_factory=Counter)
    started: float | None = None
    #: Time of the last change of a subtask.
    changed: float = 0.0
    #: Revision number; it grows with each change.
    revision: int = 1
    #: Type, message and traceback of a failed subtask.
    error: tuple[str, str, str] | None = None
    is_cancelled: bool = False
    #: Layers by label.
    layers: dict[str, TrackedLayer] = field(default_factory=dict)
    #: Worker address, start, end, chunks and layer of computed subtasks.
    rows: deque[tuple[str, float, float, int, str]] = field(default_factory=lambda: deque(maxlen=_KEPT_ROWS))

    @property
    def state(self) -> str:
        """Its state, in the words of the web service; "finished" also while the user's process computes."""
        counts = self.counts
        if counts["erred"]:
            return "failed"
        if counts["memory"] == counts.total():
            return "finished"
        if self.is_cancelled or not self.left:
            return "cancelled"
        return "queued" if self.started is None else "running"

    def add(self, key: Any, chunks: int) -> None:
        """Add a subtask."""
        subtask = self.subtasks[key] = _Subtask(chunks, str(key_split(key)))
        layer = self.layers.setdefault(subtask.layer, TrackedLayer())
        for counts in (self.counts, layer.counts):
            counts[subtask.state] += chunks
        self.left += 1

    def move(self, subtask: _Subtask, state: str) -> None:
        """Record a subtask's new state."""
        for counts in (self.counts, self.layers[subtask.layer].counts):
            counts[subtask.state] -= subtask.chunks
            counts[state] += subtask.chunks
        subtask.state = state

    def note_time(self, subtask: _Subtask, begun: float, ended: float) -> None:
        """Record when a subtask was computed, in seconds of its worker's clock."""
        self.layers[subtask.layer].seconds += ended - begun
        self.rows.append((subtask.worker, begun, ended, subtask.chunks, subtask.layer))


class Dashboard(SchedulerPlugin):  # type: ignore[misc]
    """Keeps the progress of dask_mars's computations until the scheduler forgets their tasks."""

    name = "dask-mars-overview"

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._computations: dict[str, TrackedComputation] = {}
        self._computation_of: dict[Any, str] = {}
        #: Computations whose tasks are forgotten, the latest last.
        self.ended: dict[str, TrackedComputation] = {}
        #: Revision number; it grows with each change.
        self.revision = 1

    @property
    def tracked(self) -> dict[str, TrackedComputation]:
        """Computations with tasks in the scheduler, and the latest ended ones."""
        return self.ended | self._computations

    # -- what Dask calls --------------------------------------------------------------------------------------

    def update_graph(
        self, scheduler: Scheduler, *, client: str, annotations: Mapping[str, Mapping[Any, Any]], **kwargs: Any
    ) -> None:
        """Add new subtasks."""
        for key, mark in annotations.get(MARK, {}).items():
            if isinstance(mark, dict) and mark["chunks"] and key not in self._computation_of:
                name = self._computation_of[key] = mark["computation"]
                tracked = self._computations.get(name)
                if tracked is None:
                    known = str(mark.get("id", "")), str(mark.get("title", ""))
                    tracked = self.ended.pop(name, None) or TrackedComputation(client, time(), *known)
                    self._computations[name] = tracked
                tracked.add(key, mark["chunks"])
                self._note(tracked)

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Record a change of a task's state."""
        name = self._computation_of.get(key)
        if name is None:
            return
        tracked = self._computations[name]
        subtask = tracked.subtasks[key]
        if finish == "forgotten":
            del self._computation_of[key]
            tracked.left -= 1
            if not tracked.left:
                self._end(name)
        elif finish == "processing":
            tracked.move(subtask, finish)
            subtask.worker = self._scheduler.tasks[key].processing_on.address
            if tracked.started is None:
                tracked.started = time()
        elif finish == "memory":
            tracked.move(subtask, finish)
            subtask.worker = kwargs.get("worker", subtask.worker)
            for startstop in kwargs.get("startstops") or ():
                if startstop["action"] == "compute":
                    tracked.note_time(subtask, startstop["start"], startstop["stop"])
        elif finish != "released":
            tracked.move(subtask, finish)
            subtask.worker = ""
            if finish == "erred" and tracked.error is None:
                tracked.error = _error(kwargs.get("exception_text") or "", kwargs.get("traceback_text") or "")
        self._note(tracked)

    def restart(self, scheduler: Scheduler) -> None:
        """Forget all computations."""
        self._computations.clear()
        self._computation_of.clear()
        self.ended.clear()
        self.revision += 1

    def cancel(self, name: str) -> None:
        """Cancel a computation at the scheduler; its user's call raises."""
        tracked = self._computations[name]
        tracked.is_cancelled = True
        self._note(tracked)
        client = self._scheduler.clients.get(tracked.client)
        wanted = [] if client is None else [task.key for task in client.wants_what if _is_of(task, name)]
        # Dask reports `msg` to the client as the reason of the error.
        self._scheduler.stimulus_cancel(
            wanted, tracked.client, force=True, reason="cancelled", msg=CANCELLED_ON_PAGE
        )

    def _note(self, tracked: TrackedComputation) -> None:
        tracked.revision += 1
        tracked.changed = time()
        self.revision += 1

    def _end(self, name: str) -> None:
        """Keep the counts of an ended computation for a while."""
        tracked = self.ended[name] = self._computations.pop(name)
        tracked.subtasks.clear()
        while len(self.ended) > _KEPT_COMPUTATIONS:
            del self.ended[next(iter(self.ended))]

    # -- what there is to know --------------------------------------------------------------------------------

    def hosts(self) -> dict[str, Mapping[str, Any]]:
        """Return the last metrics of agents, by address."""
        workers = sorted(self._scheduler.workers.items())
        return {address: state.metrics for address, state in workers if SUBTASKS in state.metrics}

    def told(self) -> dict[str, Counter[str]]:
        """Return the computed and running chunks of subtasks in progress, by computation."""
        found: dict[str, Counter[str]] = {}
        for address, state in self._scheduler.workers.items():
            for key, computed, running in state.metrics.get(SUBTASKS, ()):
                name = self._computation_of.get(key)
                if name is None:
                    continue
                subtask = self._computations[name].subtasks[key]
                if subtask.state == "processing" and subtask.worker == address:
                    # The two numbers are not from the same moment.
                    running = min(running, subtask.chunks - computed)
                    found.setdefault(name, Counter()).update(finished=computed, running=running)
        return found


def _is_of(task: Any, name: str) -> bool:
    """Return whether a task is part of a computation."""
    mark = (task.annotations or {}).get(MARK)
    return isinstance(mark, dict) and mark["computation"] == name


def _error(exception: str, traceback: str) -> tuple[str, str, str]:
    """Return type, message and traceback of an error that workers have sent as text."""
    kind, _, message = exception.partition("(")
    return kind, message.removesuffix(")"), traceback
