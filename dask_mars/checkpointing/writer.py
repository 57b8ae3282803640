"""Writes one process's part of a computation's directory: its journal, and the files of chunks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dask_mars.checkpointing.costs import Budget
from dask_mars.checkpointing.directory import ComputationDirectory, name_of_file
from dask_mars.checkpointing.journal import Journal, Record
from dask_mars.protocol.object_ref import SPILLED, ObjectRef, SpilledFile, size_of, spilled_file
from dask_mars.store.codec import lz4_codec
from dask_mars.store.spill_files import SpillFiles
from dask_mars.store.store import Store


class ChunkWriter:
    """Writes records and files of chunks. The engine's thread appends records, and another one does all else."""

    def __init__(
        self,
        directory: ComputationDirectory,
        budget: Budget,
        existing: Mapping[int, SpilledFile],
        note: Callable[[], None],
    ) -> None:
        self.directory = directory
        self.budget = budget
        #: Writes the facts about the computation.
        self.note = note
        self._journal: Journal | None = None
        self._lock = threading.RLock()
        #: None until the first write: few computations write, and the search for codecs takes a while.
        self._files: SpillFiles | None = None
        #: Name and bytes of each chunk's file.
        self._written = {chunk: (Path(file.path).name, file.size_bytes) for chunk, file in existing.items()}

    def append(self, records: Sequence[Record], lasting: bool = False) -> None:
        """Append records to the journal."""
        with self._lock:
            self._opened().append(records, lasting)

    def write(self, chunk: int, ref: ObjectRef, store: Store) -> ObjectRef:
        """Write the value of a chunk to a file, and return the reference to that."""
        prefix = Path(self._opened().path).stem
        if self._files is None:
            self._files = SpillFiles(self.directory.path, lz4_codec())
        spilled = store.spill(ref, name_of_file(prefix, chunk), self._files)
        file = spilled_file(spilled)
        self._written[chunk] = Path(file.path).name, file.size_bytes
        self.budget.give_back(size_of(ref) - file.size_bytes)
        # The reference must not contain the value's location in memory.
        return (SPILLED, (), file, spilled[3])

    def remove(self, chunks: Sequence[int]) -> None:
        """Remove the files of chunks."""
        for chunk in chunks:
            name, size_bytes = self._written.pop(chunk, (None, 0))
            if name is not None:
                with contextlib.suppress(OSError):
                    (self.directory.path / name).unlink()
                    self.budget.give_back(size_bytes)

    def close(self) -> None:
        """Close the journal."""
        with self._lock:
            journal, self._journal = self._journal, None
            if journal is not None:
                journal.close()

    def _opened(self) -> Journal:
        with self._lock:
            if self._journal is None:
                self.note()
                self._journal = self.directory.journal()
            return self._journal
