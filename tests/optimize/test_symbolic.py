"""Random programs over arrays: their symbolic graphs come to what Dask's own scheduler makes of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from dask_mars.optimize.fronts import ReadOptions, symbolic_graph
from tests.array_calls import CALLS, Arrays
from tests.symbolic import Here, assert_identical

pytest.importorskip("xarray")
pytest.importorskip("dask.dataframe")

from tests.fuzz.making import programs
from tests.fuzz.programs import Program
from tests.fuzz.running import Difference, is_unsteady, run, silenced


class InPlace(Here):
    """Leaves to Dask what has no layers."""

    def __call__(self, dsk: Any, keys: Any, **options: Any) -> Any:
        if symbolic_graph(dsk, ReadOptions()) is None:
            return dask.get(dsk, keys)
        return super().__call__(dsk, keys, **options)


few = settings(phases=[Phase.generate], derandomize=True, database=None, suppress_health_check=list(HealthCheck))


def assert_same(program: Program) -> None:
    with silenced():
        found = run(program, InPlace())
        assert not isinstance(found, Difference) or is_unsteady(program), f"{program}\n\n{found}"


@pytest.mark.filterwarnings("ignore")
@settings(few, max_examples=6)
@given(programs(theme="arrays"))
def test_programs_come_to_what_dask_makes_of_them(program: Program) -> None:
    assert_same(program)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@settings(few, max_examples=60)
@given(programs(theme="arrays"))
def test_many_programs_do(program: Program) -> None:
    assert_same(program)


def test_threads_that_compute_at_the_same_time_get_their_own_results(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)

    def when_both_are_called(dsk: Any, options: ReadOptions) -> Any:
        found = symbolic_graph(dsk, options)
        both.wait(60)
        return found

    monkeypatch.setattr("tests.symbolic.symbolic_graph", when_both_are_called)
    scheduler = Here()
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit((da.arange(4, chunks=2) + added).compute, scheduler=scheduler) for added in (0, 9)]
        assert [future.result(60).tolist() for future in futures] == [[0, 1, 2, 3], [9, 10, 11, 12]]


#: Of all kinds; what is computed in this process elsewhere is computed by workers here.
SAMPLE = ["ma.average", "linalg.svd", "fft.fft2", "random.choice", "overlap.overlap", *list(CALLS)[::30]]


@pytest.mark.filterwarnings("ignore")
def test_workers_come_to_the_same(get: Callable[..., Any]) -> None:
    made = [CALLS[name](Arrays()) for name in SAMPLE]
    assert_identical(dask.compute(made, scheduler=get), dask.compute(made, scheduler="sync"))


# -- files --------------------------------------------------------------------------------------------------------


def test_zarr(tmp_path: Path, zarr: Any, get: Callable[..., Any]) -> None:
    values = np.arange(600.0).reshape(20, 30)
    for scheduler, name in ((Here(), "here"), (get, "workers")):
        path = str(tmp_path / name)
        with dask.config.set(scheduler=scheduler):
            da.to_zarr(da.from_array(values, chunks=8) + 1, path)
            x = da.from_zarr(path)[3:12, ::4].T * 2
            np.testing.assert_array_equal(x.compute(), (values + 1)[3:12, ::4].T * 2)


def test_hdf5(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    values = np.arange(600.0).reshape(20, 30)
    with h5py.File(tmp_path / "file.h5", "w") as file:
        source = file.create_dataset("x", data=values)
        x = da.from_array(source, chunks=8, fancy=False, lock=True)
        index = (slice(3, 12), slice(None, None, 4))
        np.testing.assert_array_equal(x[index].sum(axis=1).compute(scheduler=Here()), values[index].sum(axis=1))
        np.testing.assert_array_equal(x[:, [5, 2, 2]].compute(scheduler=Here()), values[:, [5, 2, 2]])


def test_npy_stack(tmp_path: Path) -> None:
    values = np.arange(600.0).reshape(20, 30)
    da.to_npy_stack(str(tmp_path), da.from_array(values, chunks=8))
    np.testing.assert_array_equal(
        da.from_npy_stack(str(tmp_path))[3:12, 4].compute(scheduler=Here()), values[3:12, 4]
    )
