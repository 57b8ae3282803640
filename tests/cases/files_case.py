"""Files that are written again as soon as what was read from them has been computed."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
import xarray as xr

from tests.cases.comparing import case, main

MODULES = {"h5netcdf": "h5netcdf", "scipy": "scipy", "netcdf4": "netCDF4"}
ENGINES = [engine for engine, module in MODULES.items() if importlib.util.find_spec(module) is not None]
VALUES = np.random.default_rng(3).normal(size=(40, 6))


def for_each_engine(correct: Callable[[Path, Any], Any]) -> dict[str, Any]:
    """Return by engine what a function returns that is given the path of a file, and the engine."""
    found = {}
    for engine in ENGINES:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "heights.nc")
            xr.Dataset({"height": (("day", "place"), VALUES)}).to_netcdf(path, engine=engine)
            found[engine] = correct(path, engine)
    return found


@case
def corrected_in_place() -> Any:
    def correct(path: Path, engine: Any) -> Any:
        for _ in range(3):
            with xr.open_dataset(path, engine=engine, chunks={"day": 11}) as dataset:
                corrected = (dataset * 2).compute()
            corrected.to_netcdf(path, engine=engine)
        return xr.load_dataset(path, engine=engine).height.to_numpy()

    return for_each_engine(correct)


def end_tasks_of_threads() -> None:
    """Wait for tasks that Dask's threads go on with after an error, and that would open a closed file again."""
    if (pool := dask.threaded.default_pool) is not None:
        together = threading.Barrier(pool._max_workers)
        list(pool.map(lambda _: together.wait(60), range(pool._max_workers)))
    gc.collect()


@case
def written_after_an_error() -> Any:
    def fail(block: Any) -> Any:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error

    def correct(path: Path, engine: Any) -> Any:
        with xr.open_dataset(path, engine=engine, chunks={"day": 11}) as dataset:
            with contextlib.suppress(ValueError):
                dataset.height.map_blocks(fail, template=dataset.height).compute()
            end_tasks_of_threads()
        xr.Dataset({"depth": ("place", np.arange(6))}).to_netcdf(path, engine=engine)
        return list(xr.load_dataset(path, engine=engine))

    return for_each_engine(correct)


if __name__ == "__main__":
    main()
