"""Progress of a computation by an engine, counted on request from the engine's measurements."""

from __future__ import annotations

import math
import os
import time
import weakref
from array import array
from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple

from dask_mars.engine.engine import Engine
from dask_mars.engine.graph_run import GraphRun
from dask_mars.errors import MarsError
from dask_mars.lazy_numpy import np
from dask_mars.locking import Lock
from dask_mars.observe.counts import BlockStates, ChunkCounts, LayerCounts
from dask_mars.observe.layers import LayerIndex, blocks_of, edges_of

#: Longest wait for a busy engine, and lifetime of an answer, both in seconds.
_PATIENCE_S, _GOOD_S = 0.03, 0.02


class EngineSource:
    """Progress of an engine's computation."""

    def __init__(self, engine: Engine, run: GraphRun) -> None:
        self._engine = engine
        self.run = run
        self._total = len(run.graph) - len(run.graph.values)
        #: Chunks dispatched at the last request, and the time of the request.
        self._dispatched: tuple[list[int], float] = [], -math.inf

    @property
    def index(self) -> LayerIndex:
        """The layers of its chunks."""
        # Few computations need an index. setdefault gives two threads the same one.
        index: LayerIndex | None = vars(self).get("_index")
        return index or vars(self).setdefault("_index", LayerIndex(self.run.graph.keys, self.run.graph.operand_of))

    def counts(self) -> ChunkCounts:
        """Count its chunks."""
        return _counted(self._total, *self._known())

    def layers(self) -> Sequence[LayerCounts]:
        """Count the chunks of each layer."""
        _, running, failed = self._known()
        measurements = self.run.measurements
        return self.index.count(measurements.durations_s, measurements.stored_bytes, running, failed)

    def _known(self) -> tuple[int, Collection[int], Collection[int]]:
        """Return the number of computed chunks, the dispatched chunks, and the failed chunks."""
        run = self.run
        durations_s = run.measurements.durations_s
        running = self._running()
        failed = set(run.errors.copy()).difference(running)
        return (_finished(durations_s), running, [chunk for chunk in failed if durations_s[chunk] < 0])

    def _running(self) -> list[int]:
        running, asked_s = self._dispatched
        if time.monotonic() - asked_s > _GOOD_S:
            try:
                running = self._engine.inspection.dispatched_of(self.run.id, _PATIENCE_S)
            except TimeoutError:
                # An old answer is better than none.
                pass
            except MarsError:
                # The engine is just ending.
                running = []
            self._dispatched = running, time.monotonic()
        return running

    def explain(self, key: object = None, patience_s: float | None = None) -> str:
        """Return what the computation waits for, or why a key is not computed."""
        if key is not None and key not in self.run.graph.ids:
            raise KeyError(key)
        return self._engine.inspection.explain(key, patience_s)

    def edges(self) -> list[tuple[int, int]]:
        """Return which layers read which, by their indices in `layers`."""
        return edges_of(self.index, self.run.graph.inputs)

    def blocks(self, layer: str) -> BlockStates:
        """Return the blocks of a layer."""
        _, running, failed = self._known()
        return blocks_of(self.index, layer, self.run.measurements.durations_s, running, failed)

    def final(self, is_finished: bool) -> FinalSource:
        """Return the progress at the end, without values and graph."""
        run, measured = self.run, self.run.measurements
        failed = [chunk for chunk in run.errors.copy() if measured.durations_s[chunk] < 0] if run.errors else ()
        last = Last(self._total, self.index, measured.durations_s, measured.stored_bytes, failed, run.graph.inputs)
        return FinalSource(last)


class Last(NamedTuple):
    """The last measurements of chunks when a computation ends; only numbers are kept of its graph."""

    #: Number of chunks to compute.
    total: int
    #: The layers of chunks.
    layer_index: LayerIndex
    #: Columns of `ChunkMeasurements`.
    durations_s: array[float]
    stored_bytes: array[int]
    failed: Collection[int]
    #: The input chunks of each chunk.
    inputs: Sequence[Sequence[int]]


class FinalSource:
    """Progress of a computation at its end."""

    def __init__(self, last: Last) -> None:
        self._last: Last | None = last
        self._counts: ChunkCounts | None = None
        self._layers: Sequence[LayerCounts] | None = None
        self._edges: list[tuple[int, int]] = []
        _ended.append(self)

    def chunks(self) -> int:
        """Return the number of chunks whose keys it keeps."""
        last = self._last
        return 0 if last is None else len(last.durations_s)

    def settle(self) -> None:
        """Count the chunks by layer, and drop the measurements."""
        last = self._last
        if last is not None:
            last.layer_index.look(roughly=True)
        self.counts()
        self.layers()
        self._last = None

    def counts(self) -> ChunkCounts:
        """Count its chunks."""
        last = self._last
        if self._counts is None and last is not None:
            self._counts = _counted(last.total, _finished(last.durations_s), (), last.failed)
        assert self._counts is not None
        return self._counts

    def layers(self) -> Sequence[LayerCounts]:
        """Count the chunks of each layer."""
        last = self._last
        if self._layers is None and last is not None:
            self._edges = edges_of(last.layer_index, last.inputs)
            self._layers = last.layer_index.count(last.durations_s, last.stored_bytes, (), last.failed)
        assert self._layers is not None
        return self._layers

    def edges(self) -> list[tuple[int, int]]:
        """Return which layers read which, by their indices in `layers`."""
        self.layers()
        return self._edges

    def blocks(self, layer: str) -> BlockStates:
        """Return the blocks of a layer; none if the keys of its chunks are no longer kept."""
        if layer not in [known.name for known in self.layers()]:
            raise KeyError(layer)
        last = self._last
        if last is None:
            return BlockStates([], "", truncated=True)
        return blocks_of(last.layer_index, layer, last.durations_s, (), last.failed)

    def explain(self, key: object = None, patience_s: float | None = None) -> str:
        """Return that the computation is ending; no chunk of it is dispatched."""
        if key is not None:
            raise KeyError(key)
        return "the computation is just ending"

    def final(self, is_finished: bool) -> FinalSource:
        """Return itself."""
        return self


class _Ended:
    """Keeps the keys of recently ended computations, up to `remembered` chunks in all."""

    # Later requests can then count chunks by layer and show blocks; without requests no chunk is counted.

    def __init__(self, remembered: int = 100_000) -> None:
        self._remembered = remembered
        self._lock = Lock()
        #: Each with its number of chunks.
        self._sources: deque[tuple[weakref.ref[FinalSource], int]] = deque()
        self._chunks = 0

    def append(self, source: FinalSource) -> None:
        """Add one, and settle the oldest ones, itself last, while there are too many chunks."""
        surplus = []
        sources, chunks = self._sources, source.chunks()
        with self._lock:
            sources.append((weakref.ref(source), chunks))
            self._chunks += chunks
            while sources and (self._chunks > self._remembered or sources[0][0]() is None):
                other, chunks = sources.popleft()
                surplus.append(other())
                self._chunks -= chunks
        for found in surplus:
            if found is not None:
                found.settle()


_ended = _Ended()


def _after_fork() -> None:
    global _ended
    _ended = _Ended()


os.register_at_fork(after_in_child=_after_fork)


def _finished(durations_s: array[float]) -> int:
    return int(np.count_nonzero(np.asarray(durations_s) >= 0))


def _counted(total: int, finished: int, running: Collection[int], failed: Collection[int]) -> ChunkCounts:
    # The columns are read one after the other, while chunks change their state.
    active = min(len(running), max(total - finished, 0))
    bad = min(len(failed), total - finished - active)
    return ChunkCounts(total, total - finished - active - bad, active, finished, bad)
