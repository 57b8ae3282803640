"""Records of computations as plain data, as `Runtime.computations` and the web API give them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from dask_mars import units
from dask_mars.client.records import OVER, Record
from dask_mars.observe import counts as counting
from dask_mars.observe.counts import ChunkCounts, LayerCounts
from dask_mars.tables import cut

#: Maximum number of characters of an error message in a line.
_MESSAGE_CHARACTERS = 200


def summary(record: Record) -> dict[str, Any]:
    """Return a record as a row of a list."""
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


def in_words(told: Mapping[str, Any]) -> str:
    """Return the state, the progress and the error of a summary as text."""
    chunks, error, words = told["chunks"], told["error"], str(told["state"])
    if chunks["total"]:
        words += f": {chunks['finished']:,} of {units.plural(chunks['total'], 'chunk')}"
    return words if error is None else f"{words}; {error_in_words(error)}"


def error_in_words(error: Mapping[str, str]) -> str:
    """Return an error of a summary as text of limited length."""
    # Wrapping takes long for long messages.
    message = cut(error["message"], 10 * _MESSAGE_CHARACTERS)
    return f"{error['type']}: {textwrap.shorten(message, _MESSAGE_CHARACTERS, placeholder=' …')}"


def remaining_s(record: Record, counts: ChunkCounts, layers: Sequence[LayerCounts], now_s: float) -> float | None:
    """Return an estimate of the remaining time, None without one."""
    if record.state in OVER or record.started_s is None or not counts.finished:
        return None
    # The clock may have been set back.
    elapsed_s = max(now_s - record.started_s, 0.0)
    if not any(layer.finished for layer in layers):
        return elapsed_s * (counts.total - counts.finished) / counts.finished
    return counting.remaining_s(elapsed_s, layers)
