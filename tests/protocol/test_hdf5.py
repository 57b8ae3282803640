"""Datasets of HDF5 files: those that are only read are read by workers, others in the user's process."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

from dask_mars.protocol.pickling import dumps, is_picklable

h5py = pytest.importorskip("h5py")

VALUES = np.arange(6000.0).reshape(60, 100)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["x"] = VALUES
        file.create_dataset("inner/packed", data=VALUES, chunks=(10, 10), compression="gzip", shuffle=True)
        file.create_dataset("fast", data=VALUES, chunks=(10, 10), compression="lzf")
        file["names"] = np.array(["a", "bc"] * 50, dtype=h5py.string_dtype())
        file.create_dataset("references", data=[file["x"].ref], dtype=h5py.ref_dtype)
    return path


@pytest.fixture
def file(path: Path) -> Iterator[Any]:
    with h5py.File(path, "r") as file:
        yield file


def who(block: np.ndarray) -> np.ndarray:
    return np.full_like(block, os.getpid())


def read_by(x: da.Array, get: Callable[..., Any]) -> set[int]:
    return {int(pid) for pid in np.unique(x.map_blocks(who, dtype="f8").compute(scheduler=get))}


@pytest.mark.parametrize("name", ["x", "inner/packed"])
def test_workers_read_what_is_open_for_reading(file, name, get):
    x = da.from_array(file[name], chunks=(10, 50))
    np.testing.assert_array_equal(x.compute(scheduler=get), VALUES)
    assert os.getpid() not in read_by(x, get)


def test_several_steps_over_a_dataset(file, get):
    x = da.from_array(file["x"], chunks=(10, 50), lock=True)
    found = dask.compute((x - x.mean(axis=0)).std(), x[3:12, ::4].T * 2, x[:, [5, 2, 2]], scheduler=get)
    expected = dask.compute((x - x.mean(axis=0)).std(), x[3:12, ::4].T * 2, x[:, [5, 2, 2]], scheduler="sync")
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-15)


def test_strings_and_datasets_as_arguments(file, get):
    names = da.from_array(file["names"], chunks=30)
    assert names.compute(scheduler=get).tolist() == [b"a", b"bc"] * 50
    assert dask.delayed(lambda data: type(data).__name__)(file["x"]).compute(scheduler=get) == "Dataset"


def test_in_the_same_process_it_is_the_same(file):
    dataset = file["x"]
    assert pickle.loads(dumps(dataset)) is dataset


def test_another_process_does_not_open_what_has_taken_its_place(path, file):
    payload = dumps([file["inner/packed"]])
    read = [sys.executable, "-c", "import pickle, sys; print(pickle.load(sys.stdin.buffer)[0][5, 7])"]
    other = path.with_name("other.h5")
    with h5py.File(other, "w") as another:
        another["inner/packed"] = VALUES + 1
    other.replace(path)
    done = subprocess.run(read, input=payload, capture_output=True, check=False)
    assert b"has changed since it was opened" in done.stderr


def test_what_can_be_read_here_alone_stays(path, file):
    assert is_picklable(file["x"])
    # What is read of it cannot travel.
    assert not is_picklable(file["references"])
    file.close()
    for mode in ("r+", "a"):
        with h5py.File(path, mode) as written:
            assert not is_picklable(written["x"])
    with h5py.File(path, "r", driver="core") as memory:
        assert not is_picklable(memory["x"])
    with open(path, "rb") as stream, h5py.File(stream, "r") as streamed:
        assert not is_picklable(streamed["x"])
    with h5py.File(path, "r") as gone:
        path.unlink()
        assert not is_picklable(gone["x"])


def test_a_file_that_is_replaced_meanwhile_is_read_in_the_users_process(path, file, get, monkeypatch):
    monkeypatch.setattr("dask_mars.protocol.hdf5._identity", lambda stat: (0, 0, 0))
    x = da.from_array(file["x"], chunks=(10, 50))
    np.testing.assert_array_equal(x.compute(scheduler=get), VALUES)
    assert read_by(x, get) == {os.getpid()}


def test_the_user_may_write_to_the_file_as_soon_as_the_results_are_there(path, get):
    for number in range(3):
        with h5py.File(path, "r") as file:
            expected = VALUES + (0 if not number else number - 1)
            np.testing.assert_array_equal(da.from_array(file["x"], chunks=10).compute(scheduler=get), expected)
        with h5py.File(path, "a") as file:
            file["x"][...] = VALUES + number
