"""Work out a climatology, and what differs from it, from netCDF files of several years.

It follows the lesson on Xarray with Dask (https://tutorial.xarray.dev/intermediate/xarray_and_dask.html), the
chapter of Xarray's manual on it (https://docs.xarray.dev/en/stable/user-guide/dask.html), and Xarray's examples of
weighted means: a file for each year, opened as one dataset; the mean of each month; anomalies; means weighted by
area; seasons, and rolling means. Run it with::

    python examples/tutorials/climatology.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import dask
import numpy as np
import pandas as pd
import xarray as xr

YEARS = range(2001, 2005)
PACKED = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32768}


def write_years(folder: Path) -> None:
    """Write the temperature of the air, packed into short integers, to a netCDF file for each year."""
    rng = np.random.default_rng(1)
    latitude, longitude = np.arange(85.0, -86, -10), np.arange(0.0, 360, 10)
    for year in YEARS:
        time = pd.date_range(f"{year}-01-01", f"{year}-12-31")
        # The seasons of the two hemispheres are opposite.
        turn = np.cos(2 * np.pi * time.day_of_year.values / 365)[:, np.newaxis]
        season = -12 * turn * np.sin(np.radians(latitude))
        air = 255 + 40 * np.cos(np.radians(latitude)) + season + 0.02 * (year - YEARS[0])
        values = air[:, :, np.newaxis] + rng.normal(0, 2, (len(time), len(latitude), len(longitude)))
        values[rng.random(values.shape) < 0.01] = np.nan
        coords = {"time": time, "lat": latitude, "lon": longitude}
        dataset = xr.Dataset({"air": (("time", "lat", "lon"), values, {"units": "K"})}, coords)
        dataset.to_netcdf(folder / f"air-{year}.nc", engine="scipy", encoding={"air": PACKED})


def main(scheduler: str = "mars") -> None:
    with dask.config.set(scheduler=scheduler), tempfile.TemporaryDirectory() as name:
        write_years(Path(name))
        files = sorted(Path(name).glob("air-*.nc"))
        with xr.open_mfdataset(files, engine="scipy", chunks={"time": 120}, parallel=True) as dataset:
            air = dataset.air
            print(f"{len(files)} files, {air.sizes['time']} days in {air.data.npartitions} blocks of {air.dtype}")

            climatology = air.groupby("time.month").mean("time")
            anomaly = air.groupby("time.month") - climatology
            weights = np.cos(np.deg2rad(air.lat))
            globe = air.weighted(weights).mean(("lat", "lon"))
            seasons = air.resample(time="QS-DEC").mean()
            smooth = globe.rolling(time=30, center=True).mean()
            results = dask.compute(climatology, anomaly.std("time"), globe, seasons, smooth)
            known = air.load(scheduler="synchronous")

    climatology, spread, globe, seasons, smooth = results
    values, month = known.values, known["time.month"].values
    means = np.stack([np.nanmean(values[month == number], axis=0) for number in range(1, 13)])
    np.testing.assert_allclose(climatology, means, rtol=1e-5, err_msg="climatology")
    np.testing.assert_allclose(spread, np.nanstd(values - means[month - 1], axis=0), rtol=1e-3, atol=1e-4)
    january, july = (climatology.sel(month=number, lat=45).mean().item() for number in (1, 7))
    print(f"at 45 N: January {january:.2f} K, July {july:.2f} K, anomalies of {spread.mean().item():.3f} K")

    area = np.where(np.isnan(values), 0, np.cos(np.radians(known.lat.values))[:, np.newaxis])
    series = pd.Series(np.nansum(values * area, axis=(1, 2)) / area.sum(axis=(1, 2)), known.time.values)
    np.testing.assert_allclose(globe, series, rtol=1e-5, err_msg="mean of the globe")
    np.testing.assert_allclose(smooth, series.rolling(30, center=True).mean(), rtol=1e-5, err_msg="rolling mean")
    print(f"the globe: {globe.mean().item():.3f} K; over 30 days {smooth.min():.3f} to {smooth.max():.3f} K")

    winter = (known.time >= np.datetime64("2002-12-01")) & (known.time < np.datetime64("2003-03-01"))
    np.testing.assert_allclose(seasons.sel(time="2002-12-01"), np.nanmean(values[winter], axis=0), rtol=1e-5)
    print(f"{seasons.sizes['time']} seasons, the first from {seasons.time.dt.date.values[0]} on")


if __name__ == "__main__":
    main(*sys.argv[1:])
