"""The table of objects: where each value is, in memory and on disk, who refers to it, and which workers know.

An object's id is its graph and chunk. Its row is spread over columns: `GraphRun.refs` has the locations of a
graph's chunks, `GraphRun.known_by` the workers that know them, `files` the spill files, `persisted` the objects of
the user, and `ReferenceCounts` the references to blocks. Only this module moves and releases objects. The workers
have the one other copy of locations.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask_mars.engine.graph_run import GraphRun
from dask_mars.engine.worker_handle import WorkerHandle
from dask_mars.protocol.messages import Moved
from dask_mars.protocol.object_ref import ObjectRef, is_spilled
from dask_mars.scheduler.objects import ObjectId
from dask_mars.store.persisted import PersistedWeakRef
from dask_mars.store.reference_counts import ReferenceCounts
from dask_mars.store.store import Store


@dataclass(slots=True)
class PersistedEntry:
    """A persisted object."""

    key: Hashable
    ref: ObjectRef
    reference: PersistedWeakRef


class ObjectTable:
    """The objects of an engine. Only the engine's thread changes it."""

    def __init__(
        self,
        store: Store,
        runs: Mapping[int, GraphRun],
        workers: Mapping[int, WorkerHandle],
        remove_file: Callable[[ObjectRef], None],
        large_bytes: int,
    ) -> None:
        self._store = store
        self._runs, self._workers = runs, workers
        #: Size from which pages of spilled blocks always go back to the system: others may need the room. Smaller
        #: blocks stay with the worker, as fresh pages cost more than computing on them.
        self._large_bytes = large_bytes
        self.blocks = ReferenceCounts(self._release_block, remove_file)
        self.persisted: dict[ObjectId, PersistedEntry] = {}
        #: Files of spilled objects, by graph and chunk; a file lives as long as its object, also while the object
        #: is in memory.
        self.files: dict[int, dict[int, ObjectRef]] = {}
        #: Whether pages of released blocks go back to the system at once.
        self.is_short = False
        #: Whether the blocks now being released were written to disk.
        self._is_spilling = False

    # -- locations --------------------------------------------------------------------------------------------

    def ref_of(self, id: ObjectId) -> ObjectRef | None:
        """Return the location of an object, from its persisted entry or its computation."""
        persisted = self.persisted.get(id)
        if persisted is not None:
            return persisted.ref
        run = self._runs.get(id[0])
        return None if run is None else run.refs[id[1]]

    def key_of(self, id: ObjectId) -> Hashable:
        """Return Dask's key of an object, None if it is unknown by now."""
        persisted = self.persisted.get(id)
        if persisted is not None:
            return persisted.key
        run = self._runs.get(id[0])
        return None if run is None else run.graph.keys[id[1]]

    def file_of(self, id: ObjectId) -> ObjectRef | None:
        """Return the location of an object's spill file, if there is one."""
        return self.files.get(id[0], {}).get(id[1])

    def copied_bytes(self, id: ObjectId) -> int | None:
        """Return the size of a copy of a value of the user's process; None for other objects."""
        run = self._runs.get(id[0])
        return None if run is None else run.copied_bytes.get(id[1])

    def add_file(self, id: ObjectId, ref: ObjectRef) -> None:
        """Record an object's spill file."""
        self.blocks.incref_object(ref)
        self.files.setdefault(id[0], {})[id[1]] = ref

    def move(self, ids: Iterable[ObjectId], ref: ObjectRef, besides: WorkerHandle | None = None) -> None:
        """Change the location of an object under all of its ids."""
        # Workers that know the old location are sent the new one, except the worker `besides`, which reported it.
        # If the object went to disk, they forget the location instead.
        self._is_spilling = is_spilled(ref)
        for graph, chunk in ids:
            persisted = self.persisted.get((graph, chunk))
            if persisted is not None:
                persisted.ref = self._exchanged(persisted.ref, ref)
            run = self._runs.get(graph)
            if run is None or (before := run.refs[chunk]) is None or before is ref:
                continue
            run.refs[chunk] = self._exchanged(before, ref)
            if self._is_spilling:
                self._make_forget(run, [chunk])
                continue
            for handle in self._knowing(run, chunk):
                if handle is not besides:
                    handle.send(Moved(graph, {chunk: ref}))
        self._is_spilling = False

    def _exchanged(self, before: ObjectRef, after: ObjectRef) -> ObjectRef:
        self.blocks.incref_object(after)
        self.blocks.decref_object(before)
        return after

    def _make_forget(self, run: GraphRun, chunks: Sequence[int]) -> None:
        """Tell the workers to forget the locations of chunks."""
        known_by = run.known_by
        for chunk in chunks:
            if known_by[chunk]:
                for handle in self._knowing(run, chunk):
                    handle.free(run.id, chunk)
                known_by[chunk] = 0

    def _knowing(self, run: GraphRun, chunk: int) -> Iterator[WorkerHandle]:
        """Return the workers that know the location of a chunk."""
        mask = run.known_by[chunk]
        while mask:
            position = mask.bit_length() - 1
            mask ^= 1 << position
            handle = run.workers[position]
            # Those that have left keep their bits.
            if self._workers.get(handle.id) is handle:
                yield handle

    # -- the user's objects -----------------------------------------------------------------------------------

    def put(self, values: Sequence[Any]) -> list[ObjectRef]:
        """Put values into the store, and return their locations."""
        refs: list[ObjectRef] = []
        try:
            for value in values:
                ref = self._store.seal(value)
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

    # -- release ----------------------------------------------------------------------------------------------

    def drop_copy(self, id: ObjectId) -> None:
        """Release a copy of a value of the user's process; the next worker that reads it gets a new one."""
        graph_id, chunk = id
        if self._drop_ref(self._runs[graph_id], chunk):
            self._make_forget(self._runs[graph_id], [chunk])

    def free(self, run: GraphRun, chunks: Sequence[int]) -> None:
        """Release chunks that a computation no longer needs."""
        files = self.files.get(run.id)
        for chunk in chunks:
            self._drop_ref(run, chunk)
            if files and chunk in files:
                self._forget_file(run.id, chunk)
            if run.values:
                run.values.pop(chunk, None)
                run.graph.values.pop(chunk, None)
        self._make_forget(run, chunks)

    def forget(self, run: GraphRun) -> None:
        """Release every object of a computation that is over, except those that the user refers to."""
        for ref in run.refs:
            if ref is not None:
                self.blocks.decref_object(ref)
        for chunk in list(self.files.get(run.id, ())):
            self._forget_file(run.id, chunk)
        for block in run.literal_blocks:
            self.blocks.decref(block)

    def trim_arena(self, arena: int) -> None:
        """Return the free pages of an ended worker's arena to the system."""
        self._store.trim_arena(arena, self.blocks.live(arena))

    def _drop_ref(self, run: GraphRun, chunk: int) -> bool:
        ref = run.refs[chunk]
        if ref is None:
            return False
        run.refs[chunk] = None
        self.blocks.decref_object(ref)
        return True

    def _forget_file(self, graph: int, chunk: int) -> None:
        """Release an object's spill file once neither its computation nor the user needs it."""
        files = self.files.get(graph)
        run = self._runs.get(graph)
        if not files or chunk not in files or (graph, chunk) in self.persisted:
            return
        if run is None or run.refs[chunk] is None:
            self.blocks.decref_object(files.pop(chunk))
            if not files:
                del self.files[graph]

    def _release_block(self, arena: int, offset: int, size_bytes: int) -> None:
        """Return an unreferenced block to its allocator."""
        store = self._store
        is_large = self._is_spilling and size_bytes >= self._large_bytes
        if arena != store.own and (self.is_short or is_large or arena not in self._workers):
            # The worker may be busy for long, wait for this very memory, or have ended.
            store.arenas[arena].give_back(offset, size_bytes)
        if arena == store.own:
            store.release(offset)
        elif arena in self._workers:
            self._workers[arena].release(offset)
