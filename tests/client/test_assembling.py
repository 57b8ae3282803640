"""Assembly reads chunks in place, and what it returns is the user's own."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest

from dask_mars.client import assembling
from dask_mars.store.store import Store

xarray = pytest.importorskip("xarray")

_SHAPE = (300, 400)


def _array(chunks: int):
    x = da.from_array(np.arange(120_000.0).reshape(_SHAPE), chunks=chunks).map_blocks(np.negative)
    return xarray.DataArray(
        x, dims=("time", "cell"), coords={"time": np.arange(300)}, name="x", attrs={"unit": "K"}
    )


@pytest.mark.parametrize("chunks", [150, 400])
def test_xarrays_objects_are_assembled_from_chunks_in_place(get, monkeypatch, chunks):
    load_copy, copied = Store.load_copy, []
    monkeypatch.setattr(Store, "load_copy", lambda store, ref: copied.append(ref) or load_copy(store, ref))
    array = _array(chunks)
    dataset = xarray.Dataset({"x": array, "first": array[0], "loaded": ("cell", np.arange(400))})
    results = dask.compute(array, dataset, scheduler=get)
    assert not copied
    for result, expected in zip(results, dask.compute(array, dataset, scheduler="sync"), strict=True):
        xarray.testing.assert_identical(result, expected)
    for data in (results[0].data, *(results[1][name].data for name in ("x", "first"))):
        assert type(data) is np.ndarray
        assert data.flags.owndata
        data += 1


def test_what_is_not_an_array_is_copied_first(get):
    x = da.ma.masked_greater(_array(150).data, -50.0)
    masked = xarray.Dataset({"x": (("time", "cell"), x)})
    (result,), (expected,) = (dask.compute(masked, scheduler=scheduler) for scheduler in (get, "sync"))
    xarray.testing.assert_identical(result, expected)
    result["x"].data[:] = 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: da.arange(1000, chunks=300) + 1,
        lambda: da.arange(1000, chunks=300).reshape((10, 10, 10)).astype("f4")[:, ::2],
        lambda: da.from_array(np.arange(3000.0).reshape(60, 50), chunks=((50, 0, 10), (7, 43))) * 2,
        lambda: da.concatenate([da.arange(10, chunks=5), da.arange(10.0, chunks=5)]) * 1,
        lambda: da.arange(100, chunks=30).map_blocks(lambda x: x[x > 50], chunks=(np.nan,)),
        lambda: da.arange(40, chunks=20).astype("O"),
        lambda: da.ma.masked_greater(da.arange(40, chunks=20), 7),
        lambda: da.arange(40, chunks=20).map_blocks(lambda x: x[:, None], chunks=(20,)),
    ],
)
def test_large_arrays_are_copied_in_threads(get, monkeypatch, make):
    monkeypatch.setattr(assembling, "_LARGE_BYTES", 0)
    results = []
    for scheduler in (get, "sync"):
        try:
            results.append(make().compute(scheduler=scheduler))
        except ValueError as error:
            results.append(error)
    result, expected = results
    assert type(result) is type(expected)
    if isinstance(expected, np.ndarray):
        assert (result.dtype, result.shape, result.strides) == (expected.dtype, expected.shape, expected.strides)
        assert result.flags.owndata == expected.flags.owndata
        np.testing.assert_array_equal(result, expected)
    else:
        assert str(result) == str(expected)


def test_an_array_that_does_not_fit_in_memory_is_an_error(get, monkeypatch):
    monkeypatch.setattr(assembling, "_LARGE_BYTES", 0)

    def empty(*args, **keywords):
        raise MemoryError

    monkeypatch.setattr(assembling, "np", type("np", (), {"empty": empty, "ndarray": np.ndarray}))
    with pytest.raises(MemoryError):
        (da.arange(1000, chunks=300) + 1).compute(scheduler=get)
