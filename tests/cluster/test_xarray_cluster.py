"""xarray on one machine and on a cluster: the same numbers as under threads, from one zarr store to another."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

import dask_mars
from benchmarks.climatology import compare, compute, make_store

xarray = pytest.importorskip("xarray")
pytest.importorskip("distributed")

from distributed import Client  # noqa: E402

Get = Callable[..., Any]

# Zarr says with each store that its consolidated metadata are not in its specification.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]

#: 19 MB in chunks of a month.
DAYS, GRID = 31 * 8, (120, 160)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, zarr: Any) -> Path:
    path = tmp_path_factory.mktemp("source") / "daily.zarr"
    assert make_store(path, DAYS, GRID) == DAYS * 120 * 160 * 4
    return path


@pytest.fixture(params=[pytest.param("one machine", marks=pytest.mark.nightly), "cluster"])
def get(request: pytest.FixtureRequest, runtime: Any, cluster: Any) -> Iterator[Get]:
    """Return a scheduler of ours."""
    if request.param == "one machine":
        yield runtime.get
        return
    with Client(cluster, set_as_default=False) as client:
        yield partial(dask_mars.get, client=client)


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    with xarray.open_zarr(path) as data:
        yield data


def bare(data: Any) -> Any:
    """Return data that is written as it comes, whatever it was like in the file that it was read from."""
    return data.drop_encoding()


def test_climatology_and_anomaly_are_the_same_from_store_to_store(source, get, tmp_path, zarr):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    compute(get, source, ours, "month")
    compute(dask.threaded.get, source, theirs, "month")
    found = compare(ours, theirs)
    # 8 chunks of anomalies, those of the months, and coordinates.
    assert found.chunks > 8 + 9
    assert not found.different, found
    # The comparison finds what is not the same.
    anomaly = zarr.open_group(ours)["anomaly/t2m"]
    anomaly[40] = anomaly[40] + 1
    found = compare(ours, theirs)
    assert (found.different, round(found.largest, 3)) == (1, 1.0)
    shutil.rmtree(ours / "climatology" / "lat")
    assert compare(ours, theirs).largest == float("inf")


CALLS: dict[str, Callable[[Any], Any]] = {
    "resample": lambda data: data.resample(time="MS").mean(),
    "rolling": lambda data: data.rolling(time=7, center=True).mean(),
    "chunk": lambda data: data.chunk(time=-1, lat=60).t2m.quantile(0.9, "time"),
    "coarsen": lambda data: data.coarsen(lat=5, lon=4).mean(),
    "weighted": lambda data: data.t2m.weighted(np.cos(np.deg2rad(data.lat))).mean(("lat", "lon")),
    "where": lambda data: data.where(data.t2m > 10).max("time"),
    "idxmax": lambda data: data.t2m.chunk(time=-1).idxmax("time"),
    "sel": lambda data: data.t2m.sel(lat=10, method="nearest").isel(time=[3, 200, 4]),
    "groupby.map": lambda data: data.t2m.groupby("time.season").map(lambda part: part - part.mean("time")),
    "apply_ufunc": lambda data: xarray.apply_ufunc(
        lambda values: np.sort(values, axis=-1)[..., -3],
        data.t2m.chunk(time=-1, lat=60),
        input_core_dims=[["time"]],
        dask="parallelized",
        output_dtypes=["f4"],
    ),
    "map_blocks": lambda data: xarray.map_blocks(lambda block: block - block.mean(), data, template=data),
}


def dtypes(data: Any) -> dict[str, np.dtype[Any]]:
    return dict(data.dtypes) if isinstance(data, xarray.Dataset) else {"": data.dtype}


@pytest.mark.parametrize("name", CALLS)
def test_methods_give_the_same(source, get, name):
    with opened(source) as data:
        made = CALLS[name](data)
        ours, theirs = (made.compute(scheduler=scheduler) for scheduler in (get, "threads"))
    xarray.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert dtypes(ours) == dtypes(theirs)


def in_one_go(data: Any, path: Path) -> None:
    data.to_zarr(path)


def appended(data: Any, path: Path) -> None:
    data.isel(time=slice(0, 155)).to_zarr(path)
    data.isel(time=slice(155, None)).to_zarr(path, append_dim="time")


@pytest.mark.parametrize("write", [in_one_go, appended])
def test_stores_are_written_in_every_way(source, get, tmp_path, write):
    with opened(source) as data:
        with dask.config.set(scheduler=get):
            write(bare(data * 2), tmp_path / "out.zarr")
        with opened(tmp_path / "out.zarr") as written:
            xarray.testing.assert_equal(written.load(), (data * 2).compute(scheduler="threads"))


def test_data_kept_on_the_cluster_are_used_there(source, cluster):
    with Client(cluster), opened(source) as data:
        kept = data.persist(scheduler=dask_mars.get)
        ours = kept.t2m.std("time").compute(scheduler=dask_mars.get)
        del kept
        xarray.testing.assert_allclose(ours, data.t2m.std("time").compute(scheduler="threads"), rtol=1e-6)
