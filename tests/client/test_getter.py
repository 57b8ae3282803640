"""`get` beside Dask's own schedulers: every form of graph, the same values, types, errors."""

from __future__ import annotations

import copy
import os
import random
import threading
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from operator import add, mul
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import dask.threaded
import numpy as np
import psutil
import pytest
from dask._task_spec import Alias, DataNode, List, Task, TaskRef
from dask.highlevelgraph import HighLevelGraph
from dask.utils_test import GetFunctionTestMixin

import dask_mars
from dask_mars import Runtime
from dask_mars.client.computation import GraphComputation
from dask_mars.engine import graph_run as client_messages
from dask_mars.runtimes import _default
from tests.tasks import fail_first, large_array, note, note_name, noted, notes, pid_after, pid_of

pytestmark = pytest.mark.timeout(300)

Get = Callable[..., Any]


@pytest.mark.usefixtures("runtime")
class TestGetFunction(GetFunctionTestMixin):
    get = staticmethod(dask_mars.get)


# -- the same results -----------------------------------------------------------------------------------------


def assert_same(ours: Any, theirs: Any) -> None:
    """Compare values, types, dtypes, shapes, masks, writability and order of memory."""
    assert type(ours) is type(theirs)
    if isinstance(theirs, np.ndarray):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert ours.flags.writeable == theirs.flags.writeable
        assert ours.flags.c_contiguous == theirs.flags.c_contiguous
        if isinstance(theirs, np.ma.MaskedArray):
            np.testing.assert_array_equal(np.ma.getmaskarray(ours), np.ma.getmaskarray(theirs))
            assert repr(ours.fill_value) == repr(theirs.fill_value)
            assert ours.fill_value == theirs.fill_value
        np.testing.assert_array_equal(ours, theirs)
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for key, value in theirs.items():
            assert_same(ours[key], value)
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for our, their in zip(ours, theirs, strict=True):
            assert_same(our, their)
    elif type(theirs).__module__.startswith("pandas") and hasattr(theirs, "equals"):
        import pandas

        check = {
            pandas.DataFrame: pandas.testing.assert_frame_equal,
            pandas.Series: pandas.testing.assert_series_equal,
        }.get(type(theirs), pandas.testing.assert_index_equal)
        check(ours, theirs)
    elif type(theirs).__module__.startswith("scipy.sparse"):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours.toarray(), theirs.toarray())
    else:
        assert ours == theirs or (ours != ours and theirs != theirs)


def masked() -> da.Array:
    data = np.ma.masked_greater(np.arange(10_000.0).reshape(100, 100), 5000)
    data.fill_value = -1
    return da.from_array(data, chunks=50, asarray=False)


def structured() -> da.Array:
    data = np.zeros(5000, dtype=[("a", "i4"), ("b", "f8", (2,))])
    data["a"] = np.arange(5000)
    return da.from_array(data, chunks=1000)


def objects() -> da.Array:
    data = np.array([None, "text", 3, (1, 2), [4]] * 2000, dtype=object)
    return da.from_array(data, chunks=3000)


def sparse() -> da.Array:
    import scipy.sparse

    return da.eye(40, chunks=40).map_blocks(scipy.sparse.csr_matrix, dtype=float)


def with_block_info(block: np.ndarray, block_info: Any = None) -> np.ndarray:
    return block + block_info[0]["chunk-location"][0]


ARRAYS: dict[str, Callable[[], da.Array]] = {
    "arange": lambda: da.arange(100_000, chunks=30_000),
    "one chunk of ones": lambda: da.ones((200, 200), chunks=200),
    "broadcast": lambda: da.broadcast_to(da.arange(3000, chunks=1000), (4, 3000), chunks=(2, 1000)),
    "elementwise": lambda: (da.arange(9999, chunks=1000) * 2 + 1) ** 0.5,
    "one transposed chunk": lambda: da.from_array(np.arange(40_000.0).reshape(200, 200), chunks=-1).T,
    "slices": lambda: da.arange(100_000, chunks=1000)[55:70_000:7],
    "fancy index": lambda: da.arange(10_000, chunks=999)[[1, 5000, 3, 9998]],
    "unknown chunks": lambda: (lambda x: x[x % 3 == 0])(da.arange(10_000, chunks=999)),
    "rechunk": lambda: da.ones((500, 60), chunks=(50, 60)).rechunk((500, 6)).cumsum(axis=0),
    "random": lambda: da.random.default_rng(7).normal(size=(1000, 100), chunks=300),
    "map_blocks": lambda: da.zeros(3000, chunks=1000, dtype=int).map_blocks(with_block_info, dtype=int),
    "map_overlap": lambda: da.arange(9000.0, chunks=3000).map_overlap(lambda x: x * 2, depth=2, boundary=0),
    "no elements": lambda: da.zeros((0, 5), chunks=(0, 5)),
    "no dimensions": lambda: da.from_array(np.array(3.5), chunks=()),
    "strings": lambda: da.from_array(np.array(["a", "bcd", "ef"] * 4000), chunks=5000),
    "datetimes": lambda: da.from_array(np.arange("2000", "2020", dtype="M8[D]"), chunks=3000),
    "fortran order": lambda: da.from_array(np.asfortranarray(np.arange(40_000).reshape(200, 200)), chunks=-1),
    "structured": structured,
    "objects": objects,
    "masked": masked,
    "masked sum": lambda: da.ma.masked_equal(da.arange(10_000, chunks=999) % 5, 0).sum(),
    "sparse": sparse,
    "16 MB": lambda: da.arange(2_000_000, chunks=500_000, dtype="f8") + 1,
}


def multiples(bag: db.Bag) -> db.Bag:
    return bag.filter(lambda x: x % 3 == 0).map(lambda x: x * 2)


BAGS: dict[str, Callable[[], Any]] = {
    "map and filter": lambda: multiples(db.range(100, npartitions=5)),
    "item": lambda: db.range(100, npartitions=5).sum(),
    "fold": lambda: db.range(100, npartitions=5).fold(mul, initial=1),
    "to delayed": lambda: db.range(100, npartitions=5).to_delayed()[2],
    "take": lambda: db.range(100, npartitions=5).take(3, npartitions=2, compute=False),
    "no items": lambda: db.from_sequence([], npartitions=1),
}


class Account:
    """A class of the test module, with state and methods."""

    def __init__(self, balance: int) -> None:
        self.balance = balance

    def paid(self, amount: int) -> Account:
        return Account(self.balance + amount)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Account) and other.balance == self.balance

    def __hash__(self) -> int:
        return hash(self.balance)


def delayed_tree() -> Any:
    increase = dask.delayed(lambda x: x + 1)
    return dask.delayed(sum)([increase(number) for number in range(10)])


DELAYED: dict[str, Callable[[], Any]] = {
    "tree": delayed_tree,
    "a value": lambda: dask.delayed(17),
    "containers": lambda: dask.delayed({"a": [dask.delayed(add)(1, 2), {3}], "b": (4, dask.delayed(5))}),
    "keywords": lambda: dask.delayed(dict)(a=dask.delayed(add)(1, 2), b=3),
    "method": lambda: dask.delayed(Account)(5).paid(dask.delayed(add)(1, 2)),
    "several results": lambda: dask.delayed(divmod, nout=2)(17, 5)[1],
    "an array": lambda: dask.delayed(np.sort)(da.arange(1000, chunks=100)[::-1]),
    "a lambda": lambda: dask.delayed(lambda *values: values)(1, (lambda: 2)(), None, ..., "key"),
}


def frame() -> Any:
    import dask.dataframe as dd
    import pandas as pd

    rows = 3000
    data = pd.DataFrame(
        {
            "key": [f"k{number % 11}" for number in range(rows)],
            "number": np.arange(rows),
            "value": np.linspace(0, 1, rows),
            "when": pd.date_range("2020", periods=rows, freq="h"),
            "kind": pd.Categorical(["x", "y", "z"] * (rows // 3)),
        }
    )
    return dd.from_pandas(data, npartitions=5)


def merged() -> Any:
    import dask.dataframe as dd
    import pandas as pd

    right = dd.from_pandas(pd.DataFrame({"key": [f"k{n}" for n in range(11)], "weight": range(11)}), npartitions=2)
    return frame().merge(right, on="key").weight.sum()


FRAMES: dict[str, Callable[[], Any]] = {
    "whole": frame,
    "groupby": lambda: frame().groupby("key").value.mean(split_out=1),
    "merge": merged,
    "index": lambda: frame().index,
    "values": lambda: frame()[["number", "value"]].values,
    "to_delayed": lambda: frame().to_delayed()[1],
    "to_bag": lambda: frame()[["number"]].to_bag(),
}


COLLECTIONS = ARRAYS | BAGS | DELAYED | FRAMES
UNOPTIMIZED = ["elementwise", "unknown chunks", "map_overlap", "fold", "containers"]


@pytest.mark.parametrize(
    ("name", "optimize_graph"),
    [
        *[(name, True) for name in COLLECTIONS],
        *[(name, False) for name in UNOPTIMIZED],
        pytest.param("merge", False, marks=pytest.mark.slow),
    ],
)
def test_collections_are_those_of_threads(name: str, optimize_graph: bool, get: Get) -> None:
    if name in FRAMES:
        pytest.importorskip("dask.dataframe")
    value = COLLECTIONS[name]()
    ours = value.compute(scheduler=get, optimize_graph=optimize_graph)
    assert_same(ours, value.compute(scheduler="threads", optimize_graph=optimize_graph))


@pytest.mark.filterwarnings("ignore:The inplace keyword")
def test_files_written_with_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, get: Get) -> None:
    dd = pytest.importorskip("dask.dataframe")
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    with dask.config.set(scheduler=get):
        frame().to_parquet("frame.parquet")
        frame().to_csv("frame-*.csv")
        assert dd.read_parquet("frame.parquet").number.sum().compute() == 2999 * 1500
    assert len(list(tmp_path.glob("frame-*.csv"))) == 5


# -- several at a time ----------------------------------------------------------------------------------------


def test_several_collections_share_what_they_have_in_common(tmp_path: Path, get: Get) -> None:
    source = dask.delayed(noted)(tmp_path / "calls", 5)
    assert dask.compute(source + 1, source + 2, [source], scheduler=get) == (6, 7, [5])
    assert len(notes(tmp_path / "calls")) == 1


@pytest.mark.filterwarnings("ignore:Computing mixed collections")
def test_arrays_and_dataframes_together(get: Get) -> None:
    pytest.importorskip("dask.dataframe")
    array = da.arange(10_000, chunks=999)
    values = [array.sum(), frame().number.sum(), array, FRAMES["groupby"]()]
    ours, theirs = dask.compute(*values, scheduler=get), dask.compute(*values, scheduler="threads")
    assert_same(ours, theirs)


# -- persist and store ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: da.arange(100_000, chunks=30_000) + 1,
        lambda: da.arange(100, chunks=30) + 1,
        lambda: (da.ones((300, 300), chunks=100) + 1).sum(axis=0),
        lambda: multiples(db.range(100, npartitions=5)),
        lambda: db.range(100, npartitions=5).sum(),
        delayed_tree,
        frame,
        lambda: FRAMES["groupby"](),
    ],
    ids=["array", "small array", "reduction", "bag", "item", "delayed", "dataframe", "groupby"],
)
def test_persisted_collections_hold_their_values(make: Any, get: Get) -> None:
    collection = make()
    expected = collection.compute(scheduler="threads")
    for optimize_graph in (True, False):
        persisted = collection.persist(scheduler=get, optimize_graph=optimize_graph)
        assert type(persisted) is type(collection)
        graph = dict(persisted.__dask_graph__())
        assert all(type(value) is not Task or not value.dependencies for value in graph.values())
        assert_same(persisted.compute(scheduler=get), expected)
        assert_same(persisted.compute(scheduler="sync"), expected)


def test_persisted_chunks_may_be_written_to_as_under_threads(get: Get) -> None:
    array = da.arange(100_000, chunks=50_000) * 1.0
    ours = array.persist(scheduler=get).__dask_graph__()
    theirs = array.persist(scheduler="threads").__dask_graph__()
    for key in theirs:
        assert ours[key]().flags.writeable == theirs[key].flags.writeable


# -- plain graphs ---------------------------------------------------------------------------------------------


def sum_of(values: list[int], start: int = 0) -> int:
    return sum(values, start)


GRAPHS: dict[str, Any] = {
    "legacy": {"a": 1, "b": (add, "a", 10), ("c", 0): (sum, ["a", "b", (mul, "b", 2)]), "d": ("c", 0)},
    "tasks": {
        "a": DataNode("a", 1),
        "b": Task("b", add, TaskRef("a"), 10),
        ("c", 0): Task(("c", 0), sum_of, List(TaskRef("a"), TaskRef("b")), start=22),
        "d": Alias("d", ("c", 0)),
    },
    "mixed": {
        "a": 1,
        "b": Task("b", add, TaskRef("a"), 10),
        ("c", 0): (sum_of, ["b"], 23),
        "d": Alias("d", ("c", 0)),
    },
}
GRAPHS["high-level"] = HighLevelGraph({"first": GRAPHS["legacy"]}, {"first": set()})


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_plain_graphs_with_any_nesting_of_keys(graph: Any, get: Get) -> None:
    nested = [[["d"], []], ["a", [("c", 0)]], []]
    for keys in ("a", "b", ("c", 0), "d", ["b"], ["b", "b", "a"], nested, [], [[]]):
        assert_same(get(graph, keys), dask.threaded.get(graph, keys))


def test_keys_of_all_types(get: Get) -> None:
    last = ("a", ("b", 1))
    graph = {1: 10, 2.5: (add, 1, 5), b"raw": (add, 2.5, 1), last: Task(last, add, TaskRef(b"raw"), 1)}
    keys = [1, 2.5, b"raw", last]
    assert get(graph, keys) == dask.threaded.get(graph, keys)


def test_only_what_is_needed_is_computed(tmp_path: Path, get: Get) -> None:
    graph = {"a": (noted, tmp_path / "calls", 1), "b": (add, 1, 2), "c": (noted, tmp_path / "calls", 3)}
    assert get(graph, "b") == 3
    assert notes(tmp_path / "calls") == []


def raise_text(text: str) -> None:
    raise LookupError(text)


WRONG: dict[str, tuple[Any, Any]] = {
    "key": ({"a": 1}, "b"),
    "nested key": ({"a": 1}, [["a"], ["b"]]),
    "missing dependency": ({"a": Task("a", add, TaskRef("missing"), 1)}, "a"),
    "missing alias": ({"a": Alias("a", "missing")}, "a"),
    "cycle": ({"a": (add, "b", 1), "b": (add, "c", 1), "c": (add, "a", 1)}, "a"),
    "cycle behind a task": ({"out": (add, "a", 1), "a": (add, "b", 1), "b": (add, "a", 1)}, "out"),
    "cycle of one": ({"a": (add, "a", 1)}, "a"),
    "cycle of aliases": ({"a": Alias("a", "b"), "b": Alias("b", "a")}, "a"),
    "task": ({"a": (raise_text, "said so"), "b": (add, "a", 1)}, "b"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_are_those_of_threads(name: str, get: Get) -> None:
    graph, keys = WRONG[name]
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        dask.threaded.get(graph, keys)
    with pytest.raises(Exception) as ours:  # noqa: PT011
        get(graph, keys)
    assert type(ours.value) is type(theirs.value)
    if name in ("key", "task"):
        assert str(ours.value) == str(theirs.value)


# -- names and options ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("runtime")
def test_the_name_mars() -> None:
    with dask.config.set(scheduler="mars"):
        assert dask.delayed(pid_of)().compute() != os.getpid()
    assert dask.delayed(pid_of)().compute(scheduler="mars") != os.getpid()
    assert dask.base.get_scheduler(scheduler="mars") is dask_mars.get


def test_num_workers_limits_the_processes(get: Get) -> None:
    pids = [dask.delayed(pid_after)(0.02, number) for number in range(8)]
    assert len(set(dask.compute(*pids, scheduler=get))) == 2
    assert len(set(dask.compute(*pids, scheduler=get, num_workers=1))) == 1
    assert len(set(dask.compute(*pids, scheduler=get, num_workers=0))) == 2


def test_more_workers_than_the_default_has(runtime: Runtime) -> None:
    try:
        # Threads compute it, before the processes are up.
        assert dask.delayed(abs)(-1).compute(scheduler=dask_mars.get, num_workers=3) == 1
        assert _default._larger.settings.num_workers == 3
    finally:
        larger, _default._larger = _default._larger, None
        larger.close()
    assert len(runtime.engine().worker_pids()) == 2


def test_a_runtime_that_computes_is_not_replaced_by_a_larger_one() -> None:
    # Their tasks cannot be pickled, and run in this process without workers.
    begun, let_go, values = threading.Event(), threading.Event(), []

    def wait(number: int) -> int:
        begun.set()
        return number if let_go.wait(30) else -1

    def compute(number: int, workers: int) -> Any:
        return dask.delayed(wait)(number).compute(scheduler=dask_mars.get, num_workers=workers)

    try:
        first = threading.Thread(target=lambda: values.append(compute(1, 3)))
        first.start()
        assert begun.wait(30)
        assert dask.delayed(lambda: begun.is_set())().compute(scheduler=dask_mars.get, num_workers=4)
        let_go.set()
        first.join(30)
        assert values == [1]
        assert compute(2, 4) == 2
        assert _default._replaced == []
    finally:
        let_go.set()
        larger, _default._larger = _default._larger, None
        larger.close()


def test_retries_of_the_call(tmp_path: Path, get: Get) -> None:
    value = dask.delayed(fail_first)(tmp_path / "calls", 2, "done")
    with pytest.raises(OSError, match="failure 1"):
        value.compute(scheduler=get)
    (tmp_path / "calls").unlink()
    assert value.compute(scheduler=get, retries=2) == "done"
    assert len(notes(tmp_path / "calls")) == 3


def test_annotated_retries_of_one_task(tmp_path: Path, get: Get) -> None:
    with dask.annotate(retries=1):
        annotated = dask.delayed(fail_first)(tmp_path / "annotated", 1, 1)
    plain = dask.delayed(fail_first)(tmp_path / "plain", 1, 1)
    assert (annotated + 1).compute(scheduler=get) == 2
    with pytest.raises(OSError, match="failure 1"):
        (plain + annotated).compute(scheduler=get)


@pytest.mark.parametrize("optimize_graph", [True, False])
def test_annotated_retries_of_an_array(tmp_path: Path, optimize_graph: bool, get: Get) -> None:
    with dask.annotate(retries=3):
        array = da.ones(10, chunks=5).map_blocks(partial(fail_first, tmp_path / "calls", 2), dtype=float)
    assert (array + 1).sum().compute(scheduler=get, optimize_graph=optimize_graph) == 20


@pytest.mark.parametrize("annotation", [{"priority": 5}, {"retries": 2}, {"workers": ["a"]}], ids=str)
def test_a_container_of_what_is_annotated_and_what_is_not(annotation: dict[str, Any], get: Get) -> None:
    with dask.annotate(**annotation):
        annotated = dask.delayed(len)("abc")
    assert dask.delayed([-dask.delayed(abs)(1), annotated]).compute(scheduler=get) == [-1, 3]


def test_annotated_priorities_decide_the_order(tmp_path: Path, get: Get) -> None:
    values = []
    for priority in [3, -1, 7, 0, 5, -8]:
        with dask.annotate(priority=priority):
            values.append(dask.delayed(note_name)(tmp_path / "order", priority))
    dask.compute(*values, scheduler=get, num_workers=1)
    assert notes(tmp_path / "order") == ["7", "5", "3", "0", "-1", "-8"]


def test_annotated_priorities_may_be_functions_of_keys(tmp_path: Path, get: Get) -> None:
    def make(block_info: Any = None) -> np.ndarray:
        return np.array([note_name(tmp_path / "order", block_info[None]["chunk-location"][0])])

    with dask.annotate(priority=lambda key: key[1]):
        array = da.map_blocks(make, chunks=((1,) * 5,), dtype=int)
    assert array.sum().compute(scheduler=get, num_workers=1) == 10
    assert notes(tmp_path / "order") == ["4", "3", "2", "1", "0"]


def test_values_that_are_known_already(get: Get) -> None:
    graph = {"a": (raise_text, "not computed"), "b": (add, "a", 1)}
    assert get(graph, "b", cache={"a": 5}) == 6


def test_errors_raised_again_have_the_same_inputs(get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(array: np.ndarray) -> None:
        raise LookupError(float(array.min()), float(array.max()))

    def late(computation: Any, *arguments: Any) -> None:
        # What has been freed meanwhile is used for something else.
        dask.delayed(large_array)(1, 0.0).compute(scheduler=get)
        again(computation, *arguments)

    again = GraphComputation._handlers[client_messages.Failed]
    monkeypatch.setitem(GraphComputation._handlers, client_messages.Failed, late)
    with pytest.raises(LookupError) as caught:
        dask.delayed(fail)(dask.delayed(large_array)(1, 7.0)).compute(scheduler=get, rerun_exceptions_locally=True)
    assert caught.value.args == (7.0, 7.0)


# -- code of the user -----------------------------------------------------------------------------------------


def of_this_module(value: int) -> int:
    return value + len(__name__)


def test_functions_of_all_kinds(get: Get) -> None:
    factor = 3

    def closure(value: int) -> int:
        return value * factor

    class Local:
        def __init__(self, value: int) -> None:
            self.value = value

        def __call__(self, value: int) -> int:
            return self.value + value

        def method(self, value: int) -> int:
            return self.value - value

        @classmethod
        def of_class(cls, value: int) -> int:
            return cls(value).value

    functions = [
        closure,
        of_this_module,
        lambda value: value - 1,
        partial(closure),
        Local(3),
        Local(3).method,
        Local.of_class,
        np.negative,
        len,
    ]
    arguments = [*range(len(functions) - 1), "text"]
    values = [dask.delayed(f)(x) for f, x in zip(functions, arguments, strict=True)]
    assert dask.compute(*values, scheduler=get) == dask.compute(*values, scheduler="threads")


def nested_sum(size: int, **options: Any) -> int:
    return int(da.arange(size, chunks=max(size // 3, 1)).sum().compute(**options))


@pytest.mark.parametrize(
    "options",
    [{}, {"scheduler": dask_mars.get}, {"scheduler": "threads", "num_workers": 4}],
    ids=["default", "get", "threads"],
)
def test_tasks_that_compute(options: dict[str, Any], runtime: Runtime) -> None:
    before = set(runtime.engine().worker_pids())
    values = [dask.delayed(nested_sum)(size, **options) for size in range(1000, 1010)]
    with dask.config.set(scheduler="mars"):
        assert dask.compute(*values) == tuple(size * (size - 1) // 2 for size in range(1000, 1010))
    assert set(runtime.engine().worker_pids()) == before
    assert not [child for pid in before for child in psutil.Process(pid).children(recursive=True)]


# -- tasks that write into their inputs -----------------------------------------------------------------------


def add_in_place(block: np.ndarray) -> np.ndarray:
    block += 1
    return block


def sort_in_place(block: np.ndarray) -> np.ndarray:
    block.sort()
    return block


def shuffle_in_place(block: np.ndarray) -> np.ndarray:
    random.Random(3).shuffle(block)
    np.random.default_rng(3).shuffle(block)
    return block


def write_by_memoryview(block: np.ndarray) -> np.ndarray:
    memoryview(block).cast("B")[0] = 1
    return block


def ask_to_write(block: np.ndarray) -> np.ndarray:
    block.flags.writeable = True
    block[0] = 17
    return block


def write_into_a_view(block: np.ndarray) -> np.ndarray:
    block.reshape(2, -1)[1, ::3] = -1
    return block


def read_into(block: np.ndarray) -> np.ndarray:
    with open(os.devnull, "rb") as file:
        file.readinto(block)
    return block


def shrink(block: np.ndarray) -> np.ndarray:
    block.resize((10,), refcheck=False)
    return block


class OwnError(Exception):
    """What a library raises in the place of NumPy's own error."""


def fail_for_a_reason(block: np.ndarray) -> np.ndarray:
    try:
        block += 1
    except ValueError as error:
        raise OwnError("could not add") from error
    return block


def fail_for_no_reason(block: np.ndarray) -> np.ndarray:
    try:
        block += 1
    except ValueError:
        raise OwnError("could not add") from None
    return block


def compiled(block: np.ndarray) -> np.ndarray:
    import numba

    @numba.njit
    def add(block: np.ndarray) -> None:
        for number in range(len(block)):
            block[number] += 1

    add(block)
    return block


IN_PLACE = [
    add_in_place,
    sort_in_place,
    shuffle_in_place,
    write_by_memoryview,
    ask_to_write,
    write_into_a_view,
    read_into,
    shrink,
    fail_for_a_reason,
    # `from None` hides a reason, and does not remove it.
    fail_for_no_reason,
    # Numba takes seconds to compile.
    pytest.param(
        compiled,
        marks=[pytest.mark.nightly, pytest.mark.skipif(not find_spec("numba"), reason="numba is not installed")],
    ),
]


@pytest.mark.parametrize("function", IN_PLACE)
def test_tasks_may_write_into_their_inputs(function: Any, get: Get) -> None:
    for size in (100, 200_000):
        source = dask.delayed(np.arange)(size, 0, -1.0)
        changed = dask.delayed(function)(source)
        assert_same(changed.compute(scheduler=get), changed.compute(scheduler="threads"))


@pytest.mark.parametrize(
    "error",
    [OSError(30, "Read-only file system"), ValueError("no"), SystemExit("read-only"), OwnError("not written")],
    ids=str,
)
def test_other_errors_are_raised_at_once(error: BaseException, get: Get, tmp_path: Path) -> None:
    def fail(block: np.ndarray) -> None:
        note(tmp_path / "runs")
        raise error

    with pytest.raises(type(error)):
        dask.delayed(fail)(dask.delayed(np.zeros)(100_000)).compute(scheduler=get)
    assert len(notes(tmp_path / "runs")) == 1


def test_chains_of_errors_in_circles(get: Get) -> None:
    def fail() -> None:
        first, second = OwnError("first"), OwnError("second")
        first.__cause__, second.__cause__ = second, first
        raise first

    with pytest.raises(OwnError, match="first"):
        dask.delayed(fail)().compute(scheduler=get)


@pytest.mark.parametrize("optimize_graph", [True, False])
def test_arrays_whose_blocks_are_written_to(optimize_graph: bool, get: Get) -> None:
    array = (da.arange(200_000, chunks=50_000) * 2.0).map_blocks(add_in_place).map_blocks(sort_in_place)
    ours = array.compute(scheduler=get, optimize_graph=optimize_graph)
    assert_same(ours, array.compute(scheduler="threads", optimize_graph=optimize_graph))


class Wrapped:
    """An array that can be sliced, and is no array of NumPy."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim

    def __getitem__(self, index: Any) -> Any:
        return self._array[index]


WAYS: dict[str, Callable[[np.ndarray], Any]] = {
    "argument": lambda mine: dask.delayed(add_in_place)(mine),
    "in a container": lambda mine: dask.delayed(lambda values: add_in_place(values["mine"]))({"mine": mine}),
    "in a closure": lambda mine: dask.delayed(lambda: add_in_place(mine))(),
    "in a partial": lambda mine: dask.delayed(partial(add_in_place, mine))(),
    "chunks": lambda mine: da.from_array(mine, chunks=-1).map_blocks(add_in_place),
    "view": lambda mine: dask.delayed(lambda: add_in_place(mine[::-1]))(),
}


@pytest.mark.parametrize("size", [100, 20_000])
@pytest.mark.parametrize("way", WAYS)
def test_tasks_may_write_into_arrays_of_the_user(way: str, size: int, get: Get) -> None:
    ours = WAYS[way](np.arange(float(size))).compute(scheduler=get)
    theirs = WAYS[way](np.arange(float(size))).compute(scheduler="threads")
    np.testing.assert_array_equal(ours, theirs)
    assert ours.flags.writeable


@pytest.mark.parametrize("deep", [True, False])
def test_dataframes_that_are_written_to(deep: bool, get: Get) -> None:
    pytest.importorskip("dask.dataframe")

    def change(part: Any) -> Any:
        part = part.copy(deep=deep)
        part["number"] += 1
        part.loc[part.index[0], "value"] = 9.0
        part.insert(0, "first", 1)
        return part

    frames = frame().map_partitions(lambda part: part).map_partitions(change)
    assert_same(
        frames.compute(scheduler=get, optimize_graph=False),
        frames.compute(scheduler="threads", optimize_graph=False),
    )


def test_an_input_written_to_is_unchanged_for_others(get: Get) -> None:
    source = dask.delayed(lambda: np.zeros(100_000))()
    changed = [dask.delayed(add_in_place)(source).sum() for _ in range(6)]
    assert dask.compute(*changed, dask.delayed(np.sum)(source), scheduler=get) == (100_000.0,) * 6 + (0.0,)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_arrays_within_results_are_the_users_to_write_to(steps: int, get: Get) -> None:
    pandas = pytest.importorskip("pandas")
    parts = {
        "array": lambda: np.zeros(100_000),
        "masked": lambda: np.ma.zeros(50_000),
        "frame": lambda: pandas.DataFrame({"a": np.arange(10_000), "b": np.ones(10_000)}),
    }
    value = dask.delayed(lambda: {name: make() for name, make in parts.items()})()
    alone = dask.delayed(parts["frame"])()
    for _ in range(steps):
        value, alone = (dask.delayed(lambda value: value)(each) for each in (value, alone))
    result, frame = dask.compute(value, alone, scheduler=get)
    result["array"][:] = result["masked"][:] = 1
    assert result["array"].sum() == 100_000
    for each in (frame, result["frame"]):
        each.iloc[0, 0] = 5
        each.loc[each.a > 3, "b"] = 0.0
        assert (each.a[0], each.b.sum()) == (5, 3)


@pytest.mark.parametrize("writable_inputs", [False, True])
@pytest.mark.parametrize("shape", [(), (3,), (20_000,)])
def test_arrays_handed_on_are_the_users_to_write_to(
    shape: tuple[int, ...], writable_inputs: bool, get: Get
) -> None:
    array = da.from_array(np.ones(shape), chunks=shape)
    with dask.config.set({"dask-mars.writable-inputs": writable_inputs}):
        handed_on, _ = dask.delayed([array, array + 1]).compute(scheduler=get)
    assert handed_on.flags.writeable


class Duck(np.lib.mixins.NDArrayOperatorsMixin):
    """What Dask takes for an array."""

    dtype = np.dtype("f8")

    def __array_function__(self, *arguments: Any) -> Any:
        return NotImplemented

    def __getitem__(self, index: Any) -> Any:
        return self


class Pair(Duck):
    """An array with another beside it, of which no copy is made."""

    ndim = 1

    def __init__(self, values: np.ndarray, beside: np.ndarray) -> None:
        self.values, self.beside, self.shape = values, beside, values.shape

    def copy(self) -> Any:
        return Pair(self.values.copy(), self.beside)


def masked_texts(values: np.ndarray) -> Any:
    return np.ma.MaskedArray(values.astype("U200"), values < 3, fill_value="f" * 200)


@pytest.mark.parametrize("chunks", [30_000, 10_000])
def test_results_keep_nothing_of_memory_that_is_used_again(chunks: int, get: Get) -> None:
    array = da.arange(30_000, chunks=chunks)
    texts = array.map_blocks(masked_texts, dtype="U200").compute(scheduler=get)
    values = np.arange(30_000.0)
    pairs = {("pairs", 0): (Pair, values, (np.add, values, 1))}
    pair = da.Array(pairs, "pairs", ((30_000,),), meta=Pair(values[:0], values[:0])).compute(scheduler=get)
    expected = pair.beside.copy()
    for number in range(4):
        # All blocks that are free are written to.
        (da.full(6_000_000, number, chunks=100_000) + 1).sum().compute(scheduler=get, optimize_graph=False)
    assert texts.fill_value == "f" * 200
    np.testing.assert_array_equal(pair.beside, expected)


HUGE = {
    "one element": lambda: da.zeros((10**6, 10**6), chunks=-1),
    "one number": lambda: da.full((10**6, 10**6), 3, chunks=-1),
    "repeated": lambda: da.broadcast_to(da.arange(3, chunks=3)[:, None, None], (3, 10**6, 10**6)),
}


@pytest.mark.parametrize("name", HUGE)
def test_chunks_larger_than_all_memory_that_take_next_to_none(name: str, get: Get) -> None:
    huge = HUGE[name]()
    parts = huge[..., :1, :1].sum(), huge[..., 5:7, 5:7].sum()
    assert dask.compute(*parts, scheduler=get) == dask.compute(*parts, scheduler="threads")


class Sparse(Duck):
    """An array with hardly an element, as libraries for sparse arrays have them."""

    ndim = 2

    def __init__(self, shape: tuple[int, ...] = (0, 0)) -> None:
        self.shape = shape


def test_sparse_chunks_that_would_be_larger_than_all_memory(get: Get) -> None:
    sparse = da.Array({("sparse", 0, 0): (Sparse, (10**12, 10**12))}, "sparse", ((10**12,),) * 2, meta=Sparse())
    for_each = {"dtype": "i8", "chunks": ((1,), (1,))}
    heights = sparse.map_blocks(lambda block: np.array([[block.shape[0]]]), **for_each)
    widths = sparse.map_blocks(lambda block: np.array([[block.shape[1] + 1]]), **for_each)
    assert dask.compute(heights, widths, scheduler=get) == ([[10**12]], [[10**12 + 1]])


def test_slices_of_arrays_within_objects_are_the_users_to_write_to(get: Get) -> None:
    # The block is sent with its message, or is in the store.
    for size in (5_000, 50_000):
        wrapped = da.from_array(Wrapped(np.arange(size)), chunks=size // 10, inline_array=True)
        block = wrapped.to_delayed()[1].compute(scheduler=get)
        block[0] = 7
        assert block[1] == size // 10 + 1


@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: (value, 1)], ids=["alone", "within"])
def test_empty_arrays_are_the_users_to_write_to(wrap: Callable[[Any], Any], get: Get) -> None:
    kept = dask.delayed(lambda: wrap(np.zeros((0, 3))))().persist(scheduler=get)
    handed_on = dask.delayed(lambda value: value)(kept).compute(scheduler=get)
    assert (handed_on if wrap(0) == 0 else handed_on[0]).flags.writeable


def test_results_are_their_own_memory(get: Get) -> None:
    source = dask.delayed(np.arange)(50_000)
    first, second = dask.compute(source, source[10:40_000], scheduler=get)
    first[:] = -1
    np.testing.assert_array_equal(second, np.arange(10, 40_000))


# -- other things that people compute -------------------------------------------------------------------------


def test_xarray(get: Get) -> None:
    xarray = pytest.importorskip("xarray")
    data = xarray.Dataset(
        {"t": (("x", "y"), np.arange(60_000.0).reshape(300, 200)), "p": (("x",), np.arange(300))},
        coords={"x": np.arange(300), "y": np.linspace(0, 1, 200)},
    )
    lazy = data.chunk({"x": 100, "y": 50})
    with dask.config.set(scheduler=get):
        xarray.testing.assert_identical(lazy.compute(), data)
        xarray.testing.assert_allclose(lazy.t.mean("x").compute(), data.t.mean("x"))
        xarray.testing.assert_identical((lazy.persist() + 1).load(), data + 1)
        xarray.testing.assert_identical(xarray.map_blocks(lambda part: part * 2, lazy).compute(), data * 2)


def with_metadata() -> np.ndarray:
    return np.zeros(9000, dtype=np.dtype("f8", metadata={"unit": "m"}))


def frozen() -> np.ndarray:
    array = np.arange(9000)
    array.flags.writeable = False
    return array


def hard_mask() -> np.ma.MaskedArray:
    return np.ma.masked_array(np.arange(9000.0), np.arange(9000) % 2 == 0, hard_mask=True)


def square() -> np.ndarray:
    return np.arange(10_000.0).reshape(100, 100)


LAYOUTS: dict[str, Callable[[], Any]] = {
    "reversed both ways": lambda: square()[::-1, ::-1],
    "three axes, parts": lambda: np.arange(24_000).reshape(20, 30, 40).transpose(1, 2, 0)[::2, ::-1, 3:],
    "broadcast": lambda: np.broadcast_to(np.arange(5000), (7, 5000)),
    "frozen": frozen,
    "empty": lambda: np.zeros((0, 10_000)),
    "one of many": lambda: np.zeros(100_000)[5:6],
    "record array": lambda: np.rec.array(np.zeros(3000, dtype=[("a", "i4"), ("b", "f8")])),
    "object field": lambda: np.array([(1, "x"), (2, None)], dtype=[("a", "i4"), ("b", "O")]),
    "metadata": with_metadata,
    "variable text": lambda: np.array(["a", "long" * 100] * 500, dtype=np.dtypes.StringDType()),
    "hard mask": hard_mask,
    "unaligned": lambda: np.frombuffer(bytes(80_001), dtype="u1")[1:].view("f8"),
}


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("name", LAYOUTS)
def test_arrays_of_any_layout(name: str, get: Get) -> None:
    made = dask.delayed(LAYOUTS[name])()
    passed = dask.delayed(lambda value: value)(made)
    held = dask.delayed(lambda value: [value])(passed)
    first, second, (third,) = dask.compute(made, passed, held, scheduler=get)
    expected = LAYOUTS[name]()
    for array in (first, second, third):
        assert type(array) is type(expected)
        assert array.dtype == expected.dtype
        # NumPy 2.0 makes an empty one of none when it pickles a type of times.
        own = expected.dtype.metadata
        assert array.dtype.metadata in ([own] if own else [own, copy.deepcopy(expected.dtype).metadata])
        np.testing.assert_array_equal(array, expected, strict=True)
        # What a task was given and hands on may be read-only for being shared; its owner may write all the same.
        assert array.flags.writeable >= expected.flags.writeable
        assert array.flags.c_contiguous >= expected.flags.c_contiguous
        assert array.flags.f_contiguous >= expected.flags.f_contiguous
        np.testing.assert_array_equal(np.ma.getmask(array), np.ma.getmask(expected))
    assert first.flags.writeable == expected.flags.writeable


def test_large_arguments_that_are_not_arrays(get: Get) -> None:
    numbers = list(range(300_000))
    text = "x" * (1 << 23)
    assert dask.delayed(len)(dask.delayed(numbers, traverse=False)).compute(scheduler=get) == 300_000
    assert dask.delayed(lambda text: text + "y")(text).compute(scheduler=get) == text + "y"
    assert dask.delayed(lambda: numbers)().compute(scheduler=get) == numbers


def test_the_same_object_twice_stays_one_object(get: Get) -> None:
    result = dask.delayed(lambda: [(shared := np.zeros(100_000)), shared])().compute(scheduler=get)
    assert result[0] is result[1]
