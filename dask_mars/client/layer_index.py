"""Which layer each chunk of a graph belongs to, and what is known of layers: added up when somebody asks."""

from __future__ import annotations

import math
import threading
import time
from array import array
from collections.abc import Callable, Collection, Sequence
from itertools import compress, count, islice
from operator import is_not, itemgetter
from typing import Any, NamedTuple

import numpy as np
from dask.utils import key_split

from dask_mars.client.records import LayerCounts
from dask_mars.graph.chunks import Key
from dask_mars.labels import label_of

#: Beyond so many, layers of the same label are counted together.
_MOST_LAYERS = 500
#: How many chunks are looked at between two looks at the clock.
_STEP = 10_000
#: How many chunks have to be of the layers that others of their operands are of.
_SAMPLES = 500
#: Chunks that are no tasks have none.
NO_LAYER = -1
#: What keys that are tuples begin with.
_first: Callable[[Any], Any] = itemgetter(0)
#: Stands for the names of what is none.
_DATA = object()
#: Most blocks of a layer that are shown.
MOST_BLOCKS = 100_000


class Places(NamedTuple):
    """Where the chunks of a layer are that are shown.

    Attributes
    ----------
    numblocks : list of int
        Along each dimension.
    chunks : ndarray
        Their numbers.
    at : ndarray
        The place of each in the flat grid.
    truncated : bool
        Whether there are more.
    """

    numblocks: list[int]
    chunks: np.ndarray
    at: np.ndarray
    truncated: bool


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
    keys : sequence of key
        As given.
    numbers : array
        Of the layer of each chunk that has been looked at, or `NO_LAYER`.
    """

    def __init__(self, keys: Sequence[Key], operand_of: Sequence[int]) -> None:
        self.names: list[str] = []
        self.numbers = array("i")
        self.keys = keys
        self._operand_of = operand_of
        self._by_head: dict[Key, int] = {_DATA: NO_LAYER}
        self._by_name: dict[str, int] = {}
        #: Where the blocks of layers are that somebody has looked at, once all chunks have been.
        self._places: dict[str, Places] = {}
        self._lock = threading.Lock()

    def look(self, seconds: float | None = None) -> bool:
        """Go on for some time, or to the end. Return whether all chunks have been looked at."""
        end_s = None if seconds is None else time.perf_counter() + seconds
        with self._lock:
            count = len(self.keys)
            while len(self.numbers) < count:
                self._look_at(len(self.numbers), len(self.numbers) + _STEP)
                if end_s is not None and time.perf_counter() >= end_s:
                    break
            return len(self.numbers) == count

    def look_roughly(self) -> None:
        """Look at all chunks, or only at some of each operand where these say that it belongs to one layer.

        That is so of nearly all graphs, and nobody has asked before.
        """
        size = len(self.keys)
        with self._lock:
            operands = np.fromiter(self._operand_of, np.int32, size) + 1
            if not self.numbers and size > _SAMPLES and operands.min() >= 0 and operands.max() < size:
                numbers = self._numbers_of(operands)
                if numbers is not None:
                    self.numbers.frombytes(numbers[operands].tobytes())
        # Where it was not so, or somebody has begun to look.
        self.look()

    def _numbers_of(self, operands: np.ndarray) -> np.ndarray | None:
        """Return the number of each operand's layer, None if one has several; data have operand 0."""
        size = len(operands)
        first = np.full(int(operands.max()) + 1, size, np.int32)
        last = first.copy()
        first[operands[::-1]] = np.arange(size - 1, -1, -1, dtype=np.int32)
        last[operands] = np.arange(size, dtype=np.int32)
        numbers = np.full(len(first), NO_LAYER, np.int32)
        some = np.unique([*first[first < size], *last[last < size], *range(0, size, size // _SAMPLES)])
        for chunk, operand in zip(some.tolist(), operands[some].tolist(), strict=True):
            if not operand:
                continue
            key = self.keys[chunk]
            head = key[0] if type(key) is tuple and key else key
            found = self._by_head.get(head)
            number = self._number(head, head is key) if found is None else found
            if numbers[operand] not in (NO_LAYER, number):
                return None
            numbers[operand] = number
        return numbers

    def _look_at(self, start: int, stop: int) -> None:
        keys, operands = self.keys[start:stop], self._operand_of[start:stop]
        if set(map(type, keys)) == {tuple} and all(keys):
            heads = list(map(_first, keys))
        else:
            heads = [key[0] if type(key) is tuple and key else key for key in keys]
        if min(operands) < 0:
            heads = [head if operand >= 0 else _DATA for head, operand in zip(heads, operands, strict=True)]
        # Those of a layer have the very same name, and mostly follow each other.
        begins = [0, *compress(count(1), map(is_not, heads, islice(heads, 1, None)))]
        numbers = []
        for begin in begins:
            head = heads[begin]
            number = self._by_head.get(head)
            numbers.append(self._number(head, head is keys[begin]) if number is None else number)
        found = np.repeat(np.array(numbers, "i"), np.diff([*begins, len(heads)]))
        self.numbers.frombytes(found.tobytes())

    def _number(self, head: Key, is_whole: bool) -> int:
        # The names of functions are few, those of single tasks as many as there are.
        by_label = is_whole or len(self.names) >= _MOST_LAYERS
        # Dask takes the first of each tuple, which an empty one does not have.
        name = str(key_split(head)) if by_label and head != () else str(head)
        number = self._by_name.get(name)
        if number is None:
            number = self._by_name[name] = len(self.names)
            self.names.append(name)
        if len(self._by_head) < _STEP:
            self._by_head[head] = number
        return number

    def known(self) -> np.ndarray:
        """Return a copy of what `numbers` has so far."""
        with self._lock:
            # Nobody may add to it meanwhile.
            return np.array(self.numbers)

    def places(self, layer: str) -> Places:
        """Return where the chunks of a layer are, as far as they have been looked at.

        Raises
        ------
        KeyError
            There is no such layer.
        """
        known = self._places.get(layer)
        if known is not None:
            return known
        if layer not in self.names:
            raise KeyError(layer)
        is_all = len(self.numbers) == len(self.keys)
        chunks = np.flatnonzero(self.known() == self.names.index(layer))
        truncated = len(chunks) > MOST_BLOCKS
        chunks = chunks[:MOST_BLOCKS]
        keys = self.keys
        found = _in_grid([keys[chunk] for chunk in chunks.tolist()])
        # They are in no grid, or most of it is elsewhere.
        numblocks, at = found or ([len(chunks)], np.arange(len(chunks)))
        places = Places(numblocks, chunks, at, truncated)
        if is_all:
            self._places[layer] = places
        return places

    def count(
        self,
        durations_s: array[float],
        stored_bytes: array[int],
        running: Collection[int] = (),
        failed: Collection[int] = (),
    ) -> list[LayerCounts]:
        """Add up by layer what is known of chunks, as far as they have been looked at."""
        numbers = self.known()
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
            LayerCounts(name, label_of(name), total, finished, active, bad, seconds, int(stored))
            for name, total, finished, active, bad, seconds, stored in zip(
                self.names, *[column.tolist() for column in columns], strict=False
            )
        ]

    def _count(self, chunks: Collection[int], layers: int) -> np.ndarray:
        found = [self.numbers[chunk] for chunk in chunks if chunk < len(self.numbers)]
        return np.bincount([number for number in found if number >= 0] or [0], minlength=layers) * bool(found)


def _in_grid(keys: Sequence[Any]) -> tuple[list[int], np.ndarray] | None:
    """Return how many blocks there are along each dimension, and the place of each in the flat grid of all."""
    if not keys or set(map(type, keys)) != {tuple} or len(lengths := set(map(len, keys))) > 1:
        return None
    along = []
    for dimension in range(1, lengths.pop()):
        if set(map(type, map(itemgetter(dimension), keys))) != {int}:
            return None
        try:
            along.append(np.fromiter(map(itemgetter(dimension), keys), np.int64, len(keys)))
        except OverflowError:
            return None
    numblocks = [int(places.max()) + 1 for places in along]
    if not along or math.prod(numblocks) > MOST_BLOCKS or any(places.min() < 0 for places in along):
        return None
    return numblocks, np.ravel_multi_index(tuple(along), numblocks)


__all__ = ["MOST_BLOCKS", "NO_LAYER", "LayerIndex", "Places"]
