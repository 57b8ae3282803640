"""Work with arrays that are stacked from many files.

It follows the array chapters of the Dask tutorial (https://tutorial.dask.org/02_array.html) and of the Dask
examples (https://examples.dask.org/array.html): random numbers in blocks, slices, transposes, other chunks, and a
stack of HDF5 files, one for each day, which is thinned out and written to another HDF5 file. Run it with::

    python examples/tutorials/arrays.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import dask
import dask.array as da
import h5py
import numpy as np
import numpy.typing as npt

DAYS, ROWS, COLUMNS = 12, 360, 720


def write_days(folder: Path) -> npt.NDArray[np.float32]:
    """Write a temperature field for each day to a file of its own; return all of them for comparison."""
    rng = np.random.default_rng(0)
    warmth = 300 - 40 * np.linspace(-1, 1, ROWS)[:, np.newaxis] ** 2
    fields = (warmth + rng.normal(0, 4, (DAYS, ROWS, COLUMNS))).astype(np.float32)
    for day, field in enumerate(fields):
        with h5py.File(folder / f"2020-01-{day + 1:02}.hdf5", "w") as file:
            file.create_dataset("t2m", data=field, chunks=(120, 240))
    return fields


def block_arithmetic() -> None:
    """Add a matrix to its transpose, and look at a part of the sum."""
    x = da.random.default_rng(1).random((2000, 2000), chunks=(500, 500))
    y = x + x.T
    z = y[::2, 1000:].mean(axis=1)
    values, part, spread = dask.compute(x, z, y.rechunk((2000, 200)).std(axis=0))

    both = values + values.T
    np.testing.assert_allclose(part, both[::2, 1000:].mean(axis=1), err_msg="mean of a slice")
    np.testing.assert_allclose(spread, both.std(axis=0), err_msg="deviation of each column")
    print(f"x + x.T in {x.npartitions} blocks: mean of a part {part.mean():.6f}, deviation {spread.mean():.6f}")


def stack_of_files(folder: Path) -> None:
    """Read one HDF5 file a day as a single array, and write a smaller one."""
    expected = write_days(folder)
    files = [h5py.File(path, "r") for path in sorted(folder.glob("2020-*.hdf5"))]
    try:
        days = [da.from_array(file["t2m"], chunks=(120, 240)) for file in files]
        x = da.stack(days, axis=0)
        print(f"{len(files)} files make an array of shape {x.shape} in {x.npartitions} blocks")

        anomaly = x[0] - x.mean(axis=0)
        hottest = x.reshape(DAYS, -1).argmax(axis=1)
        anomaly_values, hottest_values = dask.compute(anomaly, hottest)
        np.testing.assert_allclose(anomaly_values, expected[0] - expected.mean(axis=0), atol=1e-3)
        np.testing.assert_array_equal(hottest_values, expected.reshape(DAYS, -1).argmax(axis=1))
        print(f"day 1 differs from the mean by {anomaly_values.min():.2f} to {anomaly_values.max():.2f} K")

        thin = da.coarsen(np.mean, x, {1: 4, 2: 4})
        da.to_hdf5(str(folder / "thin.hdf5"), "/t2m", thin)
    finally:
        for file in files:
            file.close()

    with h5py.File(folder / "thin.hdf5", "r") as file:
        written = file["t2m"][:]
    blocks = expected.reshape(DAYS, ROWS // 4, 4, COLUMNS // 4, 4)
    np.testing.assert_allclose(written, blocks.mean(axis=(2, 4)), rtol=1e-5, err_msg="thinned file")
    print(f"thinned out to {written.shape}: {written.mean():.3f} K on average")


def main(scheduler: str = "mars") -> None:
    with dask.config.set(scheduler=scheduler), tempfile.TemporaryDirectory() as folder:
        block_arithmetic()
        stack_of_files(Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
