"""The records that an engine's parts share: computations, workers, objects, reservations."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from dask_mars.config import Settings
from dask_mars.engine.graph_run import ChunkMeasurements, GraphRun, Message, Released
from dask_mars.engine.objects import ObjectTable
from dask_mars.engine.resources import Resources
from dask_mars.engine.sender import Sender
from dask_mars.engine.spill_writer import SpillWriter
from dask_mars.engine.threads import ThreadHandle
from dask_mars.engine.worker_handle import WorkerHandle
from dask_mars.graph.chunks import Operand
from dask_mars.protocol.messages import Forget

#: Divisor of the memory limit that gives the size of a large block.
_LARGE_SHARE = 32


@dataclass(slots=True)
class ReservationRecord:
    """A reservation of bytes of the store for data from outside graphs."""

    key: Hashable
    size_bytes: int
    #: Called with None once the bytes are reserved, or with the reason why they never will be; None after that.
    answer: Callable[[Exception | None], None] | None


class Registry:
    """State that an engine's parts share. Only its thread changes it."""

    def __init__(self, settings: Settings, resources: Resources) -> None:
        self.settings, self.resources = settings, resources
        store = self.store = resources.store
        self.control = resources.control
        self.runs: dict[int, GraphRun] = {}
        self.workers: dict[int, WorkerHandle] = {}
        #: Workers that are threads, and workers with something to send.
        self.threads: dict[int, ThreadHandle] = {}
        self.pending: dict[WorkerHandle, None] = {}
        self.reservations: dict[int, ReservationRecord] = {}
        #: Workers that have yet to forget a graph which may hold files open, and the inbox for that report.
        self._forgetting: dict[int, tuple[set[WorkerHandle], SimpleQueue[Message]]] = {}
        self.last_measurements: ChunkMeasurements | None = None
        #: Memory of all processes and arenas, last measured and peak; 0 before.
        self.in_use_bytes = self.peak_bytes = 0
        self.spill_writer = SpillWriter(store, settings.spill_directory)
        large_bytes = settings.memory_limit // _LARGE_SHARE
        self.objects = ObjectTable(store, self.runs, self.workers, self.spill_writer.remove, large_bytes)
        self.blocks = self.objects.blocks
        self.sender = Sender(store, self.blocks)

    def operands_of(self, graph: int) -> tuple[Sequence[Operand], dict[int, Operand]]:
        """Return a graph's operands, and those that a thread has made fast; none if its computation has ended."""
        run = self.runs.get(graph)
        return ((), {}) if run is None else (run.graph.operands, run.fast)

    def note_in_use(self, in_use_bytes: int) -> None:
        """Record the latest measurement of all processes and arenas."""
        self.in_use_bytes = in_use_bytes
        self.peak_bytes = max(self.peak_bytes, in_use_bytes)

    def forget(self, run: GraphRun) -> None:
        """Release everything of a computation."""
        del self.runs[run.id]
        self.last_measurements = run.measurements
        self.objects.forget(run)
        holders = set()
        for handle in self.workers.values():
            if handle.forget(run.id):
                handle.send(Forget(run.id, run.may_hold_files))
                holders.add(handle)
        if run.may_hold_files:
            self._forgetting[run.id] = holders, run.inbox
            self._tell_if_forgotten(run.id)
        self.sender.prune_contexts({run.context for run in self.runs.values()})

    def note_forgotten(self, graph: int, handle: WorkerHandle) -> None:
        """Record that a worker holds nothing of a graph any more."""
        if graph in self._forgetting:
            self._forgetting[graph][0].discard(handle)
            self._tell_if_forgotten(graph)

    def note_gone(self, handle: WorkerHandle | None = None) -> None:
        """Record that a worker, or every worker, has ended, and holds nothing open any more."""
        for graph, (holders, _) in list(self._forgetting.items()):
            holders.intersection_update(() if handle is None else holders - {handle})
            self._tell_if_forgotten(graph)

    def _tell_if_forgotten(self, graph: int) -> None:
        holders, inbox = self._forgetting[graph]
        if not holders:
            del self._forgetting[graph]
            inbox.put(Released())
