"""Engines without work: what they give back, that nothing is lost by it, and that nothing wakes them."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import psutil
import pytest

from dask_mars import Runtime
from dask_mars.engine import workforce
from dask_mars.engine.engine import Engine
from dask_mars.engine.idle import EndingWorkers, IdleClock
from dask_mars.scheduler.replay import replay
from dask_mars.worker.trimmer import Trimmer
from tests.conftest import eventually, files
from tests.constants import constants
from tests.tasks import note, notes, pid_of, wait_for

pytestmark = pytest.mark.timeout(300)

MIB = 1 << 20
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="pages of arenas go back on Linux alone")


@pytest.fixture
def brief() -> Iterator[Runtime]:
    """A runtime whose workers end as soon as they have nothing to do."""
    settings = {"dask-mars.idle-timeout": "50 ms"}
    with dask.config.set(settings), constants(idle_trim_s=0.05), Runtime(num_workers=2) as runtime:
        yield runtime


def have_ended(engine: Engine) -> bool:
    """Say whether an engine has no workers, nor any that are about to end."""
    return not engine._registry.workers and not list(engine._loop.workforce.ending)


def arena_bytes(engine: Engine) -> int:
    """Return the bytes of memory that all arenas take."""
    return sum(os.fstat(descriptor).st_blocks * 512 for descriptor in engine._registry.resources.arena_files)


def put_and_computed(runtime: Runtime) -> Any:
    """Return persisted arrays, in the workers' arenas and in the user's."""
    mine = np.arange(1 << 20, dtype=float)
    array = da.from_array(mine, chunks=1 << 18) * 2
    return runtime.persist([array, da.ones(1 << 20, chunks=1 << 18).map_blocks(np.copy)])


# -- the clock ----------------------------------------------------------------------------------------------------


def test_without_a_timeout_nothing_but_memory_is_due():
    clock = IdleClock(trim_s=10, timeout_s=None)
    assert clock.next_s(is_trimmed=False, has_workers=True) is None
    clock.note(has_work=False, now_s=1)
    clock.note(has_work=False, now_s=7)
    assert clock.next_s(is_trimmed=False, has_workers=True) == 11
    assert clock.next_s(is_trimmed=True, has_workers=True) is None
    assert not clock.is_end_due(now_s=1e9)


def test_work_starts_the_clock_anew():
    clock = IdleClock(trim_s=10, timeout_s=30)
    clock.note(has_work=False, now_s=0)
    assert (clock.is_trim_due(10), clock.is_end_due(29.9), clock.is_end_due(30)) == (True, False, True)
    clock.note(has_work=True, now_s=31)
    assert not clock.is_trim_due(1e9)
    assert not clock.is_end_due(1e9)
    clock.note(has_work=False, now_s=40)
    assert clock.next_s(is_trimmed=False, has_workers=True) == 50
    assert clock.next_s(is_trimmed=True, has_workers=True) == 70
    assert clock.next_s(is_trimmed=True, has_workers=False) is None


# -- memory -------------------------------------------------------------------------------------------------------


@on_linux
def test_memory_goes_back_when_nobody_calls_anything():
    settings = {"dask-mars.idle-timeout": None}
    with dask.config.set(settings), constants(idle_trim_s=0.1), Runtime(num_workers=2) as runtime:
        engine = runtime.start().engine()
        persisted = put_and_computed(runtime)
        assert arena_bytes(engine) > 16 * MIB
        del persisted
        assert eventually(lambda: arena_bytes(engine) < MIB, 10)
        assert eventually(lambda: engine._loop.timeout_s() is None)
        assert len(engine.worker_pids()) == 2


#: What tasks leave behind in their worker.
KEPT: list[Any] = []


def keep(value: Any) -> None:
    KEPT.append(value)


class Pool:
    """Stands for Arrow's memory pool."""

    def __init__(self) -> None:
        self.releases = 0

    def release_unused(self) -> None:
        self.releases += 1


def test_arrow_is_told_if_it_is_there(monkeypatch):
    class Store:
        trims = 0

        def trim(self) -> None:
            self.trims += 1

    trimmer = Trimmer(Store())
    pool = Pool()
    for arrow in (None, object(), type("Arrow", (), {"default_memory_pool": lambda: pool})):
        if arrow is None:
            monkeypatch.delitem(sys.modules, "pyarrow", raising=False)
        else:
            monkeypatch.setitem(sys.modules, "pyarrow", arrow)
        trimmer.trim()
    assert (trimmer._store.trims, pool.releases) == (3, 1)


# -- workers ------------------------------------------------------------------------------------------------------


def test_workers_come_up_when_nobody_calls_anything():
    with Runtime(num_workers=1) as runtime:
        engine = runtime.start().engine()
        assert eventually(lambda: engine._loop.workforce.is_up, 20)
        assert eventually(lambda: engine._loop.timeout_s() > 100)


def test_workers_end_and_start_again(brief, caplog):
    caplog.set_level(logging.INFO, logger="dask_mars")
    engine = brief.engine()
    array = da.arange(1000, chunks=100)
    pids = set()
    for number in range(2):
        with dask.config.set({"number": number}):
            task = dask.delayed(lambda: (os.getpid(), dask.config.get("number")))()
            (pid, found), total = dask.compute(task, array.sum() + number, scheduler=brief.get)
        assert (found, total) == (number, 499_500 + number)
        pids.add(pid)
        assert eventually(lambda: have_ended(engine), 20)
        assert engine._loop.timeout_s() is None
        assert brief.state()["workers"] == []
        assert brief.state()["graphs"] == []
        assert brief.explain().startswith("no workers, which start with the next computation; the store holds")
        assert engine.memory_bytes() > 0
        assert not any(map(psutil.pid_exists, pids))
    assert len(pids) == 2
    assert not engine._loop.workforce._starts._failures
    assert not caplog.records


@on_linux
def test_persisted_data_outlive_the_workers(brief):
    engine = brief.engine()
    doubled, ones = put_and_computed(brief)
    assert eventually(lambda: have_ended(engine), 20)
    assert brief.state()["persisted"] == 8
    held = arena_bytes(engine)
    assert held >= 16 * MIB
    total = (doubled.sum() + ones.sum()).compute(scheduler=brief.get)
    assert total == (1 << 20) * ((1 << 20) - 1) + (1 << 20)
    assert eventually(lambda: have_ended(engine), 20)
    assert held == arena_bytes(engine)
    del doubled
    gc.collect()
    assert eventually(lambda: arena_bytes(engine) <= held // 2, 10)
    np.testing.assert_array_equal(ones.compute(scheduler=brief.get), np.ones(1 << 20))
    assert eventually(lambda: have_ended(engine), 20)
    del ones
    gc.collect()
    assert eventually(lambda: arena_bytes(engine) == 0, 10)
    assert eventually(lambda: engine._loop.timeout_s() is None)


def test_files_outlive_the_workers(tmp_path):
    spilled = tmp_path / "spilled"
    settings = {
        "dask-mars.spill-directory": str(spilled),
        "dask-mars.store-limit": 8 * MIB,
        "dask-mars.idle-timeout": "50 ms",
    }
    with dask.config.set(settings), Runtime(num_workers=2) as runtime:
        engine = runtime.engine()
        (array,) = runtime.persist([da.ones(4 << 20, chunks=1 << 18).map_blocks(np.copy)])
        assert engine.spilled_bytes > 0
        assert eventually(lambda: have_ended(engine), 20)
        written = files(spilled)
        assert written
        assert array.sum().compute(scheduler=runtime.get) == 4 << 20
        assert eventually(lambda: have_ended(engine), 20)
        assert set(files(spilled)) >= set(written)
        del array
        gc.collect()
        assert eventually(lambda: not engine.has_persisted and len(files(spilled)) < len(written), 10)
    assert not files(spilled)


@pytest.mark.slow
@on_linux
def test_what_tasks_have_kept_goes_with_the_workers(brief):
    engine = brief.engine()
    assert dask.delayed(keep)(dask.delayed(np.ones)(MIB)).compute(scheduler=brief.get) is None
    assert eventually(lambda: have_ended(engine), 20)
    # The engine's thread frees a worker's blocks once that has ended.
    assert eventually(lambda: not engine._blocks.counts and arena_bytes(engine) == 0)


def test_workers_of_a_computation_that_waits_stay(brief, tmp_path):
    engine = brief.engine()
    waits = dask.delayed(wait_for)(tmp_path / "go on", dask.delayed(pid_of)())
    with ThreadPoolExecutor(1) as pool:
        pid = pool.submit(waits.compute, scheduler=brief.get)
        try:
            assert eventually(engine.worker_pids)
            pids = engine.worker_pids()
            # Ten times as long as idle ones have.
            time.sleep(0.5)
            assert set(pids) <= set(engine.worker_pids())
        finally:
            (tmp_path / "go on").touch()
        assert psutil.pid_exists(pid.result())


def end_slowly(path: Path, seconds: float) -> None:
    """Have this worker take its time to end."""

    def at_exit() -> None:
        note(path)
        time.sleep(seconds)

    atexit.register(at_exit)


@pytest.mark.slow
def test_workers_that_do_not_end_are_killed(monkeypatch, tmp_path):
    monkeypatch.setattr(workforce, "_EXIT_S", 0.3)
    with dask.config.set({"dask-mars.idle-timeout": "20 ms"}), Runtime(num_workers=1) as runtime:
        dask.delayed(end_slowly)(tmp_path / "ending", 60).compute(scheduler=runtime.get)
        assert eventually(lambda: notes(tmp_path / "ending"), 20)
        assert dask.delayed(sum)([1, 2]).compute(scheduler=runtime.get) == 3


@pytest.mark.parametrize("timeout", ["0 s"])
def test_computations_at_any_moment_come_to_their_end(timeout, tmp_path):
    chance = random.Random(7)
    settings = {"dask-mars.idle-timeout": timeout, "dask-mars.scheduler-log": str(tmp_path / "log")}
    with dask.config.set(settings), constants(idle_trim_s=0.001), Runtime(num_workers=2) as runtime:
        array = da.arange(1000, chunks=250).map_blocks(np.copy).persist(scheduler=runtime.get)

        def compute(pause_s: float) -> int:
            time.sleep(pause_s)
            return int(array.sum().compute(scheduler=runtime.get))

        with ThreadPoolExecutor(2) as pool:
            pauses_s = [chance.choice([0, 0.005, 0.1, 0.2]) for _ in range(12)]
            assert list(pool.map(compute, pauses_s)) == [499_500] * 12
        engine = runtime.engine()
        assert not engine._loop.workforce._starts._failures
        assert eventually(lambda: have_ended(engine), 20)
    outcome = replay((tmp_path / "log").read_text().splitlines(keepends=True), validate=True)
    assert outcome.difference is None
    assert outcome.events["WorkerRetired"] == outcome.events["WorkerStarted"] >= 4
    assert not outcome.events["WorkerLost"]


def test_a_limit_of_workers_starts_one_that_it_admits(monkeypatch):
    with Runtime(num_workers=2) as runtime:
        # As while the first worker is ending.
        monkeypatch.setattr(EndingWorkers, "__contains__", lambda _, worker_id: worker_id == 0)
        one = da.ones(4, chunks=4) + 1
        assert one.sum().compute(scheduler=runtime.get) == 8
        assert list(runtime.engine()._loop.registry.workers) == [1]
        monkeypatch.undo()
        assert one.sum().compute(scheduler=runtime.get, num_workers=1) == 8
