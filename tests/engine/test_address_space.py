"""Engines where processes have few addresses (``ulimit -v``): what runs, what goes to disk, what fails and how."""

from __future__ import annotations

import contextlib
import errno
import sys
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest

from dask_mars import Runtime, config
from dask_mars.engine import loop
from dask_mars.engine.engine import Engine
from dask_mars.errors import AddressSpaceTooSmall, ResultTooLarge, SpillDiskFailed
from dask_mars.limits import AddressSpace
from dask_mars.store import arena
from tests.conftest import Scripts, eventually, files

MIB = 1 << 20

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere RLIMIT_AS is not enforced")


# -- the limit itself ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_too_few_addresses_are_an_error_at_once(scripts: Scripts) -> None:
    script = scripts.write(
        "limited.py",
        """
import resource

import dask_mars
from dask_mars.errors import AddressSpaceTooSmall

# Without the GIL, Python reserves gigabytes of addresses for its allocator.
with open("/proc/self/statm") as statm:
    limit = int(statm.read().split()[0]) * resource.getpagesize() + 600_000_000
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    dask_mars.Runtime(4, memory_limit="2 GiB").start()
except AddressSpaceTooSmall as error:
    print(f"`ulimit -v` is {limit:,} bytes" in str(error), error)
""",
    )
    done = scripts.run(str(script), timeout_s=60)
    assert done.stdout.startswith("True ")
    assert "memory_limit=2,147,483,648 and num_workers=4" in done.stdout
    assert done.stderr == ""


# -- as if there were few -----------------------------------------------------------------------------------------


@pytest.fixture
def few(monkeypatch, tmp_path):
    """Make runtimes of 2 workers whose arenas hold a part of the memory limit, 32 MiB."""
    # The limit is above what the process of the tests may have taken, and below what threads begin with.

    @contextlib.contextmanager
    def make(capacity_mib: int = 32, directory: Path = tmp_path / "spilled"):
        free = AddressSpace(capacity_mib * MIB * 4 + MIB, 1 << 30)
        monkeypatch.setattr(loop, "address_space", lambda: free)
        monkeypatch.setattr("dask_mars.store.arena_capacity.LEAST_BYTES", MIB)
        with (
            dask.config.set({"dask-mars.spill-directory": str(directory), "dask-mars.store-limit": "90%"}),
            Runtime(num_workers=2, memory_limit="2000 MiB") as runtime,
        ):
            yield runtime

    return make


def filled(number: int, mib: int) -> np.ndarray:
    return np.full(mib * MIB // 8, float(number))


def held(count: int, mib: int) -> dask.delayed:
    """Return what needs so many arrays all at once, and what it comes to."""
    arrays = [dask.delayed(filled)(number, mib) for number in range(count)]
    last = dask.delayed(sum)([dask.delayed(lambda array: float(array[-1]))(array) for array in arrays])
    parts = [dask.delayed(lambda array, last: float(array[0]) + last)(array, last) for array in arrays]
    return dask.delayed(sum)(parts), sum(range(count)) * (count + 1)


def test_the_store_holds_no_more_than_its_arenas(few) -> None:
    with few() as runtime:
        engine = runtime.engine()
        assert 30 * MIB < engine.store.allocator.capacity_bytes < 34 * MIB
        assert engine.settings.store_limit == 2 * engine.store.allocator.capacity_bytes
        assert engine.settings.memory_limit == 2000 * MIB


def test_results_of_one_worker_that_its_arena_has_no_room_for_go_to_disk(few, tmp_path) -> None:
    with few(8) as runtime:
        engine = runtime.engine()
        result, expected = held(6, 2)
        # The store has room for all of them, the arena of one worker has not.
        assert engine.settings.store_limit > 12 * MIB
        assert result.compute(scheduler=runtime.get, num_workers=1) == expected
        # On a slow disk the files are compressed, to next to nothing.
        assert engine.spilled_bytes > 0
        assert eventually(lambda: not engine._blocks.counts and not engine._blocks.file_bytes)
        assert not files(tmp_path / "spilled")


@pytest.mark.slow
def test_a_disk_that_fails_meanwhile_is_what_they_fail_with(few, tmp_path) -> None:
    with few() as runtime:
        engine = runtime.engine()
        assert dask.delayed(filled)(1, 1).sum().compute(scheduler=runtime.get) == MIB / 8
        (directory,) = (tmp_path / "spilled").iterdir()
        directory.rename(tmp_path / "elsewhere")
        result, _ = held(10, 5)
        with pytest.raises(SpillDiskFailed):
            result.compute(scheduler=runtime.get, num_workers=1)
        assert eventually(lambda: not engine._blocks.counts)


def test_a_declared_result_that_fits_no_arena_fails_with_numbers(few) -> None:
    with few() as runtime:
        x = da.random.default_rng(1).random((40 * MIB // 8,), chunks=-1)
        with pytest.raises(ResultTooLarge) as caught:
            x.persist(scheduler=runtime.get)
        assert caught.value.requested_bytes == 40 * MIB
        assert caught.value.limit_bytes == runtime.engine().store.allocator.capacity_bytes
        assert "ulimit -v" in str(caught.value)
        smaller = da.random.default_rng(1).random((40 * MIB // 8,), chunks=MIB)
        assert 0.4 < smaller.mean().compute(scheduler=runtime.get) < 0.6


# -- what the system refuses after all ----------------------------------------------------------------------------


def refusing(number: int):
    """Return a function that maps an arena, and fails from the so-manieth call on."""
    calls = []
    map_arena = arena._map

    def refuse(*args):
        calls.append(1)
        if len(calls) >= number:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return map_arena(*args)

    return refuse


@pytest.mark.parametrize("number", [1, 4])
def test_an_arena_that_is_not_mapped_in_the_users_process(monkeypatch, number) -> None:
    settings = config.settings(num_workers=2, memory_limit="1 GiB")
    before = set(Path("/proc/self/fd").iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(arena, "_map", refusing(number))
        with pytest.raises(AddressSpaceTooSmall, match="num_workers=2"):
            Engine(settings)
    assert len(set(Path("/proc/self/fd").iterdir())) <= len(before)
