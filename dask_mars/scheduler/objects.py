"""The ledger of objects: the size of each, whether it is in memory or on disk, and its readers.

Pure bookkeeping, and a part of the state machine. An object is a value in the store: the result of a chunk, or a
value put there directly. Its id is the id of the graph and of the chunk that made it, and outlives both: a
persisted object stays the same object, and graphs that read it refer to it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

#: The graph and the chunk that made an object.
ObjectId = tuple[int, int]


class Reader(Protocol):
    """The ledger's view of a graph that reads objects."""

    id: int

    @property
    def objects(self) -> dict[int, StoredObject]:
        """Return its objects, by its own chunks; the ledger keeps the dict up to date."""

    @property
    def on_disk(self) -> dict[int, int]:
        """Return the bytes of objects on disk that are read back whole; the ledger keeps the dict up to date."""

    def is_in_use(self, chunk: int) -> bool:
        """Return whether a dispatched chunk reads a chunk, or the user takes it."""

    def next_use(self, chunk: int) -> float:
        """Return when it reads a chunk next, as a key of its order; infinite for never."""


class StoredObject:
    """One object."""

    __slots__ = (
        "id",
        "is_copy",
        "is_map_output",
        "is_on_disk",
        "is_persisted",
        "is_spilling",
        "readers",
        "restoring_worker",
        "size_bytes",
    )

    def __init__(self, id: ObjectId, size_bytes: int, is_map_output: bool = False, is_copy: bool = False) -> None:
        self.id = id
        #: Whether the user's process has the value as well. Such an object is never written: its memory is
        #: released, and the next worker that reads it gets a new copy.
        self.is_copy = is_copy
        #: Whether it is read in parts, also from disk, and never put back into memory.
        self.is_map_output = is_map_output
        self.size_bytes = size_bytes
        #: Whether it is read from disk, or is a copy outside the store. An object in memory may have a file, too.
        self.is_on_disk = False
        self.is_spilling = False
        self.restoring_worker: int | None = None
        self.is_persisted = False
        #: The graphs that read it, each with the object's chunk there.
        self.readers: list[tuple[Reader, int]] = []

    @property
    def can_be_spilled(self) -> bool:
        """Return whether it may be spilled: it is in memory, and its maker or the user keeps its location."""
        if self.is_on_disk or self.is_spilling:
            return False
        return self.is_persisted or any(reader.id == self.id[0] for reader, _ in self.readers)

    @property
    def is_pinned(self) -> bool:
        """Return whether it must stay where it is: a dispatched chunk reads it, or the user takes it."""
        return any(reader.is_in_use(chunk) for reader, chunk in self.readers)

    def next_use(self) -> float:
        """Return when it is read next; infinite if only the user may read it."""
        return min([reader.next_use(chunk) for reader, chunk in self.readers], default=math.inf)

    def read_as(self) -> list[tuple[int, int]]:
        """Return id and chunk under which each graph reads it."""
        return [(reader.id, chunk) for reader, chunk in self.readers]


class Objects:
    """All objects of one engine's store."""

    # Objects that are neither persisted nor read by any graph are forgotten.

    def __init__(self) -> None:
        self._objects: dict[ObjectId, StoredObject] = {}
        #: Map outputs that were in memory at the last check.
        self._map_outputs: dict[ObjectId, StoredObject] = {}

    def get(self, id: ObjectId) -> StoredObject | None:
        """Return an object, None if it is unknown."""
        return self._objects.get(id)

    def add(self, reader: Reader, sizes: Mapping[int, int], map_outputs: Collection[int] = ()) -> None:
        """Add results of a graph's chunks, with sizes in bytes, some of them map outputs."""
        objects = self._objects
        for chunk, size_bytes in sizes.items():
            id = reader.id, chunk
            objects[id] = reader.objects[chunk] = found = StoredObject(id, size_bytes, chunk in map_outputs)
            found.readers.append((reader, chunk))
            if found.is_map_output:
                self._map_outputs[id] = found

    def add_copies(self, reader: Reader, sizes: Mapping[int, int]) -> None:
        """Add values of the user's process that are chunks of a graph, so far without copies in the store."""
        for chunk, size_bytes in sizes.items():
            id = reader.id, chunk
            found = self._objects[id] = reader.objects[chunk] = StoredObject(id, size_bytes, is_copy=True)
            found.readers.append((reader, chunk))
            self.moved_to_disk(found)

    def persist(self, id: ObjectId, size_bytes: int = 0, is_map_output: bool = False) -> None:
        """Record that the user refers to an object, adding an unknown one with the given size and kind."""
        found = self._objects.get(id)
        if found is None:
            found = self._objects[id] = StoredObject(id, size_bytes, is_map_output)
            if is_map_output:
                self._map_outputs[id] = found
        found.is_persisted = True

    def release(self, id: ObjectId) -> bool:
        """Record that the user has dropped an object; return whether it was persisted."""
        found = self._objects.get(id)
        if found is None or not found.is_persisted:
            return False
        found.is_persisted = False
        self._forget_unused(found)
        return True

    def add_reader(self, reader: Reader, chunk: int, id: ObjectId) -> None:
        """Record that a graph reads a persisted object as one of its chunks; raise `KeyError` if there is none."""
        found = reader.objects[chunk] = self._objects[id]
        found.readers.append((reader, chunk))
        if found.is_on_disk:
            reader.on_disk[chunk] = found.size_bytes

    def remove_reader(self, reader: Reader, chunk: int) -> None:
        """Record that a graph no longer reads a chunk; the chunk need not be an object."""
        found = reader.objects.pop(chunk, None)
        if found is not None:
            reader.on_disk.pop(chunk, None)
            found.readers.remove((reader, chunk))
            self._forget_unused(found)

    def forget_reader(self, reader: Reader) -> None:
        """Record that a graph no longer reads anything."""
        for chunk in list(reader.objects):
            self.remove_reader(reader, chunk)

    def forget_worker(self, worker: int) -> None:
        """Record that a worker will not restore its objects."""
        for found in self._objects.values():
            if found.restoring_worker == worker:
                found.restoring_worker = None

    def moved_to_disk(self, found: StoredObject) -> None:
        """Record that an object is read from disk from now on."""
        found.is_on_disk = True
        if found.is_map_output:
            # Readers of a map output load a part of it into private memory.
            return
        for reader, chunk in found.readers:
            reader.on_disk[chunk] = found.size_bytes

    def moved_to_memory(self, found: StoredObject) -> None:
        """Record that an object is in memory again."""
        found.is_on_disk = False
        found.restoring_worker = None
        for reader, chunk in found.readers:
            del reader.on_disk[chunk]

    def spill_candidates(self) -> Iterator[StoredObject]:
        """Return the objects that may be spilled, those read furthest ahead first."""
        found = [
            (-candidate.next_use(), id) for id, candidate in self._objects.items() if candidate.can_be_spilled
        ]
        found.sort()
        return (self._objects[id] for _, id in found)

    def map_outputs(self) -> list[StoredObject]:
        """Return the map outputs that may be spilled, the oldest first."""
        self._map_outputs = {id: found for id, found in self._map_outputs.items() if found.can_be_spilled}
        return list(self._map_outputs.values())

    def _forget_unused(self, found: StoredObject) -> None:
        if not found.is_persisted and not found.readers:
            del self._objects[found.id]
            self._map_outputs.pop(found.id, None)

    def validate(self) -> None:
        """Check every invariant; raise AssertionError where one does not hold."""
        for id, found in self._objects.items():
            assert found.id == id
            assert found.is_persisted or found.readers, "an object without a reader"
            assert not (found.is_on_disk and found.is_spilling), "what is on disk is being written"
            assert not (found.is_copy and found.restoring_worker is not None), "a worker is to restore a copy"
            for reader, chunk in found.readers:
                assert reader.objects[chunk] is found
                assert (chunk in reader.on_disk) == (found.is_on_disk and not found.is_map_output)
