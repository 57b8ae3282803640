"""How far a computation by an engine is: counted from what the engine measures anyway, when somebody asks."""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from array import array
from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from dask_mars.client.layer_graph import blocks_of, edges_of
from dask_mars.client.layer_index import LayerIndex
from dask_mars.client.records import Blocks, ChunkCounts, LayerCounts
from dask_mars.engine.graph_run import GraphRun
from dask_mars.engine.loop import Engine
from dask_mars.errors import MarsError

#: How long who looks waits for an engine that has no time, and for how long an answer is good.
_PATIENCE_S, _GOOD_S = 0.03, 0.02


class EngineSource:
    """How far an engine's computation is.

    Parameters
    ----------
    engine : Engine
        What computes it.
    run : GraphRun
        The computation.
    """

    def __init__(self, engine: Engine, run: GraphRun) -> None:
        self._engine = engine
        self.run = run
        self._total = len(run.graph) - len(run.graph.values)
        #: What was in hand when somebody has asked last, and when that was.
        self._in_hand: tuple[list[int], float] = [], -math.inf

    @property
    def index(self) -> LayerIndex:
        """To which layers its chunks belong, as far as anybody has asked."""
        # Of most nobody asks. Two threads get the same.
        index: LayerIndex | None = vars(self).get("_index")
        return index or vars(self).setdefault("_index", LayerIndex(self.run.graph.keys, self.run.graph.operand_of))

    def counts(self) -> ChunkCounts:
        """Count its chunks."""
        return _counted(self._total, *self._known())

    def layers(self, seconds: float | None = None) -> Sequence[LayerCounts]:
        """Count the chunks of each layer, as far as they can be looked at in some time."""
        self.index.look(seconds)
        _, running, failed = self._known()
        measurements = self.run.measurements
        return self.index.count(measurements.durations_s, measurements.stored_bytes, running, failed)

    def _known(self) -> tuple[int, Collection[int], Collection[int]]:
        """Return how many chunks are computed, and which are in the hands of workers, and have failed."""
        run = self.run
        durations_s = run.measurements.durations_s
        running = self._running()
        failed = set(run.errors.copy()).difference(running)
        return (
            _finished(durations_s),
            running,
            [chunk for chunk in failed if durations_s[chunk] < 0],
        )

    def _running(self) -> list[int]:
        running, asked_s = self._in_hand
        if time.monotonic() - asked_s > _GOOD_S:
            try:
                running = self._engine.in_hand_of(self.run.number, _PATIENCE_S)
            except TimeoutError:
                # What it had before is better than nothing.
                pass
            except MarsError:
                # It is just ending.
                running = []
            self._in_hand = running, time.monotonic()
        return running

    def explain(self, key: object = None, patience_s: float | None = None) -> str:
        """Say what it waits for, or why a key of it is not being computed."""
        if key is not None and key not in self.run.graph.ids:
            raise KeyError(key)
        return self._engine.explain(key, patience_s)

    def edges(self) -> list[tuple[int, int]]:
        """Return which layers read which, by their places in `layers`."""
        return edges_of(self.index, self.run.graph.inputs)

    def blocks(self, layer: str) -> Blocks:
        """Return the blocks of a layer."""
        _, running, failed = self._known()
        return blocks_of(self.index, layer, self.run.measurements.durations_s, running, failed)

    def final(self, is_finished: bool) -> FinalSource:
        """Return what is to be remembered when it is over."""
        run, measured = self.run, self.run.measurements
        failed = [chunk for chunk in run.errors.copy() if measured.durations_s[chunk] < 0] if run.errors else ()
        last = Last(self._total, self.index, measured.durations_s, measured.stored_bytes, failed, run.graph.inputs)
        return FinalSource(last)


class Last(NamedTuple):
    """What was known of chunks when a computation ended; of its graph no more than numbers.

    Attributes
    ----------
    total : int
        How many chunks were to be computed.
    numbering : LayerIndex
        To which layers they belong.
    durations_s, stored_bytes : array
        As `ChunkMeasurements` has them.
    failed : collection of int
        Chunks that have failed.
    inputs : sequence
        Of each chunk, which ones it reads.
    """

    total: int
    numbering: LayerIndex
    durations_s: array[float]
    stored_bytes: array[int]
    failed: Collection[int]
    inputs: Sequence[Sequence[int]]


class FinalSource:
    """How far a computation was when it ended.

    Parameters
    ----------
    last : Last
        What is known of its chunks, of which is kept what there is to say of layers.
    """

    def __init__(self, last: Last) -> None:
        self._last: Last | None = last
        self._counts: ChunkCounts | None = None
        self._layers: Sequence[LayerCounts] | None = None
        self._edges: list[tuple[int, int]] = []
        _ended.append(self)

    def chunks(self) -> int:
        """Return of how many chunks it is kept what they are called."""
        last = self._last
        return 0 if last is None else len(last.durations_s)

    def settle(self) -> None:
        """Count what is to be counted, and let go of the rest."""
        last = self._last
        if last is not None:
            last.numbering.look_roughly()
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

    def layers(self, seconds: float | None = None) -> Sequence[LayerCounts]:
        """Count the chunks of each layer."""
        last = self._last
        if self._layers is None and last is not None:
            last.numbering.look()
            self._edges = edges_of(last.numbering, last.inputs)
            self._layers = last.numbering.count(last.durations_s, last.stored_bytes, (), last.failed)
        assert self._layers is not None
        return self._layers

    def edges(self) -> list[tuple[int, int]]:
        """Return which layers read which, by their places in `layers`."""
        self.layers()
        return self._edges

    def blocks(self, layer: str) -> Blocks:
        """Return the blocks of a layer; none if there were too many to keep what they are called."""
        if layer not in [known.name for known in self.layers()]:
            raise KeyError(layer)
        last = self._last
        if last is None:
            return Blocks([], "", truncated=True)
        return blocks_of(last.numbering, layer, last.durations_s, (), last.failed)

    def explain(self, key: object = None, patience_s: float | None = None) -> str:
        """Nothing is being computed."""
        if key is not None:
            raise KeyError(key)
        return "the computation is just ending"

    def final(self, is_finished: bool) -> FinalSource:
        """Return itself."""
        return self


class _Ended:
    """The last computations that ended, as long as anybody remembers them.

    It is kept what their chunks are called, so that nobody counts chunks by layer whom nobody asks of, and blocks
    can be shown: of as many chunks in all as `remembered` says, some 200 bytes each.
    """

    def __init__(self, remembered: int = 100_000) -> None:
        self._remembered = remembered
        self._lock = threading.Lock()
        #: Each with its number of chunks.
        self._sources: deque[tuple[weakref.ref[FinalSource], int]] = deque()
        self._chunks = 0

    def append(self, source: FinalSource) -> None:
        """Add one, and settle as many of the others, and at last itself, as there are too many chunks of."""
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
    # They are counted one after the other, while chunks go from one to the next.
    active = min(len(running), max(total - finished, 0))
    bad = min(len(failed), total - finished - active)
    return ChunkCounts(total, total - finished - active - bad, active, finished, bad)


__all__ = ["EngineSource", "FinalSource", "Last"]
