"""Find warm and cold events in the Pacific: an index like that of El Niño.

It follows the lessons of the Xarray tutorial on groups and on weights
(https://tutorial.xarray.dev/fundamentals/03.2_groupby_with_xarray.html) and the index that Pangeo's introductions
work out: sea surface temperatures by month in a Zarr store, with no values on land; anomalies from the climatology
of thirty years; their mean over a region, weighted by area; and maps of the warm and cold months. No scheduler is
named here. Dask takes it from its configuration or the environment::

    DASK_SCHEDULER=mars python examples/tutorials/anomalies_by_month.py
"""

from __future__ import annotations

import tempfile

import dask
import numpy as np
import pandas as pd
import xarray as xr

REGION = {"lat": slice(-5, 5), "lon": slice(190, 240)}
BASE = slice("1991-01-01", "2020-12-31")
EVENT_K = 0.4


def make_temperatures() -> xr.Dataset:
    """Return temperatures with a season, an oscillation in the Pacific, land and noise."""
    rng = np.random.default_rng(9)
    time = pd.date_range("1985-01-01", "2022-12-01", freq="MS")
    latitude, longitude = np.arange(-60.0, 61, 4), np.arange(0.0, 360, 6)
    months = np.arange(len(time))
    rows, columns = np.meshgrid(np.radians(latitude), longitude, indexing="ij")
    season = -4 * np.cos(2 * np.pi * months / 12)[:, np.newaxis, np.newaxis] * np.sin(rows)
    swing = 1.5 * np.sin(2 * np.pi * months / 47)[:, np.newaxis, np.newaxis]
    tongue = np.exp(-((np.degrees(rows) / 12) ** 2) - ((columns - 215) / 45) ** 2)
    sst = 28 * np.cos(rows) + season + swing * tongue + rng.normal(0, 0.5, (len(time), *rows.shape))
    sst[:, (columns > 90) & (columns < 130) & (rows > 0)] = np.nan
    coords = {"time": time, "lat": latitude, "lon": longitude}
    return xr.Dataset({"sst": (("time", "lat", "lon"), sst, {"units": "degree_C"})}, coords)


def main() -> None:
    made = make_temperatures()
    with tempfile.TemporaryDirectory() as folder:
        made.chunk(time=152, lat=16).to_zarr(f"{folder}/sst.zarr", consolidated=False)
        sst = xr.open_zarr(f"{folder}/sst.zarr", consolidated=False).sst
        print(f"{sst.sizes['time']} months of {sst.sizes['lat']} x {sst.sizes['lon']} cells")

        climatology = sst.sel(time=BASE).groupby("time.month").mean("time")
        anomaly = (sst.groupby("time.month") - climatology).persist()
        region = anomaly.sel(REGION)
        index = region.weighted(np.cos(np.deg2rad(region.lat))).mean(("lat", "lon"))
        index = index.rolling(time=5, center=True).mean()
        warm = anomaly.where(index > EVENT_K).mean("time")
        cold = anomaly.where(index < -EVENT_K).mean("time")
        # By weights, missing cells on land count for nothing: not as zero, and not as missing everywhere.
        ocean = sst.weighted(np.cos(np.deg2rad(sst.lat))).mean(("lat", "lon"))
        index, warm, cold, ocean = dask.compute(index, warm, cold, ocean)

    values = made.sst.values
    month = made["time.month"].values
    base = (made["time.year"].values >= 1991) & (made["time.year"].values <= 2020)
    normal = np.stack([values[base & (month == number)].mean(axis=0) for number in range(1, 13)])
    differences = values - normal[month - 1]
    latitude, longitude = made.lat.values, made.lon.values
    rows, columns = np.abs(latitude) <= 5, (longitude >= 190) & (longitude <= 240)
    cosine = np.cos(np.radians(latitude))
    series = np.average(differences[:, rows][:, :, columns].mean(axis=2), axis=1, weights=cosine[rows])
    known = pd.Series(series).rolling(5, center=True).mean().values
    np.testing.assert_allclose(index, known, atol=1e-9, err_msg="index")
    np.testing.assert_allclose(warm, differences[known > EVENT_K].mean(axis=0), atol=1e-9, err_msg="warm months")
    np.testing.assert_allclose(cold, differences[known < -EVENT_K].mean(axis=0), atol=1e-9, err_msg="cold months")
    area = np.where(np.isnan(values[0]), 0, cosine[:, np.newaxis])
    np.testing.assert_allclose(ocean, np.nansum(values * area, axis=(1, 2)) / area.sum(), err_msg="ocean")

    print(f"the ocean has {ocean.mean().item():.3f} degrees, {ocean.min().item():.3f} to {ocean.max().item():.3f}")
    print(f"{int((index > EVENT_K).sum())} warm months, {int((index < -EVENT_K).sum())} cold ones")
    peak = warm.sel(REGION).mean().item() - cold.sel(REGION).mean().item()
    print(
        f"the region is {peak:.3f} K warmer in warm months; the warmest is {index.idxmax('time').dt.date.item()}"
    )


if __name__ == "__main__":
    main()
