"""What counts as library code: nothing of the user's may run in the user's process by mistake."""

import functools
import operator
from collections import Counter, OrderedDict, defaultdict, deque
from types import SimpleNamespace
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import numpy as np
import pytest
import toolz

from dask_mars.graph.chunks import flatten
from dask_mars.optimize import library_code
from dask_mars.optimize.library_code import FRAMES, code_origin, is_library_code
from dask_mars.optimize.prepare import prepare


def own(block):
    """A loop may hold the GIL for long."""
    for _ in ():
        pass
    return block


@functools.wraps(np.sum)
def disguised(block):
    return own(block)


class OwnArray:
    shape, ndim, dtype = (10, 10), 2, np.dtype(float)

    def __getitem__(self, index):
        return np.ones(self.shape)[index]


class OwnSubclass(np.ndarray):
    pass


ones = da.ones((10, 10), chunks=5)


def nested(depth):
    """Return lists in lists."""
    return [nested(depth - 1)] if depth else []


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
    "lists in lists": lambda: dask.delayed(functools.partial(len, nested(10)))(),
    "an operator": lambda: dask.delayed(operator.add)(1, 2),
    "a function that goes by classes": lambda: da.percentile(ones.ravel(), [5, 95]),
}
USERS = {
    "a function": lambda: ones.map_blocks(own),
    "lists too deep to look into": lambda: dask.delayed(functools.partial(len, nested(100)))(),
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


def test_arrays_and_delayed_values():
    assert [name for name, make in LIBRARY.items() if not is_library_code(prepared(make()))] == []
    assert [name for name, make in USERS.items() if is_library_code(prepared(make()))] == []


FACTOR, KEPT, OUT = 3.0, [], np.zeros((5, 5))


def halved(block):
    return block / 2


def edges(block, width=1):
    out = np.zeros_like(block)
    out[width:] = np.abs(block[width:] - block[:-width]) * FACTOR
    with np.errstate(invalid="ignore"):
        return halved(np.sqrt(out)) if block.ndim > 1 else out


def counts_down(number):
    return number if number <= 0 else counts_down(number - 1)


def waits(block):
    while block.sum() > 0:
        block = block - 1
    return block


def made_by(value):
    return lambda block: block + value


def counts_into(array):
    def count(block):
        array[:1] = array[:1] + block.size
        return block

    return count


def adds_to(array):
    def add(block, total=array):
        total += block
        return total

    return add


def writes_slices_of(array):
    def write(block):
        array[1:3] = block[0, 1:3]
        return block

    return write


def draws(block):
    return block + np.random.rand(*block.shape)


def fills(block):
    block += 1
    return block


def fills_at_random(block):
    block[:] = np.random.rand(*block.shape)
    return block


def fills_from(generator):
    def fill(block):
        block += generator.random(block.shape)
        return block

    return fill


PLAIN = {
    "slices": edges,
    "a lambda": lambda block: block**2 + FACTOR,
    "a method of an array": lambda block: block.mean(keepdims=True),
    "a module in a module": lambda block: np.linalg.norm(block, axis=1, keepdims=True),
    "a number of another function": made_by(2),
    "an array of another function": made_by(np.arange(5)),
    "a partial function": functools.partial(edges, width=2),
    "sorted": lambda block: np.sort(block, axis=0),
    "an error": lambda block: block if block.size else ValueError("empty"),
    "random numbers": lambda block: draws(block),
    "an array that it fills": lambda block: fills(block),
}
NOT_PLAIN = {
    "a loop": own,
    "another loop": waits,
    "a call of a loop": lambda block: own(block),
    "a call of itself": counts_down,
    "a comprehension": lambda block: np.array([number + 1 for number in block]),
    "a generator": lambda block: (yield block),
    "a function within": lambda block: np.vectorize(lambda number: number)(block),
    "a function for each row": lambda block: np.apply_along_axis(halved, 0, block),
    "an import": lambda block: __import__("os").getpid() + block,
    "the user's object": made_by(OwnArray()),
    "a container that may change": lambda block: KEPT.append(block.sum()) or block,
    "another module": lambda block: dask.distributed.get_worker() and deque and SimpleNamespace(x=block).x,
    "a default": functools.partial(lambda block, keeps=KEPT: block, keeps=KEPT and own),
    "an array of another function that it writes into": counts_into(np.zeros(1)),
    "an array that it writes a result into": (lambda array: lambda block: np.add(block, 1, out=array))(np.ones(5)),
    "a slice that it writes into": writes_slices_of(np.zeros(5)),
    "an array that it adds to": adds_to(np.zeros((5, 5))),
    "an array for results": functools.partial(lambda block, out: np.add(block, OUT, out=OUT), out=None),
    "an array that it fills with numbers of the program's generator": fills_at_random,
    "functions that do the two": lambda block: fills(draws(block)),
    "a generator of another function": fills_from(np.random.default_rng(0)),
    "print": lambda block: print(block) or block,
    "text that runs": lambda block: eval("block"),
}


def test_plain_functions_of_the_users(monkeypatch):
    assert not is_library_code(prepared(ones.map_blocks(edges, dtype=float)))
    x = da.from_array(np.ones(1 << 22), chunks=1 << 20)
    assert is_library_code(prepared(x.map_blocks(edges, dtype=float)))

    class OnDisk:
        """Says how large it is, and is not in memory."""

        shape, ndim, dtype, nbytes = (1 << 22,), 1, np.dtype(float), 1 << 25
        __module__ = "zarr"

        def __getitem__(self, index):
            return np.ones(self.shape)[index]

    read = da.from_array(OnDisk(), chunks=1 << 20).map_blocks(edges, dtype=float)
    assert not is_library_code(prepared(read))
    monkeypatch.setattr(library_code, "MUCH_BYTES", 0)

    def is_library(function):
        return is_library_code(prepared(ones.map_blocks(function, dtype=float, meta=np.empty((0, 0)))))

    assert [name for name, function in PLAIN.items() if not is_library(function)] == []
    assert [name for name, function in NOT_PLAIN.items() if is_library(function)] == []
    # A library's function calls them for each element.
    assert not is_library(np.vectorize(halved, otypes=[float]))
    assert not is_library_code(handed_over(numbers.map(halved)))
    assert is_library_code(prepared(dask.delayed(halved)(3)))


def test_large_graphs_are_not_looked_at(monkeypatch):
    monkeypatch.setattr(library_code, "MOST_CHUNKS", 4)
    assert not is_library_code(prepared(LIBRARY["arithmetic"]()))


def test_datasets_of_h5py(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        array = da.from_array(file.create_dataset("x", data=np.ones((10, 10))), chunks=5)
        assert is_library_code(prepared((array + 1).sum()))
        assert not is_library_code(prepared(array.map_blocks(own)))


@pytest.mark.slow
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
    assert {name.partition(".")[0] for name in code_origin(grouped).modules} >= {"xarray", "zarr"}
    assert not code_origin(prepared(ones.sum())).modules


def test_what_is_not_a_librarys_is_named():
    for name in ("a function", "vectorize", "frompyfunc", "overlap", "delayed"):
        assert code_origin(prepared(USERS[name]())).other == f"{__name__}.own is not a library's"
    assert "5000 chunks" in code_origin(prepared(da.ones(5000, chunks=1))).other
    array = da.from_array(OwnArray(), chunks=5, asarray=False)
    assert code_origin(prepared(array.sum())).other == f"{__name__}.OwnArray is not a library's"


def test_packages_say_that_they_may_run_in_threads(monkeypatch):
    graph = prepared(da.ones(3).map_blocks(own))
    assert not is_library_code(graph)
    root = __name__.partition(".")[0]
    found = [SimpleNamespace(name=root)]
    monkeypatch.setattr(library_code, "entry_points", lambda group: found if group == library_code.GROUP else [])
    library_code._libraries_by_entry_point.cache_clear()
    try:
        assert is_library_code(graph)
        # Processes import it before they take part.
        assert __name__ in code_origin(graph).modules
    finally:
        library_code._libraries_by_entry_point.cache_clear()


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
        assert any(name.startswith(FRAMES) for name in code_origin(prepared_frames(frames)).modules)
    assert not any(name.startswith(FRAMES) for name in code_origin(prepared(da.ones(3).sum())).modules)
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


# -- as `dask.compute` hands graphs over --------------------------------------------------------------------------


class Handed(Exception):
    """Carries the graph of a computation."""


def handed_over(collection):
    """Return the chunk graph of what `dask.compute` gives a scheduler."""

    def get(dsk, keys, **options):
        raise Handed(prepare(dsk, flatten(keys if isinstance(keys, list) else [keys])))

    with pytest.raises(Handed) as handed:
        dask.compute(collection, scheduler=get)
    return handed.value.args[0]


def add_own(left, right):
    return left


numbers = db.from_sequence(range(20), npartitions=3)
pairs = db.from_sequence([(number % 3, number) for number in range(20)], npartitions=3)
records = db.from_sequence([{"k": number % 3, "v": number} for number in range(20)], npartitions=3)

BAGS = {
    "fold": lambda: numbers.fold(operator.add),
    "frequencies": lambda: records.pluck("k").frequencies(),
    "foldby": lambda: numbers.foldby(abs, operator.add, 0, operator.add, 0),
    "groupby": lambda: numbers.groupby(abs, shuffle="tasks"),
    "join": lambda: numbers.join([1, 2], abs),
    "topk": lambda: numbers.topk(3, key=operator.neg),
    "moments": lambda: numbers.std(),
    "accumulate": lambda: numbers.accumulate(operator.add),
    "items": lambda: pairs.map(operator.itemgetter(0, 1)),
    "attributes": lambda: numbers.map(operator.attrgetter("real")),
    "methods": lambda: numbers.map(operator.methodcaller("bit_length")),
    "strings": lambda: numbers.map(str).str.upper(),
    "compose": lambda: numbers.map(toolz.compose(abs, operator.neg)),
    "curry": lambda: numbers.map(toolz.curry(operator.add)(1)),
    "juxt": lambda: numbers.map(toolz.juxt(abs, operator.neg)),
    "complement": lambda: numbers.filter(toolz.complement(operator.truth)),
    "excepts": lambda: numbers.map(toolz.excepts(ValueError, abs)),
    "reduce": lambda: numbers.map_partitions(functools.partial(functools.reduce, operator.add)),
    "containers": lambda: numbers.map(
        functools.partial(operator.eq, [defaultdict(list, a=1), OrderedDict(a=1), Counter("a"), deque([1])])
    ),
}
OWN_BAGS = {
    "fold": lambda: numbers.fold(add_own),
    "foldby": lambda: numbers.foldby(own, operator.add, 0, operator.add, 0),
    "topk": lambda: numbers.topk(3, key=own),
    "methods": lambda: numbers.map(operator.methodcaller("__eq__", OwnArray())),
    "compose": lambda: numbers.map(toolz.compose(abs, own)),
    "curry": lambda: numbers.map(toolz.curry(add_own)(right=1)),
    "juxt": lambda: numbers.map(toolz.juxt(abs, own)),
    "complement": lambda: numbers.filter(toolz.complement(own)),
    "excepts": lambda: numbers.map(toolz.excepts(ValueError, abs, own)),
    "a cache": lambda: numbers.map(functools.lru_cache(own)),
    "reduce": lambda: numbers.map_partitions(functools.partial(functools.reduce, add_own)),
    "a default": lambda: numbers.map(functools.partial(operator.eq, defaultdict(own))),
    "an ordered dict": lambda: numbers.map(functools.partial(operator.eq, OrderedDict(a=own))),
    "a deque": lambda: numbers.map(functools.partial(operator.eq, deque([own]))),
}
FRAME_OPERATIONS = {
    "agg": lambda df, dd: df.groupby("a").agg({"v": "sum"}),
    "agg of several": lambda df, dd: df.groupby("a").agg(
        {"v": ["sum", "mean", "std", "first", "size"], "w": "max"}
    ),
    "agg of lists": lambda df, dd: df.groupby("a").v.agg(["sum", "list"]),
    "groupby sum": lambda df, dd: df.groupby(["a", "w"]).v.sum(),
    "groupby value_counts": lambda df, dd: df.groupby("a").s.value_counts(),
    "groupby transform": lambda df, dd: df.groupby("a").v.transform("sum", meta=("v", "f8")),
    "merge": lambda df, dd: df.merge(df.groupby("a").v.sum().reset_index(), on="a"),
    "value_counts": lambda df, dd: df.s.value_counts(),
    "describe": lambda df, dd: df[["v", "w"]].describe(),
    "rolling": lambda df, dd: df.v.rolling(3).mean(),
    "resample": lambda df, dd: df.set_index("t", sorted=True).v.resample("1D").agg(["sum", "mean"]),
    "text": lambda df, dd: df.s.str.upper(),
    "quantile": lambda df, dd: df[["v", "w"]].quantile([0.1, 0.9]),
    "sort_values": lambda df, dd: df.sort_values("v"),
    "repartition": lambda df, dd: df.repartition(npartitions=2),
    "from_map": lambda df, dd: dd.from_map(type(df.v._meta), [[1], [2]], meta=df.w._meta),
}
OWN_FRAME_OPERATIONS = {
    "apply": lambda df, dd: df.groupby("a").v.apply(own, meta=("v", "f8")),
    "aggregation": lambda df, dd: df.groupby("a").agg(
        {"v": dd.Aggregation("own", lambda group: group.sum(), lambda group: group.sum())}
    ),
    "partitions": lambda df, dd: df.map_partitions(toolz.compose(own, toolz.identity)),
    "rolling": lambda df, dd: df.v.rolling(3).apply(own, raw=True),
    "reduction": lambda df, dd: df.v.reduction(own, aggregate=np.sum, meta=("v", "f8")),
    "map": lambda df, dd: df.a.map(own, meta=("a", "i8")),
    "from_map": lambda df, dd: dd.from_map(functools.partial(own), [df._meta], meta=df._meta),
}


@pytest.fixture(scope="module")
def frame():
    pd = pytest.importorskip("pandas")
    dd = pytest.importorskip("dask.dataframe")
    known = {"a": np.arange(60) % 5, "v": np.arange(60.0), "w": np.arange(60) % 7, "s": list("abcdef") * 10}
    dates = pd.date_range("2000", periods=60, freq="h")
    return dd.from_pandas(pd.DataFrame({**known, "t": dates}), npartitions=3), dd


def are_library_code(operations: dict[str, Any], *arguments: Any) -> dict[str, bool]:
    return {name: is_library_code(handed_over(make(*arguments))) for name, make in operations.items()}


def test_bags():
    assert are_library_code(BAGS) == dict.fromkeys(BAGS, True)
    assert are_library_code(OWN_BAGS) == dict.fromkeys(OWN_BAGS, False)


def test_operations_on_frames(frame):
    assert are_library_code(FRAME_OPERATIONS, *frame) == dict.fromkeys(FRAME_OPERATIONS, True)
    assert are_library_code(OWN_FRAME_OPERATIONS, *frame) == dict.fromkeys(OWN_FRAME_OPERATIONS, False)


def rows_above(part: Any, least: float) -> Any:
    """Return some rows with another column."""
    part = part[part.v > least].copy()
    part["twice"] = part.v * 2
    return part


def test_plain_functions_of_partitions(frame, monkeypatch):
    df, _ = frame
    mapped = df.map_partitions(rows_above, 3)
    assert not is_library_code(handed_over(mapped))
    monkeypatch.setattr(library_code, "MUCH_BYTES", 0)
    makers = [
        lambda: mapped,
        lambda: mapped.twice.mean(),
        lambda: df.map_partitions(rows_above, least=3, enforce_metadata=False),
        lambda: df.map_partitions(functools.partial(rows_above, least=3)).groupby("a").v.sum(),
    ]
    assert [is_library_code(handed_over(make())) for make in makers] == [True] * len(makers)
    # Others have loops, or Dask or pandas calls them once for each group or element.
    named = dict.fromkeys(OWN_FRAME_OPERATIONS, False)
    assert are_library_code(OWN_FRAME_OPERATIONS, *frame) == named
    halves = df.v.map(lambda value: value / 2, meta=("v", "f8"))
    most = df.groupby("a").v.apply(lambda group: group.max(), meta=("v", "f8"))
    loops = df.map_partitions(lambda part: part.apply(lambda row: row.v, axis=1), meta=("v", "f8"))
    assert not any(is_library_code(handed_over(each)) for each in (halves, most, loops))


def test_files_of_frames(frame, tmp_path):
    pytest.importorskip("pyarrow")
    df, dd = frame
    df.to_parquet(tmp_path / "p")
    df.to_csv(tmp_path / "c-*.csv", index=False)
    for read in (dd.read_parquet(tmp_path / "p"), dd.read_csv(tmp_path / "c-*.csv", dtype={"a": "f8"})):
        assert is_library_code(handed_over(read.groupby("a").agg({"v": "sum"})))
