"""Counts references to blocks and spill files, and frees those without any."""

from __future__ import annotations

from collections.abc import Callable

from dask_mars.protocol.object_ref import Block, ObjectRef, blocks_of, is_spilled, spilled_file


class ReferenceCounts:
    """Counts references to the blocks of all arenas and to the files of spilled values."""

    def __init__(self, release: Callable[[int, int, int], None], remove: Callable[[ObjectRef], None]) -> None:
        self._release = release
        self._remove = remove
        #: Number of references and size of every block in use, by (arena, offset).
        self.counts: dict[tuple[int, int], list[int]] = {}
        self.stored_bytes = 0
        self.file_bytes = 0
        self._files: dict[str, int] = {}

    def live(self, arena: int) -> list[tuple[int, int]]:
        """Return offset and size of each block of an arena in use."""
        return [(offset, entry[1]) for (owner, offset), entry in self.counts.items() if owner == arena]

    def incref(self, block: Block) -> None:
        """Add a reference to a block."""
        arena, offset, size_bytes = block
        entry = self.counts.get((arena, offset))
        if entry is None:
            self.counts[arena, offset] = [1, size_bytes]
            self.stored_bytes += size_bytes
        else:
            entry[0] += 1

    def decref(self, block: Block) -> None:
        """Remove a reference to a block."""
        arena, offset, _ = block
        entry = self.counts[arena, offset]
        entry[0] -= 1
        if not entry[0]:
            del self.counts[arena, offset]
            self.stored_bytes -= entry[1]
            self._release(arena, offset, entry[1])

    def incref_object(self, ref: ObjectRef) -> None:
        """Add a reference to all blocks or the file of a value."""
        if is_spilled(ref):
            file = spilled_file(ref)
            if file.path not in self._files:
                self.file_bytes += file.size_bytes
            self._files[file.path] = self._files.get(file.path, 0) + 1
        else:
            for block in blocks_of(ref):
                self.incref(block)

    def decref_object(self, ref: ObjectRef) -> None:
        """Remove a reference to all blocks or the file of a value."""
        if is_spilled(ref):
            file = spilled_file(ref)
            self._files[file.path] -= 1
            if not self._files[file.path]:
                del self._files[file.path]
                self.file_bytes -= file.size_bytes
                self._remove(ref)
        else:
            for block in blocks_of(ref):
                self.decref(block)
