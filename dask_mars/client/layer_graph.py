"""The graph of a computation's layers, and the blocks of one of them, for those who look at it."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Sequence

import numpy as np

from dask_mars.client.layer_index import LayerIndex
from dask_mars.client.records import Blocks
from dask_mars.graph.chunks import Key

#: Of how many chunks of each layer it is looked what they read: those of a layer are alike.
_SAMPLED = 200
#: Most blocks of a layer that are shown.
MOST_BLOCKS = 100_000
WAITING, RUNNING, FINISHED, FAILED, NONE = "wrfx."


def edges_of(index: LayerIndex, inputs: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return which layers read which, by their numbers: pairs of the one that is read and its reader."""
    numbers = np.array(index.numbers)
    found: set[tuple[int, int]] = set()
    for layer in range(len(index.names)):
        chunks = np.flatnonzero(numbers == layer)
        step = max(len(chunks) // _SAMPLED, 1)
        for chunk in chunks[::step].tolist():
            found.update([(index.numbers[source], layer) for source in inputs[chunk]])
    return sorted((source, reader) for source, reader in found if source >= 0 and source != reader)


def blocks_of(
    index: LayerIndex,
    keys: Sequence[Key],
    layer: str,
    durations_s: array[float],
    running: Collection[int] = (),
    failed: Collection[int] = (),
) -> Blocks:
    """Return the blocks of a layer, as far as its chunks have been looked at.

    Raises
    ------
    KeyError
        There is no such layer.
    """
    if layer not in index.names:
        raise KeyError(layer)
    chunks = np.flatnonzero(np.array(index.numbers) == index.names.index(layer))
    truncated = len(chunks) > MOST_BLOCKS
    shown = chunks[:MOST_BLOCKS].tolist()
    active, bad = set(running), set(failed)
    states = [
        FINISHED
        if durations_s[chunk] >= 0
        else RUNNING
        if chunk in active
        else FAILED
        if chunk in bad
        else WAITING
        for chunk in shown
    ]
    places = [_index(keys[chunk]) for chunk in shown]
    dimensions = set(map(len, places))
    if len(dimensions) == 1 and dimensions != {0}:
        numblocks = [max(along) + 1 for along in zip(*places, strict=True)]
        if math.prod(numblocks) <= MOST_BLOCKS:
            grid = np.full(numblocks, NONE)
            grid[tuple(np.array(places).T)] = states
            return Blocks(numblocks, "".join(grid.ravel().tolist()), truncated)
    # They are in no grid, or most of it is elsewhere.
    return Blocks([len(shown)], "".join(states), truncated)


def _index(key: Key) -> tuple[int, ...]:
    if isinstance(key, tuple) and all(isinstance(at, int) and at >= 0 for at in key[1:]):
        return key[1:]
    return ()


__all__ = ["MOST_BLOCKS", "blocks_of", "edges_of"]
