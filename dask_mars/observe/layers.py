"""The layer of each chunk of a graph; sums, edges and blocks by layer on request."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Collection, Sequence
from itertools import compress, count, islice
from operator import is_not, itemgetter
from typing import Any, NamedTuple

from dask.utils import key_split

from dask_mars.graph.chunks import Key
from dask_mars.labels import label_of
from dask_mars.lazy_numpy import np
from dask_mars.locking import Lock
from dask_mars.observe.counts import BlockStates, LayerCounts

#: Number of layers beyond which layers of the same label are counted together.
_MOST_LAYERS = 500
#: Number of chunks that are indexed before other threads may go on.
_STEP = 10_000
#: Number of sampled chunks that must confirm that each operand belongs to one layer.
_SAMPLES = 500
#: Layer of chunks that are not tasks.
NO_LAYER = -1
#: Returns the head of a key that is a tuple.
_first: Callable[[Any], Any] = itemgetter(0)
#: Stands for the head of chunks that are not tasks.
_DATA = object()
#: Maximum number of blocks of a layer that are shown.
MOST_BLOCKS = 100_000
#: Number of chunks of each layer whose inputs are read: those of a layer are alike.
_SAMPLED = 200
#: States of blocks, as letters.
WAITING, RUNNING, FINISHED, FAILED, NONE = [letter.encode() for letter in "wrfx."]


class Places(NamedTuple):
    """The positions of a layer's chunks in its grid."""

    numblocks: list[int]
    chunks: np.ndarray
    #: Index of each chunk in the flat grid.
    at: np.ndarray
    truncated: bool


class LayerIndex:
    """The layer of each chunk of a graph, indexed at the first request."""

    def __init__(self, keys: Sequence[Key], operand_of: Sequence[int]) -> None:
        self.names: list[str] = []
        self.keys = keys
        self._operand_of = operand_of
        self._layer_ids: np.ndarray | None = None
        self._by_head: dict[Key, int] = {_DATA: NO_LAYER}
        self._by_name: dict[str, int] = {}
        #: Places by layer.
        self._places: dict[str, Places] = {}
        self._lock = Lock()

    @property
    def layer_ids(self) -> np.ndarray:
        """Id of each chunk's layer, or `NO_LAYER`."""
        return self.look() if self._layer_ids is None else self._layer_ids

    def look(self, roughly: bool = False) -> np.ndarray:
        """Index all chunks; roughly by samples where each operand belongs to one layer, as nearly always."""
        size = len(self.keys)
        with self._lock:
            if self._layer_ids is None and roughly and size > _SAMPLES:
                self._layer_ids = self._sampled(size)
            if self._layer_ids is None:
                parts = [self._layer_ids_between(start, start + _STEP) for start in range(0, size, _STEP)]
                self._layer_ids = np.concatenate([np.zeros(0, np.int32), *parts])
            return self._layer_ids

    def _sampled(self, size: int) -> np.ndarray | None:
        """Return the id of each chunk's layer by samples, None if some operand has several layers."""
        operands = np.fromiter(self._operand_of, np.int32, size) + 1
        if operands.min() < 0 or operands.max() >= size:
            return None
        layer_ids = self._layer_ids_of(operands)
        return None if layer_ids is None else layer_ids[operands]

    def _layer_ids_of(self, operands: np.ndarray) -> np.ndarray | None:
        """Return the id of each operand's layer, None if one has several; data have operand 0."""
        size = len(operands)
        first = np.full(int(operands.max()) + 1, size, np.int32)
        last = first.copy()
        first[operands[::-1]] = np.arange(size - 1, -1, -1, dtype=np.int32)
        last[operands] = np.arange(size, dtype=np.int32)
        layer_ids = np.full(len(first), NO_LAYER, np.int32)
        some = np.unique([*first[first < size], *last[last < size], *range(0, size, size // _SAMPLES)])
        for chunk, operand in zip(some.tolist(), operands[some].tolist(), strict=True):
            if not operand:
                continue
            key = self.keys[chunk]
            head = key[0] if type(key) is tuple and key else key
            found = self._by_head.get(head)
            layer_id = self._layer_id(head, head is key) if found is None else found
            if layer_ids[operand] not in (NO_LAYER, layer_id):
                return None
            layer_ids[operand] = layer_id
        return layer_ids

    def _layer_ids_between(self, start: int, stop: int) -> np.ndarray:
        keys, operands = self.keys[start:stop], self._operand_of[start:stop]
        if set(map(type, keys)) == {tuple} and all(keys):
            heads = list(map(_first, keys))
        else:
            heads = [key[0] if type(key) is tuple and key else key for key in keys]
        if min(operands) < 0:
            heads = [head if operand >= 0 else _DATA for head, operand in zip(heads, operands, strict=True)]
        # Keys of a layer share one name object, and mostly follow each other.
        begins = [0, *compress(count(1), map(is_not, heads, islice(heads, 1, None)))]
        layer_ids = []
        for begin in begins:
            head = heads[begin]
            layer_id = self._by_head.get(head)
            layer_ids.append(self._layer_id(head, head is keys[begin]) if layer_id is None else layer_id)
        return np.repeat(np.array(layer_ids, np.int32), np.diff([*begins, len(heads)]))

    def _layer_id(self, head: Key, is_whole: bool) -> int:
        # Tasks of `dask.delayed` make layers by the names of their functions, which are few.
        by_label = is_whole or len(self.names) >= _MOST_LAYERS
        # key_split reads the first element of a tuple, which an empty one lacks.
        name = str(key_split(head)) if by_label and head != () else str(head)
        layer_id = self._by_name.get(name)
        if layer_id is None:
            layer_id = self._by_name[name] = len(self.names)
            self.names.append(name)
        if len(self._by_head) < _STEP:
            self._by_head[head] = layer_id
        return layer_id

    def places(self, layer: str) -> Places:
        """Return the positions of a layer's chunks."""
        known = self._places.get(layer)
        if known is not None:
            return known
        layer_ids = self.layer_ids
        if layer not in self.names:
            raise KeyError(layer)
        chunks = np.flatnonzero(layer_ids == self.names.index(layer))
        truncated = len(chunks) > MOST_BLOCKS
        chunks = chunks[:MOST_BLOCKS]
        keys = self.keys
        found = _in_grid([keys[chunk] for chunk in chunks.tolist()])
        # The keys form no grid, or one with too many blocks.
        numblocks, at = found or ([len(chunks)], np.arange(len(chunks)))
        places = self._places[layer] = Places(numblocks, chunks, at, truncated)
        return places

    def count(
        self,
        durations_s: array[float],
        stored_bytes: array[int] | None = None,
        running: Collection[int] = (),
        failed: Collection[int] = (),
    ) -> list[LayerCounts]:
        """Sum the measurements of chunks by layer: the only such sum."""
        layer_ids, layers = self.layer_ids, len(self.names)
        durations = np.asarray(durations_s)
        is_task = layer_ids >= 0
        done = is_task & (durations >= 0)
        of_done = layer_ids[done]
        stored = np.zeros(len(durations)) if stored_bytes is None else np.asarray(stored_bytes)
        columns = (
            np.bincount(layer_ids[is_task], minlength=layers),
            np.bincount(of_done, minlength=layers),
            self._count(running, layers),
            self._count(failed, layers),
            np.bincount(of_done, weights=durations[done], minlength=layers),
            np.bincount(of_done, weights=stored[done], minlength=layers),
        )
        return [
            LayerCounts(name, label_of(name), total, finished, active, bad, seconds, int(stored))
            for name, total, finished, active, bad, seconds, stored in zip(
                self.names, *[column.tolist() for column in columns], strict=True
            )
        ]

    def _count(self, chunks: Collection[int], layers: int) -> np.ndarray:
        found = self.layer_ids[list(chunks)] if chunks else self.layer_ids[:0]
        return np.bincount(found[found >= 0], minlength=layers)


def edges_of(index: LayerIndex, inputs: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return which layers read which, as sorted pairs of the ids of source and reader."""
    layer_ids = index.layer_ids
    found: set[tuple[int, int]] = set()
    for layer in range(len(index.names)):
        chunks = np.flatnonzero(layer_ids == layer)
        step = max(len(chunks) // _SAMPLED, 1)
        for chunk in chunks[::step].tolist():
            found.update([(source, layer) for source in layer_ids[list(inputs[chunk])].tolist()])
    return sorted((source, reader) for source, reader in found if source >= 0 and source != reader)


def blocks_of(
    index: LayerIndex,
    layer: str,
    durations_s: array[float],
    running: Collection[int] = (),
    failed: Collection[int] = (),
) -> BlockStates:
    """Return the blocks of a layer."""
    numblocks, chunks, at, truncated = index.places(layer)
    states = np.where(np.asarray(durations_s)[chunks] >= 0, FINISHED, WAITING)
    for letter, found in ((FAILED, failed), (RUNNING, running)):
        if found:
            states[np.isin(chunks, np.fromiter(found, int)) & (states == WAITING)] = letter
    grid = np.full(math.prod(numblocks), NONE)
    grid[at] = states
    return BlockStates(numblocks, grid.tobytes().decode(), truncated)


def _in_grid(keys: Sequence[Any]) -> tuple[list[int], np.ndarray] | None:
    """Return the number of blocks along each dimension, and each block's index in the flat grid."""
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
