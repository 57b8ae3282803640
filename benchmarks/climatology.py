"""Climatology and anomaly of daily fields by xarray, from one zarr store to another."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import dask.array
import numpy as np

from benchmarks.peers import Get

# Dask has few annotations. Saying so once keeps the type checker strict with all the rest.
_dask: Any = dask
da: Any = dask.array

#: Half a degree.
GRID = (360, 720)
#: About a month, 32 MB.
CHUNK_DAYS = 31
_ITEM_BYTES = 4
_DAYS_OF_YEAR = 365.25
#: What is written into the target: groups of it.
GROUPS = ("climatology", "anomaly")


def days_of(gigabytes: float, grid: tuple[int, int] = GRID) -> int:
    """Return how many days of fields are at least that many bytes, in whole chunks."""
    days = gigabytes * 1e9 / (grid[0] * grid[1] * _ITEM_BYTES)
    return math.ceil(days / CHUNK_DAYS) * CHUNK_DAYS


def make_store(path: Path, days: int, grid: tuple[int, int] = GRID) -> int:
    """Write daily temperatures that have seasons, zones and weather.

    Parameters
    ----------
    path
        Of the store.
    days
        How many.
    grid
        Latitudes and longitudes.

    Returns
    -------
    int
        Bytes of the temperatures, as they are in memory.
    """
    # Without annotations of their own for what is used here.
    xarray: Any = importlib.import_module("xarray")
    pandas: Any = importlib.import_module("pandas")
    zarr: Any = importlib.import_module("zarr")
    latitudes, longitudes = grid
    latitude = np.linspace(-89.75, 89.75, latitudes, dtype="f4")
    empty = da.empty((days, *grid), chunks=(CHUNK_DAYS, *grid), dtype="f4")
    coordinates = {
        "time": pandas.date_range("2000-01-01", periods=days),
        "lat": latitude,
        "lon": np.linspace(0, 360, longitudes, endpoint=False, dtype="f4"),
    }
    data = xarray.Dataset({"t2m": (("time", "lat", "lon"), empty)}, coordinates)
    data.to_zarr(path, compute=False)
    array = zarr.open_group(path)["t2m"]
    weather = np.random.default_rng(1).normal(0, 3, (CHUNK_DAYS, *grid)).astype("f4")
    zones = np.cos(np.deg2rad(latitude)) * 50 - 20
    halves = np.sin(np.deg2rad(latitude)) * -15

    def write(start: int) -> None:
        stop = min(start + CHUNK_DAYS, days)
        season = np.cos(np.arange(start, stop) / _DAYS_OF_YEAR * 2 * np.pi).astype("f4")
        fields = np.roll(weather[: stop - start], 7 * start, axis=2)
        fields += (zones + season[:, None] * halves)[:, :, None]
        array[start:stop] = fields

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, range(0, days, CHUNK_DAYS)))
    return days * latitudes * longitudes * _ITEM_BYTES


def compute(get: Get, source: Path, target: Path, by: str) -> None:
    """Write means by season, and what is left without them, in one go.

    Parameters
    ----------
    get
        The scheduler.
    source, target
        Stores.
    by
        Component of time that is grouped by, such as ``month``.
    """
    xarray: Any = importlib.import_module("xarray")
    with xarray.open_zarr(source) as data:
        grouped = data.groupby(f"time.{by}")
        # With flox chunks along the groups are not alike, which zarr needs.
        climatology = grouped.mean("time").chunk({by: 1})
        # Each day is a chunk of its own as it comes from there.
        anomaly = (grouped - climatology).drop_vars(by).chunk(time=CHUNK_DAYS)
        writes = [
            part.to_zarr(target, group=group, mode="w", compute=False)
            for group, part in zip(GROUPS, (climatology, anomaly), strict=True)
        ]
        _dask.compute(*writes, scheduler=get)


@dataclass(slots=True)
class Difference:
    """How two stores differ.

    Attributes
    ----------
    chunks
        How many have been compared.
    different
        How many of them are not the same in every bit.
    largest
        The largest difference.
    """

    chunks: int = 0
    different: int = 0
    largest: float = 0.0

    def __str__(self) -> str:
        if not self.different:
            return f"identical, {self.chunks:,} chunks"
        return f"{self.different:,} of {self.chunks:,} chunks differ by up to {self.largest:.2g}"


def compare(target: Path, reference: Path) -> Difference:
    """Compare two results chunk by chunk.

    Parameters
    ----------
    target, reference
        Stores that `compute` has written.

    Returns
    -------
    Difference
        Infinite where something is missing or has another form.
    """
    zarr: Any = importlib.import_module("zarr")
    found = Difference()
    for group in GROUPS:
        own, other = (zarr.open_group(path, mode="r")[group] for path in (target, reference))
        names = sorted(other.array_keys())
        if names != sorted(own.array_keys()) or any(own[name].shape != other[name].shape for name in names):
            return Difference(1, 1, float("inf"))
        for name in names:
            for region in _regions(other[name]):
                _compare(found, own[name][region], other[name][region])
    return found


def _regions(array: Any) -> Iterator[tuple[slice, ...]]:
    steps = [range(0, length, step) for length, step in zip(array.shape, array.chunks, strict=True)]
    for corner in np.ndindex(*[len(step) for step in steps]):
        yield tuple(slice(step[at], step[at] + step.step) for at, step in zip(corner, steps, strict=True))


def _compare(found: Difference, ours: Any, theirs: Any) -> None:
    found.chunks += 1
    if ours.dtype == theirs.dtype and np.array_equal(ours, theirs, equal_nan=ours.dtype.kind == "f"):
        return
    found.different += 1
    both_missing = np.isnan(ours) & np.isnan(theirs)
    distance = float(np.where(both_missing, 0, np.abs(ours - theirs)).max())
    # What is missing in one only is no small difference.
    found.largest = max(found.largest, distance if np.isfinite(distance) else float("inf"))
