"""Files that real workloads read and write."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DAYS_OF_YEAR = 365.25
#: Values are multiples of this, as those of instruments and packed files are: what is compressed gets smaller.
_STEP = 1 / 16
#: After how many steps in time the weather comes back, elsewhere.
_WEATHER_LENGTH = 31


def temperatures(times: int, grid: tuple[int, int], seed: int, steps_per_day: float = 1.0) -> NDArray[np.float32]:
    """Return fields that have zones, seasons and weather.

    Parameters
    ----------
    times
        How many.
    grid
        Latitudes and longitudes.
    seed
        Of the weather.
    steps_per_day
        How many of them are of one day.
    """
    latitude = np.deg2rad(np.linspace(-90, 90, grid[0]))
    zones, halves = np.cos(latitude) * 50 - 20, np.sin(latitude) * -15
    noise = np.random.default_rng(seed).integers(-160, 160, (_WEATHER_LENGTH, *grid)).astype("f4") * _STEP
    fields = np.empty((times, *grid), "f4")
    for time in range(times):
        turn, part = divmod(time, _WEATHER_LENGTH)
        season = np.cos(time / steps_per_day / _DAYS_OF_YEAR * 2 * np.pi)
        mean = (np.round((zones + season * halves) / _STEP) * _STEP).astype("f4")
        np.add(np.roll(noise[part], 7 * turn, axis=1), mean[:, None], out=fields[time])
    return fields


def dataset(fields: dict[str, NDArray[Any]], hours: int) -> Any:
    """Put fields of latitudes and longitudes into an Xarray dataset.

    Parameters
    ----------
    fields
        By name: of time, latitude and longitude, or of time, level and those.
    hours
        Between one time and the next.
    """
    # Without annotations of their own for what is used here.
    xarray: Any = importlib.import_module("xarray")
    pandas: Any = importlib.import_module("pandas")
    times, *_, latitudes, longitudes = next(iter(fields.values())).shape
    coordinates = {
        "time": pandas.date_range("2000-01-01", periods=times, freq=f"{hours}h"),
        "lat": np.linspace(-90, 90, latitudes),
        "lon": np.linspace(0, 360, longitudes, endpoint=False),
    }
    dimensions = {3: ("time", "lat", "lon"), 4: ("time", "level", "lat", "lon")}
    return xarray.Dataset({name: (dimensions[of.ndim], of) for name, of in fields.items()}, coordinates)


def write_zarr(data: Any, file: Path, times: int) -> None:
    """Write a dataset in chunks of so many times, which are whole otherwise."""
    encoding = {name: {"chunks": (times, *of.shape[1:])} for name, of in data.items()}
    data.to_zarr(file, encoding=encoding, consolidated=False)


def open_zarr(file: Path) -> Any:
    """Open a dataset in its own chunks."""
    return importlib.import_module("xarray").open_zarr(file, consolidated=False)


def fresh(directory: Path, name: str) -> Path:
    """Return where a result may be written, with nothing there."""
    target = directory / f"{name}-result.zarr"
    shutil.rmtree(target, ignore_errors=True)
    return target


def sizes(*values: Any) -> NDArray[np.float64]:
    """Return the root of the mean square of arrays, and their largest number.

    Both are far from zero where a mean may not be, so that results can be compared relative to them.
    """
    found = []
    for each in values:
        array = np.asarray(each, dtype=np.float64)
        found += [np.sqrt(np.nanmean(array**2)), np.nanmax(np.abs(array))]
    return np.array(found)


def sizes_of_store(file: Path) -> NDArray[np.float64]:
    """Return `sizes` of what has been written into a store."""
    with open_zarr(file).chunk(None) as data:
        return sizes(*[data[name] for name in sorted(data)])


def sizes_of_dataset(data: Any) -> NDArray[np.float64]:
    """Return `sizes` of the variables of a dataset."""
    return sizes(*[data[name] for name in sorted(data)])
