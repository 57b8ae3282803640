"""What an engine holds: computations, workers, the store, and who refers to what in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dask_mars.engine.computation import GraphRun
from dask_mars.engine.processes import WorkerHandle
from dask_mars.engine.profile import Figures
from dask_mars.engine.sender import Sender
from dask_mars.engine.spill_writer import SpillWriter
from dask_mars.protocol import channel
from dask_mars.protocol.object_ref import ARRAY, ObjectRef, needed_bytes
from dask_mars.store.persisted import Reference
from dask_mars.store.refs import References
from dask_mars.store.store import Store


class Registry:
    """What an engine's parts share. Only its thread changes it.

    Parameters
    ----------
    store : Store
        The client's view of the shared store.
    spill_directory : Path
        Where to spill.

    Attributes
    ----------
    runs : dict
        The computations by graph number.
    workers : dict
        The worker processes by number.
    kept : dict
        Of graphs that are nothing but kept chunks: references to what the user has of them.
    last : Figures or None
        Of the last computation that was released.
    blocks, sender, spill_writer
        Of this store.
    """

    def __init__(self, store: Store, spill_directory: Path) -> None:
        self.store = store
        self.runs: dict[int, GraphRun] = {}
        self.workers: dict[int, WorkerHandle] = {}
        self.kept: dict[int, list[Reference]] = {}
        self.last: Figures | None = None
        self.spill_writer = SpillWriter(store, spill_directory)
        self.blocks = References(self._release_block, self.spill_writer.remove)
        self.sender = Sender(store, self.blocks)

    def put(self, run: GraphRun, values: Sequence[Any]) -> tuple[dict[int, int], dict[int, int]]:
        """Put the values of a computation's chunks into the store.

        Returns
        -------
        tuple of dict
            Of those that are in an arena: the bytes, and how many of these were not there before.
        """
        sizes, fresh = {}, {}
        done = []
        try:
            for chunk, value in enumerate(values):
                ref = self.store.seal(value)
                before = self.blocks.stored_bytes
                self.blocks.incref_object(ref)
                done.append(ref)
                if ref[0] >= ARRAY:
                    sizes[chunk] = needed_bytes(ref)
                    fresh[chunk] = self.blocks.stored_bytes - before
        except BaseException:
            for ref in done:
                self.blocks.decref_object(ref)
            raise
        run.refs[:] = done
        return sizes, fresh

    def forget_locations(self, run: GraphRun, chunks: list[int]) -> None:
        """Have the workers forget where chunks are."""
        for handle in self.workers.values():
            known = handle.known.get(run.number)
            if known:
                gone = [chunk for chunk in chunks if chunk in known]
                if gone:
                    known.difference_update(gone)
                    handle.to_free.setdefault(run.number, []).extend(gone)

    def replace_location(self, run: GraphRun, chunk: int, new: ObjectRef) -> None:
        """Have a chunk be somewhere else; what it refers to there has a reference already."""
        ref = run.refs[chunk]
        run.refs[chunk] = new
        if ref is not None:
            self.blocks.decref_object(ref)

    def forget(self, run: GraphRun) -> None:
        """Release all that there is of a computation."""
        del self.runs[run.number]
        if self.kept.pop(run.number, None) is None:
            self.last = run.figures
        for ref in [*run.refs, *run.spilled.values()]:
            if ref is not None:
                self.blocks.decref_object(ref)
        for block in run.kept:
            self.blocks.drop(block)
        for handle in self.workers.values():
            if handle.known.pop(run.number, None) is not None:
                handle.operands.pop(run.number, None)
                handle.to_free.pop(run.number, None)
                handle.send((channel.FORGET, run.number))
        self.sender.keep_contexts({run.context for run in self.runs.values()})

    def _release_block(self, arena: int, offset: int) -> None:
        """Give a block that nobody refers to any more back to its allocator."""
        if arena == self.store.own:
            self.store.release(offset)
        elif arena in self.workers:
            self.workers[arena].to_release.append(offset)
