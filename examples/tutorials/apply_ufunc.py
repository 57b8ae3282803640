"""Apply functions made for NumPy to labelled arrays in blocks.

It follows the lessons of the Xarray tutorial on `apply_ufunc` with Dask
(https://tutorial.xarray.dev/advanced/apply_ufunc/dask_apply_ufunc.html) and on `map_blocks`: a correlation of
ranks, a function for one column that is applied to all of them and changes a dimension, one with two results, and
one that is given whole labelled blocks. Run it with::

    python examples/tutorials/apply_ufunc.py
"""

from __future__ import annotations

import sys

import dask
import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy.stats
import xarray as xr

import dask_mars

Floats = npt.NDArray[np.float64]


def make_air() -> xr.Dataset:
    rng = np.random.default_rng(6)
    latitude, longitude = np.arange(75.0, 14, -5), np.arange(200.0, 331, 5)
    time = pd.date_range("2013-01-01", periods=400)
    slope = np.linspace(-1, 1, len(longitude)) * np.arange(400)[:, np.newaxis, np.newaxis] / 100
    air = 300 - 0.5 * latitude[:, np.newaxis] + slope + rng.normal(0, 1, (400, len(latitude), len(longitude)))
    wind = 0.3 * air + rng.normal(0, 1, air.shape)
    dims = ("time", "lat", "lon")
    return xr.Dataset(
        {"air": (dims, air), "wind": (dims, wind)}, {"time": time, "lat": latitude, "lon": longitude}
    )


def rank_correlation(x: Floats, y: Floats) -> Floats:
    """Correlate ranks along the last axis, where `apply_ufunc` puts a core dimension."""
    ranks = [scipy.stats.rankdata(values, axis=-1) for values in (x, y)]
    left, right = (rank - rank.mean(axis=-1, keepdims=True) for rank in ranks)
    return (left * right).mean(axis=-1) / (left.std(axis=-1) * right.std(axis=-1))


def fit_line(y: Floats) -> tuple[Floats, Floats]:
    """Return slope and height of the straight line through the values of the last axis."""
    days = np.arange(y.shape[-1])
    slope, height = np.polyfit(days, y.reshape(-1, y.shape[-1]).T, 1)
    return slope.reshape(y.shape[:-1]), height.reshape(y.shape[:-1])


def warmest_day(block: xr.Dataset, before: int) -> xr.DataArray:
    """Return the day of the largest difference to some days earlier, for a block with all its labels."""
    difference = block.air - block.air.shift(time=before)
    return difference.argmax("time").rename("day")


def main(scheduler: str = "mars") -> None:
    get = dask_mars.get if scheduler == "mars" else scheduler
    made = make_air()
    columns = made.chunk(time=-1, lat=5, lon=9)
    days = made.chunk(time=100)

    correlation = xr.apply_ufunc(
        rank_correlation,
        columns.air,
        columns.wind,
        input_core_dims=[["time"], ["time"]],
        dask="parallelized",
        output_dtypes=[float],
    )
    # `np.interp` takes one column at a time, and its result has another length: hence these options.
    finer = np.linspace(20, 70, 31)
    interpolated = xr.apply_ufunc(
        np.interp,
        finer,
        days.lat[::-1],
        days.air.isel(lat=slice(None, None, -1), lon=slice(0, 4)),
        input_core_dims=[["lat"], ["lat"], ["lat"]],
        output_core_dims=[["lat"]],
        exclude_dims={"lat"},
        vectorize=True,
        dask="parallelized",
        dask_gufunc_kwargs={"output_sizes": {"lat": len(finer)}},
        output_dtypes=[float],
    )
    slope, height = xr.apply_ufunc(
        fit_line,
        columns.air,
        input_core_dims=[["time"]],
        output_core_dims=[[], []],
        dask="parallelized",
        output_dtypes=[float, float],
    )
    template = columns.air.isel(time=0, drop=True).astype(np.int64).rename("day")
    day = xr.map_blocks(warmest_day, columns, kwargs={"before": 30}, template=template)

    lazy = (correlation, interpolated, slope, height, day)
    correlation, interpolated, slope, height, day = dask.compute(*lazy, scheduler=get)

    air, wind = made.air.values, made.wind.values
    single = scipy.stats.spearmanr(air[:, 3, 7], wind[:, 3, 7]).statistic
    np.testing.assert_allclose(correlation[3, 7], single, err_msg="correlation")
    print(f"correlation of ranks: {correlation.mean().item():.4f} on average")
    one = np.interp(finer, made.lat.values[::-1], air[17, ::-1, 2])
    np.testing.assert_allclose(interpolated.sel(lon=210.0).isel(time=17), one, err_msg="interpolation")
    print(f"interpolated to {interpolated.sizes['lat']} latitudes, {interpolated.mean().item():.4f} on average")
    lines = np.polyfit(np.arange(400), air.reshape(400, -1), 1).reshape(2, *air.shape[1:])
    np.testing.assert_allclose(np.stack([slope, height]), lines, atol=1e-9, err_msg="straight lines")
    print(f"trends from {slope.min().item():.5f} to {slope.max().item():.5f} a day")
    difference = np.where(np.arange(400)[:, np.newaxis, np.newaxis] < 30, -np.inf, air - np.roll(air, 30, axis=0))
    np.testing.assert_array_equal(day, difference.argmax(axis=0), err_msg="day of the largest difference")
    assert (day.lat == made.lat).all(), "blocks lost their labels"
    print(f"it warms most until day {int(day.median())} or so")


if __name__ == "__main__":
    main(*sys.argv[1:])
