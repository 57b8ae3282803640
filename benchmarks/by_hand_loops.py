"""The loops by numba, as a person would write them: in parallel, without fastmath, elements with NumPy's bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from benchmarks.by_hand import BINS, DAYS, MASKED_ABOVE

_BLOCK = 512

# Numba compiles each at its first call, and has no annotations.
_loop: Callable[[Any], Any] = numba.njit(parallel=True)
prange: Any = numba.prange


@_loop
def copy(x: Any, out: Any) -> None:
    """Copy a row of numbers, which shows the bandwidth of memory."""
    for i in prange(x.size):
        out[i] = x[i]


@_loop
def _chain(x: Any) -> Any:
    x = x.ravel()
    total = 0.0
    for i in prange(x.size):
        t = x[i] * 2 + 1 - x[i] / 3
        total += t * t + x[i] * x[i] - 0.5 * x[i] + 3
    return total / x.size


@_loop
def _transcendental(x: Any) -> Any:
    x = x.ravel()
    total = 0.0
    for i in prange(x.size):
        total += np.sin(x[i]) * np.cos(x[i]) + np.exp(-x[i])
    return total


@_loop
def _stencil(x: Any) -> Any:
    rows, columns = x.shape
    total = 0.0
    for i in prange(rows):
        if i == 0 or i == rows - 1:
            total += x[i].sum()
        else:
            total += x[i, 0] + x[i, columns - 1]
            for j in range(1, columns - 1):
                total += (x[i - 1, j] + x[i + 1, j] + (x[i, j - 1] + x[i, j + 1])) / 4
    return total / x.size


@_loop
def _products(u: Any, v: Any) -> Any:
    u, v = u.ravel(), v.ravel()
    uu, vv, uv = 0.0, 0.0, 0.0
    for i in prange(u.size):
        uu += u[i] * u[i]
        vv += v[i] * v[i]
        uv += u[i] * v[i]
    return uu, vv, uv


@_loop
def _sum(x: Any) -> Any:
    x = x.ravel()
    total = 0.0
    for i in prange(x.size):
        total += x[i]
    return total


@_loop
def _standardise(x: Any) -> Any:
    rows, columns = x.shape
    blocks = (columns + _BLOCK - 1) // _BLOCK
    largest = np.empty(blocks)
    for block in prange(blocks):
        part = x[:, block * _BLOCK : (block + 1) * _BLOCK]
        mean, deviation = np.zeros(part.shape[1]), np.zeros(part.shape[1])
        for i in range(rows):
            for j in range(mean.size):
                mean[j] += part[i, j]
        mean /= rows
        for i in range(rows):
            for j in range(mean.size):
                deviation[j] += (part[i, j] - mean[j]) ** 2
        deviation = np.sqrt(deviation / rows)
        most = -np.inf
        for i in range(rows):
            for j in range(mean.size):
                most = max(most, (part[i, j] - mean[j]) / deviation[j])
        largest[block] = most
    return largest.max()


@_loop
def _masked_mean(x: Any) -> Any:
    x = x.ravel()
    total, count = 0.0, 0
    for i in prange(x.size):
        if x[i] <= MASKED_ABOVE:
            total += x[i]
            count += 1
    return total / count


@_loop
def _shifted_difference(x: Any) -> Any:
    total = 0.0
    for i in prange(1, x.shape[0]):
        for j in range(1, x.shape[1]):
            total += abs(x[i, j] - x[i - 1, j - 1])
    return total / ((x.shape[0] - 1) * (x.shape[1] - 1))


@_loop
def _histogram(x: Any) -> Any:
    edges = np.linspace(0, 1, BINS + 1)
    counts = np.zeros((x.shape[0], BINS), np.int64)
    for i in prange(x.shape[0]):
        for v in x[i]:
            if 0 <= v <= 1:
                # As NumPy corrects what rounding puts into a neighbouring bin.
                at = min(int(v * BINS), BINS - 1)
                at -= v < edges[at]
                at += at != BINS - 1 and v >= edges[at + 1]
                counts[i, at] += 1
    return counts.sum(axis=0)


@_loop
def _climatology(x: Any) -> Any:
    mean = np.empty((DAYS, x.shape[1]))
    for day in prange(DAYS):
        mean[day] = x[day]
        for at in range(day + DAYS, x.shape[0], DAYS):
            for j in range(x.shape[1]):
                mean[day, j] += x[at, j]
        mean[day] /= x.shape[0] // DAYS
    return mean


#: By the names of `benchmarks.by_hand.LOOPS`.
BY_HAND: dict[str, Callable[..., Any]] = {
    name.strip("_").replace("_", "-"): value
    for name, value in globals().copy().items()
    if isinstance(value, numba.core.dispatcher.Dispatcher)
}
