"""Saves worthwhile chunks of a computation as an engine computes them, from a thread of its own.

Engines, of users' processes and of agents, call its hooks in their own thread. Each writer has its own journal, so
that several hosts may save to one directory.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from dask_mars.checkpointing.costs import Budget, MeasuredCosts
from dask_mars.checkpointing.directory import ComputationDirectory, failed, name_of_file, named
from dask_mars.checkpointing.facts import Facts
from dask_mars.checkpointing.identity import form_of
from dask_mars.checkpointing.journal import Begun, FileProof, Journal, Record, Saved
from dask_mars.checkpointing.policy import SavingPolicy
from dask_mars.errors import SpillError
from dask_mars.graph.chunks import ChunkGraph
from dask_mars.locking import Lock
from dask_mars.protocol.object_ref import (
    SPILLED,
    ObjectRef,
    SpilledFile,
    is_map_output,
    is_spilled,
    is_stored,
    size_of,
    spilled_file,
)
from dask_mars.store.codec import lz4_codec
from dask_mars.store.spill_files import SpillFiles
from dask_mars.store.store import Store

logger = logging.getLogger(__name__)

#: Fixed cost of saving anything: a thread, a directory and a journal, in seconds.
BEGINNING_S = 0.003
#: Limits for values that wait to be written and stay in memory: in bytes, and as a divisor of the store's limit.
_BACKLOG_BYTES, _BACKLOG_SHARE = 1 << 28, 16
#: Time for which chunks to save are gathered, in seconds.
_GATHER_S = 0.02
#: Longest wait for the current write at the end of a computation, in seconds.
_END_S = 30.0


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


class _Hooks(NamedTuple):
    """An engine's functions for a saver."""

    store: Store
    incref: Callable[[ObjectRef], None]
    decref: Callable[[ObjectRef], None]
    call_soon: Callable[[Callable[[], None]], None]
    warn: Callable[[str], None]


class _ToSave(NamedTuple):
    chunk: int
    ref: ObjectRef
    risk_s: float


class _ToRemove(NamedTuple):
    chunk: int


class ChunkSaver:
    """Saves the worthwhile chunks of one graph."""

    def __init__(
        self,
        graph: ChunkGraph,
        facts: Facts,
        directory: ComputationDirectory,
        share: float,
        budget: Budget,
        costs: MeasuredCosts,
        existing: Mapping[int, SpilledFile] | None = None,
        note: Callable[[], None] = lambda: None,
        least_work_s: float = 0.0,
    ) -> None:
        self._graph = graph
        self._facts = facts
        self._writer = ChunkWriter(directory, budget, existing or {}, note)
        self._costs = costs
        self._least_work_s = least_work_s
        self._policy = SavingPolicy(graph.inputs, graph.outputs, share, facts.exempt, facts.forced)
        self._policy.saved(existing or ())
        #: Chunks that depend on chunks computed in the user's process.
        self._tainted: bytearray | None = None
        self._hooks: _Hooks | None = None
        self._queue: SimpleQueue[list[_ToSave | _ToRemove] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._backlog_bytes = 0
        #: Prevents additions to the queue after its end.
        self._end_lock = Lock()
        self._ending = threading.Event()
        self._is_stopped = False
        self._has_failed = False
        self._is_over_limit = False

    # -- for the engine's thread --------------------------------------------------------------------------------

    def begin(
        self,
        store: Store,
        store_bytes: int,
        incref: Callable[[ObjectRef], None],
        decref: Callable[[ObjectRef], None],
        call_soon: Callable[[Callable[[], None]], None],
        warn: Callable[[str], None],
    ) -> None:
        """Connect the engine that computes."""
        self._hooks = _Hooks(store, incref, decref, call_soon, warn)
        self._most_bytes = min(_BACKLOG_BYTES, store_bytes // _BACKLOG_SHARE)

    def starting(self, chunks: Sequence[int]) -> Exception | None:
        """Record the start of chunks that must not start twice."""
        unrepeatable = self._facts.unrepeatable
        if unrepeatable:
            records = [Begun(self._graph.keys[chunk]) for chunk in chunks if chunk in unrepeatable]
            if records:
                try:
                    self._writer.append(records, lasting=True)
                except OSError as error:
                    return failed(self._writer.directory.path, error)
        return None

    def computed(self, chunks: Sequence[int], refs: Sequence[ObjectRef], durations_s: Sequence[float]) -> None:
        """Save the worthwhile ones of computed chunks, whose values are in the store."""
        try:
            self._computed(chunks, refs, durations_s)
        except Exception as error:
            # A failure to save must not fail the computation.
            logger.exception("chunks could not be saved")
            self._fail(error)

    def _computed(self, chunks: Sequence[int], refs: Sequence[ObjectRef], durations_s: Sequence[float]) -> None:
        if self._tainted is not None:
            self._spread(chunks, self._tainted)
        policy = self._policy

        def size_at(position: int) -> int:
            return size_of(refs[position])

        chosen = policy.computed(chunks, durations_s, size_at, self._costs.now)
        if chosen and policy.work_s < self._least_work_s:
            forced = self._facts.forced
            for position in chosen:
                if chunks[position] not in forced:
                    policy.rejected(chunks[position])
            chosen = [position for position in chosen if chunks[position] in forced]
        if chosen:
            self._choose([(chunks[position], refs[position]) for position in chosen])

    def computed_in_client(self, chunk: int) -> None:
        """Exempt a chunk that the user's process has computed: its effects end with the process."""
        if chunk in self._facts.taints or self._facts.exempt[chunk]:
            return
        if self._tainted is None:
            self._tainted = bytearray(len(self._graph))
        self._tainted[chunk] = self._facts.exempt[chunk] = 1

    def _spread(self, chunks: Sequence[int], tainted: bytearray) -> None:
        exempt = self._facts.exempt
        for chunk in chunks:
            if any(tainted[source] for source in self._graph.inputs[chunk]):
                tainted[chunk] = exempt[chunk] = 1

    def _choose(self, chosen: list[tuple[int, ObjectRef]]) -> None:
        """Queue values for writing, as far as there is room."""
        hooks, policy, forced = self._hooks, self._policy, self._facts.forced
        assert hooks is not None
        batch: list[_ToSave | _ToRemove] = []
        for chunk, ref in chosen:
            size = size_of(ref)
            if self._has_failed or self._ending.is_set() or is_spilled(ref) or is_map_output(ref):
                policy.rejected(chunk)
                continue
            if is_stored(ref):
                waiting = self._backlog_bytes
                is_too_much = waiting and waiting + size > self._most_bytes and chunk not in forced
                if is_too_much or not self._take(size):
                    policy.rejected(chunk)
                    continue
                hooks.incref(ref)
                self._backlog_bytes += size
            batch.append(_ToSave(chunk, ref, policy.risk_of(chunk)))
        if batch:
            self._put(batch)

    def _put(self, batch: list[_ToSave | _ToRemove]) -> None:
        with self._end_lock:
            if not self._ending.is_set():
                self._start()
                self._queue.put(batch)
                return
        self._on_written([item for item in batch if isinstance(item, _ToSave)], [])

    def _take(self, size_bytes: int) -> bool:
        if self._writer.budget.take(size_bytes):
            return True
        if not self._is_over_limit:
            self._is_over_limit = True
            self._warn("the limit of bytes in the directory is reached: what is computed from now on is not saved")
        return False

    def _warn(self, text: str) -> None:
        assert self._hooks is not None
        with contextlib.suppress(Exception):
            self._hooks.warn(f"checkpoint in {self._writer.directory.root}: {text}")

    def _on_written(self, saved: list[_ToSave], kept: list[_ToSave]) -> None:
        """Process finished writes, in the engine's thread."""
        assert self._hooks is not None
        for item in saved:
            if is_stored(item.ref):
                self._backlog_bytes -= size_of(item.ref)
                self._hooks.decref(item.ref)
        done = {item.chunk for item in kept}
        for item in saved:
            if item.chunk not in done:
                self._policy.rejected(item.chunk)
        superseded = self._policy.saved([item.chunk for item in kept])
        removable: list[_ToSave | _ToRemove] = [_ToRemove(chunk) for chunk in superseded]
        if removable and not self._ending.is_set():
            self._put(removable)

    # -- the end ------------------------------------------------------------------------------------------------

    def stop(self, drain: bool = False) -> None:
        """Stop writing, and return when the current write has ended."""
        if not drain:
            self._is_stopped = True
        self._ending.set()
        with self._end_lock:
            thread = self._thread
            if thread is not None:
                self._queue.put(None)
        if thread is not None:
            thread.join(_END_S)
            if thread.is_alive():
                root = self._writer.directory.root
                logger.warning("a file of the checkpoint in %s is still being written", root)
        self._is_stopped = True
        self._writer.close()

    # -- the writer's thread ------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_all, name="dask-mars-checkpoint", daemon=True)
            self._thread.start()

    def _write_all(self) -> None:
        while (batch := self._gathered()) is not None:
            to_save = [item for item in batch if isinstance(item, _ToSave)]
            kept: list[_ToSave] = []
            try:
                if not (self._has_failed or self._is_stopped):
                    self._writer.remove([item.chunk for item in batch if isinstance(item, _ToRemove)])
                    self._save(to_save, kept)
            except Exception as error:
                self._fail(error)
            if to_save:
                self._tell(to_save, kept)

    def _gathered(self) -> list[_ToSave | _ToRemove] | None:
        """Wait for work, and return all of it that arrives within `_GATHER_S`; None at the end."""
        first = self._queue.get()
        if first is None:
            return None
        # Waking the thread for each chunk would cost more than writing it.
        self._ending.wait(_GATHER_S)
        batch = [*first]
        while not self._queue.empty():
            more = self._queue.get()
            if more is None:
                self._queue.put(None)
                break
            batch += more
        return batch

    def _tell(self, to_save: list[_ToSave], kept: list[_ToSave]) -> None:
        assert self._hooks is not None
        # The engine may have ended meanwhile.
        with contextlib.suppress(Exception):
            self._hooks.call_soon(lambda: self._on_written(to_save, kept))

    def _fail(self, error: Exception) -> None:
        """Continue without saving."""
        if self._has_failed:
            return
        self._has_failed = True
        reason = error.reason if isinstance(error, SpillError) else getattr(error, "strerror", None) or repr(error)
        self._warn(f"it cannot be written ({reason}): what is computed from now on is not saved")

    def _save(self, items: list[_ToSave], kept: list[_ToSave]) -> None:
        hooks = self._hooks
        assert hooks is not None
        inline: list[tuple[_ToSave, Saved]] = []
        for item in items:
            if self._is_stopped:
                break
            proof = self._proof(item.chunk)
            if proof is None:
                continue
            if is_stored(item.ref):
                started_s = time.perf_counter()
                ref = self._writer.write(item.chunk, item.ref, hooks.store)
                record = self._record(item, named(ref), proof)
                self._writer.append([record])
                self._costs.learn(spilled_file(ref).size_bytes, time.perf_counter() - started_s)
                kept.append(item)
            else:
                inline.append((item, self._record(item, item.ref, proof)))
        if inline:
            started_s = time.perf_counter()
            self._writer.append([record for _, record in inline])
            self._costs.learn_records(len(inline), time.perf_counter() - started_s)
            kept += [item for item, _ in inline]

    def _proof(self, chunk: int) -> tuple[FileProof, ...] | None:
        found: list[FileProof] = []
        for region in self._facts.stores.get(chunk, ()):
            proof = region.proof()
            if proof is None:
                return None
            found += proof
        return tuple(found)

    def _record(self, item: _ToSave, ref: ObjectRef, proof: tuple[FileProof, ...]) -> Saved:
        return Saved(self._graph.keys[item.chunk], form_of(self._graph, item.chunk), item.risk_s, ref, proof)
