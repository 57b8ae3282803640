"""NumPy's arrays in an arena: their contents against a model, and everything that may happen to them."""

from __future__ import annotations

import contextlib
import contextvars
import gc
import itertools
import os
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dask_mars.store.arena import Arena, create
from dask_mars.store.in_place_sealing import make_heap

_arena = pytest.importorskip("dask_mars.store._arena")

PAGE_BYTES = 4096
CAPACITY_BYTES = 64 * PAGE_BYTES
THRESHOLD_BYTES = 1024

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux only")


class Room:
    """A heap over an arena of its own."""

    def __init__(self, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self.descriptor = create("test", capacity_bytes)
        self.arena = Arena(self.descriptor, capacity_bytes)
        self.heap = _arena.Heap(self.arena.view(0, capacity_bytes).data)

    def close(self) -> None:
        """Let go of everything, arrays excepted."""
        os.close(self.descriptor)
        del self.heap, self.arena

    def __contains__(self, array: np.ndarray) -> bool:
        return 0 <= address_of(array) - self.arena.address < self.arena.capacity_bytes

    def offset_of(self, array: np.ndarray) -> int:
        return address_of(array) - self.arena.address

    @contextlib.contextmanager
    def installed(self, threshold_bytes: int = THRESHOLD_BYTES) -> Iterator[None]:
        _arena.install(self.heap, threshold_bytes)
        try:
            yield
        finally:
            _arena.uninstall()

    def make(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a function while arrays are built in the arena."""
        with self.installed():
            return function(*arguments, **options)


def address_of(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@pytest.fixture
def room() -> Iterator[Room]:
    room = Room()
    yield room
    room.close()


# -- against a model --------------------------------------------------------------------------------------------

sizes = st.integers(THRESHOLD_BYTES, 9 * PAGE_BYTES)


class Model(RuleBasedStateMachine):
    """Arrays, sealed blocks and blocks of the store, with what each of them ought to hold."""

    @initialize()
    def begin(self) -> None:
        self.room = Room()
        self.heap = self.room.heap
        self.arrays: list[np.ndarray] = []
        #: What the store holds, by offset.
        self.sealed: dict[int, bytes] = {}
        self.count = 0
        self.marked_bytes = self.peak_bytes = 0

    def fill(self, array: np.ndarray) -> None:
        self.count += 1
        array[:] = np.resize(np.arange(self.count % 7, 200 + self.count % 7, dtype="u1"), array.size)

    def keep(self, array: np.ndarray) -> None:
        assert address_of(array) % 64 == 0 or array not in self.room
        self.fill(array)
        self.arrays.append(array)
        self.contents = [array.tobytes() for array in self.arrays]

    @rule(size=sizes)
    def empty(self, size: int) -> None:
        self.keep(self.room.make(np.empty, size, "u1"))

    @rule(size=sizes)
    def zeros(self, size: int) -> None:
        array = self.room.make(np.zeros, size, "u1")
        assert not array.any()
        self.keep(array)

    @precondition(lambda self: self.arrays)
    @rule(data=st.data(), size=st.integers(1, 12 * PAGE_BYTES))
    def resize(self, data: st.DataObject, size: int) -> None:
        number = data.draw(st.integers(0, len(self.arrays) - 1))
        array = self.arrays[number]
        before = array.tobytes()
        if self.room.offset_of(array) in self.sealed:
            return
        array.resize(size, refcheck=False)
        # What is added is zeros.
        assert array.tobytes() == before[:size] + bytes(max(size - len(before), 0))
        self.contents[number] = array.tobytes()

    @precondition(lambda self: self.arrays)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.arrays) - 1))
        del self.arrays[number], self.contents[number]

    @precondition(lambda self: self.arrays)
    @rule(data=st.data(), share=st.floats(0, 1))
    def seal(self, data: st.DataObject, share: float) -> None:
        array = self.arrays[data.draw(st.integers(0, len(self.arrays) - 1))]
        offset = self.room.offset_of(array)
        # Whatever its own array points to may lie anywhere in the block.
        found = self.heap.array_block(address_of(array) + int(share * (array.nbytes - 1)))
        if array not in self.room:
            assert found is None
            with pytest.raises((KeyError, OverflowError)):
                self.heap.seal(offset)
            return
        assert found == (offset, array.nbytes)
        if offset in self.sealed:
            with pytest.raises(KeyError):
                self.heap.seal(offset)
        else:
            self.heap.seal(offset)
            self.sealed[offset] = array.tobytes()

    @rule(size=st.integers(0, 9 * PAGE_BYTES))
    def allocate(self, size: int) -> None:
        offset = self.heap.allocate(size)
        if offset is not None:
            self.count += 1
            self.sealed[offset] = bytes([self.count % 251]) * size
            self.room.arena.view(offset, size)[:] = self.count % 251

    @precondition(lambda self: self.sealed)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.sealed)))
        del self.sealed[offset]
        self.heap.free(offset)
        with pytest.raises(KeyError):
            self.heap.free(offset)

    @rule()
    def trim(self) -> None:
        self.heap.trim()

    @rule()
    def mark(self) -> None:
        self.heap.mark()
        assert self.heap.peak_bytes == 0
        self.peak_bytes = self.marked_bytes = self.heap.used_bytes

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "arrays"):
            return
        used = {offset: len(data) for offset, data in self.sealed.items()}
        for number, array in enumerate(self.arrays):
            assert array.tobytes() == self.contents[number]
            if array in self.room:
                used[self.room.offset_of(array)] = array.nbytes
        for offset, data in self.sealed.items():
            assert self.room.arena.view(offset, len(data)).tobytes() == data
        assert self.heap.used == {
            offset: max(-(-size // PAGE_BYTES), 1) * PAGE_BYTES for offset, size in used.items()
        }
        assert self.heap.used_bytes == sum(self.heap.used.values())
        self.peak_bytes = max(self.peak_bytes, self.heap.used_bytes)
        assert self.heap.peak_bytes >= self.peak_bytes - self.marked_bytes
        ranges = sorted([*self.heap.used.items(), *self.heap.free_ranges()])
        assert sum(size for _, size in ranges) == CAPACITY_BYTES
        assert all(offset + size == after for (offset, size), (after, _) in itertools.pairwise(ranges))

    def teardown(self) -> None:
        if hasattr(self, "arrays"):
            self.arrays.clear()
            for offset in self.sealed:
                self.heap.free(offset)
            assert self.heap.free_ranges() == [(0, CAPACITY_BYTES)]
            self.room.close()


TestModel = Model.TestCase
TestModel.settings = settings(stateful_step_count=30, max_examples=settings().max_examples // 2)


def test_the_peak_is_what_was_in_use_at_once(room):
    kept = room.make(np.ones, PAGE_BYTES, "u1")
    room.heap.mark()
    assert room.heap.peak_bytes == 0
    for _ in range(3):
        room.make(np.ones, 2 * PAGE_BYTES, "u1")
    assert room.heap.peak_bytes == 2 * PAGE_BYTES
    result = room.make(np.ones, PAGE_BYTES, "u1")
    del kept
    assert room.heap.peak_bytes == 2 * PAGE_BYTES
    more = room.make(np.ones, 3 * PAGE_BYTES, "u1")
    assert room.heap.peak_bytes == 3 * PAGE_BYTES
    room.heap.mark()
    assert room.heap.peak_bytes == 0
    del result, more


# -- which arrays -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda: np.zeros((50, 100), order="F"),
        lambda: np.full((10, 10, 50), 2.5),
        lambda: np.arange(5000) * 2,
        lambda: np.asfortranarray(np.ones((50, 100))).copy(order="K"),
        lambda: np.concatenate([np.ones(3000), np.ones(2000)]),
        lambda: np.fromiter(range(5000), float),
        lambda: np.array([None] * 5000),
        lambda: np.zeros(5000, dtype=[("x", "f8"), ("y", "i2")]),
    ],
)
def test_large_arrays_of_all_kinds_are_built_in_the_arena(room, function):
    array = room.make(function)
    assert array in room
    assert address_of(array) % 64 == 0
    assert array.flags.writeable
    assert np._core.multiarray.get_handler_name(array) == "dask_mars"
    expected = function()
    assert expected not in room
    assert array.flags.forc == expected.flags.forc
    np.testing.assert_array_equal(array, expected)
    del array
    assert room.heap.used_bytes == 0


def test_small_arrays_are_not(room):
    with room.installed(1000):
        assert np.zeros(999, "u1") not in room
        assert np.empty(999, "u1") not in room
        array = np.zeros(1000, "u1")
        assert array in room


def test_views_keep_their_array_where_it_is(room):
    array = room.make(np.arange, 5000.0)
    view = array[10:20]
    address = address_of(array)
    del array
    assert room.heap.array_block(address_of(view)) == (address - room.arena.address, 40_000)
    assert view[0] == 10.0
    del view
    assert room.heap.array_block(address) is None
    assert room.heap.used_bytes == 0


def test_only_this_context_builds_arrays_there(room):
    found = []
    with room.installed():
        # On free-threaded builds a thread has the context of the one that starts it.
        run = contextvars.Context().run
        thread = threading.Thread(target=run, args=(lambda: found.append(np.ones(5000) in room),))
        thread.start()
        thread.join()
    assert found == [False]
    assert np.ones(5000) not in room


def test_without_room_arrays_are_private(room):
    with room.installed():
        arrays = [np.full(10 * PAGE_BYTES, number, "u1") for number in range(10)]
        zeros = np.zeros(5 * PAGE_BYTES, "u1")
    assert [array in room for array in arrays] == [True] * 6 + [False] * 4
    assert zeros not in room
    assert all((array == number).all() for number, array in enumerate(arrays))
    del arrays, zeros
    assert room.heap.used_bytes == 0


def test_impossible_arrays_are_refused_as_ever(room):
    with room.installed(), pytest.raises(MemoryError):
        np.zeros(1 << 60, "u1")
    with room.installed(), pytest.raises((MemoryError, ValueError)):
        np.zeros((1 << 40, 1 << 40), "u1")


@pytest.mark.parametrize("threshold", [0, -1])
def test_threshold_has_to_be_positive(room, threshold):
    with pytest.raises(ValueError, match="positive"):
        _arena.install(room.heap, threshold)
    with pytest.raises(TypeError):
        _arena.install(None, 1)


# -- resizing ---------------------------------------------------------------------------------------------------


def grown(array: np.ndarray, size: int) -> np.ndarray:
    array.resize(size, refcheck=False)
    return array


def test_array_grows_and_shrinks_in_place(room):
    array = room.make(np.ones, 2 * PAGE_BYTES, "u1")
    address = address_of(array)
    assert address_of(grown(array, 10 * PAGE_BYTES)) == address
    assert (array[: 2 * PAGE_BYTES].all(), array[2 * PAGE_BYTES :].any()) == (True, False)
    assert room.heap.used == {0: 10 * PAGE_BYTES}
    assert address_of(grown(array, 10)) == address
    assert room.heap.used == {0: PAGE_BYTES}
    assert room.heap.array_block(address) == (0, 10)


def test_array_that_cannot_grow_in_place_moves(room):
    with room.installed():
        array, neighbour = (np.full(2 * PAGE_BYTES, value, "u1") for value in (1, 2))
    address = address_of(array)
    assert address_of(grown(array, 3 * PAGE_BYTES)) != address
    assert array in room
    assert array.sum() == 2 * PAGE_BYTES
    assert room.heap.used == {2 * PAGE_BYTES: 2 * PAGE_BYTES, 4 * PAGE_BYTES: 3 * PAGE_BYTES}
    assert neighbour[0] == 2


def test_array_that_outgrows_the_arena_becomes_private(room):
    array = room.make(np.ones, 2 * PAGE_BYTES, "u1")
    grown(array, 2 * CAPACITY_BYTES)
    assert array not in room
    assert array.sum() == 2 * PAGE_BYTES
    assert room.heap.used_bytes == 0


def test_private_array_stays_private(room):
    with room.installed():
        array = np.ones(100, "u1")
        assert grown(array, 5 * PAGE_BYTES) not in room
    assert array.sum() == 100


def test_sealed_block_stays_as_it_is_when_its_array_grows(room):
    array = room.make(np.ones, 2 * PAGE_BYTES, "u1")
    room.heap.seal(0)
    grown(array, 3 * PAGE_BYTES)[:] = 7
    assert room.offset_of(array) == 2 * PAGE_BYTES
    assert room.arena.view(0, 2 * PAGE_BYTES).all()
    room.heap.free(0)
    assert room.heap.used == {2 * PAGE_BYTES: 3 * PAGE_BYTES}


# -- two holders ------------------------------------------------------------------------------------------------


def test_store_can_neither_free_nor_seal_what_it_has_no_part_in(room):
    array = room.make(np.ones, 5000)
    with pytest.raises(KeyError):
        room.heap.free(0)
    own = room.heap.allocate(5000)
    with pytest.raises(KeyError):
        room.heap.seal(own)
    for wrong in (PAGE_BYTES, 5, 1 << 40):
        with pytest.raises(KeyError):
            room.heap.seal(wrong)
        with pytest.raises(KeyError):
            room.heap.free(wrong)
    assert array.all()


def test_address_elsewhere_belongs_to_no_block(room):
    array = room.make(np.ones, 5000)
    for address in (0, room.arena.address - 1, room.arena.address + CAPACITY_BYTES, address_of(np.ones(5000))):
        assert room.heap.array_block(address) is None
    assert room.heap.array_block(room.arena.address + CAPACITY_BYTES - 1) is None
    assert array in room


# -- when and where arrays are freed ----------------------------------------------------------------------------


def test_array_freed_by_another_thread_after_uninstall(room):
    arrays = [room.make(np.ones, 5000) for _ in range(3)]
    thread = threading.Thread(target=arrays.clear)
    thread.start()
    thread.join()
    assert room.heap.used_bytes == 0


def test_array_outlives_the_heap_and_the_arena():
    room = Room()
    array = room.make(np.arange, 5000.0)
    memory = weakref.ref(room.arena._mapping)
    room.close()
    gc.collect()
    assert array.sum() == 4999 * 2500
    assert memory() is not None
    del array
    assert memory() is None


def test_arrays_that_live_until_the_interpreter_ends(scripts):
    done = scripts.run(
        "-c",
        textwrap.dedent("""
            import numpy as np
            from dask_mars.store.in_place_sealing import make_heap
            from dask_mars.store.arena import Arena, create
            arena = Arena(create("test", 1 << 24), 1 << 24)
            heap = make_heap(arena, [], 1024)
            class Late:
                array = np.ones(5000)
                def __del__(self):
                    self.array = self.array * 2
            kept = [np.ones(5000), Late()]
            kept.append(kept)
            np.kept_by_a_module = [np.ones(5000), Late()]
            print(heap.used_bytes)
        """),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "122880\n", "")


def test_threads_take_and_give_arrays_at_the_same_time(room):
    wrong: list[str] = []
    shared: list[np.ndarray] = []
    give_up = threading.Event()

    def hammer(number: int) -> None:
        chance = np.random.default_rng(number)
        with room.installed():
            for step in range(150):
                value = number * 1000 + step
                one = np.full(int(chance.integers(1, 8 * 512)), float(value))
                zeros = np.zeros(int(chance.integers(1, 4 * 512)))
                two = one * 2 + 1
                if zeros.any() or (one != value).any() or (two != 2 * value + 1).any():
                    wrong.append(f"{number} at {step}")
                shared.append(two)
                if len(shared) > 10:
                    shared.pop(0)

    def trim() -> None:
        while not give_up.wait(0.001):
            room.heap.trim()

    threads = [threading.Thread(target=hammer, args=(number,)) for number in range(8)]
    trimming = threading.Thread(target=trim)
    for thread in [trimming, *threads]:
        thread.start()
    for thread in threads:
        thread.join()
    give_up.set()
    trimming.join()
    assert wrong == []
    shared.clear()
    assert room.heap.free_ranges() == [(0, CAPACITY_BYTES)]


# -- zeros ------------------------------------------------------------------------------------------------------


def held_bytes(room: Room) -> int:
    return os.fstat(room.descriptor).st_blocks * 512


@on_linux
def test_zeros_touch_no_page_that_is_zero_already(room):
    room.heap.trim()
    zeros = room.make(np.zeros, 20 * PAGE_BYTES, "u1")
    assert held_bytes(room) == 0
    zeros[:] = 1
    del zeros
    zeros = room.make(np.zeros, 30 * PAGE_BYTES, "u1")
    assert held_bytes(room) == 20 * PAGE_BYTES
    assert not zeros.any()


def test_a_closed_heap_gives_out_nothing_and_keeps_what_is_in_use(room):
    with room.installed():
        kept = np.ones(PAGE_BYTES)
        assert kept in room
        context = contextvars.copy_context()
        used = room.heap.used
        room.heap.close()
        assert room.heap.allocate(PAGE_BYTES) is None
        assert context.run(np.ones, PAGE_BYTES) not in room
        kept.resize(2 * PAGE_BYTES, refcheck=False)
        assert kept not in room
        assert len(room.heap.used) == len(used) - 1
        room.heap.trim()
    np.testing.assert_array_equal(kept[:PAGE_BYTES], 1.0)


@on_linux
def test_trim_gives_free_pages_back_and_zeros_are_zeros(room):
    with room.installed():
        arrays = [np.full(10 * PAGE_BYTES, 1, "u1") for _ in range(6)]
        del arrays[0], arrays[2]
        room.heap.trim()
        assert held_bytes(room) == 40 * PAGE_BYTES
        zeros = np.zeros(10 * PAGE_BYTES, "u1")
        assert zeros in room
        assert held_bytes(room) == 40 * PAGE_BYTES
    assert not zeros.any()
    assert all(array.all() for array in arrays)


@on_linux
def test_heap_of_a_successor_starts_with_what_is_live_and_nothing_else(room):
    lost, kept = (room.make(np.full, 5000, value) for value in (1.0, 2.0))
    heap = make_heap(room.arena, [(room.offset_of(kept), kept.nbytes)], THRESHOLD_BYTES)
    _arena.uninstall()
    assert heap.used == {room.offset_of(kept): 10 * PAGE_BYTES}
    assert held_bytes(room) == 10 * PAGE_BYTES
    assert kept.sum() == 10_000
    assert not lost.any()


# -- fork -------------------------------------------------------------------------------------------------------


def in_a_fork(function: Callable[[], Any], meanwhile: Callable[[], Any]) -> str:
    """Call a function in a forked process, after another one here; return the result's text."""
    go_reader, go_writer = os.pipe()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.read(go_reader, 1)
            os.write(writer, str(function()).encode())
        except BaseException as error:
            os.write(writer, repr(error).encode())
        finally:
            os._exit(0)
    meanwhile()
    os.write(go_writer, b".")
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    os.waitpid(pid, 0)
    os.close(go_reader)
    os.close(go_writer)
    return text


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_process_has_copies_of_its_arrays_and_leaves_the_arena_alone(room):
    with room.installed():
        arrays = [np.full(3 * PAGE_BYTES, value, "u1") for value in (1, 2)]
        sealed = np.full(3 * PAGE_BYTES, 5, "u1")
        room.heap.seal(room.offset_of(sealed))
        del sealed
        used = room.heap.used

        def in_child() -> Any:
            first = [int(array.min()) for array in arrays]
            arrays[0][:] = 7
            arrays.clear()
            with contextlib.suppress(MemoryError):
                made = np.ones(5 * PAGE_BYTES, "u1")
            room.heap.trim()
            room.heap.free(6 * PAGE_BYTES)
            shared = int(room.arena.view(6 * PAGE_BYTES, 1)[0])
            return first, made in room, room.heap.allocate(1), room.heap.array_block(room.arena.address), shared

        def in_parent() -> None:
            arrays[0][:] = 3
            del arrays[1]
            arrays.append(np.full(3 * PAGE_BYTES, 4, "u1"))

        assert in_a_fork(in_child, in_parent) == "([1, 2], False, None, None, 5)"
    assert [int(array.min()) for array in arrays] == [3, 4]
    assert room.heap.used == used
    assert room.arena.view(6 * PAGE_BYTES, 3 * PAGE_BYTES).min() == 5


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_process_may_have_a_heap_of_its_own(room):
    array = room.make(np.ones, 5000)

    def in_child() -> Any:
        other = Room()
        made = other.make(np.ones, 5000)
        return made in other, other.heap.used_bytes, int(array.sum())

    assert in_a_fork(in_child, lambda: None) == "(True, 40960, 5000)"
