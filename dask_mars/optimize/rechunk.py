"""Rechunks between Dask's workers ("p2p"), as tasks like any other.

Dask chooses them where a `Client` is current. As they come they run in the workers' own threads, with buffers that
no quota knows of, and only on a cluster. As tasks they move pieces through the stores, in a quarter of the time.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import numpy as np
from dask.array import Array
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from dask_mars.graph.chunks import Key

#: What is taken for the type of an array's items if nobody says: the plan of a rechunk depends on their size.
_UNKNOWN = np.dtype(float)


def is_between_workers(layer: Layer) -> bool:
    """Say whether a layer is a rechunk between Dask's workers that nobody has materialised."""
    # Without distributed there is none.
    module = sys.modules.get("distributed.shuffle._rechunk")
    return module is not None and type(layer) is module.P2PRechunkLayer and not layer.is_materialized()


def as_tasks(layer: Any) -> dict[Key, Any]:
    """Return the tasks of such a rechunk, under the names that its results have.

    Parameters
    ----------
    layer : P2PRechunkLayer
        Names its input, and the chunks of that and of its result.
    """
    dtype = (layer.collection_annotations or {}).get("dtype") or _UNKNOWN
    blocks = itertools.product((layer.name_input,), *[range(len(sizes)) for sizes in layer.chunks_input])
    source = HighLevelGraph(
        {layer.name_input: MaterializedLayer(dict.fromkeys(blocks))}, {layer.name_input: set()}
    )
    array = Array(source, layer.name_input, layer.chunks_input, dtype=dtype)
    rechunked = array.rechunk(layer.chunks, method="tasks")
    tasks: dict[Key, Any] = {}
    for name, made in rechunked.dask.layers.items():
        if name != layer.name_input:
            tasks.update(made)
    for block in itertools.product(*[range(len(sizes)) for sizes in layer.chunks]):
        key = (layer.name, *block)
        tasks[key] = tasks.pop((rechunked.name, *block)).substitute({}, key=key)
    return tasks


__all__ = ["as_tasks", "is_between_workers"]
