"""The ledger of objects: how many bytes each takes, whether they are in memory or on disk, and who reads them.

Pure bookkeeping, and a part of the state machine. An object is a value that lies in the store: what a chunk was
computed to, or what was put there. Its id is the number of the graph and of the chunk that made it, and outlives
both: what the user persists is the same object as before, and graphs that read it refer to it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

#: The graph and the chunk that made an object.
ObjectId = tuple[int, int]


class Reader(Protocol):
    """What the ledger knows of a graph that reads objects."""

    number: int

    @property
    def objects(self) -> dict[int, StoredObject]:
        """Its objects, by the chunks that they are there; the ledger keeps it up to date."""

    @property
    def on_disk(self) -> dict[int, int]:
        """The bytes of those that are on disk and are read back whole; the ledger keeps it up to date."""

    def next_use(self, chunk: int) -> float:
        """Return when it reads a chunk next, as a key of its order; infinite for never."""


class StoredObject:
    """One object.

    Parameters
    ----------
    id : tuple of int
        The graph and the chunk that made it.
    size_bytes : int
        What it takes in memory.
    is_map_output : bool, optional
        Whether it is read in parts, from disk too, and never put back into memory.
    is_copy : bool, optional
        Whether the user's process has it as well. Such an object is never written: its memory is released, and it
        is copied into the store once more when a worker is to read it.

    Attributes
    ----------
    is_on_disk : bool
        Whether it is read from disk, or a copy that is not in the store. What is in memory may have a file too.
    is_spilling : bool
        Whether it is being written.
    is_read_ahead : bool
        Whether the system has been told that it is read from disk next.
    restoring_worker : int or None
        The worker that is to put it back into memory.
    is_persisted : bool
        Whether the user refers to it.
    readers : list of (Reader, int)
        The graphs that read it, and the chunk that it is there.
    """

    __slots__ = (
        "id",
        "is_copy",
        "is_map_output",
        "is_on_disk",
        "is_persisted",
        "is_read_ahead",
        "is_spilling",
        "readers",
        "restoring_worker",
        "size_bytes",
    )

    def __init__(self, id: ObjectId, size_bytes: int, is_map_output: bool = False, is_copy: bool = False) -> None:
        self.id = id
        self.is_copy = is_copy
        self.is_map_output = is_map_output
        self.size_bytes = size_bytes
        self.is_on_disk = False
        self.is_spilling = False
        self.is_read_ahead = False
        self.restoring_worker: int | None = None
        self.is_persisted = False
        self.readers: list[tuple[Reader, int]] = []

    @property
    def can_be_spilled(self) -> bool:
        """Whether it may be written to disk: it is in memory, and whoever made it or persists it can say where."""
        if self.is_on_disk or self.is_spilling:
            return False
        return self.is_persisted or any(reader.number == self.id[0] for reader, _ in self.readers)

    def next_use(self) -> float:
        """Return when it is read next; infinite if only the user may ever do so."""
        return min([reader.next_use(chunk) for reader, chunk in self.readers], default=math.inf)

    def read_as(self) -> list[tuple[int, int]]:
        """Return the graphs that read it, by number, and the chunk that it is there."""
        return [(reader.number, chunk) for reader, chunk in self.readers]


class Objects:
    """All objects of one engine's store.

    Objects that are neither persisted nor read by any graph are forgotten.
    """

    def __init__(self) -> None:
        self._objects: dict[ObjectId, StoredObject] = {}
        #: Map outputs that were in memory when they were last looked at.
        self._map_outputs: dict[ObjectId, StoredObject] = {}

    def get(self, id: ObjectId) -> StoredObject | None:
        """Return an object, None if it was forgotten or never was."""
        return self._objects.get(id)

    def add(self, reader: Reader, sizes: Mapping[int, int], map_outputs: Collection[int] = ()) -> None:
        """Note that chunks of a graph have become objects of so many bytes, some of them map outputs."""
        objects, number = self._objects, reader.number
        for chunk, size_bytes in sizes.items():
            id = number, chunk
            objects[id] = reader.objects[chunk] = found = StoredObject(id, size_bytes, chunk in map_outputs)
            found.readers.append((reader, chunk))
            if found.is_map_output:
                self._map_outputs[id] = found

    def add_copies(self, reader: Reader, sizes: Mapping[int, int]) -> None:
        """Note that chunks of a graph are values of the user's process, of which the store has no copies yet."""
        for chunk, size_bytes in sizes.items():
            id = reader.number, chunk
            found = self._objects[id] = reader.objects[chunk] = StoredObject(id, size_bytes, is_copy=True)
            found.readers.append((reader, chunk))
            self.moved_to_disk(found)

    def persist(self, id: ObjectId, size_bytes: int = 0, is_map_output: bool = False) -> None:
        """Note that the user refers to an object; of one that is not known, what it takes and is."""
        found = self._objects.get(id)
        if found is None:
            found = self._objects[id] = StoredObject(id, size_bytes, is_map_output)
            if is_map_output:
                self._map_outputs[id] = found
        found.is_persisted = True

    def release(self, id: ObjectId) -> bool:
        """Note that the user does not refer to an object any more; return whether that is news."""
        found = self._objects.get(id)
        if found is None or not found.is_persisted:
            return False
        found.is_persisted = False
        self._forget_unused(found)
        return True

    def add_reader(self, reader: Reader, chunk: int, id: ObjectId) -> None:
        """Note that a graph reads a persisted object, as one of its chunks.

        Raises
        ------
        KeyError
            There is no such object.
        """
        found = reader.objects[chunk] = self._objects[id]
        found.readers.append((reader, chunk))
        if found.is_on_disk:
            reader.on_disk[chunk] = found.size_bytes

    def remove_reader(self, reader: Reader, chunk: int) -> None:
        """Note that a graph reads a chunk no more, whether that is an object or not."""
        found = reader.objects.pop(chunk, None)
        if found is not None:
            reader.on_disk.pop(chunk, None)
            found.readers.remove((reader, chunk))
            self._forget_unused(found)

    def forget_reader(self, reader: Reader) -> None:
        """Note that a graph reads nothing any more."""
        for chunk in list(reader.objects):
            self.remove_reader(reader, chunk)

    def forget_worker(self, worker: int) -> None:
        """Note that a worker will not restore what it was to restore."""
        for found in self._objects.values():
            if found.restoring_worker == worker:
                found.restoring_worker = None

    def moved_to_disk(self, found: StoredObject) -> None:
        """Note that an object is read from disk from now on."""
        found.is_on_disk = True
        if found.is_map_output:
            # Who reads it takes a part of it, into memory of its own.
            return
        for reader, chunk in found.readers:
            reader.on_disk[chunk] = found.size_bytes

    def moved_to_memory(self, found: StoredObject) -> None:
        """Note that an object is in memory again."""
        found.is_on_disk = found.is_read_ahead = False
        found.restoring_worker = None
        for reader, chunk in found.readers:
            del reader.on_disk[chunk]

    def spill_candidates(self) -> Iterator[StoredObject]:
        """Return what could go to disk: what is read furthest ahead comes first."""
        found = [
            (-candidate.next_use(), id) for id, candidate in self._objects.items() if candidate.can_be_spilled
        ]
        found.sort()
        return (self._objects[id] for _, id in found)

    def map_outputs(self) -> list[StoredObject]:
        """Return the map outputs that could go to disk, the oldest first."""
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
            assert found.is_persisted or found.readers, "an object is kept for nobody"
            assert not (found.is_on_disk and found.is_spilling), "what is on disk is being written"
            assert not (found.is_copy and found.restoring_worker is not None), "a worker is to restore a copy"
            for reader, chunk in found.readers:
                assert reader.objects[chunk] is found
                assert (chunk in reader.on_disk) == (found.is_on_disk and not found.is_map_output)


__all__ = ["ObjectId", "Objects", "Reader", "StoredObject"]
