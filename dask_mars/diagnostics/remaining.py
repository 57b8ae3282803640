"""How long a computation may still take, from what its layers have taken so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class LayerTime(NamedTuple):
    """How far a layer is, and the seconds that what is done of it has taken."""

    total: int
    done: int
    seconds: float


def remaining_s(elapsed_s: float, layers: Sequence[LayerTime]) -> float | None:
    """Return how long a computation may still take, None if nothing says so.

    What is left of each layer takes as long as what is done of it, that of others as long as chunks do on average;
    as many are computed at a time as were so far.

    Parameters
    ----------
    elapsed_s : float
        How long it has taken so far.
    layers : sequence of LayerTime
        How far each is.

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
