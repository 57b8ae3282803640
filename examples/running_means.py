"""Find the warmest and the coldest 20 days of a year at each place, with dask_mars and with threads.

A year of daily temperatures on a grid of a degree and a half is written into a Zarr store, and read by
Xarray. The numbers are made up: they have zones, seasons and weather. What is timed is reading and computing.
Run it with::

    pip install 'dask-mars[examples]'
    python examples/running_means.py
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import dask_mars

try:
    import click
    import pandas as pd
    import xarray as xr
    import zarr  # noqa: F401  Xarray writes stores with it.
    from rich.console import Console
    from rich.table import Table
except ImportError as error:
    raise SystemExit(
        f"This example needs {error.name}. Install it with: pip install 'dask-mars[examples]'"
    ) from error

#: Days of a chunk, and of the running mean.
CHUNK_DAYS, WINDOW = 20, 20
DAYS_OF_YEAR = 365.25

MARS, THREADS = "dask_mars", "Dask's threads"
#: What ``compute`` takes as its ``scheduler``, by the name to print.
SCHEDULERS: dict[str, Any] = {MARS: dask_mars.get, THREADS: "threads"}


def write_temperatures(store: Path, days: int, degrees: float) -> int:
    """Write daily temperatures in degrees Celsius.

    Parameters
    ----------
    store : Path
        Where to write them.
    days : int
        How many, from the first of January on.
    degrees : float
        Between one place of the grid and the next.

    Returns
    -------
    int
        Bytes that they take in memory.
    """
    latitude = np.arange(-90 + degrees / 2, 90, degrees)
    longitude = np.arange(0, 360, degrees)
    season = np.cos(np.arange(days) / DAYS_OF_YEAR * 2 * np.pi)
    zones = 50 * np.cos(np.radians(latitude)) - 20
    mean = zones + season[:, None] * np.sin(np.radians(latitude)) * -15
    weather = np.random.default_rng(1).normal(0, 4, (31, len(latitude), len(longitude)))
    # The same month of weather, further east: to draw it anew would take longer than all that is shown.
    fields = [np.roll(weather[day % 31], 7 * (day // 31), axis=1) + mean[day][:, None] for day in range(days)]
    # A tenth of a degree is what instruments tell.
    temperature = np.round(np.stack(fields), 1).astype("f4")
    data = xr.Dataset(
        {"temperature": (("time", "latitude", "longitude"), temperature)},
        {"time": pd.date_range("2024-01-01", periods=days), "latitude": latitude, "longitude": longitude},
    )
    encoding = {"temperature": {"chunks": (CHUNK_DAYS, len(latitude), len(longitude))}}
    data.to_zarr(store, encoding=encoding, consolidated=False)
    return temperature.nbytes


def describe(store: Path) -> xr.Dataset:
    """Open the store, and describe what is wanted of it, computing nothing."""
    temperature = xr.open_zarr(store, consolidated=False).temperature
    running = temperature.rolling(time=WINDOW).mean()
    return xr.Dataset({"warmest": running.max("time"), "coldest": running.min("time")})


def run(store: Path, repeat: int) -> tuple[xr.Dataset, dict[str, list[float]]]:
    """Compute it with both schedulers by turns, and see that they agree.

    Parameters
    ----------
    store : Path
        What to read.
    repeat : int
        How often to compute it with each scheduler, after a first time.

    Returns
    -------
    result : Dataset
        The result of dask_mars.
    seconds : dict
        The time of every run by scheduler, from opening the store to the result.
    """
    seconds: dict[str, list[float]] = {name: [] for name in SCHEDULERS}
    result: xr.Dataset | None = None
    # What Xarray loads when it opens a first store is nobody's time.
    describe(store)
    for turn in range(repeat + 1):
        # Who goes first alternates, so that a slow spell of the machine favours neither.
        for name in [MARS, THREADS] if turn % 2 == 0 else [THREADS, MARS]:
            start = time.perf_counter()
            found = describe(store).compute(scheduler=SCHEDULERS[name])
            seconds[name].append(time.perf_counter() - start)
            result = found if result is None else result
            xr.testing.assert_allclose(found, result, rtol=1e-4)
    assert result is not None
    return result, seconds


def zone_table(result: xr.Dataset) -> Table:
    """Return the means of zones of 30 degrees as a table to print."""
    table = Table(title="Means of 20 days, degrees Celsius", title_justify="left")
    for heading in ("latitude", "coldest", "warmest"):
        table.add_column(heading, justify="right")
    for south in range(60, -91, -30):
        zone = result.sel(latitude=slice(south, south + 30)).mean()
        table.add_row(f"{south} to {south + 30}", f"{zone.coldest:.1f}", f"{zone.warmest:.1f}")
    return table


def time_table(seconds: dict[str, list[float]]) -> Table:
    """Return the schedulers' times, first runs apart, as a table to print."""
    table = Table(title="Seconds, and their ratio to those of threads", title_justify="left")
    for heading in ("scheduler", "first run", "time / threads", "later runs", "median", "time / threads"):
        table.add_column(heading, justify="left" if heading == "scheduler" else "right")
    medians = {name: statistics.median(runs[1:]) for name, runs in seconds.items()}
    for name, (first, *later) in seconds.items():
        table.add_row(
            name,
            f"{first:.2f}",
            f"{first / seconds[THREADS][0]:.2f}",
            "  ".join(f"{spent:.2f}" for spent in later),
            f"{medians[name]:.2f}",
            f"{medians[name] / medians[THREADS]:.2f}",
        )
    return table


@click.command()
@click.option("--days", type=click.IntRange(min=40), default=365, show_default=True, help="Days of temperatures.")
@click.option(
    "--degrees",
    type=click.FloatRange(min=0.25, max=10),
    default=1.5,
    show_default=True,
    help="Between one place of the grid and the next.",
)
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Runs of each scheduler, after a first one.",
)
def main(days: int, degrees: float, repeat: int) -> None:
    """Find the warmest and the coldest 20 days of a year at each place, with dask_mars and with Dask's threads."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="temperatures-") as folder:
        store = Path(folder) / "temperatures.zarr"
        start = time.perf_counter()
        size = write_temperatures(store, days, degrees)
        console.print(f"{size / 1e6:.0f} MB of temperatures: written in {time.perf_counter() - start:.1f} s")
        result, seconds = run(store, repeat)
    for table in (zone_table(result), time_table(seconds)):
        console.print(table)
    console.print("Both schedulers gave the same results.")


if __name__ == "__main__":
    main()
