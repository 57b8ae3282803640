"""Reading a slice of a slice: as one slice, of what is needed and no more, and in the way the source can take."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import Task, TaskRef
from dask.array.chunk import getitem
from dask.array.core import getter, getter_inline, getter_nofancy
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_mars.graph.chunks import ChunkGraph
from dask_mars.optimize.convert import convert
from dask_mars.optimize.passes.compose import compose
from tests.symbolic import Here, assert_identical, evaluate, function_names, passed

VALUES = np.arange(400.0).reshape(20, 20)


class Recording:
    """A source that knows what was read from it."""

    def __init__(self, values: np.ndarray = VALUES, lock: Any = None) -> None:
        self.values, self.shape, self.dtype, self.ndim = values, values.shape, values.dtype, values.ndim
        self.lock = lock
        self.indices: list[Any] = []
        self.bytes_read = 0

    def __getitem__(self, index: Any) -> np.ndarray:
        if self.lock is not None:
            assert self.lock.held
        self.indices.append(index)
        read = self.values[index]
        self.bytes_read += getattr(read, "nbytes", 0)
        return read


class Lock:
    """A lock that can be asked whether it is held."""

    held = False

    def acquire(self) -> None:
        self.held = True

    def release(self) -> None:
        self.held = False

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


WAYS: dict[str, dict[str, Any]] = {
    "as usual": {},
    "inline": {"inline_array": True},
    "not made an array": {"asarray": False, "meta": VALUES[:0]},
    "inline, not made an array": {"inline_array": True, "asarray": False, "meta": VALUES[:0]},
    "no fancy indices": {"fancy": False},
    "inline, no fancy indices": {"fancy": False, "inline_array": True},
}

INDICES: dict[str, Any] = {
    "a corner": (slice(0, 2), slice(0, 3)),
    "a row": 7,
    "an element": (13, 4),
    "over several blocks": (slice(3, 17), slice(9, 11)),
    "every third": slice(1, 20, 3),
    "a column": (slice(None), 19),
    "from the end": slice(-2, None),
    "nothing": slice(5, 5),
}
CONTIGUOUS = {"a corner", "over several blocks", "from the end", "nothing"}


@pytest.mark.parametrize("way", WAYS)
def test_no_more_is_read_than_is_needed(way):
    for index in INDICES:
        assert_little_is_read(index, way)


def assert_little_is_read(index: str, way: str) -> None:
    source, of_dask = Recording(), Recording()
    here = Here()
    ours = da.from_array(source, chunks=8, **WAYS[way])[INDICES[index]].compute(scheduler=here)
    theirs = da.from_array(of_dask, chunks=8, **WAYS[way])[INDICES[index]].compute(scheduler="sync")
    assert_identical(np.asarray(ours), np.asarray(theirs))
    assert source.bytes_read <= of_dask.bytes_read
    if "no fancy" not in way or index in CONTIGUOUS:
        assert source.bytes_read == ours.nbytes
    if "no fancy" in way:
        # Such a source need not know steps and single numbers: Dask's own schedulers ask for none.
        asked = [along for asked in source.indices for along in asked]
        assert all(type(along) is slice and along.step in (None, 1) for along in asked)


def test_slices_of_slices_of_slices():
    source = Recording()
    x = da.from_array(source, chunks=10)[2:9, 1:][1:5:2, ::3][1, 2:4] * 2
    np.testing.assert_array_equal(x.compute(scheduler=Here()), VALUES[2:9, 1:][1:5:2, ::3][1, 2:4] * 2)
    assert source.bytes_read == x.nbytes


def test_what_follows_the_slice_stays():
    source = Recording()
    here = Here()
    x = (da.from_array(source, chunks=10)[15:, 3:5] + 1).sum()
    assert x.compute(scheduler=here) == (VALUES[15:, 3:5] + 1).sum()
    assert source.bytes_read == VALUES[15:, 3:5].nbytes
    assert function_names(here.operands()[0])[:2] == ["getter", "add"]


def test_what_is_read_stays_what_the_source_gives():
    source = Recording(np.ma.masked_greater(VALUES, 50))
    x = da.from_array(source, chunks=10, asarray=False, meta=source.values[:0])[2, 5:15]
    assert_identical(x.compute(scheduler=Here()), source.values[2, 5:15])
    assert source.bytes_read == x.nbytes


def test_a_block_that_several_need_is_read_once():
    source = Recording()
    x = da.from_array(source, chunks=20)
    (x[0] + x[1]).compute(scheduler=Here())
    assert source.bytes_read == VALUES.nbytes


def test_a_block_that_is_wanted_itself_is_read_whole():
    source = Recording()
    x = da.from_array(source, chunks=20)
    here = Here()
    part, whole = da.compute(x[0], x, scheduler=here)
    np.testing.assert_array_equal(part, VALUES[0])
    np.testing.assert_array_equal(whole, VALUES)
    assert source.bytes_read == VALUES.nbytes


def kinds(*arrays: Any) -> Any:
    return da.map_blocks(lambda *blocks: np.array([type(block).__name__ for block in blocks]), *arrays, dtype="U9")


#: What is computed with an element: Dask reads it as such if nothing else ends at it, and from a block otherwise.
WITH_ELEMENTS: dict[str, Any] = {
    "alone": lambda x, a: [a],
    "twice": lambda x, a: [a, a],
    "and its neighbour": lambda x, a: [a, x[3, 6]],
    "and an array computed from it": lambda x, a: [a, a + 1],
    "and an array computed from it and another": lambda x, a: [a, a + x.sum()],
    "seen by a function": lambda x, a: [kinds(a)],
    "seen by two functions": lambda x, a: [kinds(a), kinds(a.map_blocks(lambda block: block, dtype=a.dtype))],
    "seen by two functions of others": lambda x, a: [kinds(a, x.sum()), kinds(a, x.max())],
    "seen twice by a function": lambda x, a: [kinds(a, a)],
    "of a row": lambda x, a: [x[2][5]],
    "of a slice": lambda x, a: [x[1:9, 2:9][1, 3]],
    "of a block": lambda x, a: [x.blocks[1, 1][0, 0]],
    "stacked": lambda x, a: [da.stack([a, x[0, 0]]), a],
}


@pytest.mark.parametrize("how", ["compute", "persist"])
@pytest.mark.parametrize("way", WAYS)
def test_an_element_is_what_dask_makes_of_it(way: str, how: str) -> None:
    for name, make in WITH_ELEMENTS.items():
        found = []
        for scheduler in (Here(), "sync"):
            x = da.from_array(Recording(), chunks=8, **WAYS[way])
            values = getattr(dask, how)(*make(x, x[2, 5]), scheduler=scheduler)
            if how == "persist":
                values = [next(iter(value.dask.values())) for value in values]
            found.append([(type(value), np.asarray(value).tolist()) for value in values])
        assert found[0] == found[1], name


def test_for_an_element_of_a_block_its_block_is_not_read() -> None:
    source = Recording()
    x = da.from_array(source, chunks=8)
    a, b = dask.compute(x[2, 5], x[2, 5] + 1, scheduler=Here())
    assert (type(a), a, b) == (np.float64, VALUES[2, 5], VALUES[2, 5] + 1)
    assert source.bytes_read == a.nbytes


def test_an_element_is_any_object() -> None:
    values = np.empty(4, dtype=object)
    values[:] = [[1, 2], None, "word", {}]
    for make in (
        lambda x: [kinds(x[0])],
        lambda x: [kinds(x[0]), kinds(x[0], x[2])],
        lambda x: [x[2], kinds(x[2])],
    ):
        found = [
            dask.compute(*make(da.from_array(Recording(values), chunks=2)), scheduler=scheduler)
            for scheduler in (Here(), "sync")
        ]
        assert repr(found[0]) == repr(found[1])


def test_elements_of_array_expressions_are_scalars() -> None:
    expressions = pytest.importorskip("dask_array")
    for options in WAYS.values():
        x = expressions.from_array(Recording(), chunks=8, **options)
        for element in (x[2, 5], x[2][5], x[1:9, 2:9][1, 3]):
            ours, theirs = (element.compute(scheduler=scheduler) for scheduler in (Here(), "sync"))
            assert (type(ours), ours) == (type(theirs), theirs)


# -- pairs of tasks -----------------------------------------------------------------------------------------------


def read_and_slice(get: Any, outer: Any, inner: Any, source: Any = None, **options: Any) -> ChunkGraph:
    source = Recording() if source is None else source
    dsk = {
        "read": Task("read", get, TaskRef("source"), outer, **options),
        "slice": Task("slice", getitem, TaskRef("read"), inner),
        "source": source,
    }
    return passed(convert(dsk, ["slice"]), compose)


def is_one_slice(graph: ChunkGraph) -> bool:
    """Say whether a graph of one operand reads what it slices."""
    (operand,) = graph.operands
    return "getitem" not in function_names(operand)


ROWS = (slice(2, 12), slice(0, 20))


@pytest.mark.parametrize(
    ("outer", "inner", "fused"),
    [
        (ROWS, (slice(1, 3), slice(None)), True),
        (ROWS, (slice(1, 3),), True),
        (ROWS, (4, [1, 5]), False),
        (ROWS, (slice(0, 3), [1, 5]), True),
        (ROWS, ([True, False] * 5,), False),
        (ROWS, (np.array([True, False] * 5),), False),
        (ROWS, ([1, 2], [1, 2]), False),
        (ROWS, (slice(None, None, -1),), False),
        (ROWS, (-1, slice(None)), False),
        (ROWS, (slice(None), None), False),
        (ROWS, (None, slice(None), slice(None)), False),
        (ROWS, slice(1, 3), False),
        (ROWS, (Ellipsis, 1), False),
        (ROWS, (), True),
        ((slice(2, 12), 3), (slice(1, 3),), True),
        (([3, 1, 2], slice(None)), (slice(1, 3), 5), False),
        (([3, 1, 2], slice(None)), (slice(1, 3), slice(5)), True),
        (slice(2, 12), slice(1, 5, 2), True),
        (slice(2, 12), 3, True),
        (slice(2, 12), [3, 1], True),
        (slice(2, 12), np.array([3, 1]), False),
    ],
    ids=str,
)
def test_pairs_that_become_one_slice(outer, inner, fused):
    graph = read_and_slice(getter, outer, inner)
    np.testing.assert_array_equal(evaluate(graph)["slice"], VALUES[outer][inner])
    assert is_one_slice(graph) == fused


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        (ROWS, (slice(0, 3), [1, 5])),
        (ROWS, (np.array([1, 5]),)),
        (slice(2, 12), [3, 1]),
        ((slice(0, 5),), (slice(None), np.array([3, 1]))),
    ],
    ids=str,
)
def test_fancy_indices_are_not_given_to_sources_that_cannot_take_them(outer, inner):
    source = Recording()
    graph = read_and_slice(getter_nofancy, outer, inner, source)
    np.testing.assert_array_equal(evaluate(graph)["slice"], VALUES[outer][inner])
    assert source.indices == [outer]
    assert is_one_slice(read_and_slice(getter_nofancy, ROWS, (slice(1, 3),)))


def test_options_of_the_getter_are_kept():
    lock = Lock()
    masked = Recording(np.ma.masked_greater(VALUES, 50), lock)
    for options in ({"asarray": False, "lock": lock}, {"lock": lock, "asarray": False}):
        graph = read_and_slice(getter, ROWS, (slice(1, 2),), masked, **options)
        assert is_one_slice(graph)
        assert isinstance(evaluate(graph)["slice"], np.ma.MaskedArray)
    dsk = {
        "read": Task("read", getter, TaskRef("source"), ROWS, False, lock),
        "slice": Task("slice", getitem, TaskRef("read"), (slice(1, 2),)),
        "source": masked,
    }
    graph = passed(convert(dsk, ["slice"]), compose)
    assert is_one_slice(graph)
    assert isinstance(evaluate(graph)["slice"], np.ma.MaskedArray)


def test_an_inlined_getter_is_a_getter():
    (operand,) = read_and_slice(getter_inline, ROWS, (slice(1, 2),)).operands
    assert [operand.functions[step.function] for step in operand.steps] == [getter]


def test_an_item_of_an_array_of_objects_becomes_an_array_again(runtime):
    source = np.array([-17, None, "word", [1]], dtype=object)
    row = da.from_array(source, chunks=2)
    table = da.from_array(np.array([[1, None], ["word", 2.5]], dtype=object), chunks=1)
    for array in (row[0][None], row[2][None], table[1, 0][None, None], row.rechunk(1)[-1][None]):
        ours, theirs = (array.compute(scheduler=scheduler) for scheduler in (runtime.get, "sync"))
        assert (ours.dtype, ours.shape, ours.tolist()) == (theirs.dtype, theirs.shape, theirs.tolist())


@pytest.mark.parametrize(
    "slicer",
    [
        Task("slice", np.add, TaskRef("read"), 1),
        Task("slice", getitem, TaskRef("read"), TaskRef("index")),
        Task("slice", np.add, Task(None, getitem, TaskRef("read"), (0,)), Task(None, getitem, TaskRef("read"), 1)),
        Task("slice", np.add, Task(None, getitem, TaskRef("read"), (0,)), TaskRef("read")),
        Task("slice", getitem, obj=TaskRef("read"), index=(slice(1, 2),)),
        Task("slice", getitem, list(range(400)), Task(None, np.max, TaskRef("read"))),
    ],
)
def test_what_is_no_slice_of_what_was_read_is_left_alone(slicer):
    source = Recording(VALUES.astype(int))
    dsk = {"source": source, "read": Task("read", getter, TaskRef("source"), ROWS), "slice": slicer, "index": (1,)}
    ours = evaluate(passed(convert(dsk, ["slice"]), compose))["slice"]
    assert source.indices == [ROWS]
    np.testing.assert_array_equal(ours, evaluate(convert(dsk, ["slice"]))["slice"])


def test_each_chunk_decides_for_itself():
    """Chunks of one operand share their program, and their slices need not all become one."""
    inner = [(slice(0, 2),), (slice(None, None, -1),), (slice(1, 3),), (-1,)]
    dsk: dict[Any, Any] = {"source": Recording()}
    for number, index in enumerate(inner):
        dsk["read", number] = Task(("read", number), getter, TaskRef("source"), ROWS)
        dsk["slice", number] = Task(("slice", number), getitem, TaskRef(("read", number)), index)
    wanted = [("slice", number) for number in range(len(inner))]
    graph = passed(convert(dsk, wanted), compose)
    values = evaluate(graph)
    for key, index in zip(wanted, inner, strict=True):
        np.testing.assert_array_equal(values[key], VALUES[ROWS][index])
    names = [function_names(graph.operands[graph.operand_of[graph.ids[key]]]) for key in wanted]
    assert names == [["getter"], ["getter", "getitem"], ["getter"], ["getter", "getitem"]]


PARTS = st.one_of(
    st.builds(
        slice,
        st.one_of(st.none(), st.integers(-6, 6)),
        st.one_of(st.none(), st.integers(-6, 6)),
        st.sampled_from([None, 1, 2, 3, -1]),
    ),
    st.integers(-3, 3),
    st.lists(st.integers(0, 3), max_size=3),
    st.lists(st.booleans(), min_size=3, max_size=5),
    st.lists(st.integers(0, 3), min_size=1, max_size=3).map(np.array),
    st.none(),
    st.just(Ellipsis),
)


@settings(derandomize=True)
@given(
    outer=st.lists(PARTS, max_size=3).map(tuple),
    inner=st.lists(PARTS, max_size=3).map(tuple),
    get=st.sampled_from([getter, getter_nofancy, getter_inline]),
)
def test_any_slice_of_any_slice(outer, inner, get):
    values = np.arange(5 * 4 * 4).reshape(5, 4, 4)
    try:
        expected = getitem(getter(values, outer), inner)
    except Exception:
        # Not an index of such an array.
        return
    graph = read_and_slice(get, outer, inner, Recording(values))
    np.testing.assert_array_equal(evaluate(graph)["slice"], expected)
