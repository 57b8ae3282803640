"""The graph of a computation's layers, and the blocks of one layer, for display."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Sequence

import numpy as np

from dask_mars.client.layer_index import LayerIndex
from dask_mars.client.records import BlockStates

#: Number of chunks of each layer whose inputs are read: those of a layer are alike.
_SAMPLED = 200
#: States of blocks, as letters.
WAITING, RUNNING, FINISHED, FAILED, NONE = [letter.encode() for letter in "wrfx."]


def edges_of(index: LayerIndex, inputs: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return which layers read which, as sorted pairs of the numbers of source and reader."""
    numbers = index.known()
    found: set[tuple[int, int]] = set()
    for layer in range(len(index.names)):
        chunks = np.flatnonzero(numbers == layer)
        step = max(len(chunks) // _SAMPLED, 1)
        for chunk in chunks[::step].tolist():
            found.update([(source, layer) for source in numbers[list(inputs[chunk])].tolist()])
    return sorted((source, reader) for source, reader in found if source >= 0 and source != reader)


def blocks_of(
    index: LayerIndex,
    layer: str,
    durations_s: array[float],
    running: Collection[int] = (),
    failed: Collection[int] = (),
) -> BlockStates:
    """Return the blocks of a layer, as far as its chunks are indexed."""
    numblocks, chunks, at, truncated = index.places(layer)
    states = np.where(np.asarray(durations_s)[chunks] >= 0, FINISHED, WAITING)
    for letter, found in ((FAILED, failed), (RUNNING, running)):
        if found:
            states[np.isin(chunks, np.fromiter(found, int)) & (states == WAITING)] = letter
    grid = np.full(math.prod(numblocks), NONE)
    grid[at] = states
    return BlockStates(numblocks, grid.tobytes().decode(), truncated)


__all__ = ["blocks_of", "edges_of"]
