"""Progress of computations by chunk, as Dask's scheduler sees it.

The scheduler hears of subtasks as of any other task, and from the agents' heartbeats how far those are that are
running. Nothing is sent for it, and nobody's results depend on it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import time
from typing import Any, TypedDict

from dask.utils import key_split
from distributed import Scheduler, SchedulerPlugin

from dask_mars.cluster.marks import CANCELLED_ON_PAGE, MARK
from dask_mars.cluster.metrics import SUBTASKS

#: What is kept of what has ended: computations, and rows of a computation's timeline.
_KEPT_COMPUTATIONS, _KEPT_ROWS = 100, 20_000

#: What operands can be.
STATES = ("waiting", "running", "finished", "failed")


class ComputationStatus(TypedDict):
    """How far a computation is.

    `chunks` are those that have been handed to the scheduler, `hosts` has by address those that are running and
    finished there.
    """

    computation: str
    client: str
    chunks: int
    waiting: int
    running: int
    finished: int
    failed: int
    hosts: dict[str, dict[str, int]]


class HostStatus(TypedDict):
    """What an agent does: operands that are running, and the bytes of its store in memory and on disk."""

    name: str
    processes: int
    running: int
    stored_bytes: int
    store_limit_bytes: int
    on_disk_bytes: int


@dataclass(slots=True)
class TrackedLayer:
    """What is known of the subtasks whose results are of one layer.

    Attributes
    ----------
    counts : Counter
        Their chunks, by the states of subtasks.
    seconds : float
        How long agents have computed them.
    """

    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


@dataclass(slots=True)
class _Subtask:
    chunks: int
    #: Of its result: what its key says, without what tells it from others.
    layer: str = ""
    #: As Dask's scheduler says, but that what was in memory once is done, even if it has been released.
    state: str = "waiting"
    #: Address of who computes or has computed it.
    worker: str = ""


@dataclass(slots=True)
class TrackedComputation:
    """A computation of which the scheduler knows some task, or has known one."""

    client: str
    created: float = 0.0
    #: Id and name of its handle, if its user has one.
    id: str = ""
    title: str = ""
    subtasks: dict[Any, _Subtask] = field(default_factory=dict)
    #: How many of them are not forgotten.
    left: int = 0
    #: Operands by the states of their subtasks; counted along, as pages ask often.
    counts: Counter[str] = field(default_factory=Counter)
    started: float | None = None
    #: When the last of its subtasks changed.
    changed: float = 0.0
    #: Grows with each of these changes.
    revision: int = 1
    #: Type, message and traceback of what failed.
    error: tuple[str, str, str] | None = None
    is_cancelled: bool = False
    #: By their names for people.
    layers: dict[str, TrackedLayer] = field(default_factory=dict)
    #: Address, first and last second, operands and layer of what has been computed.
    rows: deque[tuple[str, float, float, int, str]] = field(default_factory=lambda: deque(maxlen=_KEPT_ROWS))

    @property
    def state(self) -> str:
        """Its state, as the web service names these.

        One that waits for what its user's process computes seems to be finished for so long.
        """
        counts = self.counts
        if counts["erred"]:
            return "failed"
        if counts["memory"] == counts.total():
            return "finished"
        if self.is_cancelled or not self.left:
            return "cancelled"
        return "queued" if self.started is None else "running"

    def add(self, key: Any, chunks: int) -> None:
        """Note that there is a subtask more."""
        subtask = self.subtasks[key] = _Subtask(chunks, str(key_split(key)))
        layer = self.layers.setdefault(subtask.layer, TrackedLayer())
        for counts in (self.counts, layer.counts):
            counts[subtask.state] += chunks
        self.left += 1

    def move(self, subtask: _Subtask, state: str) -> None:
        """Note that a subtask is in another state."""
        for counts in (self.counts, self.layers[subtask.layer].counts):
            counts[subtask.state] -= subtask.chunks
            counts[state] += subtask.chunks
        subtask.state = state

    def note_time(self, subtask: _Subtask, begun: float, ended: float) -> None:
        """Note when a subtask was computed, in seconds of its worker's clock."""
        self.layers[subtask.layer].seconds += ended - begun
        self.rows.append((subtask.worker, begun, ended, subtask.chunks, subtask.layer))


class Dashboard(SchedulerPlugin):  # type: ignore[misc]
    """Keeps what there is to know of dask_mars's computations, until the scheduler forgets their tasks.

    Parameters
    ----------
    scheduler : Scheduler
        Dask's.
    """

    name = "dask-mars-overview"

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._computations: dict[str, TrackedComputation] = {}
        self._computation_of: dict[Any, str] = {}
        #: Those whose tasks are forgotten, the latest last.
        self.ended: dict[str, TrackedComputation] = {}
        #: Grows with each change.
        self.revision = 1

    @property
    def tracked(self) -> dict[str, TrackedComputation]:
        """Computations of which the scheduler knows some task, and the latest of those that have ended."""
        return self.ended | self._computations

    # -- what Dask calls --------------------------------------------------------------------------------------

    def update_graph(
        self, scheduler: Scheduler, *, client: str, annotations: Mapping[str, Mapping[Any, Any]], **kwargs: Any
    ) -> None:
        """Take note of new subtasks."""
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
        """Take note of a change of a task's state."""
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
        """Forget everything."""
        self._computations.clear()
        self._computation_of.clear()
        self.ended.clear()
        self.revision += 1

    def cancel(self, name: str) -> None:
        """Cancel what the scheduler knows of a computation; its user's call raises.

        Parameters
        ----------
        name : str
            Of the computation, as its subtasks say.
        """
        tracked = self._computations[name]
        tracked.is_cancelled = True
        self._note(tracked)
        client = self._scheduler.clients.get(tracked.client)
        wanted = [] if client is None else [task.key for task in client.wants_what if _is_of(task, name)]
        # Dask passes on what it is told as the reason of the error.
        self._scheduler.stimulus_cancel(
            wanted, tracked.client, force=True, reason="cancelled", msg=CANCELLED_ON_PAGE
        )

    def _note(self, tracked: TrackedComputation) -> None:
        tracked.revision += 1
        tracked.changed = time()
        self.revision += 1

    def _end(self, name: str) -> None:
        """Keep the figures of a computation that is over, for a while."""
        tracked = self.ended[name] = self._computations.pop(name)
        tracked.subtasks.clear()
        while len(self.ended) > _KEPT_COMPUTATIONS:
            del self.ended[next(iter(self.ended))]

    # -- what there is to know --------------------------------------------------------------------------------

    def computations(self) -> list[ComputationStatus]:
        """Return how far computations are of which anything is left to do."""
        told = {
            (address, key): (computed, running)
            for address, state in self._scheduler.workers.items()
            for key, computed, running in state.metrics.get(SUBTASKS, ())
        }
        found = []
        for name, tracked in self._computations.items():
            counts: Counter[str] = Counter()
            hosts: dict[str, Counter[str]] = {}
            for key, subtask in tracked.subtasks.items():
                of_subtask = _count(subtask, *told.get((subtask.worker, key), (0, 0)))
                counts.update(of_subtask)
                if subtask.worker:
                    hosts.setdefault(subtask.worker, Counter()).update(of_subtask)
            if counts["waiting"] or counts["running"]:
                found.append(_computation(name, tracked.client, counts, hosts))
        return found

    def hosts(self) -> dict[str, HostStatus]:
        """Return what agents do, by their addresses."""
        return {
            address: HostStatus(
                name=str(state.name),
                processes=state.nthreads,
                running=state.metrics["mars_chunks_running"],
                stored_bytes=state.metrics["mars_stored_bytes"],
                store_limit_bytes=state.metrics["mars_store_limit_bytes"],
                on_disk_bytes=state.metrics["spilled_bytes"]["disk"],
            )
            for address, state in sorted(self._scheduler.workers.items())
            if SUBTASKS in state.metrics
        }

    def told(self) -> dict[str, Counter[str]]:
        """Return how many operands are done and running of subtasks that agents compute, by computation."""
        found: dict[str, Counter[str]] = {}
        for address, state in self._scheduler.workers.items():
            for key, computed, running in state.metrics.get(SUBTASKS, ()):
                name = self._computation_of.get(key)
                if name is None:
                    continue
                subtask = self._computations[name].subtasks[key]
                if subtask.state == "processing" and subtask.worker == address:
                    counts = _count(subtask, computed, running)
                    found.setdefault(name, Counter()).update(counts)
        return found


def _is_of(task: Any, name: str) -> bool:
    """Say whether a task is part of a computation."""
    mark = (task.annotations or {}).get(MARK)
    return isinstance(mark, dict) and mark["computation"] == name


def _error(exception: str, traceback: str) -> tuple[str, str, str]:
    """Return type, message and traceback of an error that workers have sent as text.

    >>> _error("ValueError('no')", "")
    ('ValueError', "'no'", '')
    """
    kind, _, message = exception.partition("(")
    return kind, message.removesuffix(")"), traceback


def _count(subtask: _Subtask, computed: int, running: int) -> dict[str, int]:
    """Return how many operands of a subtask are in which state, given what its host has said of it."""
    chunks = subtask.chunks
    if subtask.state == "memory":
        return {"finished": chunks}
    if subtask.state == "erred":
        return {"failed": chunks}
    if subtask.state != "processing":
        return {"waiting": chunks}
    # The two figures are not of the same moment.
    running = min(running, chunks - computed)
    return {"finished": computed, "running": running, "waiting": chunks - computed - running}


def _computation(
    name: str, client: str, counts: Counter[str], hosts: dict[str, Counter[str]]
) -> ComputationStatus:
    return ComputationStatus(
        computation=name,
        client=client,
        chunks=counts.total(),
        waiting=counts["waiting"],
        running=counts["running"],
        finished=counts["finished"],
        failed=counts["failed"],
        hosts={
            address: {state: counted[state] for state in ("running", "finished")}
            for address, counted in sorted(hosts.items())
        },
    )


__all__ = ["STATES", "ComputationStatus", "Dashboard", "HostStatus", "TrackedComputation"]
