"""What `studies checkpoint` kills: a computation under a checkpoint, and the functions of its tasks."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np

import dask_mars
from dask_mars import Runtime

WORKERS = 2
#: Side of a chunk.
_SIDE = 64


def step(block: np.ndarray[Any, Any], calls: str, seconds: float) -> np.ndarray[Any, Any]:
    """Note the call in a file, take some time, and return something that depends on all of the block."""
    descriptor = os.open(calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, b".")
    os.close(descriptor)
    time.sleep(seconds)
    return np.sin(block)


def stepped(folder: Path, count: int, seconds: float) -> da.Array:
    """Return an array of so many chunks, each of which takes so long."""
    x = da.random.default_rng(20).random((count * _SIDE, _SIDE), chunks=_SIDE)
    return x.map_blocks(step, str(folder / "calls"), seconds, dtype=float, meta=np.empty((0, 0)))


def computed(kind: str, folder: Path, count: int, seconds: float, scheduler: Any) -> str:
    """Compute, and return what tells one result from another.

    Parameters
    ----------
    kind : {"sum", "zarr", "xarray"}
        What: a sum, or the whole array into a store.
    folder : Path
        Where calls are noted, and stores are.
    count : int
        Of chunks.
    seconds : float
        That each takes.
    scheduler : callable
        What computes.
    """
    x = stepped(folder, count, seconds)
    if kind == "sum":
        return float(x.sum().compute(scheduler=scheduler)).hex()
    import dask

    path = folder / "target.zarr"
    with dask.config.set(scheduler=scheduler):
        if kind == "xarray":
            import xarray as xr

            # What is there is kept: to begin anew is to lose what is written.
            xr.Dataset({"x": (("row", "column"), x)}).to_zarr(path, mode="a", consolidated=False)
        else:
            import zarr

            target = zarr.open_array(path, mode="a", shape=x.shape, chunks=x.chunksize, dtype=x.dtype)
            da.store(x, target, lock=False)
    return digest_of(path)


def digest_of(directory: Path) -> str:
    """Return a digest of the chunks in a directory."""
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path.suffix != ".json":
            digest.update(f"{path.relative_to(directory)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def main(kind: str, folder: Path, count: int, seconds: float) -> None:
    """Compute under a checkpoint, and write down when that begins, and what comes of it."""
    (folder / "begun").touch()
    with Runtime(WORKERS) as runtime, dask_mars.checkpoint(folder / "saved"):
        found = computed(kind, folder, count, seconds, runtime.get)
        # What is not written down when the block ends is nobody's.
        (folder / "partial").write_text(json.dumps(found))
        (folder / "partial").rename(folder / "result")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
