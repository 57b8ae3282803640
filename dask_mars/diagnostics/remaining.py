"""Estimates the remaining time of a computation from the durations of its layers so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class LayerTime(NamedTuple):
    """Progress of a layer, and the time of its finished chunks in seconds."""

    total: int
    done: int
    seconds: float


def remaining_s(elapsed_s: float, layers: Sequence[LayerTime]) -> float | None:
    """Return an estimate of the remaining time, None without one.

    The remaining chunks of a layer count as its finished ones on average, and those of a layer without any as the
    average of all; with the same concurrency as so far.

    Parameters
    ----------
    elapsed_s : float
        Time so far, in seconds.
    layers : sequence of LayerTime
        Progress of each layer.

    Examples
    --------
    >>> remaining_s(2.0, [LayerTime(total=4, done=2, seconds=4.0), LayerTime(total=1, done=0, seconds=0.0)])
    3.0
    """
    seconds, done = sum([layer.seconds for layer in layers]), sum([layer.done for layer in layers])
    if not done:
        return None
    if not seconds:
        return elapsed_s * (sum([layer.total for layer in layers]) - done) / done
    mean_s = seconds / done
    left_s = sum(
        [(layer.total - layer.done) * (layer.seconds / layer.done if layer.done else mean_s) for layer in layers]
    )
    return left_s * elapsed_s / seconds


__all__ = ["LayerTime", "remaining_s"]
