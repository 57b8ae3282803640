"""One computation under a checkpoint: its lock, restored chunks, saved chunks, and the removal of its files."""

from __future__ import annotations

import contextlib
import platform
import time
import warnings
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import dask
import numpy as np

from dask_mars.checkpointing import facts as graph_facts
from dask_mars.checkpointing.block import CheckpointSettings
from dask_mars.checkpointing.costs import Budget, costs_of
from dask_mars.checkpointing.directory import ComputationDirectory, computations
from dask_mars.checkpointing.expiry import tidy_now_and_then
from dask_mars.checkpointing.identity import form_of, has_lasting_keys, known_by
from dask_mars.checkpointing.journal import Saved
from dask_mars.checkpointing.reading import SavedFile, is_whole, read_saved
from dask_mars.checkpointing.restore import restored
from dask_mars.checkpointing.saver import BEGINNING_S, ChunkSaver
from dask_mars.checkpointing.sources import changed, fingerprints, sources_of
from dask_mars.checkpointing.stores import proof_of
from dask_mars.errors import BegunBefore, CheckpointInUse, SavedChunkLost
from dask_mars.graph.chunks import DATA, ChunkGraph
from dask_mars.protocol.object_ref import SPILLED, SpilledFile
from dask_mars.store.reader import inline_value
from dask_mars.version import __version__

#: Longest wait for another process that computes the same, in seconds.
_WAIT_S = 10.0
#: Maximum number of keys and names in a message.
_SHOWN = 3


class Restoration(NamedTuple):
    """The saved part of a graph, and the rest."""

    #: The chunks left to compute.
    graph: ChunkGraph
    existing: dict[int, SpilledFile]
    #: Work that need not be done again, in seconds.
    restored_s: float
    #: Messages about saved chunks that are no longer valid.
    lost: list[str]


def restore(
    graph: ChunkGraph,
    directory: ComputationDirectory,
    facts: graph_facts.Facts,
    trusts_targets: bool = False,
    verify: bool = False,
) -> Restoration:
    """Return a graph minus the chunks saved in a locked directory; with `verify` skip damaged files."""
    saved, begun = directory.read()
    if not saved and not begun:
        return Restoration(graph, {}, 0.0, [])
    values: dict[int, Any] = {}
    files: dict[int, SavedFile] = {}
    lost: list[str] = []
    risk_s = 0.0
    for chunk, key in enumerate(graph.keys):
        if graph.operand_of[chunk] == DATA or facts.exempt[chunk]:
            continue
        record = saved.get((key, form_of(graph, chunk)))
        if record is None:
            continue
        if not is_proved(record, is_needed=chunk in facts.stores and not trusts_targets):
            lost.append(f"what {key!r} had written is not there any more")
            continue
        if record.ref[0] == SPILLED:
            file = SavedFile(repr(key), record.ref)
            if verify and not is_whole(file):
                continue
            files[chunk] = file
        else:
            try:
                values[chunk] = inline_value(record.ref)
            except Exception:
                continue
        risk_s += record.risk_s
    before = graph_facts.begun_before(facts, graph.keys, begun, values.keys() | files.keys())
    if before is not None:
        raise BegunBefore(repr(before))
    left = restored(graph, values, files, read_saved)
    existing = {
        left.ids[graph.keys[chunk]]: file.file for chunk, file in files.items() if graph.keys[chunk] in left.ids
    }
    return Restoration(left, existing, risk_s, lost)


def is_proved(record: Saved, is_needed: bool) -> bool:
    """Return whether the files that a chunk has written are unchanged."""
    if is_needed and not record.proof:
        return False
    return all(proof_of(path) == (path, size, time_ns) for path, size, time_ns in record.proof)


def is_worth_saving(settings: CheckpointSettings, graph: ChunkGraph) -> bool:
    """Return whether another run could find saved chunks of a graph: not if its keys differ in each run."""
    return settings.trusts_targets or has_lasting_keys(graph)


class Session:
    """A computation under a checkpoint."""

    def __init__(self, settings: CheckpointSettings, graph: ChunkGraph) -> None:
        self.settings = settings
        self._whole = graph
        self._is_kept = False
        identity, self._is_lasting = known_by(graph)
        self._directory = ComputationDirectory(settings.directory, identity)
        self._directory.acquire(_WAIT_S)
        try:
            self._begin()
        except BaseException:
            self._leave()
            raise

    def _begin(self) -> None:
        settings, directory = self.settings, self._directory
        if not settings.trusts_targets:
            # A service removes its own ended computations.
            tidy_now_and_then(settings.directory, settings.age_s, settings.limit_bytes)
        about = directory.about()
        read = sources_of(self._whole)
        self._facts = graph_facts.facts_of(self._whole, read, settings.trusts_targets)
        # Sources that the computation itself writes change in any case.
        sources = fingerprints(read - self._facts.written, settings.token)
        before = about.get("sources")
        other = changed(before if isinstance(before, dict) else {}, sources)
        if other and not directory.is_empty():
            warnings.warn(_warning(other, settings.directory), RuntimeWarning, stacklevel=2)
            directory.clear()
            about = {}
        self._sources = read
        self._about = {
            "name": _name_of(self._whole),
            "begun": about.get("begun", time.time()),
            "attempts": int(about.get("attempts", 0)) + 1,
            "versions": _versions(),
            "sources": sources,
            "lasting": settings.trusts_targets or self._is_lasting,
        }
        self._costs = costs_of(settings.directory)
        count = partial(used_bytes, settings.directory)
        self._budget = Budget(settings.limit_bytes, count, settings.directory, settings.spare_bytes)
        self._restore(verify=False)

    @property
    def identity(self) -> str:
        """The name of the computation in its directory."""
        return self._directory.identity

    def _restore(self, verify: bool) -> None:
        trusts = self.settings.trusts_targets
        found = restore(self._whole, self._directory, self._facts, trusts, verify)
        if found.lost:
            warnings.warn(
                f"checkpoint in {self.settings.directory}: {found.lost[0]}"
                + (f", and so it is of {len(found.lost) - 1} others" if len(found.lost) > 1 else "")
                + ": that is computed and written again",
                RuntimeWarning,
                stacklevel=2,
            )
        self.graph = found.graph
        self.restored_s = found.restored_s
        is_whole = self.graph is self._whole
        # A saver marks further chunks as exempt; the next attempt must not inherit the marks.
        self.facts = facts = (
            self._facts._replace(exempt=bytearray(self._facts.exempt))
            if is_whole
            else graph_facts.facts_of(self.graph, self._sources, trusts)
        )
        for chunk in found.existing:
            facts.exempt[chunk] = 1
        self.saver = ChunkSaver(
            self.graph,
            facts,
            self._directory,
            self.settings.share,
            self._budget,
            self._costs,
            found.existing,
            # No bound method: a reference cycle would leave the graph to the garbage collector.
            note=partial(self._directory.note, self._about),
            # A block may have many short computations, whose results a restart of the block needs.
            least_work_s=0.0 if self.settings.block is not None else BEGINNING_S / self.settings.share,
        )

    def note(self) -> None:
        """Write the facts about the computation, once something is saved."""
        self._directory.note(self._about)

    def restore_again(self, lost: SavedChunkLost) -> None:
        """Restart after a saved value turned out to be damaged."""
        self.saver.stop()
        warnings.warn(f"{lost}. It is computed again.", RuntimeWarning, stacklevel=2)
        Path(lost.path).unlink(missing_ok=True)
        self._restore(verify=True)

    def restore_anew(self) -> None:
        """Restart with the chunks that other processes have saved meanwhile."""
        self.saver.stop()
        self._restore(verify=False)

    def succeed(self) -> None:
        """Record the success of the computation: its files are no longer needed."""
        block = self.settings.block
        self._is_kept = block is not None and block.keeps(self._directory)
        # Later computations of the block may fail, and their restart needs these results.
        self.saver.stop(drain=self._is_kept)
        if not self._is_kept:
            self._directory.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            # After an interrupt or an exception the user may restart.
            self.saver.stop(drain=error is not None)
        finally:
            self._leave()
        if self._is_kept and self.settings.block is not None and self.settings.block.is_closed:
            # The block has ended before this released the directory.
            with contextlib.suppress(CheckpointInUse):
                self._directory.discard()

    def _leave(self) -> None:
        """Release the directory, and remove it if nothing is saved in it."""
        try:
            if self._directory.is_empty():
                self._directory.remove()
        finally:
            self._directory.release()


def _warning(names: list[str], directory: Path) -> str:
    """Return the warning about changed sources of a checkpoint."""
    some = f"{', '.join(names[:_SHOWN])}{' and others' if len(names) > _SHOWN else ''}"
    return (
        f"{some} may have changed since the checkpoint in {directory} was written: all is computed again. Changes "
        "are detected in files on local disks; for other sources give dask_mars.checkpoint(..., token=) a text "
        "that changes with them"
    )


def _name_of(graph: ChunkGraph) -> str:
    layers = dict.fromkeys(
        [graph.layer_of(chunk) for chunk in range(len(graph) - 1, max(-1, len(graph) - 100), -1)]
    )
    return ", ".join([name for name in layers if not name.startswith("finalize-")][:_SHOWN])[:200]


def used_bytes(directory: Path) -> int:
    """Return the bytes of all computations in a directory."""
    return sum([computation.size_bytes() for computation in computations(directory)])


def _versions() -> dict[str, str]:
    return {
        "dask_mars": __version__,
        "dask": dask.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
