"""Checkpoints that nobody comes back for: which of them go, and what never does."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_mars
from dask_mars import Runtime
from dask_mars.checkpointing import expiry
from dask_mars.checkpointing.block import Block
from dask_mars.checkpointing.directory import ComputationDirectory
from dask_mars.checkpointing.expiry import FRESH_S, Unused, expired, tidy
from dask_mars.checkpointing.journal import Begun, Saved
from dask_mars.protocol.object_ref import PICKLE
from tests.checkpointing.test_checkpoint import ALL, Stopped, blocks, stop_after
from tests.conftest import eventually

DAY_S = 86_400.0


def unused(
    id: str, days: float, size_bytes: int = 10, can_be_found: bool = True, is_empty: bool = False
) -> Unused:
    return Unused(id, days * DAY_S, size_bytes, can_be_found, is_empty)


def test_which_go() -> None:
    there = [
        unused("old", 31),
        unused("young", 29),
        unused("new", 0),
        unused("random", 0, can_be_found=False),
        unused("empty", 0, is_empty=True),
    ]
    assert expired(there, 30 * DAY_S, 0) == ["old", "empty", "random"]
    assert expired(there, None, 0) == ["empty", "random"]
    # For want of room the oldest go first, and what is fresh stays.
    there = [unused(str(days), days) for days in (5, 0.9, 3, 4, 0)]
    for surplus_bytes, gone in ((1, ["5"]), (11, ["5", "4"]), (10**9, ["5", "4", "3"])):
        assert expired(there, None, surplus_bytes) == gone


@given(
    st.lists(
        st.builds(
            Unused, st.uuids().map(str), st.floats(0, 1e7), st.integers(0, 100), st.booleans(), st.booleans()
        ),
        unique_by=lambda each: each.id,
    ),
    st.none() | st.floats(0, 1e7),
    st.integers(-100, 1000),
)
def test_no_more_goes_than_there_is_a_reason_for(
    there: list[Unused], age_s: float | None, surplus_bytes: int
) -> None:
    gone = set(expired(there, age_s, surplus_bytes))
    for each in there:
        has_reason = each.is_empty or not each.can_be_found or (age_s is not None and each.age_s > age_s)
        assert (each.id in gone) >= has_reason
        if each.id in gone and not has_reason:
            assert each.age_s > FRESH_S
            older = [other for other in there if other.id in gone and other.age_s > each.age_s]
            assert sum(other.size_bytes for other in older) < surplus_bytes


# -- on disk ------------------------------------------------------------------------------------------------------


def left(root: Path, number: int, days: float = 0.0, size_bytes: int = 0, **about: Any) -> ComputationDirectory:
    """Leave a checkpoint that was used so long ago."""
    directory = ComputationDirectory(root, f"{number:032x}")
    directory.acquire(0.0)
    directory.note(about)
    with_journal = directory.journal()
    with_journal.append([Saved(("x", 0), "f", 1.0, (PICKLE, b"0" * size_bytes), ())])
    with_journal.close()
    directory.release()
    used_at(directory, time.time() - days * DAY_S)
    return directory


def used_at(directory: ComputationDirectory, then_s: float) -> None:
    """Have a checkpoint look as if it was used last at some time."""
    for path in (*directory.path.iterdir(), *directory.root.glob(f"{directory.identity}.lock")):
        os.utime(path, (then_s, then_s))


def there(root: Path) -> list[int]:
    """Return which checkpoints there are, by their directories and locks."""
    return sorted({int(path.stem, 16) for path in root.iterdir()})


def test_a_directory_is_tidied(tmp_path: Path) -> None:
    left(tmp_path, 1, 40)
    in_use = left(tmp_path, 2, 40)
    in_use.acquire(0.0)
    used_at(in_use, time.time() - 40 * DAY_S)
    left(tmp_path, 3, 20)
    left(tmp_path, 4, 0, lasting=False)
    left(tmp_path, 5, 0, lasting=True)
    # Of what must not be begun twice nothing is forgotten.
    appending = left(tmp_path, 6, 40)
    journal = appending.journal()
    journal.append([Begun(("append", 0))])
    journal.close()
    used_at(appending, 0.0)
    (tmp_path / "mine").mkdir()
    tidy(tmp_path, 30 * DAY_S, None)
    (tmp_path / "mine").rmdir()
    assert there(tmp_path) == [2, 3, 5, 6]
    in_use.release()
    tidy(tmp_path, 30 * DAY_S, None)
    assert there(tmp_path) == [3, 5, 6]


def test_half_of_the_limit_is_left_to_those_that_come(tmp_path: Path) -> None:
    for number, days in enumerate((2, 9, 5, 0.5)):
        left(tmp_path, number, days, 10_000)
    tidy(tmp_path, None, 100_000)
    assert there(tmp_path) == [0, 1, 2, 3]
    tidy(tmp_path, None, 64_000)
    assert there(tmp_path) == [0, 2, 3]
    tidy(tmp_path, None, 1_000)
    assert there(tmp_path) == [3]


def test_computations_tidy_the_directory_that_they_save_to(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "_LOOK_S", 0.0)
    saved = tmp_path / "saved"
    for number, days in enumerate((40, 2)):
        left(saved, number, days)
    # What was left when its process was killed as it had begun, or had just ended.
    (saved / f"{2:032x}").mkdir(mode=0o700)
    (saved / f"{3:032x}.lock").touch()
    with dask_mars.checkpoint(saved):
        assert da.ones(4, chunks=2).sum().compute(scheduler=runtime.get) == 4
    assert there(saved) == [1]
    with dask_mars.checkpoint(saved), dask.config.set({"dask-mars.checkpoint.age": "1 day"}):
        assert da.ones(4, chunks=2).sum().compute(scheduler=runtime.get) == 4
    assert there(saved) == []


# -- what leaves nothing ---------------------------------------------------------------------------------------


def test_computations_that_fail_before_anything_is_saved_leave_nothing(runtime: Runtime, tmp_path: Path) -> None:
    folder, saved = tmp_path / "folder", tmp_path / "saved"
    folder.mkdir()
    stop_after(folder, 0)
    with dask_mars.checkpoint(saved), pytest.raises(Stopped):
        blocks(folder).sum().compute(scheduler=runtime.get)
    assert list(saved.iterdir()) == []


def test_those_whose_block_ends_before_they_have_let_go_leave_nothing(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, saved = tmp_path / "folder", tmp_path / "saved"
    folder.mkdir()
    stop_after(folder, None)
    keeps = Block.keeps

    def end_after(block: Block, directory: ComputationDirectory) -> bool:
        kept = keeps(block, directory)
        checkpoint.__exit__(None, None, None)
        return kept

    monkeypatch.setattr(Block, "keeps", end_after)
    checkpoint = dask_mars.checkpoint(saved, cost_share=ALL)
    checkpoint.__enter__()
    blocks(folder, 10, 4, seconds=0.05).sum().compute(scheduler=runtime.get)
    assert eventually(lambda: list(saved.iterdir()) == [])


def test_a_disk_without_room_for_a_line_is_no_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    directory = ComputationDirectory(tmp_path, "0" * 32)
    directory.acquire(0.0)
    assert directory.is_in_use()
    directory.release()
