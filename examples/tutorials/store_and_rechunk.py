"""Bring data from one Zarr store to another, in chunks of another shape.

It follows Pangeo's guides to data that are ready for analysis, and the chapter on Zarr of Xarray's manual
(https://docs.xarray.dev/en/stable/user-guide/io.html): a store is begun by its frame alone and filled region by
region, more times are appended to it, its maps are turned into series of whole cells, and masked means are taken
from these. Run it with::

    python examples/tutorials/store_and_rechunk.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pandas as pd
import xarray as xr
import zarr

DAYS, ROWS, COLUMNS = 240, 90, 120


def make_rain() -> xr.Dataset:
    rng = np.random.default_rng(21)
    rain = rng.gamma(0.4, 5, (DAYS, ROWS, COLUMNS)).astype(np.float32)
    coords = {
        "time": pd.date_range("2020-01-01", periods=DAYS),
        "lat": np.linspace(-89, 89, ROWS),
        "lon": np.arange(0.0, 360, 3),
    }
    land = ("lat", "lon"), rng.random((ROWS, COLUMNS)) < 0.3
    return xr.Dataset({"rain": (("time", "lat", "lon"), rain, {"units": "mm"}), "land": land}, coords)


def fill_store(made: xr.Dataset, path: Path) -> None:
    """Write most of the days in regions, each by a computation of its own, and append the others."""
    first = made.isel(time=slice(0, 200)).chunk(time=20)
    # Without computing, only metadata, coordinates and what is not lazy are written.
    first.to_zarr(path, compute=False, consolidated=False)
    for start in range(0, 200, 100):
        days = slice(start, start + 100)
        part = first[["rain"]].isel(time=days).drop_vars(["lat", "lon"])
        part.to_zarr(path, region={"time": days}, consolidated=False)
    first[["land"]].compute().drop_vars(["lat", "lon"]).to_zarr(path, mode="r+", consolidated=False)
    rest = made[["rain"]].isel(time=slice(200, None)).chunk(time=20)
    rest.to_zarr(path, append_dim="time", consolidated=False)


def main(scheduler: str = "mars") -> None:
    made = make_rain()
    with dask.config.set(scheduler=scheduler), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fill_store(made, folder / "maps.zarr")
        maps = xr.open_zarr(folder / "maps.zarr", consolidated=False)
        xr.testing.assert_equal(maps.rain.compute(), made.rain)
        print(f"{maps.sizes['time']} days, as maps: chunks of {maps.rain.data.chunksize}")

        series = maps[["rain"]].chunk(time=-1, lat=30, lon=30)
        # The chunks of the file that was read would be asked for again, and not fit.
        del series.rain.encoding["chunks"]
        lazy = series.to_zarr(folder / "series.zarr", compute=False, consolidated=False)
        lazy.compute()
        cells = xr.open_zarr(folder / "series.zarr", consolidated=False)
        xr.testing.assert_identical(cells.rain.compute(), made.rain)
        print(f"the same days, as series: chunks of {cells.rain.data.chunksize}")

        # Dask alone: what it reads from one store goes into an array that is there already.
        target = zarr.create_array(folder / "sums.zarr", shape=(ROWS, COLUMNS), chunks=(30, 40), dtype="f8")
        sums = da.from_zarr(folder / "series.zarr" / "rain").sum(axis=0, dtype="f8").rechunk((30, 40))
        da.store(sums, target, lock=False)
        known_sums = made.rain.values.sum(axis=0, dtype="f8")
        np.testing.assert_allclose(target[:], known_sums, err_msg="sums")

        dry = cells.rain < 0.1
        area = np.cos(np.deg2rad(cells.lat))
        wet_days = cells.rain.where(~dry)
        on_land = wet_days.where(maps.land).weighted(area).mean(("lat", "lon"))
        heavy = cells.rain.quantile(0.95, "time")
        share, on_land, heavy = dask.compute(dry.mean(), on_land, heavy)

    rain = made.rain.values
    mask = (rain >= 0.1) & made.land.values
    weight = mask * np.cos(np.radians(made.lat.values))[:, np.newaxis]
    known = (rain * weight).sum(axis=(1, 2)) / weight.sum(axis=(1, 2))
    np.testing.assert_allclose(on_land, known, rtol=1e-5, err_msg="mean over land")
    np.testing.assert_allclose(share, (rain < 0.1).mean(), err_msg="share of dry days")
    np.testing.assert_allclose(heavy, np.quantile(rain, 0.95, axis=0), rtol=1e-5, err_msg="heavy rain")
    print(f"{share.item():.2%} of days are dry; the wettest cell gets {known_sums.max():.0f} mm in {DAYS} days")
    print(
        f"a wet day on land brings {on_land.mean().item():.3f} mm, one in twenty over {heavy.mean().item():.2f} mm"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
