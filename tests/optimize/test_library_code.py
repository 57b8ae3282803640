"""What counts as library code: nothing of the user's may run in the user's process by mistake."""

import functools
import operator

import dask
import dask.array as da
import numpy as np
import pytest

from dask_mars.optimize import library_code
from dask_mars.optimize.library_code import FRAMES, is_library_code, library_modules
from dask_mars.optimize.prepare import prepare


def own(block):
    return block


@functools.wraps(np.sum)
def disguised(block):
    return block


class OwnArray:
    shape, ndim, dtype = (10, 10), 2, np.dtype(float)

    def __getitem__(self, index):
        return np.ones(self.shape)[index]


class OwnSubclass(np.ndarray):
    pass


ones = da.ones((10, 10), chunks=5)

LIBRARY = {
    "arithmetic": lambda: ((ones * 2 + 1) ** 0.5).sum(),
    "random": lambda: da.random.default_rng(1).normal(size=(10, 10), chunks=5).std(axis=0),
    "where": lambda: da.where(ones > 0, ones, np.nan),
    "a matrix product": lambda: ones @ ones.T,
    "linear algebra": lambda: da.linalg.svd(ones.rechunk((5, 10)))[1],
    "a library's function on blocks": lambda: ones.map_blocks(np.sqrt),
    "a partial function": lambda: ones.map_blocks(functools.partial(np.clip, a_min=0, a_max=1)),
    "an array of the user's": lambda: da.from_array(np.ones((10, 10)), chunks=5).max(),
    "rechunk": lambda: ones.rechunk((2, 10)).cumsum(axis=0),
    "an item": lambda: dask.delayed(operator.itemgetter(1))([1, 2]),
    "a builtin": lambda: dask.delayed(sum)([1, 2]),
    "an operator": lambda: dask.delayed(operator.add)(1, 2),
    "a function that goes by classes": lambda: da.percentile(ones.ravel(), [5, 95]),
}
USERS = {
    "a function": lambda: ones.map_blocks(own),
    "a lambda": lambda: ones.map_blocks(lambda block: block),
    "a function in the name of another": lambda: ones.map_blocks(disguised, dtype=float),
    "a partial function": lambda: ones.map_blocks(
        functools.partial(np.add, own), dtype=float, meta=np.empty((0, 0))
    ),
    "a function that is passed to a library's": lambda: da.apply_along_axis(
        own, 0, ones, dtype=float, shape=(10,)
    ),
    "vectorize": lambda: ones.map_blocks(np.vectorize(own, otypes=[float]), dtype=float),
    "frompyfunc": lambda: da.frompyfunc(own, 1, 1)(ones),
    "overlap": lambda: ones.map_overlap(own, depth=1),
    "an array": lambda: da.from_array(OwnArray(), chunks=5).sum(),
    "a subclass": lambda: da.from_array(np.ones((10, 10)).view(OwnSubclass), chunks=5, asarray=False) + 1,
    "objects in an array": lambda: da.from_array(np.array([own, own], dtype=object), chunks=1),
    "delayed": lambda: dask.delayed(own)(1),
    "eval": lambda: dask.delayed(eval)("1"),
    "a method of the user's": lambda: dask.delayed(OwnArray().__getitem__)(0),
}


def prepared(collection):
    return prepare(collection.__dask_graph__(), list(dask.core.flatten(collection.__dask_keys__())))


@pytest.mark.parametrize("make", LIBRARY.values(), ids=LIBRARY)
def test_library_code(make):
    assert is_library_code(prepared(make()))


@pytest.mark.parametrize("make", USERS.values(), ids=USERS)
def test_code_of_the_users(make):
    assert not is_library_code(prepared(make()))


def test_large_graphs_are_not_looked_at(monkeypatch):
    monkeypatch.setattr(library_code, "_MOST_CHUNKS", 4)
    assert not is_library_code(prepared(LIBRARY["arithmetic"]()))


def test_datasets_of_h5py(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        array = da.from_array(file.create_dataset("x", data=np.ones((10, 10))), chunks=5)
        assert is_library_code(prepared((array + 1).sum()))
        assert not is_library_code(prepared(array.map_blocks(own)))


def test_zarr_and_xarray(tmp_path, zarr):
    xarray = pytest.importorskip("xarray")
    array = zarr.create_array(str(tmp_path / "a.zarr"), shape=(10, 10), chunks=(5, 5), dtype=float)
    array[:] = 1
    assert is_library_code(prepared(da.from_zarr(str(tmp_path / "a.zarr")).sum()))
    assert is_library_code(prepared(da.from_array(array, chunks=5).sum()))
    dataset = xarray.Dataset({"t": (("time", "x"), ones)}, coords={"time": np.arange(10)})
    assert is_library_code(prepared(dataset.t.mean("time").data))
    dataset.to_zarr(str(tmp_path / "x.zarr"), consolidated=False)
    opened = xarray.open_zarr(str(tmp_path / "x.zarr"), consolidated=False)
    grouped = prepared(opened.t.groupby("time").sum().data)
    assert is_library_code(grouped)
    # What processes import before they take part.
    assert {name.partition(".")[0] for name in library_modules(grouped)} >= {"xarray", "zarr"}
    assert not library_modules(prepared(ones.sum()))


def test_a_look_at_objects_has_an_end(monkeypatch):
    pd = pytest.importorskip("pandas")
    column = pd.Series(["a"] * 30, dtype=object)
    monkeypatch.setattr(library_code, "_MOST_OBJECTS", 50)
    look = library_code._Look()
    assert [look.is_plain(column), look.is_plain(column)] == [True, False]


def test_frames():
    pd = pytest.importorskip("pandas")
    dd = pytest.importorskip("dask.dataframe")
    numbers = pd.DataFrame({"key": np.arange(20) % 3, "value": np.arange(20.0)})
    frame = dd.from_pandas(numbers, npartitions=2)
    objects = pd.DataFrame({"key": np.arange(20), "own": [OwnArray() for _ in range(20)]})

    def prepared_frames(collection):
        expression = collection.optimize().expr
        return prepare(dict(expression.__dask_graph__()), expression.__dask_keys__())

    def is_library(collection):
        return is_library_code(prepared_frames(collection))

    assert is_library(frame.merge(frame.groupby("key").value.sum().reset_index(), on="key"))
    assert is_library(frame.value.mean())
    # It matters that they are frames, of which nobody knows the size.
    for frames in (frame.value.mean(), frame.value + 1, frame.merge(frame, on="key")):
        assert any(name.startswith(FRAMES) for name in library_modules(prepared_frames(frames)))
    assert not any(name.startswith(FRAMES) for name in library_modules(prepared(da.ones(3).sum())))
    text = pd.DataFrame({"key": ["a", "b", None, "c"] * 5, "value": np.arange(20.0)})
    for dtype in ("str", object, "category"):
        keyed = text.astype({"key": dtype})
        assert is_library(dd.from_pandas(keyed, npartitions=2).groupby("key").value.sum())
        assert is_library(dd.from_pandas(keyed.set_index("value"), npartitions=2).key.count())
        assert is_library(
            dd.from_pandas(keyed[keyed.key.notna()].set_index("key"), sort=False, npartitions=2).value.sum()
        )
    mixed = text.astype({"key": object})
    mixed.loc[3, "key"] = OwnArray()
    with dask.config.set({"dataframe.convert-string": False}):
        assert not is_library(dd.from_pandas(mixed, npartitions=2).key.count())
    assert is_library(dask.datasets.timeseries(end="2000-01-03").x.sum())
    assert not is_library(frame.map_partitions(own, meta=numbers))
    assert not is_library(frame.value.apply(own, meta=("value", "f8")))
    with dask.config.set({"dataframe.convert-string": False}):
        assert not is_library(dd.from_pandas(objects, npartitions=2).own.count())
