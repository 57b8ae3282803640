"""Listeners for the events of engines, such as event logs and progress displays.

There is one list of them for all engines of a process, as a listener is often there before the first engine is. An
engine looks at it once for each event, and events carry batches.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from dask_mars.engine.registry import Registry
from dask_mars.graph.ids import SubtaskId
from dask_mars.labels import worker_label
from dask_mars.protocol.control import ControlPage
from dask_mars.scheduler.events import CLIENT, Event, FailGraph, FinishGraph, ForgetGraph
from dask_mars.scheduler.memory import Memory
from dask_mars.scheduler.objects import ObjectId

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ProcessesMeasured:
    """What all processes and arenas take was measured: up to ten times a second while something is computed."""

    in_use_bytes: int


#: What listeners hear: all that the state machine is told, of what it says the ends of graphs, and how much memory
#: is in use.
ListenerEvent = Event | FinishGraph | FailGraph | ForgetGraph | ProcessesMeasured


class EngineView:
    """What listeners may ask of an engine. In other threads than the engine's, figures may be a moment old.

    Parameters
    ----------
    registry, memory, control
        Of the engine.
    is_agent : bool
        Whether it computes parts of what a cluster computes.
    memory_limit : int
        What all its processes together may use, in bytes.

    Attributes
    ----------
    number : int
        Unlike that of any other engine of this process.
    is_agent : bool
        As given.
    runs : dict
        The computations by graph number, for the engine's thread to look at.
    labels : dict
        What people are to call each worker by its number, also one that has just ended, and the user's process.
    """

    _numbers = itertools.count(1)

    def __init__(
        self, registry: Registry, memory: Memory, control: ControlPage, is_agent: bool, memory_limit: int
    ) -> None:
        self.is_agent = is_agent
        self._registry = registry
        self._memory_limit = memory_limit
        self.number = next(self._numbers)
        self.runs = registry.runs
        self.labels = {CLIENT: worker_label(CLIENT)}
        self._key_of = registry.key_of
        self._workers = registry.workers
        self._blocks, self._spill_writer = registry.blocks, registry.spill_writer
        self._memory = memory
        self._control = control

    def store(self) -> dict[str, int]:
        """Return the bytes that the store holds, may hold, has promised, and has ever written to disk."""
        return {
            "stored_bytes": self._blocks.stored_bytes,
            "limit_bytes": self._memory.limit_bytes,
            "reserved_bytes": self._memory.reserved_bytes,
            "spilled_bytes": self._spill_writer.spilled_bytes,
        }

    def memory(self) -> dict[str, int]:
        """Return the bytes that all processes may use and use, the most since the start, and those on disk.

        Nothing is measured for it: what is in use is as the engine has found it last.
        """
        return {
            "limit_bytes": self._memory_limit,
            "in_use_bytes": self._registry.in_use_bytes,
            "peak_bytes": self._registry.peak_bytes,
            "on_disk_bytes": self._blocks.file_bytes,
        }

    def key_of(self, id: ObjectId) -> Hashable:
        """Return Dask's key of an object, None if it is not known any more; for the engine's thread."""
        return self._key_of(id)

    def on_disk_bytes(self) -> int:
        """Return the bytes that the store's files take at the moment."""
        return self._blocks.file_bytes

    def computed(self) -> dict[int, int]:
        """Return how many chunks of each computation have been computed, by its number."""
        runs = list(self.runs.items())
        return {
            number: int(np.count_nonzero(np.asarray(run.measurements.durations_s) >= 0)) for number, run in runs
        }

    def pids(self) -> dict[int, int]:
        """Return by what the system knows each worker: the id of its process, or of its thread."""
        return {number: handle.pid for number, handle in list(self._workers.items())}

    def running(self) -> dict[int, SubtaskId | None]:
        """Return what each worker is in the middle of. Workers know no stage: it is 0."""
        return {number: self._control.running(number) for number in list(self._workers)}


class Listener:
    """Hears what happens in the engines of this process; a base for those that want to.

    Attributes
    ----------
    wants_steps : bool
        Whether workers are to note the steps of operands, and `ChunksFinished` is to have them.
    """

    wants_steps = False

    def on_event(self, engine: EngineView, event: ListenerEvent) -> None:
        """Take note of something before the engine acts on it; but `ForgetGraph` comes afterwards.

        It is called in the engine's thread, which waits for it. A listener that raises hears nothing more.
        """
        raise NotImplementedError


class Listeners:
    """The listeners of a process. They come and go in any thread.

    Attributes
    ----------
    active : tuple of Listener
        Replaced and not changed, so that the engines need no lock.
    want_steps : bool
        Whether some of them want the steps of operands.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.active: tuple[Listener, ...] = ()
        self.want_steps = False

    def add(self, listener: Listener) -> None:
        """Have a listener hear what happens from now on."""
        with self._lock:
            self._set((*self.active, listener))

    def remove(self, listener: Listener) -> None:
        """Tell a listener nothing more, but for what it is just being told in another thread."""
        with self._lock:
            self._set(tuple(other for other in self.active if other is not listener))

    def _set(self, active: tuple[Listener, ...]) -> None:
        self.active = active
        self.want_steps = any(listener.wants_steps for listener in active)

    def notify(self, engine: EngineView, event: ListenerEvent) -> None:
        """Tell all listeners."""
        for listener in self.active:
            try:
                listener.on_event(engine, event)
            except BaseException:
                # Whatever it is, it is no matter of the computations.
                logger.exception("%r raised, and is told nothing more", listener)
                self.remove(listener)

    def forget_after_fork(self) -> None:
        """Let go of listeners that belong to the parent of this process."""
        self._lock = threading.Lock()
        self._set(())


#: Those of this process.
listeners = Listeners()

os.register_at_fork(after_in_child=listeners.forget_after_fork)
