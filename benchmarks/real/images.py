"""What is computed of images and cubes of whole numbers, by zarr, Xarray and dask-image."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array
import numpy as np

from benchmarks.functions import four_point_mean
from benchmarks.real.stores import fresh, open_zarr, sizes_of_store
from benchmarks.workload import Bounds, Setting, Workload, near, numbers, scaled

_dask: Any = dask
da: Any = dask.array

#: Side of a cube in 5³ chunks.
_CUBE = 500
_FILTER_ABOVE = 100
_SCENES, _SCENE = 36, 1_000
#: When the satellite's numbers were given an offset: from this scene on.
_OFFSET_FROM, _OFFSET = 20, 1_000
_IMAGE = 1_800
#: One in so many pixels is a spot.
_SPOTS = 2_000


# -- data ---------------------------------------------------------------------------------------------------------


def _write(file: Path, values: Any, chunks: tuple[int, ...]) -> None:
    zarr: Any = importlib.import_module("zarr")
    zarr.create_array(file, data=values, chunks=chunks)


def _make_cube(scale: float, directory: Path) -> None:
    file, side = directory / "cube.zarr", scaled(_CUBE, scale)
    if not file.exists():
        values = np.random.default_rng(4).integers(0, 256, (side, side, side), dtype=np.int32)
        _write(file, values, (-(-side // 5),) * 3)


def _make_scenes(scale: float, directory: Path) -> None:
    file = directory / "scenes.zarr"
    if file.exists():
        return
    pandas: Any = importlib.import_module("pandas")
    xarray: Any = importlib.import_module("xarray")
    side, generator = scaled(_SCENE, scale), np.random.default_rng(5)
    shape = (_SCENES, side, side)
    bands = {
        band: generator.integers(low, 4_000, shape, dtype=np.uint16) for band, low in (("B08", 500), ("B11", 100))
    }
    for values in bands.values():
        values[_OFFSET_FROM:] += _OFFSET
    times = pandas.date_range("2021-06-01", periods=_SCENES, freq="10D")
    data = xarray.Dataset({band: (("time", "y", "x"), values) for band, values in bands.items()}, {"time": times})
    chunks = (1, -(-side // 2), -(-side // 2))
    data.to_zarr(file, encoding={band: {"chunks": chunks} for band in bands}, consolidated=False)


def _make_spots(scale: float, directory: Path) -> None:
    file, side = directory / "spots.zarr", scaled(_IMAGE, scale)
    if not file.exists():
        generator = np.random.default_rng(6)
        values = generator.integers(0, 100, (side, side), dtype=np.uint16)
        values[generator.random((side, side)) < 1 / _SPOTS] = 20_000
        _write(file, values, (-(-side // 3),) * 2)


# -- computations -------------------------------------------------------------------------------------------------


def _zarr_filter(setting: Setting) -> Callable[[], Any]:
    def call() -> Any:
        cube = da.from_zarr(setting.directory / "cube.zarr")
        return cube[cube > _FILTER_ABOVE].mean().compute(scheduler=setting.get)

    return call


def _residuals(setting: Setting) -> Callable[[], Any]:
    def call() -> Any:
        cube = da.from_zarr(setting.directory / "cube.zarr")
        return abs(cube - cube.mean(axis=0)).sum().compute(scheduler=setting.get)

    return call


def _satellite_index(setting: Setting) -> Callable[[], Path]:
    target = fresh(setting.directory, "satellite")

    def call() -> Path:
        xarray: Any = importlib.import_module("xarray")
        scenes = open_zarr(setting.directory / "scenes.zarr")
        old, new = scenes.isel(time=slice(0, _OFFSET_FROM)), scenes.isel(time=slice(_OFFSET_FROM, None))
        scenes = xarray.concat([old, new.clip(_OFFSET) - _OFFSET], "time").astype("f4")
        index = (scenes.B08 - scenes.B11) / (scenes.B08 + scenes.B11)
        monthly = index.groupby("time.month").mean().to_dataset(name="index")
        _dask.compute(monthly.to_zarr(target, compute=False, consolidated=False), scheduler=setting.get)
        return target

    return call


def _corner_chunk(scale: float) -> int:
    return max(4, scaled(20, scale))


def _corner(setting: Setting) -> Callable[[], Any]:
    # Always as many chunks: their number is what it is about.
    chunk = _corner_chunk(setting.scale)
    values = np.random.default_rng(setting.seed).random((200 * chunk, 200 * chunk))

    def call() -> Any:
        image = da.from_array(values, chunks=chunk)
        smooth = image.map_overlap(four_point_mean, depth=1, boundary="reflect")
        return smooth[: 2 * chunk, : 2 * chunk].mean().compute(scheduler=setting.get)

    return call


def _labels(setting: Setting) -> Callable[[], Any]:
    def call() -> Any:
        filters: Any = importlib.import_module("dask_image.ndfilters")
        measure: Any = importlib.import_module("dask_image.ndmeasure")
        image = da.from_zarr(setting.directory / "spots.zarr").astype("f4")
        spots = filters.gaussian_filter(image, 2) > 200
        labels, count = measure.label(spots)
        return _dask.compute(count, (labels > 0).mean(), scheduler=setting.get)

    return call


def _residuals_bounds(scale: float) -> Bounds:
    # The mean distance of whole numbers below 256 from their middle is 64.
    elements = scaled(_CUBE, scale) ** 3
    return 60 * elements, 66 * elements


def _corner_bounds(scale: float) -> Bounds:
    return near(0.5, 1.5 / _corner_chunk(scale))


def _labels_bounds(scale: float) -> Bounds:
    # Spots that touch are one.
    expected = scaled(_IMAGE, scale) ** 2 / _SPOTS
    return 0.5 * expected - 3, 1.2 * expected + 3


IMAGE_WORKLOADS = (
    Workload(
        "zarr-filter",
        "real",
        "mean of a cube's numbers above 100, from zarr; after coiled/benchmarks test_filter_then_average",
        _zarr_filter,
        numbers,
        lambda scale: near((_FILTER_ABOVE + 256) / 2, 5),
        make=_make_cube,
        modules=("zarr",),
    ),
    Workload(
        "residuals",
        "real",
        "sum of a cube's distances from its means, from zarr; after coiled/benchmarks test_sum_residuals",
        _residuals,
        numbers,
        _residuals_bounds,
        make=_make_cube,
        modules=("zarr",),
    ),
    Workload(
        "satellite-index",
        "real",
        "monthly means of a humidity index of two bands, to zarr; after coiled/benchmarks satellite_filtering",
        _satellite_index,
        sizes_of_store,
        lambda scale: (0.5, 1.0),
        make=_make_scenes,
        modules=("xarray", "zarr", "flox"),
        tolerance=1e-4,
    ),
    Workload(
        "corner",
        "real",
        "a corner of 40000 small chunks after map_overlap, after dask#7595",
        _corner,
        numbers,
        _corner_bounds,
    ),
    Workload(
        "labels",
        "real",
        "spots of a smoothed image counted by dask-image, after dask-image#386",
        _labels,
        numbers,
        _labels_bounds,
        make=_make_spots,
        modules=("dask_image", "zarr"),
    ),
)
