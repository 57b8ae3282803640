"""Programs after the docs of Dask and Pangeo, on a stock `LocalCluster`, and after one line that takes it over.

``python -m benchmarks.cluster.scripts`` runs each on fresh clusters of two workers in turn, and prints medians.
"""

from __future__ import annotations

import contextlib
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import dask
import dask.array
import numpy as np

from benchmarks.functions import add

_dask: Any = dask
da: Any = dask.array

_PEERS = ("stock", "mars")
#: Runs on a cluster.
_RUNS = 3
#: Maximum seconds of a process.
_TIMEOUT_S = 600


# -- functions of the user's --------------------------------------------------------------------------------------


def load(number: int) -> Any:
    """Return numbers as a file would have them."""
    return np.random.default_rng(number).random(200_000)


def process(first: Any, second: Any) -> Any:
    """Combine two files."""
    return np.sqrt(first * first + second * second)


def summarise(parts: list[Any]) -> float:
    """Return the mean of all parts."""
    return float(np.mean([part.mean() for part in parts]))


def simulate(parameter: float) -> float:
    """Return a sum that Python computes."""
    return float(sum([(step * parameter) % 7 for step in range(3_000)]))


# -- programs -----------------------------------------------------------------------------------------------------


def _arrays(client: Any, directory: Path) -> None:
    x = da.random.default_rng(42).random((10_000, 10_000), chunks=(1_000, 1_000))
    y = x + x.T
    y[::2, 5_000:].mean(axis=1).compute()
    y = y.persist()
    y[0, 0].compute()
    y.sum().compute()
    y.std(axis=0).compute()


def _frames(client: Any, directory: Path) -> None:
    frame: Any = _dask.datasets.timeseries("2000-01-01", "2000-02-15", seed=1, partition_freq="1D")
    frame[frame.y > 0].groupby("name").x.std().compute()
    frame.groupby("name").aggregate({"x": "sum", "y": "max"}).compute()
    frame = frame.persist()
    frame[["x", "y"]].resample("1h").mean().compute()
    frame.x.rolling("24h").mean().tail(5)
    frame.set_index("name").x.sum().compute()


def _futures(client: Any, directory: Path) -> None:
    delayed = _dask.delayed
    parts = [delayed(process)(delayed(load)(number), delayed(load)(number + 1)) for number in range(200)]
    delayed(summarise)(parts).compute()
    sum(client.gather(client.map(simulate, range(200))))
    level = [delayed(number) for number in range(512)]
    while len(level) > 1:
        level = [delayed(add)(*pair) for pair in zip(level[::2], level[1::2], strict=True)]
    level[0].compute()


def _make_fields(directory: Path) -> None:
    import pandas as pd
    import xarray as xr

    time_axis = pd.date_range("1980", "2019-12-31", freq="MS")
    values = np.random.default_rng(0).random((len(time_axis), 360, 720), "f4")
    coordinates = {"time": time_axis, "lat": np.linspace(-90, 90, 360), "lon": np.linspace(0, 360, 720)}
    fields = xr.Dataset({"sst": (("time", "lat", "lon"), values)}, coordinates)
    fields.chunk(time=20).to_zarr(directory / "surface.zarr")


def _climatology(client: Any, directory: Path) -> None:
    import xarray as xr

    surface = xr.open_zarr(directory / "surface.zarr").sst
    anomaly = surface.groupby("time.month") - surface.groupby("time.month").mean("time")
    anomaly.std("time").compute()
    weights = np.cos(np.deg2rad(surface.lat))
    anomaly.weighted(weights).mean(("lat", "lon")).rolling(time=12, center=True).mean().compute()


def _energy(client: Any, directory: Path) -> None:
    import xarray as xr

    generator = da.random.default_rng(3)
    fields = {
        name: (("time", "lat", "lon"), generator.normal(size=(730, 200, 360), chunks=(73, 200, 360)))
        for name in "uv"
    }
    flow = xr.Dataset(fields).persist()
    energy = 0.5 * ((flow.u - flow.u.mean("time")) ** 2 + (flow.v - flow.v.mean("time")) ** 2)
    energy.mean("time").compute()
    energy.mean(("lat", "lon")).compute()
    flow.u.chunk(time=-1, lat=50).quantile(0.9, "time").compute()


SCRIPTS: dict[str, Callable[[Any, Path], None]] = {
    "arrays": _arrays,
    "frames": _frames,
    "futures": _futures,
    "climatology": _climatology,
    "energy": _energy,
}


# -- measuring ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _client(peer: str) -> Iterator[Any]:
    from distributed import Client, LocalCluster

    logging.getLogger("distributed").setLevel(logging.ERROR)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        if peer == "mars":
            import dask_mars

            dask_mars.take_over(client)
        yield client


def _timed(name: str, client: Any, directory: Path) -> float:
    begun_s = time.perf_counter()
    SCRIPTS[name](client, directory)
    return time.perf_counter() - begun_s


@click.command()
@click.option("--rounds", default=2, help="Clusters for each peer and script.")
@click.option("-w", "--workload", "names", multiple=True, type=click.Choice(list(SCRIPTS)))
@click.option("--child", nargs=3, type=str, hidden=True)
def main(rounds: int, names: tuple[str, ...], child: tuple[str, str, str] | None) -> None:
    """Time scripts on stock clusters, and on the same ones after `take_over`."""
    if child is not None:
        name, peer, where = child
        with _client(peer) as client:
            print(json.dumps([_timed(name, client, Path(where)) for _ in range(_RUNS)]))
        return
    with tempfile.TemporaryDirectory() as directory:
        _make_fields(Path(directory))
        for name in names or SCRIPTS:
            times: dict[str, list[float]] = {peer: [] for peer in _PEERS}
            for number in range(rounds):
                for peer in _PEERS[:: 1 - 2 * (number % 2)]:
                    command = [sys.executable, "-m", __spec__.name, "--child", name, peer, directory]
                    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=_TIMEOUT_S)
                    times[peer] += json.loads(done.stdout.splitlines()[-1])
            stock_s, mars_s = (statistics.median(times[peer]) for peer in _PEERS)
            print(f"{name:12} {stock_s:7.2f} {mars_s:7.2f} s  {mars_s / stock_s:5.2f}", flush=True)


if __name__ == "__main__":
    main()
