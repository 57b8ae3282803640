"""Computations under a checkpoint that end in the middle, and begin again where they were."""

from __future__ import annotations

import errno
import functools
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dask_mars
from dask_mars import Runtime
from dask_mars.checkpointing import session
from dask_mars.checkpointing.costs import Budget, MeasuredCosts
from dask_mars.checkpointing.directory import ComputationDirectory, computations
from dask_mars.checkpointing.facts import facts_of
from dask_mars.checkpointing.journal import Journal
from dask_mars.checkpointing.saver import ChunkSaver
from dask_mars.checkpointing.sources import sources_of
from dask_mars.client.runtime import runtimes
from dask_mars.errors import BegunBefore, CheckpointFailed, CheckpointInUse
from dask_mars.optimize.convert import convert
from dask_mars.protocol.object_ref import PICKLE
from tests.conftest import eventually
from tests.tasks import note, notes

#: What everything is worth to be saved for.
ALL = 1e9


class Stopped(RuntimeError):
    """What a task raises in place of a process that dies."""


def step(block: np.ndarray[Any, Any], folder: Path, seconds: float = 0.0) -> np.ndarray[Any, Any]:
    """Return one more, and note the call; raise if so many calls are enough."""
    stop = folder / "stop"
    if stop.exists() and len(notes(folder / "calls")) >= int(stop.read_text()):
        raise Stopped
    time.sleep(seconds)
    note(folder / "calls")
    return block + 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


def stop_after(folder: Path, calls: int | None) -> None:
    (folder / "stop").write_text(str(10**9 if calls is None else calls))


def calls(folder: Path) -> int:
    return len(notes(folder / "calls"))


def interrupted(compute: Callable[[], Any], folder: Path, after: int) -> None:
    """Compute until so many tasks have been called, and wait until they are saved."""
    stop_after(folder, after)
    with pytest.raises(Stopped):
        compute()
    stop_after(folder, None)
    # Dispatched chunks may still be called.
    for runtime in list(runtimes):
        assert eventually(lambda runtime=runtime: not runtime.state().get("graphs"), 10)


def interrupted_sum(x: da.Array, runtime: Runtime, folder: Path, saved: Path, after: int) -> Callable[[], Any]:
    """Add up an array until so many tasks have been called; return what adds it up again."""

    def compute() -> Any:
        with dask_mars.checkpoint(saved, cost_share=ALL):
            return x.sum().compute(scheduler=runtime.get)

    interrupted(compute, folder, after)
    return compute


def blocks(folder: Path, size: int = 50, count: int = 8, **options: Any) -> da.Array:
    x = da.random.default_rng(7).random((size * count, size), chunks=size)
    return stepped(x, folder, **options)


def stepped(x: da.Array, folder: Path, **options: Any) -> da.Array:
    # With a meta Dask does not call it to find out.
    return x.map_blocks(step, folder, dtype=float, meta=np.empty((0, 0)), **options)


@pytest.mark.parametrize("size", [10, 100])
def test_what_is_saved_is_not_computed_again(runtime: Runtime, folder: Path, tmp_path: Path, size: int) -> None:
    """Small values stand in the journal, and large ones in files."""
    x = blocks(folder, size)
    expected = (da.random.default_rng(7).random((size * 8, size), chunks=size) + 1).sum().compute(scheduler="sync")
    compute = interrupted_sum(x, runtime, folder, tmp_path / "saved", 5)
    (found,) = dask_mars.checkpoints(tmp_path / "saved")
    assert found.chunks >= 4
    assert not found.in_use
    before = calls(folder)
    assert compute() == expected
    # What was not saved yet when it ended.
    assert calls(folder) - before <= 5
    assert list((tmp_path / "saved").iterdir()) == []


def test_files_stay_until_the_block_ends(runtime: Runtime, folder: Path, tmp_path: Path) -> None:
    (folder / "other").mkdir()
    first, second = blocks(folder), blocks(folder / "other")

    def compute() -> tuple[float, float]:
        with dask_mars.checkpoint(tmp_path / "saved", cost_share=ALL):
            found = first.sum().compute(scheduler=runtime.get)
            return found, second.sum().compute(scheduler=runtime.get)

    stop_after(folder, None)
    interrupted(compute, folder / "other", 3)
    assert calls(folder) == 8
    assert len(dask_mars.checkpoints(tmp_path / "saved")) == 2
    one, other = compute()
    assert one == other == blocks(folder).sum().compute(scheduler="sync")
    assert calls(folder) == 16
    assert calls(folder / "other") < 16
    assert list((tmp_path / "saved").iterdir()) == []


def test_by_a_setting_files_go_with_the_computation(runtime: Runtime, folder: Path, tmp_path: Path) -> None:
    with dask.config.set(
        {"dask-mars.checkpoint.directory": str(tmp_path / "saved"), "dask-mars.checkpoint.cost-share": ALL}
    ):
        interrupted(lambda: blocks(folder).sum().compute(scheduler=runtime.get), folder, 4)
        assert len(dask_mars.checkpoints(tmp_path / "saved")) == 1
        before = calls(folder)
        blocks(folder).sum().compute(scheduler=runtime.get)
        assert calls(folder) - before < 8
    assert list((tmp_path / "saved").iterdir()) == []


def test_persisted_and_submitted_ones_are_saved_too(runtime: Runtime, folder: Path, tmp_path: Path) -> None:
    x = blocks(folder, 100)
    expected = x.compute(scheduler="sync")
    (folder / "calls").unlink()
    with dask_mars.checkpoint(tmp_path / "saved", cost_share=ALL):
        interrupted(lambda: x.persist(scheduler=runtime.get), folder, 5)
    # An exception that the block does not see leaves the files, as the computation has not succeeded.
    assert len(dask_mars.checkpoints(tmp_path / "saved")) == 1
    before = calls(folder)
    with dask_mars.checkpoint(tmp_path / "saved", cost_share=ALL):
        submitted = runtime.submit(x)
    np.testing.assert_array_equal(submitted.result(60), expected)
    assert calls(folder) - before <= 4
    assert eventually(lambda: list((tmp_path / "saved").iterdir()) == [])


def test_annotations_say_what_is_saved_and_what_is_not(runtime: Runtime, folder: Path, tmp_path: Path) -> None:
    (folder / "never").mkdir()
    with dask.annotate(checkpoint=True):
        always = blocks(folder)
    with dask.annotate(checkpoint=False):
        never = stepped(always * 2, folder / "never")

    def compute(share: float) -> Any:
        with dask_mars.checkpoint(tmp_path / "saved", cost_share=share):
            return (never + 1).map_blocks(np.cos, dtype=float).compute(scheduler=runtime.get)

    stop_after(folder, None)
    interrupted(lambda: compute(1e-9), folder / "never", 6)
    (found,) = dask_mars.checkpoints(tmp_path / "saved")
    assert found.chunks >= 6
    before, again = calls(folder), calls(folder / "never")
    compute(1e-9)
    # But for dispatched chunks.
    assert calls(folder) <= before + 2
    assert calls(folder / "never") - again == 8


def test_saving_a_chunk_supersedes_what_it_was_made_of(runtime: Runtime, folder: Path, tmp_path: Path) -> None:
    x = blocks(folder, 100, 4)
    with dask.annotate(checkpoint=True):
        y = x.map_blocks(np.sin, dtype=float)

    def compute() -> Any:
        with dask_mars.checkpoint(tmp_path / "saved", cost_share=ALL):
            return (y.sum() + blocks(folder, 10, 30, seconds=0.01).sum()).compute(scheduler=runtime.get)

    interrupted(compute, folder, 30)
    (directory,) = computations(tmp_path / "saved")
    left = list(directory.path.glob("*.chunk"))
    # Of 80 kB each: their sums take their place.
    assert len(left) < 8
    compute()


# -- what must not be taken for computed ----------------------------------------------------------------------


def test_what_is_stored_in_memory_is_stored_again(runtime: Runtime, folder: Path, tmp_path: Path) -> None:
    x = blocks(folder)
    target = np.zeros(x.shape)
    with dask_mars.checkpoint(tmp_path / "saved", cost_share=ALL):
        interrupted(lambda: da.store(x, target, scheduler=runtime.get), folder, 5)
    target = np.zeros(x.shape)
    with dask_mars.checkpoint(tmp_path / "saved", cost_share=ALL):
        da.store(x, target, scheduler=runtime.get)
    np.testing.assert_array_equal(target, x.compute(scheduler="sync"))


@pytest.fixture
def targets(zarr: Any, tmp_path: Path) -> Callable[[str], Any]:
    def target(mode: str) -> Any:
        return zarr.open_array(tmp_path / "target.zarr", mode=mode, shape=(400, 50), chunks=(50, 50), dtype="f8")

    return target


def store(x: da.Array, target: Any, tmp_path: Path, scheduler: Any) -> None:
    with dask_mars.checkpoint(tmp_path / "saved"):
        da.store(x, target, lock=False, scheduler=scheduler)


def test_what_is_in_a_zarr_store_is_not_written_again_unless_it_was_wiped(
    runtime: Runtime, folder: Path, tmp_path: Path, targets: Any
) -> None:
    x = blocks(folder)
    interrupted(lambda: store(x, targets("a"), tmp_path, runtime.get), folder, 5)
    (found,) = dask_mars.checkpoints(tmp_path / "saved")
    before = calls(folder)
    store(x, targets("a"), tmp_path, runtime.get)
    assert calls(folder) - before <= 8 - found.chunks < 8
    expected = x.compute(scheduler="sync")
    np.testing.assert_array_equal(targets("r")[:], expected)
    interrupted(lambda: store(x, targets("w"), tmp_path, runtime.get), folder, calls(folder) + 5)
    with pytest.warns(RuntimeWarning, match="is not there any more"):
        store(x, targets("w"), tmp_path, runtime.get)
    np.testing.assert_array_equal(targets("r")[:], expected)


def test_sources_that_have_changed_are_read_again(
    runtime: Runtime, folder: Path, tmp_path: Path, zarr: Any
) -> None:
    source = zarr.open_array(tmp_path / "source.zarr", mode="w", shape=(400, 50), chunks=(50, 50), dtype="f8")
    source[:] = 1

    def compute() -> Any:
        x = stepped(da.from_zarr(str(tmp_path / "source.zarr")), folder)
        with dask_mars.checkpoint(tmp_path / "saved", cost_share=ALL):
            return x.sum().compute(scheduler=runtime.get)

    interrupted(compute, folder, 5)
    source[:] = 2
    before = calls(folder)
    with pytest.warns(RuntimeWarning, match=r"source.zarr may have changed since"):
        assert compute() == 3 * 400 * 50
    assert calls(folder) - before == 8


def test_what_is_read_and_written_is_not_begun_twice(
    runtime: Runtime, folder: Path, tmp_path: Path, targets: Any
) -> None:
    targets("w")[:] = 0

    def compute() -> Any:
        x = stepped(da.from_zarr(targets("r+")), folder)
        store(x, targets("r+"), tmp_path, runtime.get)

    interrupted(compute, folder, 5)
    with pytest.raises(BegunBefore):
        compute()


# -- who may use a directory, and how -------------------------------------------------------------------------


def test_two_do_not_compute_the_same(
    runtime: Runtime, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_WAIT_S", 0.05)
    x = blocks(folder, 10, 8, seconds=0.2)
    with dask_mars.checkpoint(tmp_path / "saved"):
        first = runtime.submit(x)
        assert eventually(lambda: len(dask_mars.checkpoints(tmp_path / "saved")) == 1, 10)
        assert eventually(lambda: dask_mars.checkpoints(tmp_path / "saved")[0].in_use, 10)
        with pytest.raises(CheckpointInUse, match=f"process {os.getpid()} on .* computes the same"):
            x.compute(scheduler=runtime.get)
        with pytest.raises(CheckpointInUse):
            dask_mars.checkpoints(tmp_path / "saved")[0].remove()
        assert dask_mars.checkpoints(tmp_path / "saved").remove() == 0
        assert first.result(60).shape == x.shape


def test_who_waits_for_another_goes_on_afterwards(runtime: Runtime, folder: Path, tmp_path: Path) -> None:
    x = blocks(folder)
    compute = interrupted_sum(x, runtime, folder, tmp_path / "saved", 4)
    (found,) = dask_mars.checkpoints(tmp_path / "saved")
    # Others may not be able to write there.
    found.path.chmod(0o777)
    with pytest.raises(CheckpointFailed, match="others may write"):
        compute()
    found.path.chmod(0o700)
    other = ComputationDirectory(tmp_path / "saved", found.id)
    other.acquire(0.0)
    timer = threading.Timer(0.2, other.release)
    timer.start()
    assert compute() == x.sum().compute(scheduler="sync")
    timer.join()


def test_a_directory_that_cannot_be_used_is_a_clear_error(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compute(where: Path, reason: str) -> None:
        with dask_mars.checkpoint(where), pytest.raises(CheckpointFailed, match=reason):
            da.ones(3).sum().compute(scheduler=runtime.get)

    (tmp_path / "file").write_text("")
    compute(tmp_path / "file", "File exists")
    with pytest.raises(CheckpointFailed):
        dask_mars.checkpoints(tmp_path / "file")
    given = os.open

    def refused(path: Any, *options: Any, **named: Any) -> int:
        if str(path).endswith(".lock"):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return given(path, *options, **named)

    # Nothing is read-only for root.
    monkeypatch.setattr(os, "open", refused)
    compute(tmp_path / "x", "Read-only file system; it must")


def test_a_limit_is_kept_and_said_once(runtime: Runtime, folder: Path, tmp_path: Path) -> None:
    x = blocks(folder, 100, 8)
    most = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with dask_mars.checkpoint(tmp_path / "saved", limit="200 kB", cost_share=ALL):
            # One worker reports what it has computed before it fails.
            interrupted(lambda: x.compute(scheduler=runtime.get, num_workers=1), folder, 6)
    (found,) = dask_mars.checkpoints(tmp_path / "saved")
    most = sum(path.stat().st_size for path in found.path.glob("*.chunk"))
    assert 0 < most <= 200_000
    texts = [str(each.message) for each in caught]
    assert len([text for text in texts if "limit of bytes" in text]) == 1
    with dask_mars.checkpoint(tmp_path / "saved", limit="200 kB", cost_share=ALL):
        np.testing.assert_array_equal(x.compute(scheduler=runtime.get), x.compute(scheduler="sync"))


def test_a_disk_that_fails_is_said_once_and_goes_on(
    runtime: Runtime, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Journal, "_write", fail)
    x = blocks(folder, 100, 20, seconds=0.05)
    with (
        dask_mars.checkpoint(tmp_path / "saved", cost_share=ALL),
        pytest.warns(RuntimeWarning, match=r"cannot be written \(No space left") as caught,
    ):
        x.sum().compute(scheduler=runtime.get)
    assert len([each for each in caught if "cannot be written" in str(each.message)]) == 1


def test_graphs_are_looked_at_once_for_what_they_read(
    runtime: Runtime, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = interrupted_sum(blocks(folder), runtime, folder, tmp_path / "saved", 5)
    looked: list[Any] = []
    monkeypatch.setattr(session, "sources_of", lambda graph: looked.append(graph) or sources_of(graph))
    compute()
    assert len(looked) == 1


def test_a_lock_is_never_cut_to_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File systems flush to the disk what is written after that, and each computation would wait for it."""
    lengths: list[int] = []
    truncate = os.ftruncate
    monkeypatch.setattr(os, "ftruncate", lambda file, length: lengths.append(length) or truncate(file, length))
    directory = ComputationDirectory(tmp_path, "0" * 32)
    for _ in range(2):
        directory.acquire(0.0)
        directory.release()
    assert not lengths
    lock = tmp_path / f"{directory.identity}.lock"
    lock.write_text("process 123456789 on a host of a very, very, very long name" * 3)
    directory.acquire(0.0)
    assert lock.read_text() == f"process {os.getpid()} on {socket.gethostname()}"
    directory.release()
    assert 0 not in lengths


@pytest.mark.parametrize(("seconds", "forced", "saved"), [(0.01, (), 0), (0.01, (1,), 1), (0.1, (), 1)])
def test_little_work_is_not_worth_a_thread(tmp_path: Path, seconds: float, forced: Any, saved: int) -> None:
    graph = convert({"x": (abs, -1), "y": (abs, "x")}, ["y"])
    facts = facts_of(graph)._replace(forced=frozenset(forced))
    directory = ComputationDirectory(tmp_path, "0" * 32)
    directory.acquire(0.0)
    note = functools.partial(directory.note, {})
    budget = Budget(None, int, tmp_path)
    saver = ChunkSaver(graph, facts, directory, 1e9, budget, MeasuredCosts(), note=note, least_work_s=0.05)
    nothing: Any = lambda *_: None  # noqa: E731
    saver.begin(nothing, 1 << 20, nothing, nothing, nothing, nothing)
    value = (PICKLE, b"1", ())
    saver.computed([0], [value], [0.0])
    saver.computed([1], [value], [seconds])
    saver.stop(drain=True)
    # What comes first is never worth it here.
    assert len(directory.read()[0]) == saved
    directory.release()


def test_arguments_that_make_no_sense_are_refused() -> None:
    for arguments in ({"limit": "many"}, {"limit": -1}, {"cost_share": 0}, {"cost_share": "much"}):
        with pytest.raises(ValueError, match="such as"):
            dask_mars.checkpoint("there", **arguments)  # type: ignore[arg-type]
    with (
        dask.config.set({"dask-mars.checkpoint.directory": "there", "dask-mars.checkpoint.cost-share": "x"}),
        pytest.raises(ValueError, match="cost-share"),
    ):
        da.ones(3).sum().compute(scheduler=dask_mars.get)


def test_addresses_that_are_no_directories_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for address in ("s3://bucket/saved", "memory://saved", "simplecache::s3://saved", "file://saved"):
        for function in (dask_mars.checkpoint, dask_mars.checkpoints):
            with pytest.raises(ValueError, match="local or a shared disk"):
                function(address)
        with (
            dask.config.set({"dask-mars.checkpoint.directory": address}),
            pytest.raises(ValueError, match="local or a shared disk"),
        ):
            da.ones(3).sum().compute(scheduler=dask_mars.get)
    assert list(tmp_path.iterdir()) == []
    assert dask_mars.checkpoint(f"file://{tmp_path}/saved").directory == tmp_path / "saved"
    assert dask_mars.checkpoint("a:b").directory == Path("a:b").absolute()


@pytest.mark.slow
def test_a_clock_that_jumps_does_not_matter(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = blocks(folder)
    # Others would take what it records for the newest.
    with Runtime(2) as runtime:
        monkeypatch.setattr("time.time", lambda: 4e9)
        compute = interrupted_sum(x, runtime, folder, tmp_path / "saved", 4)
        monkeypatch.undo()
        (found,) = dask_mars.checkpoints(tmp_path / "saved")
        assert "saved" in repr(dask_mars.checkpoints(tmp_path / "saved"))
        assert found.attempts == 1
        assert compute() == x.sum().compute(scheduler="sync")
