"""How far a computation by an engine is: counted from what the engine measures anyway, when somebody asks."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Collection, Sequence
from itertools import islice

import numpy as np
from dask.utils import key_split

from dask_mars.client.records import ChunkCounts, LayerCounts
from dask_mars.engine.graph_run import GraphRun
from dask_mars.engine.loop import Engine
from dask_mars.errors import MarsError
from dask_mars.graph.chunks import Key

#: Computations of more chunks are counted by layer when they end, others when somebody asks.
_FEW_CHUNKS = 500
#: Beyond so many, layers of the same label are counted together.
_MOST_LAYERS = 500
#: How many chunks are looked at between two looks at the clock.
_STEP = 10_000
#: Chunks that are no tasks have none.
NO_LAYER = -1


class LayerIndex:
    """Which layer each chunk of a graph belongs to, found out as far as there is time.

    Tasks whose keys are no tuples, those of `dask.delayed`, make layers by the names of their functions.

    Parameters
    ----------
    keys : sequence of key
        Of all chunks.
    operand_of : sequence of int
        Negative for chunks that are known from the start.

    Attributes
    ----------
    names : list of str
        Of layers, by their numbers.
    numbers : array
        Of the layer of each chunk that has been looked at, or `NO_LAYER`.
    """

    def __init__(self, keys: Sequence[Key], operand_of: Sequence[int]) -> None:
        self.names: list[str] = []
        self.numbers = array("i")
        self._keys, self._operand_of = keys, operand_of
        self._by_head: dict[Key, int] = {}
        self._by_name: dict[str, int] = {}
        self._lock = threading.Lock()

    def look(self, seconds: float | None = None) -> bool:
        """Go on for some time, or to the end. Return whether all chunks have been looked at."""
        end_s = None if seconds is None else time.perf_counter() + seconds
        with self._lock:
            count = len(self._keys)
            while len(self.numbers) < count:
                self._look_at(len(self.numbers), len(self.numbers) + _STEP)
                if end_s is not None and time.perf_counter() >= end_s:
                    break
            return len(self.numbers) == count

    def _look_at(self, start: int, stop: int) -> None:
        found = []
        last: object = self
        number = NO_LAYER
        for key, operand in zip(self._keys[start:stop], islice(self._operand_of, start, stop), strict=True):
            if operand < 0:
                found.append(NO_LAYER)
                continue
            head = key[0] if type(key) is tuple and key else key
            # Those of a layer have the very same name, and mostly follow each other.
            if head is not last:
                known = self._by_head.get(head)
                number = self._number(head, head is key) if known is None else known
                last = head
            found.append(number)
        self.numbers.extend(found)

    def _number(self, head: Key, is_whole: bool) -> int:
        # The names of functions are few, those of single tasks as many as there are.
        by_label = is_whole or len(self.names) >= _MOST_LAYERS
        name = str(key_split(head)) if by_label else str(head)
        number = self._by_name.get(name)
        if number is None:
            number = self._by_name[name] = len(self.names)
            self.names.append(name)
        if len(self._by_head) < _STEP:
            self._by_head[head] = number
        return number

    def count(
        self,
        durations_s: array[float],
        stored_bytes: array[int],
        running: Collection[int] = (),
        failed: Collection[int] = (),
    ) -> list[LayerCounts]:
        """Add up by layer what is known of chunks, as far as they have been looked at."""
        numbers = np.array(self.numbers)
        known, layers = len(numbers), len(self.names)
        durations = np.asarray(durations_s)[:known]
        is_task = numbers >= 0
        done = is_task & (durations >= 0)
        of_done = numbers[done]
        columns = (
            np.bincount(numbers[is_task], minlength=layers),
            np.bincount(of_done, minlength=layers),
            self._count(running, layers),
            self._count(failed, layers),
            np.bincount(of_done, weights=durations[done], minlength=layers),
            np.bincount(of_done, weights=np.asarray(stored_bytes)[:known][done], minlength=layers),
        )
        return [
            LayerCounts(name, str(key_split(name)), total, finished, active, bad, seconds, int(stored))
            for name, total, finished, active, bad, seconds, stored in zip(
                self.names, *[column.tolist() for column in columns], strict=False
            )
        ]

    def _count(self, chunks: Collection[int], layers: int) -> np.ndarray:
        found = [self.numbers[chunk] for chunk in chunks if chunk < len(self.numbers)]
        return np.bincount([number for number in found if number >= 0] or [0], minlength=layers) * bool(found)


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
        self.index = LayerIndex(run.graph.keys, run.graph.operand_of)

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
        try:
            running = self._engine.in_hand_of(run.number)
        except MarsError:
            # It is just ending.
            running = []
        failed = set(run.errors.copy()).difference(running)
        return (
            int(np.count_nonzero(np.asarray(durations_s) >= 0)),
            running,
            [chunk for chunk in failed if durations_s[chunk] < 0],
        )

    def explain(self, key: object = None) -> str:
        """Say what it waits for, or why a key of it is not being computed."""
        if key is not None and key not in self.run.graph.ids:
            raise KeyError(key)
        return self._engine.explain(key)

    def final(self) -> FinalSource:
        """Return what is to be remembered when it is over."""
        run = self.run
        failed = [chunk for chunk in run.errors.copy() if run.measurements.durations_s[chunk] < 0]
        return FinalSource(
            self._total, self.index, run.measurements.durations_s, run.measurements.stored_bytes, failed
        )


class FinalSource:
    """How far a computation was when it ended.

    Parameters
    ----------
    total : int
        How many chunks were to be computed.
    index : LayerIndex
        To which layers they belong.
    durations_s, stored_bytes : array
        As `ChunkMeasurements` has them.
    failed : collection of int
        Chunks that have failed.
    """

    def __init__(
        self,
        total: int,
        index: LayerIndex,
        durations_s: array[float],
        stored_bytes: array[int],
        failed: Collection[int],
    ) -> None:
        self._counts: ChunkCounts | None = None
        self._layers: Sequence[LayerCounts] | None = None
        self._uncounted: tuple[int, LayerIndex, array[float], array[int], Collection[int]] | None = (
            total,
            index,
            durations_s,
            stored_bytes,
            failed,
        )
        if len(durations_s) > _FEW_CHUNKS:
            self._count()

    def _count(self) -> tuple[ChunkCounts, Sequence[LayerCounts]]:
        uncounted = self._uncounted
        if uncounted is not None:
            total, index, durations_s, stored_bytes, failed = uncounted
            index.look()
            self._counts = _counted(total, int(np.count_nonzero(np.asarray(durations_s) >= 0)), (), failed)
            self._layers = index.count(durations_s, stored_bytes, (), failed)
            self._uncounted = None
        assert self._counts is not None
        assert self._layers is not None
        return self._counts, self._layers

    def counts(self) -> ChunkCounts:
        """Count its chunks."""
        return self._count()[0]

    def layers(self) -> Sequence[LayerCounts]:
        """Count the chunks of each layer."""
        return self._count()[1]

    def explain(self, key: object = None) -> str:
        """Nothing is being computed."""
        raise KeyError(key)

    def final(self) -> FinalSource:
        """Return itself."""
        return self


def _counted(total: int, finished: int, running: Collection[int], failed: Collection[int]) -> ChunkCounts:
    # They are counted one after the other, while chunks go from one to the next.
    active = min(len(running), max(total - finished, 0))
    bad = min(len(failed), total - finished - active)
    return ChunkCounts(total, total - finished - active - bad, active, finished, bad)


__all__ = ["NO_LAYER", "EngineSource", "FinalSource", "LayerIndex"]
