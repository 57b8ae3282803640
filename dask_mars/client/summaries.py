"""Records of computations as plain data, as `Runtime.computations` and the web API give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dask_mars.client.records import OVER, ChunkCounts, LayerCounts, Record


def summary(record: Record) -> dict[str, Any]:
    """Return what there is to say of a computation in a row of a list."""
    failure = record.failure
    return {
        "id": record.id,
        "name": record.name,
        "state": record.state,
        "graph": record.graph,
        "created": record.created_s,
        "started": record.started_s,
        "ended": record.ended_s,
        "chunks": record.counts()._asdict(),
        "error": None if failure is None else {"type": failure.type, "message": failure.message},
    }


def remaining_s(record: Record, counts: ChunkCounts, layers: Sequence[LayerCounts], now_s: float) -> float | None:
    """Return how long a computation may still take, None if nothing says so.

    What is left of each layer takes as long as what is done of it, that of others as long as chunks do on average;
    as many are computed at a time as were so far.
    """
    if record.state in OVER or record.started_s is None or not counts.finished:
        return None
    elapsed_s = now_s - record.started_s
    seconds, finished = sum([layer.seconds for layer in layers]), sum([layer.finished for layer in layers])
    if not seconds or not finished:
        return elapsed_s * (counts.total - counts.finished) / counts.finished
    mean_s = seconds / finished
    left_s = sum(
        [
            (layer.total - layer.finished) * (layer.seconds / layer.finished if layer.finished else mean_s)
            for layer in layers
        ]
    )
    return left_s * elapsed_s / seconds


__all__ = ["remaining_s", "summary"]
