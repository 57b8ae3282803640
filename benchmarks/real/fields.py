"""What is computed of fields in time and space, by Xarray and flox."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np

from benchmarks.real.stores import (
    dataset,
    fresh,
    open_zarr,
    sizes_of_dataset,
    sizes_of_store,
    temperatures,
    write_zarr,
)
from benchmarks.workload import Bounds, Setting, Workload, scaled

_dask: Any = dask

Prepare = Callable[[Setting], Callable[[], Any]]

#: Latitudes and longitudes.
_GRID = (120, 240)
_DAILY_CHUNK = 20
_DAYS = 1461
_LEVELS = 6
#: Fields of four bytes, and some of what is computed of them.
_TOLERANCE = 1e-4
#: Of the largest number where temperatures are what comes out.
_TEMPERATURES: Bounds = (20.0, 60.0)

_XARRAY = ("xarray", "zarr")
_FLOX = (*_XARRAY, "flox")
#: The netCDF4 package may crash where threads open files side by side (xarray#7079).
_NETCDF = "h5netcdf"


def _grid(scale: float, grid: tuple[int, int] = _GRID) -> tuple[int, int]:
    return scaled(grid[0], scale), scaled(grid[1], scale)


def _xarray() -> Any:
    return importlib.import_module("xarray")


# -- data ---------------------------------------------------------------------------------------------------------


def _make_daily(scale: float, directory: Path) -> None:
    file = directory / "daily.zarr"
    if not file.exists():
        write_zarr(dataset({"t2m": temperatures(_DAYS, _grid(scale), 1)}, hours=24), file, _DAILY_CHUNK)


def _make_hourly(scale: float, directory: Path) -> None:
    # Two days a chunk, two years, every third hour.
    file = directory / "hourly.zarr"
    if not file.exists():
        write_zarr(dataset({"t2m": temperatures(731 * 8, _grid(scale, (60, 120)), 2, 8)}, hours=3), file, 16)


def _make_winds(scale: float, directory: Path) -> None:
    file = directory / "winds.zarr"
    if file.exists():
        return
    times, grid = 4 * 24, _grid(scale, (90, 180))
    fields = {}
    for seed, name in enumerate(("U", "V", "T", "W")):
        levels = temperatures(times * _LEVELS, grid, seed, 24.0 * _LEVELS)
        fields[name] = levels.reshape(times, _LEVELS, *grid)
    write_zarr(dataset(fields, hours=1), file, 1)


def _make_netcdf(scale: float, directory: Path) -> None:
    folder = directory / "netcdf"
    if folder.exists():
        return
    folder.mkdir()
    data = dataset({"t2m": temperatures(730, _grid(scale), 3)}, hours=24)
    for number, start in enumerate(range(0, 730, 30)):
        part = data.isel(time=slice(start, start + 30))
        encoding = {"t2m": {"zlib": True, "complevel": 1, "chunksizes": (1, *_grid(scale))}}
        part.to_netcdf(folder / f"{number:02}.nc", engine=_NETCDF, encoding=encoding)


# -- computations -------------------------------------------------------------------------------------------------


def _circulation(setting: Setting) -> Callable[[], Path]:
    target = fresh(setting.directory, "circulation")

    def call() -> Path:
        winds = open_zarr(setting.directory / "winds.zarr")
        means = winds.mean("lon")
        eddies = winds - means
        for first, second in ("UV", "VT", "UW"):
            means[(first + second).lower()] = (eddies[first] * eddies[second]).mean("lon")
        daily = means.resample(time="D").mean()
        _dask.compute(daily.to_zarr(target, compute=False, consolidated=False), scheduler=setting.get)
        return target

    return call


def _anomalies(setting: Setting, *, use_flox: bool) -> Callable[[], Any]:
    def call() -> Any:
        data = open_zarr(setting.directory / "daily.zarr")
        with _xarray().set_options(use_flox=use_flox):
            grouped = data.groupby("time.month")
            anomalies = grouped - grouped.mean("time")
            return anomalies.std("time").compute(scheduler=setting.get)

    return call


def _day_of_year(setting: Setting) -> Callable[[], Any]:
    def call() -> Any:
        data = open_zarr(setting.directory / "hourly.zarr")
        return data.groupby("time.dayofyear").mean("time").compute(scheduler=setting.get)

    return call


_WINDOW = 61


def _weighted_climatology(setting: Setting) -> Callable[[], Path]:
    target = fresh(setting.directory, "climatology")

    def call() -> Path:
        xarray = _xarray()
        # A strip of the grid: the windows multiply it.
        data = (
            open_zarr(setting.directory / "daily.zarr")
            .t2m.isel(time=slice(0, 1096), lat=slice(0, 6))
            .chunk(time=-1, lon=40)
        )
        half = _WINDOW // 2
        weights = xarray.DataArray(1 - np.abs(np.arange(-half, half + 1)) / (half + 1), dims="window")
        years = data.assign_coords(year=data.time.dt.year, day=data.time.dt.dayofyear)
        years = years.set_index(time=["year", "day"]).unstack("time").ffill("day", limit=1)
        windows = years.pad(day=half, mode="wrap").rolling(day=_WINDOW, center=True).construct("window")
        climatology = windows.weighted(weights).mean(("window", "year")).isel(day=slice(half, -half))
        with _dask.config.set(scheduler=setting.get):
            climatology.chunk(day=30, lat=-1, lon=-1).to_dataset(name="t2m").to_zarr(target, consolidated=False)
        return target

    return call


def _pencils(setting: Setting) -> Callable[[], Path]:
    target = fresh(setting.directory, "pencils")

    def call() -> Path:
        data = open_zarr(setting.directory / "daily.zarr").drop_encoding()
        grid = data.sizes["lat"], data.sizes["lon"]
        pencils = data.chunk(time=-1, lat=-(-grid[0] // 4), lon=-(-grid[1] // 6))
        with _dask.config.set(scheduler=setting.get):
            pencils.to_zarr(target, consolidated=False)
        return target

    return call


def _quantile(setting: Setting) -> Callable[[], Any]:
    def call() -> Any:
        data = open_zarr(setting.directory / "daily.zarr")
        columns = data.chunk(time=-1, lat=-(-data.sizes["lat"] // 12))
        return columns.quantile([0.1, 0.5, 0.9], dim="time").compute(scheduler=setting.get)

    return call


def _rolling(setting: Setting) -> Callable[[], Any]:
    def call() -> Any:
        data = open_zarr(setting.directory / "daily.zarr").t2m.isel(time=slice(0, 365))
        rolling = data.rolling(time=20, min_periods=5)
        both = _xarray().Dataset({"mean": rolling.mean().std("time"), "count": rolling.count().mean("time")})
        return both.compute(scheduler=setting.get)

    return call


def _netcdf_to_zarr(setting: Setting) -> Callable[[], Path]:
    target = fresh(setting.directory, "netcdf")

    def call() -> Path:
        files = sorted((setting.directory / "netcdf").glob("*.nc"))
        with (
            _dask.config.set(scheduler=setting.get),
            _xarray().open_mfdataset(
                files, engine=_NETCDF, combine="nested", concat_dim="time", parallel=True
            ) as data,
        ):
            grid = data.sizes["lat"], data.sizes["lon"]
            pencils = data.drop_encoding().chunk(time=-1, lat=-(-grid[0] // 3), lon=-(-grid[1] // 4))
            pencils.to_zarr(target, consolidated=False)
        return target

    return call


def _temperatures(scale: float) -> Bounds:
    return _TEMPERATURES


def _field(
    name: str,
    summary: str,
    prepare: Prepare,
    make: Callable[[float, Path], None],
    digest: Callable[[Any], Any],
    bounds: Callable[[float], Bounds] = _temperatures,
    modules: tuple[str, ...] = _XARRAY,
) -> Workload:
    return Workload(
        name, "real", summary, prepare, digest, bounds, make=make, modules=modules, tolerance=_TOLERANCE
    )


FIELD_WORKLOADS = (
    _field(
        "circulation",
        "eddies of winds, daily and zonal means, to zarr; after coiled/benchmarks atmospheric_circulation",
        _circulation,
        _make_winds,
        sizes_of_store,
        lambda scale: (20.0, 1_000.0),
        _FLOX,
    ),
    _field(
        "anomalies",
        "deviation of daily fields from the means of their months, by flox; "
        "after cubed's pangeo-4-climatological-anomalies",
        partial(_anomalies, use_flox=True),
        _make_daily,
        sizes_of_dataset,
        lambda scale: (5.0, 10.0),
        _FLOX,
    ),
    _field(
        "anomalies-plain",
        "the same without flox",
        partial(_anomalies, use_flox=False),
        _make_daily,
        sizes_of_dataset,
        lambda scale: (5.0, 10.0),
    ),
    _field(
        "day-of-year",
        "mean of each day of the year of three-hourly fields; after flox's benchmark ERA5DayOfYear",
        _day_of_year,
        _make_hourly,
        sizes_of_dataset,
        modules=_FLOX,
    ),
    _field(
        "weighted-climatology",
        "weighted means of windows of 61 days over three years, to zarr; after coiled/benchmarks climatology",
        _weighted_climatology,
        _make_daily,
        sizes_of_store,
    ),
    _field(
        "pencils",
        "daily fields in zarr to whole series in zarr; after coiled/benchmarks rechunking",
        _pencils,
        _make_daily,
        sizes_of_store,
    ),
    _field(
        "quantile",
        "quantiles along four years, after xarray#9692",
        _quantile,
        _make_daily,
        sizes_of_dataset,
    ),
    _field(
        "rolling",
        "rolling mean and count along time, after xarray's benchmark rolling and xarray#9890",
        _rolling,
        _make_daily,
        sizes_of_dataset,
        lambda scale: (15.0, 60.0),
    ),
    _field(
        "netcdf-to-zarr",
        "files of netCDF opened in parallel, rechunked, to zarr; after coiled/benchmarks cloud_optimize",
        _netcdf_to_zarr,
        _make_netcdf,
        sizes_of_store,
        modules=(*_XARRAY, _NETCDF),
    ),
)
