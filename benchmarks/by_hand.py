"""Array computations beside the loops that a person would write for them: what Dask computes, and of what."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dask.array
import numpy as np

from benchmarks.functions import four_point_mean

# Dask has few annotations. Saying so once keeps the type checker strict with all the rest.
da: Any = dask.array

BINS = 100
DAYS = 366
MASKED_ABOVE = 0.9
_YEARS = 11
_ITEM_BYTES = 8
#: Chunks along the axes, of 16 MB at full size.
_PARTS = (8, 4)

Shape = tuple[int, int]


def _square(size_bytes: int) -> Shape:
    side = math.isqrt(size_bytes // _ITEM_BYTES)
    return side, side


@dataclass(frozen=True, slots=True)
class Loop:
    """A computation that somebody could write as a loop."""

    #: Given the arrays, what Dask computes.
    collections: Callable[..., tuple[Any, ...]]
    #: How often all arrays have to be read from memory.
    passes: int = 1
    arrays: int = 1
    #: Of all arrays together, by their bytes.
    shape: Callable[[int], Shape] = _square
    modules: tuple[str, ...] = ()

    def make(self, size_bytes: int) -> list[Any]:
        """Return the arrays, of uniform random numbers."""
        rows, columns = self.shape(size_bytes)
        return [np.random.default_rng(seed).random((rows // self.arrays, columns)) for seed in range(self.arrays)]


def in_chunks(x: Any) -> Any:
    """Return an array as one of Dask's."""
    return da.from_array(x, chunks=tuple(-(-size // parts) for size, parts in zip(x.shape, _PARTS, strict=True)))


def _climatology(x: Any) -> tuple[Any, ...]:
    import xarray

    # Of leap years only: the calendar does not change what has to be computed.
    day = ("time", np.arange(x.shape[0]) % DAYS + 1)
    values = xarray.DataArray(x, dims=("time", "cell"), coords={"dayofyear": day})
    return (values.groupby("dayofyear").mean(),)


LOOPS: dict[str, Loop] = {
    "chain": Loop(lambda x: (((x * 2 + 1 - x / 3) ** 2 + x * x - 0.5 * x + 3).mean(),)),
    "transcendental": Loop(lambda x: ((np.sin(x) * np.cos(x) + np.exp(-x)).sum(),)),
    "stencil": Loop(lambda x: (x.map_overlap(four_point_mean, depth=1, boundary="none").mean(),)),
    "products": Loop(lambda u, v: ((u * u).sum(), (v * v).sum(), (u * v).sum()), arrays=2),
    "sum": Loop(lambda x: (x.sum(),)),
    "standardise": Loop(lambda x: (((x - x.mean(axis=0)) / x.std(axis=0)).max(),), passes=3),
    "masked-mean": Loop(lambda x: (da.nanmean(da.where(x > MASKED_ABOVE, np.nan, x)),)),
    "shifted-difference": Loop(lambda x: (abs(x[1:, 1:] - x[:-1, :-1]).mean(),)),
    "histogram": Loop(lambda x: (da.histogram(x, bins=BINS, range=(0, 1))[0],)),
    "climatology": Loop(
        _climatology,
        shape=lambda size_bytes: (_YEARS * DAYS, size_bytes // _ITEM_BYTES // (_YEARS * DAYS)),
        modules=("xarray", "flox"),
    ),
}

#: Where the arrays are: in the user's memory, in chunks that each scheduler has persisted, in zarr.
SOURCES = ("memory", "persisted", "zarr")
