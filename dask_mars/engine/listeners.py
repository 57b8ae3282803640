"""Listeners for the events of engines, such as event logs and progress displays.

All engines of a process share one list, as a listener often exists before the first engine. An engine checks it
once for each event, and events carry batches.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Hashable
from dataclasses import dataclass

from dask_mars.engine.registry import Registry
from dask_mars.graph.ids import SubtaskId
from dask_mars.labels import worker_label
from dask_mars.lazy_numpy import np
from dask_mars.locking import Lock
from dask_mars.scheduler.events import CLIENT, Event, FailGraph, FinishGraph, ForgetGraph
from dask_mars.scheduler.memory import Memory
from dask_mars.scheduler.objects import ObjectId

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ProcessesMeasured:
    """The memory of all processes and arenas was measured: up to ten times a second during a computation."""

    in_use_bytes: int


#: Events for listeners: all events of the state machine, the instructions that end graphs, and measurements of
#: memory.
ListenerEvent = Event | FinishGraph | FailGraph | ForgetGraph | ProcessesMeasured


class EngineView:
    """A listener's view of an engine. Outside the engine's thread, figures may be a moment old.

    Attributes
    ----------
    id : int
        Unique among the engines of this process.
    is_agent : bool
        As given.
    runs : dict
        The computations by graph id, for the engine's thread.
    labels : dict
        Display names by worker id, also of a worker that has just ended, and of the user's process.
    """

    _ids = itertools.count(1)

    def __init__(self, registry: Registry, memory: Memory, is_agent: bool) -> None:
        self.is_agent = is_agent
        self._registry = registry
        self._memory_limit = registry.settings.memory_limit
        self.id = next(self._ids)
        self.runs = registry.runs
        self.labels = {CLIENT: worker_label(CLIENT)}
        self._key_of = registry.objects.key_of
        self._workers = registry.workers
        self._blocks, self._spill_writer = registry.blocks, registry.spill_writer
        self._memory = memory
        self._control = registry.control

    def notify(self, event: ListenerEvent) -> None:
        """Pass an event to the listeners."""
        if listeners.active:
            listeners.notify(self, event)

    def store(self) -> dict[str, int]:
        """Return the bytes that the store holds, may hold and has reserved, and all bytes written to disk."""
        return {
            "stored_bytes": self._blocks.stored_bytes,
            "limit_bytes": self._memory.limit_bytes,
            "reserved_bytes": self._memory.reserved_bytes,
            "spilled_bytes": self._spill_writer.spilled_bytes,
        }

    def memory(self) -> dict[str, int]:
        """Return the memory limit, memory in use, its peak since the start and bytes on disk.

        This measures nothing: memory in use is the engine's last measurement.
        """
        return {
            "limit_bytes": self._memory_limit,
            "in_use_bytes": self._registry.in_use_bytes,
            "peak_bytes": self._registry.peak_bytes,
            "on_disk_bytes": self._blocks.file_bytes,
        }

    def key_of(self, id: ObjectId) -> Hashable:
        """Return Dask's key of an object, None if it is unknown by now; for the engine's thread."""
        return self._key_of(id)

    def on_disk_bytes(self) -> int:
        """Return the present bytes of the store's files."""
        return self._blocks.file_bytes

    def computed(self) -> dict[int, int]:
        """Return the number of computed chunks of each computation, by its number."""
        runs = list(self.runs.items())
        return {id: int(np.count_nonzero(np.asarray(run.measurements.durations_s) >= 0)) for id, run in runs}

    def pids(self) -> dict[int, int]:
        """Return the system's id of each worker's process or thread, by the worker's id."""
        return {worker_id: handle.pid for worker_id, handle in list(self._workers.items())}

    def running(self) -> dict[int, SubtaskId | None]:
        """Return the subtask that each worker runs. Workers know no stage: it is 0."""
        return {worker_id: self._control.running(worker_id) for worker_id in list(self._workers)}


class Listener:
    """Base class of listeners for the events of this process's engines.

    Attributes
    ----------
    wants_steps : bool
        Whether workers record the steps of operands for `ChunksFinished`.
    """

    wants_steps = False

    def on_event(self, engine: EngineView, event: ListenerEvent) -> None:
        """React to an event before the engine acts on it; only `ForgetGraph` comes afterwards.

        The engine's thread calls it and waits. A listener that raises is removed.
        """
        raise NotImplementedError


class Listeners:
    """The listeners of a process. Any thread may add and remove them.

    Attributes
    ----------
    active : tuple of Listener
        Replaced, never changed, so that the engines need no lock.
    want_steps : bool
        Whether some of them ask for the steps of operands.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self.active: tuple[Listener, ...] = ()
        self.want_steps = False

    def add(self, listener: Listener) -> None:
        """Add a listener for events from now on."""
        with self._lock:
            self._set((*self.active, listener))

    def remove(self, listener: Listener) -> None:
        """Remove a listener; a call in another thread may still be running."""
        with self._lock:
            self._set(tuple(other for other in self.active if other is not listener))

    def _set(self, active: tuple[Listener, ...]) -> None:
        self.active = active
        self.want_steps = any(listener.wants_steps for listener in active)

    def notify(self, engine: EngineView, event: ListenerEvent) -> None:
        """Pass an event to all listeners."""
        for listener in self.active:
            try:
                listener.on_event(engine, event)
            except BaseException:
                # No failure of a listener concerns the computations.
                logger.exception("%r raised, and is told nothing more", listener)
                self.remove(listener)

    def forget_after_fork(self) -> None:
        """Drop the listeners, which belong to the parent of this process."""
        self._lock = Lock()
        self._set(())


#: The listeners of this process.
listeners = Listeners()

os.register_at_fork(after_in_child=listeners.forget_after_fork)
