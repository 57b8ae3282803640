"""The shared store over real arenas: two stores in one process, each with its own view of both arenas."""

from __future__ import annotations

import array
import collections
import datetime
import errno
import gc
import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dask_mars.errors import SpillDiskFailed, SpilledValueLost, StoreFull
from dask_mars.protocol.object_ref import (
    ARRAY,
    HANDLE,
    OBJECT,
    PICKLE,
    SMALL,
    SPILLED,
    VALUE,
    Block,
    ObjectRef,
    blocks_of,
    size_of,
    spilled_file,
)
from dask_mars.protocol.pickling import dumps
from dask_mars.store import store as sealing
from dask_mars.store.arena import Arena, create
from dask_mars.store.codec import CODECS
from dask_mars.store.in_place_sealing import make_heap
from dask_mars.store.reader import still_used
from dask_mars.store.spill_files import SpillFiles
from dask_mars.store.store import Store, bytes_to_store
from tests.store.test_spill_files import ZLIB

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")

CAPACITY_BYTES = 1 << 26
PAGE_BYTES = 4096
INLINE_BYTES = 1 << 12


@dataclass
class Pair:
    """Two processes' stores: what `make` seals, `read` reads."""

    make: Store
    read: Store
    descriptors: list[int]

    def share(self, value: Any) -> tuple[ObjectRef, Any, list[tuple[Block, Any]]]:
        """Seal a value in one store and load it in the other, as the input of a task there."""
        ref = through_a_message(self.make.seal(value))
        owners: list[tuple[Block, Any]] = []
        return ref, self.read.load(ref, owners), owners


def through_a_message(ref: ObjectRef) -> ObjectRef:
    return pickle.loads(pickle.dumps(ref, protocol=5))


def make_pair(capacity_bytes: int = CAPACITY_BYTES) -> Pair:
    descriptors = [create(f"test-{number}", capacity_bytes) for number in range(2)]
    make, read = (
        Store([Arena(descriptor, capacity_bytes) for descriptor in descriptors], own, inline_bytes=INLINE_BYTES)
        for own in range(2)
    )
    return Pair(make, read, descriptors)


def close(pair: Pair) -> None:
    for store in (pair.make, pair.read):
        for arena in store.arenas:
            arena.close()
    for descriptor in pair.descriptors:
        os.close(descriptor)


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = make_pair()
    yield pair
    close(pair)


def address_of(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def arena_of(store: Store, array: np.ndarray) -> int | None:
    """Return the number of the arena whose mapping in this store's process an array lies in."""
    for arena_id, arena in enumerate(store.arenas):
        if arena.address <= address_of(array) < arena.address + arena.capacity_bytes:
            return arena_id
    return None


def assert_same_array(result: Any, expected: np.ndarray) -> None:
    assert type(result) is type(expected)
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result, expected)


def release(pair: Pair, ref: ObjectRef) -> None:
    for arena, offset, _ in blocks_of(ref):
        (pair.make, pair.read)[arena].release(offset)


# -- plain values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, True, 0, -(1 << 100), 2.5, float("-inf"), 1j])
def test_scalars_travel_as_they_are(pair, value):
    ref = pair.make.seal(value)
    assert ref == (VALUE, value)
    assert pair.read.load(ref) is pair.read.load_copy(ref) is value
    assert blocks_of(ref) == ()


class Fraction(float):
    """A subclass that has more to it than its value."""

    def __init__(self, value: float) -> None:
        self.note = "kept"


def test_subclass_of_a_scalar_is_not_mistaken_for_one(pair):
    ref, result, _ = pair.share(Fraction(0.5))
    assert ref[0] == HANDLE
    assert (type(result), result, result.note) == (Fraction, 0.5, "kept")


SMALL_OBJECTS = {
    "str": "text",
    "bytes": b"\0\1",
    "empty tuple": (),
    "datetime": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
    "nested": {"a": [1, (2.0, "three")], "b": {4}},
    "array.array": array.array("d", [1.0, 2.0]),
    "namedtuple": collections.Counter("abca"),
    "float32": np.float32(1.5),
    "int64": np.int64(-3),
    "bool": np.bool_(True),
    "complex64": np.complex64(1 - 2j),
}


@pytest.mark.parametrize("value", SMALL_OBJECTS.values(), ids=SMALL_OBJECTS)
def test_small_objects_travel_in_the_message(pair, value):
    ref, result, owners = pair.share(value)
    assert ref[0] == (SMALL if isinstance(value, np.generic) else PICKLE)
    assert (type(result), result) == (type(value), value)
    assert owners == []
    assert pair.make.allocator.used_bytes == 0


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_bytes_are_copied_into_the_arena_and_not_into_a_pickle(pair, kind):
    ref = pair.make.seal(kind(range(256)) * 100)
    header, parts = ref[2], ref[3]
    assert len(header) < 100
    assert [size for _, _, size in parts] == [25_600]


# -- arrays -----------------------------------------------------------------------------------------------------

structured = np.zeros(2000, dtype=[("x", "f8"), ("label", "S5"), ("inner", [("y", "i2", (3,))])])
structured["x"] = np.arange(2000)
structured["label"] = b"ab"

LARGE_ARRAYS = {
    "C": np.arange(6000.0).reshape(60, 100),
    "F": np.asfortranarray(np.arange(6000.0).reshape(60, 100)),
    "strided": np.arange(30_000)[::3],
    "strided in two dimensions": np.arange(40_000).reshape(200, 200)[::2, 1::3],
    "negative strides": np.arange(6000)[::-1],
    "negative strides in one dimension": np.arange(6000.0).reshape(60, 100)[:, ::-1],
    "negative and strided": np.arange(12_000)[::-2],
    "transposed": np.arange(6000.0).reshape(10, 20, 30).transpose(2, 0, 1),
    "broadcast": np.broadcast_to(np.arange(7.0), (1000, 7)),
    "broadcast strided": np.broadcast_to(np.arange(70.0)[::10], (1000, 7)),
    "sliding window": np.lib.stride_tricks.sliding_window_view(np.arange(1000.0), 20),
    "structured": structured,
    "record field": structured["x"],
    "datetime64": np.arange(6000).astype("datetime64[ns]"),
    "timedelta64": np.arange(6000).astype("timedelta64[s]"),
    "big-endian": np.arange(6000, dtype=">i4"),
    "bool": np.arange(6000) % 3 == 0,
    "complex": np.arange(6000) * 1j,
    "half": np.arange(6000).astype("f2"),
    "long double": np.arange(6000).astype(np.longdouble),
    "str": np.arange(6000).astype("U8"),
    "bytes": np.arange(6000).astype("S8"),
    "void": np.arange(6000).view("V8"),
}


@pytest.mark.parametrize("expected", LARGE_ARRAYS.values(), ids=LARGE_ARRAYS)
def test_large_array_is_read_where_it_lies_or_copied(pair, expected):
    ref, result, owners = pair.share(expected)
    assert ref[0] == ARRAY
    assert_same_array(result, expected)
    assert arena_of(pair.read, result) == 0
    assert not result.flags.writeable
    assert [block for block, _ in owners] == list(blocks_of(ref))
    assert size_of(ref) == expected.nbytes
    # A copy is private.
    copy = pair.read.load_copy(ref)
    assert_same_array(copy, expected)
    assert arena_of(pair.read, copy) is None
    assert copy.flags.writeable == expected.flags.writeable
    if copy.flags.writeable:
        copy[...] = np.zeros((), copy.dtype)
        assert_same_array(result, expected)


SMALL_ARRAYS = {
    "empty": np.zeros((0, 5)),
    "0-d": np.array(7.0),
    "0-d structured": structured[0].copy().reshape(()),
    "small": np.arange(5),
    "small F": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "small big-endian": np.arange(5, dtype=">f8"),
    "small strided big-endian": np.arange(10, dtype=">f8")[::2],
    "without items' bytes": np.zeros(5000, dtype="V0"),
    "small of objects": np.array([1, "two", None], dtype=object),
}


@pytest.mark.parametrize("expected", SMALL_ARRAYS.values(), ids=SMALL_ARRAYS)
def test_small_arrays_travel_in_the_message(pair, expected):
    ref, result, _ = pair.share(expected)
    assert ref[0] == (SMALL if expected.dtype.kind in "biufc" else PICKLE)
    assert_same_array(result, expected)
    assert result.flags.writeable


def test_broadcast_array_takes_the_room_of_what_was_broadcast(pair):
    huge = np.broadcast_to(np.arange(3.0), (1 << 40, 3))
    ref, result, _ = pair.share(huge)
    assert result.shape == huge.shape
    assert pair.make.allocator.used_bytes == PAGE_BYTES
    copy = pair.read.load_copy(ref)
    assert copy.shape == huge.shape
    assert copy[1 << 39].tolist() == [0.0, 1.0, 2.0]
    assert not copy.flags.writeable


@pytest.mark.parametrize(
    "expected",
    [
        np.array([{"n": number} for number in range(3000)], dtype=object),
        np.array(["short", "long " * 50] * 1000, dtype=np.dtypes.StringDType()),
    ],
    ids=["objects", "texts"],
)
def test_arrays_that_are_no_plain_memory_are_pickled(pair, expected):
    ref, result, _ = pair.share(expected)
    assert ref[0] == OBJECT
    assert_same_array(result, expected)


class Labelled(np.ndarray):
    """A subclass with an attribute."""

    def __reduce__(self):
        function, arguments, state = super().__reduce__()
        return function, arguments, (state, self.label)

    def __setstate__(self, state):
        super().__setstate__(state[0])
        self.label = state[1]


def test_subclass_of_ndarray_keeps_its_type(pair):
    expected = np.arange(6000.0).view(Labelled)
    expected.label = "mine"
    ref, result, _ = pair.share(expected)
    assert ref[0] == OBJECT
    assert (type(result), result.label) == (Labelled, "mine")
    np.testing.assert_array_equal(np.asarray(result), np.asarray(expected))


@pytest.mark.parametrize("length", [10, 6000])
def test_masked_array_keeps_its_mask(pair, length):
    expected = np.ma.masked_array(np.arange(length), mask=np.arange(length) % 3 == 0, fill_value=-7)
    _, result, _ = pair.share(expected)
    assert type(result) is np.ma.MaskedArray
    assert (result.dtype, result.fill_value) == (expected.dtype, -7)
    np.testing.assert_array_equal(result.mask, expected.mask)
    np.testing.assert_array_equal(result.compressed(), expected.compressed())


def test_subclasses_do_not_travel_in_their_pickles(pair, tmp_path):
    """What `dask.array.from_array` makes of a memory map is a copy without a file."""
    mapped = np.memmap(tmp_path / "values", dtype="f8", mode="w+", shape=(60, 100))
    mapped[:] = np.arange(6000).reshape(60, 100)
    np.testing.assert_array_equal(pair.share(mapped)[1], mapped)
    times = np.arange(60, 6060).astype("M8[s]").reshape(60, 100)
    records = np.zeros(3000, [("a", "i4"), ("b", "f8")])
    records["a"] = np.arange(3000)
    for value in (mapped.copy(), mapped.copy(order="F"), times.view(np.memmap), records.view(np.recarray)):
        _, result, _ = pair.share(value)
        assert type(result) is type(value)
        assert result.dtype == value.dtype
        assert result.strides == value.strides
        np.testing.assert_array_equal(result, value)
        # NumPy has times in their pickle, of whatever class.
        assert value.dtype.kind == "M" or arena_of(pair.read, result) is not None


arrays = hnp.arrays(
    dtype=st.one_of(
        hnp.boolean_dtypes(),
        hnp.integer_dtypes(),
        hnp.unsigned_integer_dtypes(),
        hnp.floating_dtypes(),
        hnp.complex_number_dtypes(),
        # NumPy's own pickles of times lose the byte order.
        hnp.datetime64_dtypes(endianness="="),
        hnp.timedelta64_dtypes(endianness="="),
        hnp.unicode_string_dtypes(max_len=4),
        hnp.byte_string_dtypes(max_len=4),
        hnp.array_dtypes(hnp.integer_dtypes(), min_size=1, max_size=3),
    ),
    shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=8),
)


@given(data=st.data(), inline_bytes=st.sampled_from([0, 64]))
def test_any_view_of_any_array_survives_the_way(pair, data, inline_bytes):
    whole = data.draw(arrays)
    expected = whole
    if whole.ndim:
        expected = np.asarray(whole[data.draw(hnp.basic_indices(whole.shape, allow_newaxis=True))])
    if expected.ndim and data.draw(st.booleans()):
        expected = expected.transpose(data.draw(st.permutations(range(expected.ndim))))
    if expected.size and data.draw(st.booleans()):
        expected = np.broadcast_to(expected, (data.draw(st.integers(1, 50)), *expected.shape))
    pair.make.inline_bytes = inline_bytes
    try:
        ref, result, owners = pair.share(expected)
        copy = pair.read.load_copy(ref)
        assert pair.make.allocator.used_bytes == sum(
            -(-size // PAGE_BYTES) * PAGE_BYTES for _, _, size in blocks_of(ref)
        )
        for found in (result, copy):
            assert type(found) is np.ndarray
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            assert found.tobytes() == expected.tobytes()
        del result, found
        assert still_used(owners) == []
    finally:
        pair.make.inline_bytes = INLINE_BYTES
    release(pair, ref)
    assert pair.make.allocator.used_bytes == 0


# -- objects made of arrays -------------------------------------------------------------------------------------


def test_arrays_inside_containers_are_read_where_they_lie(pair):
    values = {"one": [np.arange(6001.0), {"two": np.asfortranarray(np.ones((81, 91)))}], "rest": (1, "text")}
    ref, result, _ = pair.share(values)
    assert ref[0] == OBJECT
    assert len(blocks_of(ref)) == 1
    first, second = result["one"][0], result["one"][1]["two"]
    assert_same_array(first, values["one"][0])
    assert_same_array(second, values["one"][1]["two"])
    assert result["rest"] == values["rest"]
    for found in (first, second):
        assert arena_of(pair.read, found) == 0
        assert address_of(found) % 64 == 0
        assert not found.flags.writeable


def test_array_met_twice_in_an_object_is_stored_once(pair):
    once = np.arange(6000.0)
    ref, result, _ = pair.share([once, once])
    assert result[0] is result[1]
    assert size_of(ref) < 2 * once.nbytes


def test_read_only_array_in_an_object_stays_read_only(pair):
    fixed = np.arange(6000.0)
    fixed.flags.writeable = False
    copy = pair.read.load_copy(pair.make.seal([fixed, np.arange(6000.0)]))
    assert [found.flags.writeable for found in copy] == [False, True]


def make_frame(length: int = 3000) -> Any:
    return pd.DataFrame(
        {
            "number": np.arange(length),
            "ratio": np.linspace(0.0, 1.0, length),
            "name": [f"name {number}" for number in range(length)],
            "kind": pd.Categorical(["a", "b", "c"] * (length // 3)),
            "when": pd.date_range("2020-01-01", periods=length, freq="h", tz="UTC"),
            "maybe": pd.array([1, None, 3] * (length // 3), dtype="Int64"),
        },
        index=pd.Index(np.arange(length) * 2, name="at"),
    )


@pytest.mark.parametrize("length", [3, 3000])
@pytest.mark.parametrize("read", [Store.load, Store.load_copy])
def test_frame_with_columns_of_all_kinds(pair, length, read):
    frame = make_frame(length)
    ref = through_a_message(pair.make.seal(frame))
    pd.testing.assert_frame_equal(read(pair.read, ref), frame)


def test_numbers_of_a_frame_are_read_where_they_lie_and_copies_are_writable(pair):
    ref, shared, _ = pair.share(pd.DataFrame({"x": np.arange(6000.0), "y": np.arange(6000.0)}))
    assert arena_of(pair.read, shared["x"].to_numpy()) == 0
    copy = pair.read.load_copy(ref)
    copy.iloc[0, 0] = 5.0
    assert (copy.iloc[0, 0], shared.iloc[0, 0]) == (5.0, 0.0)


@pytest.mark.parametrize("length", [3, 5000])
def test_arrow_table(pair, length):
    table = pa.table({"x": np.arange(length), "name": [f"name {number}" for number in range(length)]})
    ref, result, _ = pair.share(table)
    assert result.equals(table)
    assert pair.read.load_copy(ref).equals(table)
    if length == 5000:
        start = pair.read.arenas[0].address
        address = result["x"].chunk(0).buffers()[1].address
        assert start <= address < start + CAPACITY_BYTES


def test_what_cannot_be_pickled_takes_no_room(pair):
    with pytest.raises(Exception, match="pickle"):
        pair.make.seal([np.arange(6000.0), (number for number in range(3))])
    assert pair.make.allocator.used_bytes == 0


# -- views of inputs --------------------------------------------------------------------------------------------

VIEWS = {
    "itself": lambda array: array,
    "part": lambda array: array[1000:50_000],
    "strided": lambda array: array[::7],
    "reversed": lambda array: array[::-1],
    "reshaped": lambda array: array.reshape(100, 1000).T,
    "other dtype": lambda array: array.view("i4"),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_view_of_an_input_is_sealed_as_a_reference(pair, view):
    _, shared, owners = pair.share(np.arange(100_000.0))
    result = view(shared)
    ref = through_a_message(pair.read.seal(result, [block for block, _ in owners]))
    assert pair.read.allocator.used_bytes == 0
    assert blocks_of(ref) == tuple(block for block, _ in owners)
    assert_same_array(pair.make.load(ref), result)
    copy = pair.make.load_copy(ref)
    assert_same_array(copy, result)
    assert copy.flags.writeable
    # It is no larger than its items.
    assert copy.base is None or copy.base.nbytes == copy.nbytes


def test_view_of_one_of_two_neighbours_refers_to_that_one(pair):
    owners: list[tuple[Block, Any]] = []
    refs = [pair.make.seal(np.full(50_000, float(number))) for number in range(3)]
    values = [pair.read.load(ref, owners) for ref in refs]
    for order in (owners, owners[::-1]):
        ref = pair.read.seal(values[1][10:], [block for block, _ in order])
        assert blocks_of(ref) == blocks_of(refs[1])


def test_views_inside_an_object_are_sealed_as_references(pair):
    _, shared, owners = pair.share(np.arange(100_000.0))
    value = {"part": shared[1000:], "new": np.ones(6000)}
    ref = through_a_message(pair.read.seal(value, [block for block, _ in owners]))
    assert pair.read.allocator.used_bytes == 12 * PAGE_BYTES
    assert {arena for arena, _, _ in blocks_of(ref)} == {0, 1}
    result = pair.make.load(ref)
    assert_same_array(result["part"], shared[1000:])
    assert_same_array(result["new"], value["new"])


def test_frame_made_of_an_input_refers_to_it(pair):
    frame = pd.DataFrame({"x": np.arange(50_000.0), "y": np.arange(50_000.0)})
    _, shared, owners = pair.share(frame)
    ref = pair.read.seal(shared[["x"]], [block for block, _ in owners])
    assert pair.read.allocator.used_bytes == 0
    pd.testing.assert_frame_equal(pair.make.load(ref), frame[["x"]])


def test_tiny_view_of_a_large_input_is_copied_out(pair):
    _, shared, owners = pair.share(np.arange(1 << 20))
    ref = pair.read.seal(shared[5:1005], [block for block, _ in owners])
    assert [arena for arena, _, _ in blocks_of(ref)] == [1]
    assert pair.read.allocator.used_bytes == 2 * PAGE_BYTES
    assert_same_array(pair.make.load(ref), np.arange(5, 1005))
    # So is one inside an object.
    ref = pair.read.seal([shared[5:1005]], [block for block, _ in owners])
    assert [arena for arena, _, _ in blocks_of(ref)] == [1]


def test_array_beside_an_input_is_not_taken_for_a_view_of_it(pair):
    _, shared, owners = pair.share(np.arange(10_000.0))
    ref = pair.read.seal(shared + 1.0, [block for block, _ in owners])
    assert [arena for arena, _, _ in blocks_of(ref)] == [1]


@pytest.mark.parametrize(
    "view",
    [
        lambda array: array[:10],
        lambda array: [array],
        lambda array: [array[:10]],
        lambda array: {"x": array[5:50_000], "y": 1},
    ],
    ids=["small part", "list", "list of a small part", "dict"],
)
def test_copy_of_a_view_of_an_input_is_writable(pair, view):
    _, shared, owners = pair.share(np.arange(100_000.0))
    copy = pair.make.load_copy(pair.read.seal(view(shared), [block for block, _ in owners]))
    found = next(iter(copy.values())) if isinstance(copy, dict) else copy[0] if isinstance(copy, list) else copy
    found[0] = -1.0
    assert shared[0] == 0.0


def test_copy_of_a_broadcast_input_is_read_only_as_under_threads(pair):
    _, shared, owners = pair.share(np.arange(10_000.0))
    ref = pair.read.seal(np.broadcast_to(shared, (5, 10_000)), [block for block, _ in owners])
    assert pair.read.allocator.used_bytes == 0
    copy = pair.make.load_copy(ref)
    assert copy.nbytes == 5 * 80_000
    assert not copy.flags.writeable


# -- what outlives its task -------------------------------------------------------------------------------------

KEEPERS = {
    "itself": lambda array: array,
    "view": lambda array: array[5:],
    "view of a view": lambda array: array[5:][::2].reshape(-1, 1),
    "other dtype": lambda array: array.view("u1"),
    "memoryview": lambda array: memoryview(array),
    "cast memoryview": lambda array: memoryview(array).cast("B")[100:],
    "subclass": lambda array: array.view(Labelled),
    "series": lambda array: pd.Series(array, copy=False),
    "frame's slice": lambda array: pd.DataFrame({"x": array}, copy=False).iloc[3:],
    "arrow": lambda array: pa.array(array),
    "closure": lambda array: lambda: array,
}


@pytest.mark.parametrize("keep", KEEPERS.values(), ids=KEEPERS)
def test_whatever_refers_to_a_block_is_noticed_until_it_is_gone(pair, keep):
    _, shared, owners = pair.share(np.arange(6000.0))
    kept = keep(shared)
    del shared
    assert still_used(owners) == owners
    del kept
    assert still_used(owners) == []


@pytest.mark.parametrize(
    "keep",
    [
        lambda frame: frame,
        lambda frame: frame["x"],
        lambda frame: frame[["x"]].iloc[5:],
        lambda frame: frame["x"].to_numpy(),
        lambda frame: frame.index,
    ],
)
def test_parts_of_a_frame_are_noticed_until_they_are_gone(pair, keep):
    frame = pd.DataFrame({"x": np.arange(6000.0), "y": 1.0}, index=np.arange(6000) * 2)
    _, shared, owners = pair.share(frame)
    kept = keep(shared)
    del shared
    assert still_used(owners)
    del kept
    assert still_used(owners) == []


def test_only_blocks_in_use_are_reported(pair):
    owners: list[tuple[Block, Any]] = []
    refs = [pair.make.seal(np.full(6000, float(number))) for number in range(3)]
    values = [pair.read.load(ref, owners) for ref in refs]
    del values[0], values[1]
    assert [block for block, _ in still_used(owners)] == [blocks_of(refs[1])[0]]


def test_copies_refer_to_no_block(pair):
    ref = pair.make.seal([np.arange(6000.0)])
    owners: list[tuple[Block, Any]] = []
    pair.read.load(ref, owners)
    kept = pair.read.load_copy(ref)
    assert still_used(owners) == []
    assert kept[0][5] == 5.0


# -- results that were built in the arena -----------------------------------------------------------------------


@pytest.fixture
def born() -> Iterator[Pair]:
    """A pair of stores; until the end of the test large arrays are built in the arena of the first."""
    arena_module = pytest.importorskip("dask_mars.store._arena")
    pair = make_pair()
    heap = make_heap(pair.make.arenas[0], [], INLINE_BYTES)
    pair.make = Store(pair.make.arenas, 0, inline_bytes=INLINE_BYTES, heap=heap)
    yield pair
    arena_module.uninstall()
    # The heap keeps its arena mapped.
    pair.make = Store(pair.make.arenas, 0)
    del heap
    # Hypothesis leaves examples behind in cycles, and an arena that is referred to stays mapped.
    gc.collect()
    close(pair)


def seal_result(pair: Pair, results: list[Any]) -> ObjectRef:
    """Seal the only item of a list, and drop it."""
    ref = pair.make.seal(results[0], in_place=True)
    results.clear()
    return through_a_message(pair.make.finish(ref))


BORN = {
    "C": lambda: np.arange(6000.0).reshape(60, 100),
    "F": lambda: np.asfortranarray(np.arange(6000.0).reshape(60, 100)),
    "negative strides": lambda: np.arange(6000)[::-1],
    "transposed": lambda: np.arange(6000.0).reshape(10, 20, 30).transpose(2, 0, 1),
    "most of it": lambda: np.arange(6000)[1000:5000],
    "every other": lambda: np.arange(6000)[::2],
    "other dtype": lambda: np.arange(6000).view("i4"),
    "broadcast": lambda: np.broadcast_to(np.arange(6000.0), (3, 6000)),
    "structured": lambda: np.zeros(2000, dtype=[("x", "f8"), ("label", "S5")]),
}


@pytest.mark.parametrize("make", BORN.values(), ids=BORN)
def test_result_is_sealed_where_it_was_built(born, make):
    results = [make()]
    address, used = address_of(results[0]), born.make.allocator.used
    ref = seal_result(born, results)
    assert born.make.allocator.used == used
    block = blocks_of(ref)[0]
    assert address_of(born.make.load(ref)) == address
    expected = make()
    assert_same_array(born.read.load(ref), expected)
    assert born.read.load(ref).strides == expected.strides
    copy = born.read.load_copy(ref)
    assert_same_array(copy, expected)
    assert copy.flags.writeable == expected.flags.writeable
    del copy, expected
    born.make.release(block[1])
    assert born.make.allocator.used_bytes == 0


def test_without_leave_a_result_is_copied(born):
    array = np.arange(6000.0)
    ref = born.make.seal(array)
    array[:] = 0
    assert_same_array(born.read.load(ref), np.arange(6000.0))


@pytest.mark.parametrize(
    ("part", "pages"),
    [(slice(0, 200_000), 391), (slice(90_000, 180_000), 176), (slice(None, None, 3), 131), (slice(0, 1000), 2)],
)
def test_part_of_a_result_keeps_no_more_than_twice_its_memory(born, part, pages):
    ref = seal_result(born, [np.arange(200_000)[part]])
    assert born.make.allocator.used_bytes == pages * PAGE_BYTES
    assert_same_array(born.read.load(ref), np.arange(200_000)[part])


@pytest.mark.parametrize("wrap", [lambda array: array, lambda array: [array], lambda array: {"x": array[1:]}])
def test_read_only_result_stays_read_only(born, wrap):
    array = np.arange(6000.0)
    array.flags.writeable = False
    copy = born.read.load_copy(seal_result(born, [wrap(array)]))
    del array
    found = copy[0] if isinstance(copy, list) else copy["x"] if isinstance(copy, dict) else copy
    assert not found.flags.writeable


def keep_in_a_cycle(array: np.ndarray) -> None:
    cycle: list[Any] = [array]
    cycle.append(cycle)


@pytest.mark.parametrize("keep", [*KEEPERS.values(), keep_in_a_cycle], ids=[*KEEPERS, "cycle"])
def test_result_that_something_else_refers_to_is_copied(born, keep):
    for part in (slice(None), slice(500, 4500), slice(None, None, -1)):
        for wrap in (lambda array: array, lambda array: ["other", array]):
            array = np.arange(6000.0)
            offset = address_of(array) - born.make.arenas[0].address
            writer = np.ndarray(6000, buffer=born.make.arenas[0].view(offset, 48_000))
            kept = keep(array)
            results = [wrap(array[part])]
            del array
            ref = seal_result(born, results)
            writer[:] = -1.0
            result = born.read.load(ref)
            assert_same_array(result if isinstance(result, np.ndarray) else result[1], np.arange(6000.0)[part])
            assert born.make.allocator.used[blocks_of(ref)[0][1]] <= 12 * PAGE_BYTES
            del kept, result
            if keep is keep_in_a_cycle:
                gc.collect()
            assert len(born.make.allocator.used) == 1
            release(born, ref)
            assert born.make.allocator.used_bytes == 0


def test_half_of_a_result_that_something_else_refers_to_is_copied_alone(born):
    kept = np.arange(200_000)
    ref = seal_result(born, [[kept[100_000:]]])
    assert sorted(born.make.allocator.used.values()) == [196 * PAGE_BYTES, 391 * PAGE_BYTES]
    assert_same_array(born.read.load(ref)[0], np.arange(100_000, 200_000))


def test_arrays_inside_a_result_are_sealed_where_they_were_built(born):
    kept = np.arange(5000.0)
    small = np.arange(10)
    results = [{"first": np.arange(6000.0), "second": [np.ones((70, 90)), small], "third": kept}]
    addresses = [address_of(results[0]["first"]), address_of(results[0]["second"][0])]
    ref = seal_result(born, results)
    found = born.make.load(ref)
    assert [address_of(found["first"]), address_of(found["second"][0])] == addresses
    kept[:] = -1
    assert_same_array(found["third"], np.arange(5000.0))
    assert_same_array(found["second"][1], small)
    del found, kept
    release(born, ref)
    assert born.make.allocator.used_bytes == 0


def test_array_met_twice_in_a_result(born):
    once = np.arange(6000.0)
    results = [[once, once, once[::-1], once[:4000]]]
    del once
    used = born.make.allocator.used_bytes
    ref = seal_result(born, results)
    assert len([block for block in blocks_of(ref) if block[2] == 48_000]) == 1
    for result in (born.read.load(ref), born.read.load_copy(ref)):
        assert [int(array[0]) for array in result] == [0, 0, 5999, 0]
    assert used <= born.make.allocator.used_bytes < 3 * used


def test_frame_is_sealed_where_it_was_built(born):
    results = [pd.DataFrame({"x": np.arange(6000.0), "y": np.arange(6000.0), "z": np.arange(6000)})]
    expected = results[0].map(lambda item: item)
    addresses = {address_of(results[0][name].to_numpy()) for name in "xyz"}
    ref = seal_result(born, results)
    found = born.make.load(ref)
    assert {address_of(found[name].to_numpy()) for name in "xyz"} == addresses
    pd.testing.assert_frame_equal(born.read.load(ref), expected)


def test_small_frame_is_pickled_once(pair, monkeypatch):
    frame = pd.DataFrame({"x": np.arange(40.0), "y": list("abcd") * 10})
    pair.make.seal(frame)
    pickles = []

    def dump(*given, **named):
        pickles.append(dumps(*given, **named))
        return pickles[-1]

    monkeypatch.setattr(sealing, "dumps", dump)
    ref = pair.make.seal(frame)
    assert len(pickles) == 1
    assert not blocks_of(ref)
    pd.testing.assert_frame_equal(pair.read.load(ref), frame)


def test_arrow_array_of_a_result_is_sealed_where_it_was_built(born):
    array = np.arange(6000.0)
    address = address_of(array)
    results = [pa.array(array)]
    del array
    ref = seal_result(born, results)
    assert born.make.load(ref).buffers()[1].address == address
    assert born.read.load(ref).to_pylist() == list(range(6000))


def test_view_of_an_input_in_the_own_arena_is_no_array_of_its_own(born):
    ref = seal_result(born, [np.arange(100_000.0)])
    owners: list[tuple[Block, Any]] = []
    shared = born.make.load(ref, owners)
    inputs = [block for block, _ in owners]
    part = born.make.finish(born.make.seal(shared[1:], inputs, in_place=True), inputs)
    assert blocks_of(part) == blocks_of(ref)
    assert born.make.load_copy(part).flags.writeable


def test_full_store_leaves_a_result_that_has_to_be_copied_to_who_has_it(born):
    kept = np.zeros(40 << 20, "u1")
    used = born.make.allocator.used
    ref = born.make.seal([kept, np.ones(6000)], in_place=True)
    with pytest.raises(StoreFull, match=f"{40 << 20:,} bytes does not fit"):
        born.make.finish(ref)
    assert born.make.allocator.used == used
    del kept
    assert born.make.allocator.used_bytes == 0


def test_full_store_leaves_the_parts_of_a_result_to_who_has_them(born):
    results = [[np.zeros(40 << 20, "u1"), bytes(30 << 20)]]
    with pytest.raises(StoreFull):
        born.make.seal(results[0], in_place=True)
    results.clear()
    assert born.make.allocator.used_bytes == 0


@given(data=st.data(), keep=st.booleans(), wrapped=st.booleans())
def test_any_view_of_a_result_survives_the_way(born, data, keep, wrapped):
    whole = data.draw(arrays)
    whole = np.concatenate([whole.reshape(-1)] * 100) if whole.size else whole
    view = whole[:: data.draw(st.sampled_from([1, -1, 2, -3]))][data.draw(st.integers(0, 3)) :]
    expected = view.tobytes()
    ref = born.make.seal([view] if wrapped else view, in_place=True)
    if not keep:
        del view, whole
    ref = through_a_message(born.make.finish(ref))
    result = born.read.load(ref)
    assert (result[0] if wrapped else result).tobytes() == expected
    copy = born.read.load_copy(ref)
    assert (copy[0] if wrapped else copy).tobytes() == expected
    for block in blocks_of(ref):
        born.make.release(block[1])


# -- room -------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_pair() -> Iterator[Pair]:
    pair = make_pair(capacity_bytes=64 * PAGE_BYTES)
    yield pair
    close(pair)


@pytest.mark.parametrize(
    "value",
    [np.zeros(100 * PAGE_BYTES, "u1"), [np.zeros(100 * PAGE_BYTES, "u1")], bytes(100 * PAGE_BYTES)],
    ids=["array", "list", "bytes"],
)
def test_full_store_says_how_much_was_wanted_and_how_much_there_is(small_pair, value):
    store = small_pair.make
    kept = store.seal(np.ones(10 * PAGE_BYTES, "u1"))
    with pytest.raises(StoreFull) as caught:
        store.seal(value)
    error = pickle.loads(pickle.dumps(caught.value))
    assert 100 * PAGE_BYTES <= error.requested_bytes < 101 * PAGE_BYTES
    assert (error.free_bytes, error.capacity_bytes) == (54 * PAGE_BYTES, 64 * PAGE_BYTES)
    assert f"{error.free_bytes:,}" in str(error)
    assert store.allocator.used_bytes == 10 * PAGE_BYTES
    assert small_pair.read.load(kept).sum() == 10 * PAGE_BYTES


@pytest.mark.parametrize(
    "value",
    [
        np.arange(100_000.0),
        np.arange(100_000.0).reshape(100, 1000).T,
        np.arange(200_000.0)[::-2],
        np.broadcast_to(np.arange(100_000.0), (3, 100_000)),
        {"x": np.arange(100_000.0), "y": np.arange(30_000), "z": bytes(50_000)},
        "word " * 100_000,
    ],
    ids=["array", "transposed", "backwards", "broadcast", "dict", "text"],
)
def test_what_has_no_room_is_sealed_on_disk(small_pair, value, tmp_path):
    store = small_pair.make
    kept = store.seal(np.ones(10 * PAGE_BYTES, "u1"))
    ref = store.seal_on_disk(value, (), "value", SpillFiles(tmp_path))
    ref = through_a_message(ref)
    assert ref[0] == SPILLED
    assert [path.name for path in tmp_path.iterdir()] == ["value"]
    for read in (small_pair.read.load, small_pair.read.load_copy):
        found = read(ref)
        if isinstance(value, dict):
            assert list(found) == list(value)
            np.testing.assert_array_equal(found["x"], value["x"])
            assert found["z"] == value["z"]
        elif isinstance(value, str):
            assert found == value
        else:
            assert_same_array(found, value)
    assert len(store.arenas) == 2
    assert store.allocator.used_bytes == 10 * PAGE_BYTES
    assert small_pair.read.load(kept).sum() == 10 * PAGE_BYTES


def test_what_has_room_after_all_is_not_sealed_on_disk(small_pair, tmp_path):
    ref = small_pair.make.seal_on_disk(np.arange(5000.0), (), "value", SpillFiles(tmp_path))
    assert ref[0] == ARRAY
    assert not list(tmp_path.iterdir())
    release(small_pair, ref)


def test_what_has_no_room_may_be_partly_an_input(small_pair, tmp_path):
    store = small_pair.make
    given = store.seal(np.arange(10_000.0))
    owners: list[tuple[Block, Any]] = []
    shared = store.load(given, owners)
    value = [shared[5:], np.ones(100_000)]
    ref = store.seal_on_disk(value, [block for block, _ in owners], "value", SpillFiles(tmp_path))
    assert blocks_of(ref) == ()
    del value, shared, owners
    release(small_pair, given)
    first, second = small_pair.read.load(ref)
    np.testing.assert_array_equal(first, np.arange(5.0, 10_000))
    assert second.sum() == 100_000


def test_what_has_no_room_and_no_disk_leaves_nothing(small_pair, tmp_path):
    store = small_pair.make
    with pytest.raises(SpillDiskFailed):
        store.seal_on_disk(np.arange(100_000.0), (), "value", SpillFiles(tmp_path / "gone"))
    assert len(store.arenas) == 2
    with pytest.raises(StoreFull):
        store.seal(np.arange(100_000.0))


def test_what_has_no_room_and_no_addresses_either_says_so(small_pair, tmp_path, monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("dask_mars.store.arena._map", refuse)
    with pytest.raises(StoreFull, match="ulimit -v"):
        small_pair.make.seal_on_disk(np.arange(100_000.0), (), "value", SpillFiles(tmp_path))
    assert len(small_pair.make.arenas) == 2


ON_DISK = {
    "text": "word " * 100_000,
    "Fortran's order": np.asfortranarray(np.arange(50_000.0).reshape(100, -1)),
    "records": np.zeros(50_000, dtype=[("x", "f8"), ("y", "S3")]),
    "masked": np.ma.masked_greater(np.arange(50_000.0), 100),
    "container": {"a": [np.arange(50_000), np.ones(3)], "b": ("text", None)},
}


@pytest.mark.parametrize("codec", [None, ZLIB], ids=["plain", "compressed"])
@pytest.mark.parametrize("value", ON_DISK.values(), ids=ON_DISK)
def test_what_goes_to_disk_comes_back_if_the_file_is_as_it_was(pair, value, codec, tmp_path, monkeypatch):
    monkeypatch.setitem(CODECS, ZLIB.name, lambda: ZLIB)
    files = SpillFiles(tmp_path, codec)
    # On such a slow disk compressing always pays.
    files.disk_bytes_per_s = 1.0
    sealed = pair.make.seal(value)
    spilled = through_a_message(pair.make.spill(sealed, "value", files))
    assert spilled[0] == SPILLED
    assert spilled_file(spilled).compression == ("" if codec is None else codec.name)
    release(pair, sealed)
    restored = pair.read.restore(spilled)
    for found in (pair.read.load(spilled), pair.read.load_copy(spilled), pair.make.load(restored)):
        assert type(found) is type(value)
        np.testing.assert_equal(found, value)
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    for read in (pair.read.load, pair.read.restore):
        with pytest.raises(SpilledValueLost):
            read(spilled)


def held_bytes(descriptor: int) -> int:
    """Return the memory that the system has given to an arena."""
    return os.fstat(descriptor).st_blocks * 512


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="pages are given back on Linux only")
def test_trim_gives_free_pages_back_and_leaves_values_alone(pair):
    descriptor = pair.descriptors[0]
    kept, result, _ = pair.share(np.arange(100_000.0))
    freed = pair.make.seal(np.ones(1 << 20))
    assert held_bytes(descriptor) >= (8 << 20) + 800_000
    release(pair, freed)
    assert held_bytes(descriptor) >= 8 << 20
    pair.make.trim()
    assert held_bytes(descriptor) <= 801_000 + PAGE_BYTES
    assert_same_array(result, np.arange(100_000.0))
    again = pair.make.seal(np.full(1 << 20, 3.0))
    assert_same_array(pair.read.load(again), np.full(1 << 20, 3.0))
    assert blocks_of(kept) != blocks_of(again)


def test_arena_takes_memory_only_when_it_is_written():
    descriptor = create("test", 1 << 40)
    try:
        arena = Arena(descriptor, 1 << 40)
        assert held_bytes(descriptor) == 0
        arena.view(1 << 39, 10)[:] = 1
        assert 0 < held_bytes(descriptor) <= 1 << 21
        arena.close()
    finally:
        os.close(descriptor)


def test_arena_that_is_read_by_something_stays_mapped_when_closed():
    descriptor = create("test", 1 << 16)
    arena = Arena(descriptor, 1 << 16)
    view = arena.view(0, 4)
    view[:] = 7
    arena.close()
    os.close(descriptor)
    assert view.tolist() == [7, 7, 7, 7]


def test_sizes_of_frames_are_what_pandas_says():
    frame = pd.DataFrame({"a": np.arange(5, dtype="i2"), "b": np.ones(5), "c": list("vwxyz"), "d": pd.NaT})
    frame["e"], frame["f"] = frame.c.astype("category"), frame.c.astype(object)
    frame["g"] = pd.array([1, None, 2, 3, 4])
    twice = pd.concat([frame, frame], axis=1)
    for value in (frame, frame[["a", "b"]], frame.set_index(["a", "c"]), frame.head(0), twice, frame.b):
        assert bytes_to_store(value) == np.sum(value.memory_usage())
