"""The records that an engine's parts share: computations, workers, persisted objects, files."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from dask_mars.config import Settings
from dask_mars.engine.graph_run import ChunkMeasurements, GraphRun, Message, Released
from dask_mars.engine.resources import Resources
from dask_mars.engine.sender import Sender
from dask_mars.engine.spill_writer import SpillWriter
from dask_mars.engine.worker_handle import WorkerHandle
from dask_mars.protocol.messages import Forget, Moved
from dask_mars.protocol.object_ref import ObjectRef
from dask_mars.scheduler.objects import ObjectId
from dask_mars.store.persisted import PersistedWeakRef
from dask_mars.store.reference_counts import ReferenceCounts


@dataclass(slots=True)
class PersistedEntry:
    """A persisted object.

    Attributes
    ----------
    key : hashable
        Dask's key of the chunk.
    ref : ObjectRef
        Its location.
    reference : PersistedWeakRef
        Weak reference to the user's handle.
    """

    key: Hashable
    ref: ObjectRef
    reference: PersistedWeakRef


@dataclass(slots=True)
class ReservationRecord:
    """A reservation of bytes of the store for data from outside graphs.

    Attributes
    ----------
    key : hashable
        Name of the data, for inspection.
    size_bytes : int
        Number of bytes.
    answer : callable or None
        Called with None once the bytes are reserved, or with the reason why they never will be; None after that.
    """

    key: Hashable
    size_bytes: int
    answer: Callable[[Exception | None], None] | None


#: Divisor of the memory limit that gives the size of a large block.
_LARGE_SHARE = 32


class Registry:
    """State that an engine's parts share. Only its thread changes it.

    Parameters
    ----------
    settings : Settings
        The engine's settings.
    resources : Resources
        What the engine and its workers share.

    Attributes
    ----------
    settings, resources
        As given.
    store, control
        The store and the control page of the resources.
    runs : dict
        The computations by graph number.
    workers : dict
        The workers by number.
    persisted : dict
        The persisted objects by id.
    files : dict
        Files of spilled objects, by graph and chunk; a file lives as long as its object, also while the object is
        in memory.
    reservations : dict
        Reservations that are not released, by number.
    last_measurements : ChunkMeasurements or None
        Measurements of the last released computation.
    in_use_bytes, peak_bytes : int
        Memory of all processes and arenas, last measured and peak; 0 before.
    blocks, sender, spill_writer
        Reference counts, sender and spill writer of this store.
    """

    def __init__(self, settings: Settings, resources: Resources) -> None:
        self.settings, self.resources = settings, resources
        store = self.store = resources.store
        self.control = resources.control
        self.runs: dict[int, GraphRun] = {}
        self.workers: dict[int, WorkerHandle] = {}
        self.persisted: dict[ObjectId, PersistedEntry] = {}
        self.files: dict[int, dict[int, ObjectRef]] = {}
        self.reservations: dict[int, ReservationRecord] = {}
        #: Workers that have yet to forget a graph which may hold files open, and the inbox for that report.
        self._forgetting: dict[int, tuple[set[WorkerHandle], SimpleQueue[Message]]] = {}
        self.last_measurements: ChunkMeasurements | None = None
        self.in_use_bytes = self.peak_bytes = 0
        #: Whether pages of released blocks go back to the system at once.
        self.is_short = False
        #: Whether the blocks now being released were written to disk.
        self.is_spilling = False
        #: Size from which pages of spilled blocks always go back: another worker or private memory may need the
        #: room. Smaller blocks stay with the worker, as fresh pages cost more than computing on them.
        self._large_bytes = settings.memory_limit // _LARGE_SHARE
        self.spill_writer = SpillWriter(store, settings.spill_directory)
        self.blocks = ReferenceCounts(self._release_block, self.spill_writer.remove)
        self.sender = Sender(store, self.blocks)

    def note_in_use(self, in_use_bytes: int) -> None:
        """Record the latest measurement of all processes and arenas."""
        self.in_use_bytes = in_use_bytes
        self.peak_bytes = max(self.peak_bytes, in_use_bytes)

    def put(self, values: Sequence[Any]) -> list[ObjectRef]:
        """Put values into the store, and return their locations."""
        refs: list[ObjectRef] = []
        try:
            for value in values:
                ref = self.store.seal(value)
                self.blocks.incref_object(ref)
                refs.append(ref)
        except BaseException:
            for ref in refs:
                self.blocks.decref_object(ref)
            raise
        return refs

    def persist(self, id: ObjectId, key: Hashable, ref: ObjectRef, reference: PersistedWeakRef) -> None:
        """Record that the user refers to an object."""
        self.blocks.incref_object(ref)
        self.persisted[id] = PersistedEntry(key, ref, reference)

    def forget_persisted(self, id: ObjectId) -> None:
        """Record that the user has dropped an object."""
        self.blocks.decref_object(self.persisted.pop(id).ref)
        self._forget_file(*id)

    # -- locations of objects ---------------------------------------------------------------------------------

    def ref_of(self, id: ObjectId) -> ObjectRef | None:
        """Return the location of an object, from its persisted entry or its computation."""
        persisted = self.persisted.get(id)
        if persisted is not None:
            return persisted.ref
        run = self.runs.get(id[0])
        return None if run is None else run.refs[id[1]]

    def key_of(self, id: ObjectId) -> Hashable:
        """Return Dask's key of an object, None if it is unknown by now."""
        persisted = self.persisted.get(id)
        if persisted is not None:
            return persisted.key
        run = self.runs.get(id[0])
        return None if run is None else run.graph.keys[id[1]]

    def file_of(self, id: ObjectId) -> ObjectRef | None:
        """Return the location of an object's spill file, if there is one."""
        return self.files.get(id[0], {}).get(id[1])

    def copied_bytes(self, id: ObjectId) -> int | None:
        """Return the size of a copy of a value of the user's process; None for other objects."""
        run = self.runs.get(id[0])
        return None if run is None else run.copied_bytes.get(id[1])

    def drop_copy(self, id: ObjectId) -> None:
        """Release a copy of a value of the user's process; the next worker that reads it gets a new one."""
        number, chunk = id
        run = self.runs[number]
        ref = run.refs[chunk]
        if ref is not None:
            run.refs[chunk] = None
            self.blocks.decref_object(ref)
            self.forget_refs(number, [chunk])

    def add_file(self, id: ObjectId, ref: ObjectRef) -> None:
        """Record an object's spill file."""
        self.blocks.incref_object(ref)
        self.files.setdefault(id[0], {})[id[1]] = ref

    def move(self, id: ObjectId, ref: ObjectRef) -> None:
        """Change the location of a persisted object."""
        persisted = self.persisted.get(id)
        if persisted is not None:
            self.blocks.incref_object(ref)
            before, persisted.ref = persisted.ref, ref
            self.blocks.decref_object(before)

    def move_chunk(self, run: GraphRun, chunk: int, ref: ObjectRef) -> bool:
        """Change the location of a computation's chunk; return False if it had none."""
        before = run.refs[chunk]
        if before is None:
            return False
        self.blocks.incref_object(ref)
        run.refs[chunk] = ref
        self.blocks.decref_object(before)
        return True

    def notify_moved(self, graph: int, refs: Mapping[int, ObjectRef], besides: WorkerHandle | None = None) -> None:
        """Report new locations of chunks to the workers that know the old ones."""
        for handle in self.workers.values():
            known = handle.known.get(graph, ())
            moved = {chunk: ref for chunk, ref in refs.items() if chunk in known}
            if moved and handle is not besides:
                handle.send(Moved(graph, moved))

    def forget_refs(self, graph: int, chunks: Sequence[int]) -> None:
        """Make the workers forget the locations of chunks."""
        for handle in self.workers.values():
            known = handle.known.get(graph)
            if known:
                gone = [chunk for chunk in chunks if chunk in known]
                if gone:
                    known.difference_update(gone)
                    handle.to_free.setdefault(graph, []).extend(gone)

    # -- release ----------------------------------------------------------------------------------------------

    def free(self, run: GraphRun, chunks: Sequence[int]) -> None:
        """Release chunks that a computation needs no more."""
        files = self.files.get(run.number)
        for chunk in chunks:
            ref = run.refs[chunk]
            if ref is not None:
                run.refs[chunk] = None
                self.blocks.decref_object(ref)
            if files and chunk in files:
                self._forget_file(run.number, chunk)
            if run.values:
                run.values.pop(chunk, None)
                run.graph.values.pop(chunk, None)
        self.forget_refs(run.number, chunks)

    def forget(self, run: GraphRun) -> None:
        """Release everything of a computation."""
        del self.runs[run.number]
        self.last_measurements = run.measurements
        for ref in run.refs:
            if ref is not None:
                self.blocks.decref_object(ref)
        for chunk in list(self.files.get(run.number, ())):
            self._forget_file(run.number, chunk)
        for block in run.literal_blocks:
            self.blocks.decref(block)
        holders = set()
        for handle in self.workers.values():
            if handle.known.pop(run.number, None) is not None:
                handle.operands.pop(run.number, None)
                handle.to_free.pop(run.number, None)
                handle.send(Forget(run.number, run.may_hold_files))
                holders.add(handle)
        if run.may_hold_files:
            self._forgetting[run.number] = holders, run.inbox
            self._tell_if_forgotten(run.number)
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

    def _forget_file(self, graph: int, chunk: int) -> None:
        """Release an object's spill file once neither its computation nor the user needs it."""
        files = self.files.get(graph)
        run = self.runs.get(graph)
        if not files or chunk not in files or (graph, chunk) in self.persisted:
            return
        if run is None or run.refs[chunk] is None:
            self.blocks.decref_object(files.pop(chunk))
            if not files:
                del self.files[graph]

    def trim_arena(self, arena: int) -> None:
        """Return the free pages of an ended worker's arena to the system."""
        self.store.trim_arena(arena, self.blocks.live(arena))

    def _release_block(self, arena: int, offset: int, size_bytes: int) -> None:
        """Return an unreferenced block to its allocator."""
        is_large = self.is_spilling and size_bytes >= self._large_bytes
        if arena != self.store.own and (self.is_short or is_large or arena not in self.workers):
            # The worker may be busy for long, wait for this very memory, or have ended.
            self.store.arenas[arena].give_back(offset, size_bytes)
        if arena == self.store.own:
            self.store.release(offset)
        elif arena in self.workers:
            self.workers[arena].to_release.append(offset)
