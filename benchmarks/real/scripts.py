"""Programs as people write them: a first computation in a new process, and functions of their own.

``python -m benchmarks.real.scripts`` runs each in new processes by Dask's threads and by dask_mars in turn, and
prints the medians of first and later computations. With ``--arrays`` one program computes with large arrays of its
own, fresh and after a function of the user's has run.
"""

from __future__ import annotations

import contextlib
import json
import random
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

_dask: Any = dask
da: Any = dask.array

Compute = Callable[[], Any]

_PEERS = ("threads", "mars")
#: Computations in a process.
_RUNS = 3
#: Seconds between imports and the first computation, in which people make or read their data.
_PAUSE_S = 1.0
#: Maximum seconds of a process.
_TIMEOUT_S = 300


# -- functions of the user's --------------------------------------------------------------------------------------


def fit_gamma(series: Any) -> Any:
    """Return the shape and the scale of a gamma distribution fitted to a series."""
    from scipy import stats

    shape, _, scale = stats.gamma.fit(series, floc=0)
    return np.array([shape, scale])


def load(number: int) -> list[dict[str, Any]]:
    """Return records as a service would."""
    generator = random.Random(number)
    return [{"id": n, "kind": generator.choice("abcdef"), "size": generator.random()} for n in range(5_000)]


def summarise(records: list[dict[str, Any]]) -> dict[str, float]:
    """Return the total size by kind."""
    totals: dict[str, float] = {}
    for record in records:
        totals[record["kind"]] = totals.get(record["kind"], 0.0) + record["size"] ** 2
    return totals


def merge(parts: list[dict[str, float]]) -> dict[str, float]:
    """Return the sums of summaries."""
    totals: dict[str, float] = {}
    for part in parts:
        for kind, size in part.items():
            totals[kind] = totals.get(kind, 0.0) + size
    return totals


def is_large(record: dict[str, Any]) -> bool:
    """Return whether a record counts."""
    return bool(record["size"] > 0.25)


def kind_of(record: dict[str, Any]) -> str:
    """Return what records are grouped by."""
    return str(record["kind"])


def add_size(total: float, record: dict[str, Any]) -> float:
    """Return a total with one record more."""
    return total + float(record["size"])


def add(first: float, second: float) -> float:
    """Return the sum of totals."""
    return first + second


def throw(seed: int, count: int) -> int:
    """Return how many random points lie in the unit circle."""
    generator = random.Random(seed)
    return sum(generator.random() ** 2 + generator.random() ** 2 < 1 for _ in range(count))


def sharpen(tile: Any) -> Any:
    """Return a tile with its edges stressed."""
    from scipy import ndimage

    smooth = ndimage.gaussian_filter(tile, 3)
    return ndimage.median_filter(tile + 0.5 * (tile - smooth), size=3)


def trend(series: Any) -> Any:
    """Return the coefficients of a parabola fitted to a series."""
    return np.polyfit(np.arange(len(series)), series, 2)


def vapour_pressure(celsius: Any) -> Any:
    """Return the pressure of saturated water vapour in hPa, after Magnus."""
    return 6.112 * np.exp(17.62 * celsius / (243.12 + celsius))


def edges(image: Any) -> Any:
    """Return Sobel's gradient of a block with its halo."""
    across = image[:-2, 2:] + 2 * image[1:-1, 2:] + image[2:, 2:]
    across -= image[:-2, :-2] + 2 * image[1:-1, :-2] + image[2:, :-2]
    down = image[2:, :-2] + 2 * image[2:, 1:-1] + image[2:, 2:]
    down -= image[:-2, :-2] + 2 * image[:-2, 1:-1] + image[:-2, 2:]
    found = np.zeros_like(image)
    found[1:-1, 1:-1] = np.sqrt(across * across + down * down)
    return found


def add_one(block: Any) -> Any:
    """Return a block plus one."""
    return block + 1


# -- programs -----------------------------------------------------------------------------------------------------


def _per_pixel(function: Callable[[Any], Any], count: int, pixels: int, values: Any) -> Compute:
    import xarray

    data: Any = xarray.DataArray(values, dims=("time", "pixel")).chunk(pixel=-(-pixels // 8))

    def compute() -> Any:
        return xarray.apply_ufunc(
            function,
            data,
            input_core_dims=[["time"]],
            output_core_dims=[["coefficient"]],
            vectorize=True,
            dask="parallelized",
            output_dtypes=["f8"],
            dask_gufunc_kwargs={"output_sizes": {"coefficient": count}},
        ).compute()

    return compute


def _gamma(directory: Path) -> Compute:
    return _per_pixel(fit_gamma, 2, 2_000, np.random.default_rng(0).gamma(2.0, 3.0, (120, 2_000)))


def _polyfit(directory: Path) -> Compute:
    return _per_pixel(trend, 3, 16_000, np.random.default_rng(0).random((120, 16_000)))


def _dicts(directory: Path) -> Compute:
    summaries = [_dask.delayed(summarise)(_dask.delayed(load)(number)) for number in range(400)]
    return _dask.delayed(merge)(summaries).compute  # type: ignore[no-any-return]


def _lines(directory: Path) -> Compute:
    import dask.bag

    files = directory / "lines"
    if not files.exists():
        files.mkdir()
        for number in range(24):
            text = "\n".join([json.dumps(record) for record in load(number) * 4])
            (files / f"{number:02}.json").write_text(text)
    bag: Any = dask.bag
    records = bag.read_text(str(files / "*.json")).map(json.loads).filter(is_large)
    return records.foldby(kind_of, add_size, 0.0, add, 0.0).compute  # type: ignore[no-any-return]


def _monte_carlo(directory: Path) -> Compute:
    counts = [_dask.delayed(throw)(seed, 150_000) for seed in range(64)]
    return _dask.delayed(sum)(counts).compute  # type: ignore[no-any-return]


def _image(directory: Path) -> Compute:
    image = da.from_array(np.random.default_rng(0).random((3_000, 3_000)), chunks=500)
    return image.map_overlap(sharpen, depth=12, boundary="reflect").compute  # type: ignore[no-any-return]


def _formula(directory: Path) -> Compute:
    import xarray

    values = np.random.default_rng(0).random((6_000, 6_000)) * 30
    celsius: Any = xarray.DataArray(values, dims=("time", "cell")).chunk(1_500)
    return (
        xarray.apply_ufunc(vapour_pressure, celsius, dask="parallelized", output_dtypes=["f8"])
        .mean("time")
        .compute
    )


def _edges(directory: Path) -> Compute:
    image = da.from_array(np.random.default_rng(0).random((6_000, 6_000)), chunks=1_500)
    return image.map_overlap(edges, depth=1, boundary="nearest").mean().compute  # type: ignore[no-any-return]


#: The programs by name: each makes its data, and returns what is timed.
SCRIPTS: dict[str, Callable[[Path], Compute]] = {
    "gamma": _gamma,
    "dicts": _dicts,
    "lines": _lines,
    "monte-carlo": _monte_carlo,
    "image": _image,
    "polyfit": _polyfit,
    "formula": _formula,
    "edges": _edges,
}


def _arrays() -> dict[str, Compute]:
    """Return computations of arrays of 512 MB, and a frame, in the memory of this process."""
    import dask.dataframe
    import pandas as pd

    values = np.random.default_rng(0).random((8_000, 8_000))
    x, small = da.from_array(values, chunks=1_000), da.from_array(values[:2_000, :2_000], chunks=500)
    count = 4_000_000
    keys = np.random.default_rng(1).integers(0, 100, count)
    frame: Any = pd.DataFrame({"key": keys, "value": np.arange(count, dtype="f8")})
    frames: Any = dask.dataframe
    return {
        "sum": x.sum().compute,
        "products": (small @ small.T).sum().compute,
        "chain": (da.sqrt(x * 2 + 1) - x).mean().compute,
        "frame": frames.from_pandas(frame, npartitions=8).groupby("key").value.sum().compute,
    }


# -- measuring ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _scheduler(peer: str, workers: int) -> Iterator[None]:
    with _dask.config.set(scheduler=peer, num_workers=workers):
        yield


def _timed(compute: Compute) -> float:
    begun_s = time.perf_counter()
    compute()
    return time.perf_counter() - begun_s


def _run_script(name: str, directory: Path) -> dict[str, list[float]]:
    compute = SCRIPTS[name](directory)
    time.sleep(_PAUSE_S)
    first, *later = [_timed(compute) for _ in range(_RUNS)]
    return {"first": [first], "later": later}


def _run_arrays() -> dict[str, list[float]]:
    computations = _arrays()
    times = {f"{name}, fresh": [_timed(compute) for _ in range(5)] for name, compute in computations.items()}
    da.ones(8, chunks=2).map_blocks(add_one).compute()
    later = {f"{name}, later": [_timed(compute) for _ in range(5)] for name, compute in computations.items()}
    return {**times, **later}


def _in_new_process(*arguments: str) -> dict[str, list[float]]:
    command = [sys.executable, "-m", "benchmarks.real.scripts", "--child", *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=_TIMEOUT_S)
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def _measure(name: str, rounds: int, workers: int, directory: str) -> None:
    """Print the medians of both schedulers, and their ratio."""
    times: dict[str, dict[str, list[float]]] = {peer: {} for peer in _PEERS}
    for number in range(rounds):
        # Both begin as often as second.
        for peer in _PEERS[:: 1 - 2 * (number % 2)]:
            for what, seconds in _in_new_process(name, peer, str(workers), directory).items():
                times[peer].setdefault(what, []).extend(seconds)
    for what in times["threads"]:
        threads_s, mars_s = (statistics.median(times[peer][what]) for peer in _PEERS)
        print(f"{name:12} {what:18} {threads_s:7.3f} {mars_s:7.3f} s  {mars_s / threads_s:5.2f}", flush=True)


@click.command()
@click.option("--rounds", default=3, help="Processes for each scheduler and script.")
@click.option("--workers", default=2)
@click.option("--arrays", is_flag=True, help="Measure arrays in memory instead of scripts.")
@click.option("-w", "--workload", "names", multiple=True, type=click.Choice(list(SCRIPTS)))
@click.option("--child", nargs=4, type=str, hidden=True)
def main(
    rounds: int, workers: int, arrays: bool, names: tuple[str, ...], child: tuple[str, str, str, str] | None
) -> None:
    """Time scripts in new processes, by Dask's threads and by dask_mars."""
    if child is not None:
        name, peer, count, directory = child
        if peer == "mars":
            import dask_mars  # noqa: F401
        with _scheduler(peer, int(count)):
            found = _run_arrays() if name == "arrays" else _run_script(name, Path(directory))
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as directory:
        for name in ["arrays"] if arrays else names or SCRIPTS:
            _measure(name, rounds, workers, directory)


if __name__ == "__main__":
    main()
