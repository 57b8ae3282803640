"""Durations and stored bytes of computed chunks, added up by layer on request."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple, TypedDict

from dask_mars.graph.chunks import Key, layer_of


class ChunkMeasurements(NamedTuple):
    """What is kept of a computation's chunks.

    Attributes
    ----------
    graph : int
        Its number.
    keys : sequence of key
        Of each chunk.
    durations_s : array
        How long each chunk took, negative for those that are not computed.
    stored_bytes : array
        What each chunk took in the store when it was computed there; small values are none of it.
    """

    graph: int
    keys: Sequence[Key]
    durations_s: array[float]
    stored_bytes: array[int]


class LayerProfile(TypedDict):
    """What has been computed of one layer: number, time and bytes in the store."""

    count: int
    total_s: float
    mean_s: float
    stored_bytes: int


def by_layer(measurements: ChunkMeasurements) -> dict[str, LayerProfile]:
    """Add up what has been computed, layers in the order of their first chunks."""
    layers: dict[str, LayerProfile] = {}
    for key, duration_s, stored_bytes in zip(*measurements[1:], strict=True):
        if duration_s >= 0:
            layer = layers.setdefault(
                layer_of(key), {"count": 0, "total_s": 0.0, "mean_s": 0.0, "stored_bytes": 0}
            )
            layer["count"] += 1
            layer["total_s"] += duration_s
            layer["stored_bytes"] += stored_bytes
    for layer in layers.values():
        layer["mean_s"] = layer["total_s"] / layer["count"]
    return layers
