"""Spilled chunks on their way back: into the store, into a task's own memory, into the user's result."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

from dask_mars.engine.receiver import Receiver
from dask_mars.errors import SpillError, StoreFull
from dask_mars.protocol.messages import Restored
from dask_mars.protocol.object_ref import ARRAY, SPILLED, ObjectRef, blocks_of, needed_bytes, spilled_file
from dask_mars.store.arena import Arena, create
from dask_mars.store.spill_files import SpillFiles
from dask_mars.store.store import Store
from dask_mars.worker.known_graph import KnownGraph
from dask_mars.worker.loop import WorkerProcess
from tests.conftest import files

MIB = 1 << 20
CAPACITY_BYTES = 16 * MIB


@pytest.fixture
def store() -> Iterator[Store]:
    """Yield a store with an arena of its own and the user's."""
    descriptors = [create(f"test-{number}", CAPACITY_BYTES) for number in range(2)]
    store = Store([Arena(descriptor, CAPACITY_BYTES) for descriptor in descriptors], own=0, inline_bytes=1 << 10)
    yield store
    for arena, descriptor in zip(store.arenas, descriptors, strict=True):
        arena.close()
        os.close(descriptor)


def on_disk(store: Store, value: Any, folder: Path) -> ObjectRef:
    """Return where on disk a value is, which is no longer in the store."""
    location = store.seal(value)
    spilled = store.spill(location, "value", SpillFiles(folder))
    for _, offset, size in blocks_of(location):
        store.arenas[0].view(offset, size)[:] = 0
        store.release(offset)
    return spilled


# -- to disk ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cut", "written"),
    [
        (lambda whole: whole, 80_000),
        (lambda whole: whole[10:20], 8_000),
        (lambda whole: whole[::-1][5:10], 4_000),
        (lambda whole: whole[:, 10:20], 8_000),
        (lambda whole: whole[::2, ::-3], 50 * 34 * 8),
        (lambda whole: np.broadcast_to(whole[7:9], (50, 2, 100)), 1_600),
        (lambda whole: whole.T, 80_000),
    ],
)
def test_of_a_slice_nothing_more_is_written_than_it_needs(store, tmp_path, cut, written):
    whole = np.arange(10_000.0).reshape(100, 100)
    location = store.seal(whole)
    view = cut(store.load(location))
    part = store.seal(view, inputs=blocks_of(location))
    assert blocks_of(part) == blocks_of(location)
    assert needed_bytes(part) == written
    spilled = store.spill(part, "value", SpillFiles(tmp_path))
    assert spilled_file(spilled).size_bytes == written
    expected = view.copy()
    store.arenas[0].view(*blocks_of(location)[0][1:])[:] = 0
    for value in (store.load(spilled), store.load_copy(spilled), store.load(store.restore(spilled))):
        np.testing.assert_array_equal(value, expected)


def test_of_objects_nothing_more_is_written_than_they_need(store, tmp_path):
    whole = np.arange(10_000.0)
    location = store.seal(whole)
    view = store.load(location)
    part = store.seal({"x": view[1000:2000], "y": view[4000:5000], "z": np.arange(3000)}, blocks_of(location))
    spilled = store.spill(part, "value", SpillFiles(tmp_path))
    assert spilled_file(spilled).parts == (32_000, 24_000)
    store.arenas[0].view(*blocks_of(location)[0][1:])[:] = 0
    for value in (store.load_copy(spilled), store.load(store.restore(spilled))):
        np.testing.assert_array_equal(value["x"], whole[1000:2000])
        np.testing.assert_array_equal(value["y"], whole[4000:5000])
        np.testing.assert_array_equal(value["z"], np.arange(3000))


# -- into the store -----------------------------------------------------------------------------------------------


def test_what_does_not_fit_leaves_nothing_in_the_store(store, tmp_path):
    spilled = on_disk(store, {"x": np.arange(5000), "y": np.zeros(MIB)}, tmp_path)
    taken = store.seal(np.ones(MIB + MIB // 2))
    before = store.allocator.used_bytes
    with pytest.raises(StoreFull):
        store.restore(spilled)
    assert store.allocator.used_bytes == before
    store.release(blocks_of(taken)[0][1])
    assert store.load(store.restore(spilled))["y"].nbytes == 8 * MIB


def test_a_file_that_is_gone_leaves_nothing_in_the_store(store, tmp_path):
    spilled = on_disk(store, np.arange(5000.0), tmp_path)
    Path(spilled_file(spilled).path).unlink()
    before = store.allocator.used_bytes
    with pytest.raises(SpillError):
        store.restore(spilled)
    assert store.allocator.used_bytes == before


@pytest.fixture
def process(store) -> Iterator[WorkerProcess]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = WorkerProcess(theirs, store, memoryview(bytearray(64)), idle_trim_s=10)
        process._graphs[1] = KnownGraph(1)
        yield process


def test_a_worker_reads_for_itself_where_the_store_is_full(process, store, tmp_path):
    graph = process._graphs[1]
    expected = np.arange(MIB, dtype=float)
    graph.values[7] = (None, on_disk(store, expected, tmp_path))
    graph.restores.add(7)
    store.seal(np.ones(MIB + MIB // 2))
    (value,) = process._runner._load_inputs(process._graphs[1], (7,), [], False)
    np.testing.assert_array_equal(value, expected)
    assert process._outbox.outgoing == []
    assert graph.values[7][1][0] == SPILLED


def test_a_worker_tells_at_once_where_it_has_put_a_value(process, store, tmp_path):
    graph = process._graphs[1]
    graph.values[7] = (None, on_disk(store, np.arange(5000.0), tmp_path))
    graph.restores.add(7)
    owners: list[Any] = []
    (value,) = process._runner._load_inputs(process._graphs[1], (7,), owners, False)
    (message,) = process._outbox.outgoing
    assert isinstance(message, Restored)
    refs = message.refs
    assert (message.graph, list(refs)) == (1, [7])
    assert refs[7][0] == ARRAY
    assert [block for block, _ in owners] == list(blocks_of(refs[7]))
    assert not value.flags.writeable
    # The next operand finds it there, and nobody is told again.
    process._runner._load_inputs(process._graphs[1], (7,), [], False)
    assert len(process._outbox.outgoing) == 1


# -- with an engine -----------------------------------------------------------------------------------------------


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the chunks that workers put back into the store."""
    chunks: list[int] = []
    on_loaded = Receiver._on_restored

    def note(self: Receiver, handle: Any, message: Restored) -> Any:
        chunks.extend(message.refs)
        return on_loaded(self, handle, message)

    monkeypatch.setitem(Receiver._handlers, Restored, note)
    return chunks


def make(number: int) -> np.ndarray:
    return np.full(MIB // 4, float(number))


def use(block: np.ndarray, total: float, step: int) -> float:
    assert (block == block[0]).all()
    return float(block[0]) + total * step


def used_after_all_are_made(times: int, count: int = 12) -> tuple[dict[Any, Any], list[Any], list[float]]:
    """Return a graph of chunks of 2 MiB, of which each is used so often once all were there."""
    dsk: dict[Any, Any] = {("x", number): (make, number) for number in range(count)}
    dsk |= {("part", number): (np.max, ("x", number)) for number in range(count)}
    dsk["total"] = (sum, [("part", number) for number in range(count)])
    keys = [("use", number, step) for number in range(count) for step in range(times)]
    dsk |= {key: (use, ("x", key[1]), "total", key[2]) for key in keys}
    total = sum(range(count))
    return dsk, keys, [number + total * step for _, number, step in keys]


def test_what_several_need_is_read_once(small, loaded, spilled):
    dsk, keys, expected = used_after_all_are_made(times=3)
    assert list(small.get(dsk, keys)) == expected
    assert len(set(loaded)) >= 6
    # Now and then one leaves again before all that need it have run.
    assert len(loaded) < 2 * 12
    assert files(spilled) == []


def test_what_one_needs_is_not_put_into_the_store(small, loaded, written):
    dsk, keys, expected = used_after_all_are_made(times=1)
    assert list(small.get(dsk, keys)) == expected
    # But for what leaves before its part of the total is worked out.
    assert len(loaded) < len(written) / 2


def test_what_leaves_again_is_not_written_again(small, loaded, written):
    dsk, keys, _ = used_after_all_are_made(times=1)
    second = {key: (use, ("x", key[1]), "again", 1) for key in [(*key, "second") for key in keys]}
    dsk |= {"again": (sum, keys), **second}
    assert list(small.get(dsk, list(second))) == [number + 2 * 66 + 0.0 - 66 for number in range(12)]
    assert len(loaded) > 2
    assert len(set(written)) == len(written)


# -- tasks that write into their inputs ---------------------------------------------------------------------------


def test_what_a_task_alone_reads_from_disk_it_may_write_into(process, store, tmp_path):
    expected = np.arange(5000.0)
    spilled = on_disk(store, expected, tmp_path)
    process._graphs[1].values[7] = (None, spilled)
    (value,) = process._runner._load_inputs(process._graphs[1], (7,), [], False)
    value += 1
    (again,) = process._runner._load_inputs(process._graphs[1], (7,), [], False)
    np.testing.assert_array_equal(again, expected)


def test_what_was_read_only_comes_back_read_only(store, tmp_path):
    array = np.arange(5000.0)
    array.flags.writeable = False
    assert not store.load(on_disk(store, array, tmp_path)).flags.writeable


def attempts(array: np.ndarray, marker: str) -> float:
    with open(marker, "a") as file:
        file.write("x")
    array += 1
    return float(array[0])


@pytest.mark.parametrize(("size", "writable"), [(10, False), (100_000, False), (100_000, True)])
def test_nobody_sees_what_a_task_writes_into_its_input(get, size, writable, tmp_path):
    marker = str(tmp_path / "attempts")
    dsk = {
        "x": (np.zeros, size),
        "first": (attempts, "x", marker),
        "second": (lambda array, after: float(array[0]), "x", "first"),
        "third": (attempts, "x", marker),
    }
    with dask.config.set({"dask-mars.writable-inputs": writable}):
        assert get(dsk, ["first", "second", "third"]) == (1.0, 0.0, 1.0)
    # Without the setting whoever writes into a large array is run again, until that is known.
    runs = len(Path(marker).read_text())
    assert runs == 2 if writable or size == 10 else runs > 2


# -- into the user's result ---------------------------------------------------------------------------------------


def test_an_array_is_assembled_with_one_chunk_from_disk_at_a_time(small, written, monkeypatch):
    living: list[int] = [0, 0]
    load = Store.load

    class Noted(np.ndarray):
        def __array_finalize__(self, other: Any) -> None:
            living[0] += 1
            living[1] = max(living)

        def __del__(self) -> None:
            living[0] -= 1

    reads: list[ObjectRef] = []

    def noted(self: Store, location: ObjectRef, owners: Any = None) -> Any:
        value = load(self, location, owners)
        if location[0] != SPILLED:
            return value
        reads.append(location)
        return value.view(Noted)

    monkeypatch.setattr(Store, "load", noted)
    x = da.random.default_rng(3).random((2000, 2000), chunks=(500, 500))
    result = x.compute(scheduler=small.get)
    assert type(result) is np.ndarray
    np.testing.assert_array_equal(result, x.compute(scheduler="threads"))
    assert len(reads) >= 4
    assert 1 <= living[1] <= 2


@pytest.mark.parametrize("dtype", ["M8[s]", [("a", "i4"), ("b", "f8")]])
def test_arrays_of_any_dtype_are_assembled_from_disk(small, written, dtype):
    values = (
        np.arange(2_400_000).astype("i8").astype(dtype) if isinstance(dtype, str) else np.zeros(2_400_000, dtype)
    )
    x = da.from_array(np.arange(24), chunks=1).map_blocks(
        lambda block: values[block[0] * 100_000 : (block[0] + 1) * 100_000].copy(), dtype=dtype, chunks=(100_000,)
    )
    result = x.compute(scheduler=small.get)
    assert written
    assert result.dtype == values.dtype
    np.testing.assert_array_equal(result, values)


def test_a_signal_may_come_while_chunks_are_given_back(process, monkeypatch):
    told: list[tuple[int, list[int]]] = []
    monkeypatch.setattr(process._outbox, "send_now", lambda message: told.append((message.graph, message.chunks)))

    class Record(tuple):
        """Is looked at when the next signal comes."""

        def __iter__(self):
            process._return_queued()
            return super().__iter__()

    process._queue.extend([Record((1, 0, 5, 0, (), ())), (1, 0, 6, 0, (), ()), (2, 0, 7, 0, (), ())])
    process._return_queued()
    assert sorted(told) == [(1, [5]), (1, [6]), (2, [7])]
    assert not process._queue
