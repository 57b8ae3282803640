"""Computations that do not fit into memory: results, what stays behind, full disks, killed workers."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dask_mars
from dask_mars.errors import QuotaExceeded, SpillDiskFull
from tests.conftest import LEAST_LIMIT_OF_TWO, eventually, files

MIB = 1 << 20


def values(side: int = 2000) -> da.Array:
    """Return an array of 32 MB in chunks of 2 MB."""
    return da.random.default_rng(3).random((side, side), chunks=(side // 4, side // 4))


# -- what operands need -------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="needs arrays that are built in shared memory")
def test_temporaries_count(small, monkeypatch):
    pytest.importorskip("dask_mars.store._arena")
    needs = []

    def total(seed: int) -> float:
        return float((np.full(MIB // 8, seed) * 2.0).sum())

    graph = {("x", number): (total, number) for number in range(4)}
    machine = small.engine()._loop.machine
    handle = machine.handle

    def note(event, now_s):
        needs.extend(getattr(event, "peaks", {}).values())
        return handle(event, now_s)

    monkeypatch.setattr(machine, "handle", note)
    small.get(graph, list(graph))
    assert max(needs) == 2 * MIB


# -- results ------------------------------------------------------------------------------------------------------

COMPUTATIONS: dict[str, Callable[[da.Array], Any]] = {
    "centred": lambda x: (x - x.mean()).std(),
    "whole": lambda x: x,
}


@pytest.mark.parametrize("name", COMPUTATIONS)
def test_results_are_those_of_threads(name, small, written, spilled):
    x = COMPUTATIONS[name](values())
    ours, theirs = x.compute(scheduler=small.get), x.compute(scheduler="threads")
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    assert np.asarray(ours).flags.writeable == np.asarray(theirs).flags.writeable
    assert written
    assert files(spilled) == []


def test_what_goes_to_disk_is_counted(small, written):
    engine = small.engine()
    assert eventually(lambda: not engine._loop.machine.memory.spilling_bytes)
    before = engine.spilled_bytes
    x = values()
    (x - x.mean()).std().compute(scheduler=small.get)
    # A file has the bytes of one chunk, and little besides; random numbers are not compressed.
    chunk_bytes = 500 * 500 * 8
    assert written
    # What is being written when the result is there is written to its end.
    assert eventually(lambda: (engine.spilled_bytes - before) // chunk_bytes == len(written))


# -- what goes wrong ----------------------------------------------------------------------------------------------


def test_one_chunk_that_is_larger_than_the_store_runs_alone(small):
    x = da.random.default_rng(3).random((1500, 1000), chunks=-1)
    np.testing.assert_array_equal(x.compute(scheduler=small.get), x.compute(scheduler="threads"))


@pytest.mark.skipif(sys.platform != "linux", reason="needs arrays that are built in shared memory")
def test_one_that_is_larger_than_all_memory_is_refused_at_once(small):
    pytest.importorskip("dask_mars.store._arena")
    x = da.random.default_rng(3).random((24_000, 1000), chunks=-1)
    with pytest.raises(MemoryError, match="192,000,000") as caught:
        x.compute(scheduler=small.get)
    assert isinstance(caught.value, QuotaExceeded)
    assert caught.value.growth_bytes == 192_000_000
    assert caught.value.limit_bytes == LEAST_LIMIT_OF_TWO
    # What fits is computed after that as before.
    assert da.ones(1000, chunks=100).sum().compute(scheduler=small.get) == 1000


def lines(count: int) -> bytes:
    return b"a line of text\n" * count


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs arrays that are built in shared memory")
def test_what_is_not_numpys_goes_to_disk_where_there_is_no_room(small, spilled):
    pytest.importorskip("dask_mars.store._arena")
    before = small.engine().spilled_bytes
    made = [dask.delayed(lines, pure=False)(700_000 + number) for number in range(4)]
    found = dask.compute(*made, scheduler=small.get)
    assert list(found) == [lines(700_000 + number) for number in range(4)]
    assert small.engine().spilled_bytes > before
    assert eventually(lambda: files(spilled) == [])


# -- what is declared falsely -------------------------------------------------------------------------------------


def first_items(block: np.ndarray) -> np.ndarray:
    return block[:5, :10]


def ones_of_two_dimensions(block: np.ndarray) -> np.ndarray:
    return np.broadcast_to(block, (200_000, 20_000))


FALSELY_DECLARED: dict[str, Callable[[], da.Array]] = {
    "a view of zeros": lambda: da.zeros((200_000, 20_000), chunks=-1).T[::-1],
    "broadcast by the user": lambda: da.ones(20_000, chunks=-1).map_blocks(
        ones_of_two_dimensions, chunks=((200_000,), (20_000,)), new_axis=0, dtype=float
    ),
}


@pytest.mark.skipif(sys.platform != "linux", reason="needs arrays that are built in shared memory")
@pytest.mark.parametrize("name", FALSELY_DECLARED)
def test_what_takes_less_than_it_is_declared_to_is_computed(name, small, written):
    pytest.importorskip("dask_mars.store._arena")
    x = FALSELY_DECLARED[name]()
    lazy = x.map_blocks(first_items), x.map_blocks(first_items) + 1
    ours, theirs = dask.compute(*lazy, scheduler=small.get), dask.compute(*lazy, scheduler="threads")
    for found, expected in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert not written


# -- what the user's process has ----------------------------------------------------------------------------------


def test_arrays_of_the_user_that_are_larger_than_the_store(small, written):
    values = np.random.default_rng(3).random((2000, 2000))
    x = da.from_array(values, chunks=(250, 500))
    lazy = ((x + 1) * (x - x.mean())).sum(axis=0)
    np.testing.assert_allclose(lazy.compute(scheduler=small.get), lazy.compute(scheduler="threads"))
    # They are in memory anyway.
    assert not written
    assert values.flags.writeable
    assert eventually(lambda: not small.engine()._blocks.counts)


def test_copies_of_many_arrays_of_the_user_come_and_go(small, monkeypatch):
    arrays = [np.full(MIB // 8, number) for number in range(24)]
    firsts = [dask.delayed(np.sum)(array) for array in arrays]
    total = dask.delayed(sum)(firsts)
    again = [dask.delayed(lambda array, total: float(array.sum() / total))(array, total) for array in arrays]
    most = 0
    blocks = small.engine()._blocks
    decref = blocks.decref_object

    def note(ref: Any) -> None:
        nonlocal most
        most = max(most, blocks.stored_bytes)
        decref(ref)

    monkeypatch.setattr(blocks, "decref_object", note)
    assert sum(dask.compute(*again, scheduler=small.get)) == pytest.approx(1)
    assert 4 * MIB < most <= 9 * MIB


def test_what_is_too_large_to_be_copied_is_computed_where_it_is(small):
    values = np.ones(20 * MIB)

    def inspect(array: np.ndarray, number: int) -> tuple[int, float]:
        return os.getpid(), float(array[number::1000].sum())

    found = dask.compute(*[dask.delayed(inspect)(values, number) for number in range(4)], scheduler=small.get)
    assert {pid for pid, _ in found} == {os.getpid()}
    assert sum([total for _, total in found]) == pytest.approx(4 * len(values) / 1000, abs=4)


# -- what else goes wrong -----------------------------------------------------------------------------------------


def test_a_full_disk_is_an_error_with_its_path_and_sizes(small, monkeypatch, spilled):
    import errno

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "writev", full)
    x = da.random.default_rng(3).random((8000, 3000), chunks=(500, 500))
    with pytest.raises(SpillDiskFull, match="spilled") as caught:
        (x - x.mean()).std().compute(scheduler=small.get)
    assert caught.value.requested_bytes > 0
    assert files(spilled) == []
    # What fits is computed as before.
    assert da.ones(1000, chunks=100).sum().compute(scheduler=small.get) == 1000


def test_workers_that_are_killed_lose_nothing(small, written):
    def kill_once(block: np.ndarray, block_id: Any = None) -> np.ndarray:
        marker = Path(os.environ["DASK_MARS_TEST_MARKER"])
        if block_id == (1, 1) and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return block

    x = values()
    y = (x - x.mean()).map_blocks(kill_once, dtype=float).std()
    assert y.compute(scheduler=small.get) == pytest.approx(x.std().compute(scheduler="threads"))


@pytest.fixture(autouse=True)
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASK_MARS_TEST_MARKER", str(tmp_path / "killed"))


def test_errors_and_cancelling_leave_no_files(small, spilled):
    def fail(block: np.ndarray) -> np.ndarray:
        raise ArithmeticError("on purpose")

    x = values()
    y = (x - x.mean()).sum() + x.std() + (x - x.mean()).map_blocks(fail, dtype=float).sum()
    with pytest.raises(ArithmeticError, match="on purpose"):
        y.compute(scheduler=small.get)
    assert small.get({"x": 1}, "x") == 1
    assert eventually(lambda: files(spilled) == [])


@pytest.mark.slow
def test_what_a_killed_process_leaves_is_removed_by_the_next(tmp_path, scripts):
    script = scripts.write(
        "script.py",
        textwrap.dedent(
            """
            import os, signal, time, dask.array as da, dask_mars
            from dask_mars.engine.spill_writer import SpillWriter

            write = SpillWriter._write

            def write_and_die(self, name, location, answer):
                write(self, name, location, lambda *_: os.kill(os.getpid(), signal.SIGKILL))

            SpillWriter._write = write_and_die
            x = da.random.default_rng(3).random((2000, 2000), chunks=500)
            (x - x.mean()).std().compute(scheduler=dask_mars.get)
            """
        ),
    )
    spilled = tmp_path / "spilled"
    environment = {
        "DASK_DASK_MARS__SPILL_DIRECTORY": str(spilled),
        "DASK_DASK_MARS__STORE_LIMIT": str(8 * MIB),
        "DASK_DASK_MARS__NUM_WORKERS": "2",
    }
    ended = scripts.run(str(script), env=environment)
    assert ended.returncode == -signal.SIGKILL
    assert len(files(spilled)) == 1
    with dask.config.set({"dask-mars.spill-directory": str(spilled)}), dask_mars.Runtime(num_workers=1) as runtime:
        assert runtime.get({"x": (abs, -1)}, "x") == 1
        assert eventually(lambda: files(spilled) == [])
