"""Memory that nobody asks for: which workers are paused and ended, and what becomes of what they run."""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import psutil
import pytest

from dask_mars import Runtime
from dask_mars.engine.memory import MemoryWatch, Orders, WorkerMemory, decide
from dask_mars.engine.templates import templates
from dask_mars.errors import EngineStopped, MarsError, WorkerOverLimit
from dask_mars.limits import PROC, arena_bytes
from tests.conftest import eventually, runtime_with_room
from tests.engine.test_quota import Background
from tests.tasks import note, notes, wait_for

MIB = 1 << 20
ROOM_BYTES = 300 * MIB

needs_proc = pytest.mark.skipif(not PROC.exists(), reason="processes are looked at once a second")


# -- decisions ----------------------------------------------------------------------------------------------------


def worker(
    growth_mib: int,
    running: bool = True,
    grown_mib: int = 0,
    paused_s: float | None = None,
    mib_per_s: float = 0.0,
) -> WorkerMemory:
    return WorkerMemory(
        pid=1,
        baseline_bytes=MIB,
        private_bytes=(1 + growth_mib) * MIB,
        grown_bytes=grown_mib * MIB,
        grown_per_s=mib_per_s * MIB,
        running=(1, 0) if running else None,
        begun_bytes=MIB,
        paused_s=paused_s,
    )


def decided(free_mib: int, *workers: WorkerMemory, may_shrink: bool = False, now_s: float = 100.0) -> Orders:
    return decide(dict(enumerate(workers)), free_mib * MIB, 10 * MIB, 100 * MIB, may_shrink, now_s)


def test_as_long_as_something_is_left_all_go_on():
    assert decided(10, worker(500, grown_mib=50), worker(0)) == Orders()


def test_those_that_grow_are_paused():
    assert decided(9, worker(101, grown_mib=5), worker(60, grown_mib=5)) == Orders(pause=(0, 1))
    # Modules that are imported are no reason.
    assert decided(9, worker(101, grown_mib=5), worker(40, grown_mib=5)) == Orders(pause=(0,))
    assert decided(9, worker(150), worker(40)) == Orders()


def test_those_that_grow_slowly_are_paused_later():
    assert decided(3, worker(60, mib_per_s=100)) == Orders()
    assert decided(2, worker(60, mib_per_s=100)) == Orders(pause=(0,))
    assert decided(2, worker(60, mib_per_s=10)) == Orders()


def test_past_the_limit_all_are_paused_that_grow():
    assert decided(1, worker(40, grown_mib=5)) == Orders()
    assert decided(-1, worker(40, grown_mib=5), worker(20, mib_per_s=20), worker(40)) == Orders(pause=(0, 1))
    # Whoever has hardly begun is not the reason.
    assert decided(-1, worker(5, grown_mib=5)) == Orders()


def test_those_that_have_asked_go_on_until_the_limit_is_exceeded():
    asked = replace(worker(150, grown_mib=5), asked_bytes=145 * MIB)
    assert decided(9, asked) == decided(-4, asked) == Orders()
    assert decided(-6, asked) == Orders(pause=(0,))
    assert decided(9, replace(asked, asked_bytes=90 * MIB)) == Orders(pause=(0,))


def test_idle_ones_are_ended_first():
    assert decided(-5, worker(300, grown_mib=5), worker(101, running=False)) == Orders(end=(1,))
    assert decided(-5, worker(0), worker(99, running=False)) == Orders()


def test_the_paused_one_that_has_grown_most_is_ended_when_nothing_else_helps():
    paused = worker(120, paused_s=99.0), worker(130, paused_s=99.0)
    assert decided(5, *paused) == Orders(end=(1,))
    assert decided(5, *paused, may_shrink=True) == Orders()
    assert decided(5, worker(120, paused_s=99.95)) == Orders()
    # Others may wait for what it has.
    assert decided(5, *paused, may_shrink=True, now_s=200.0) == Orders(end=(1,))


def test_paused_ones_go_on_one_after_the_other():
    paused = worker(120, paused_s=99.0), worker(130, paused_s=99.0)
    assert decided(25, *paused, may_shrink=True) == Orders(resume=(0,))
    # Little more than the margin would soon be taken, but nothing else may come.
    assert decided(15, *paused, may_shrink=True) == Orders()
    assert decided(15, *paused) == decided(15, *paused, may_shrink=True, now_s=200.0) == Orders(resume=(0,))


@needs_proc
def test_the_less_is_left_the_sooner_it_looks_again():
    own = os.getpid()
    waits = []
    for room_bytes in (1 << 40, 1 << 28, 1 << 27):
        watch = MemoryWatch(psutil.Process().memory_info().rss + room_bytes, 2, own, [])
        began_s = time.monotonic()
        watch.look([], lambda number: None)
        waits.append(watch.next_s - began_s)
        assert watch.client_bytes <= watch.private_bytes == watch.used_bytes
        assert not watch.is_short
    assert waits == sorted(waits, reverse=True)


def test_libraries_of_many_processes_are_measured_in_turns(monkeypatch):
    sizes, measured = {pid: 10 * pid for pid in range(20)}, []
    monkeypatch.setattr(
        "dask_mars.engine.memory.library_bytes",
        lambda pids: measured.extend(pids) or max(sizes[pid] for pid in pids),
    )
    monkeypatch.setattr("dask_mars.engine.memory.estimate_memory", lambda pids: 0)
    watch = MemoryWatch(1 << 40, 20, 0, [])
    # New ones at once, since they may be larger.
    watch.look(range(1, 20), lambda number: None)
    assert (sorted(measured), watch.private_bytes) == ([*range(20)], 190)
    measured.clear()
    sizes[3] = 500
    looks = 0
    while watch.private_bytes != 500:
        watch.look(range(1, 20), lambda number: None)
        looks += 1
        assert looks < 20
    assert len(measured) < 20 * looks
    # Those that have ended no longer count.
    watch.look([1, 2], lambda number: None)
    assert watch.private_bytes == 20


@needs_proc
def test_what_workers_are_forked_with_counts_once():
    watch = MemoryWatch(1 << 40, 2, os.getpid(), [])
    with_template = MemoryWatch(1 << 40, 2, os.getpid(), [], template_bytes=lambda: MIB << 10)
    for each in (watch, with_template):
        each.look([], lambda number: None)
    assert with_template.private_bytes - watch.private_bytes == pytest.approx(MIB << 10, rel=0.1)


@needs_proc
@pytest.mark.slow
def test_many_workers_count_with_what_is_their_own():
    with Runtime(num_workers=16, memory_limit="1 GiB") as runtime:
        assert (
            sum(dask.compute(*[dask.delayed(abs)(number) for number in range(64)], scheduler=runtime.get)) == 2016
        )
        engine = runtime.engine()
        pids = {*engine.worker_pids(), *templates.pids()}
        # In truth: the kernel's shares of what is not shared memory.
        true_bytes = sum([_anonymous_share(pid) for pid in pids])
        account, template_bytes = runtime.memory(), templates.memory_bytes()
    counted = sum([process.private_bytes for process in account.private if process.worker is not None])
    assert 0.6 * true_bytes < counted + template_bytes < 1.6 * true_bytes
    assert account.library_bytes > template_bytes


def take_twice(size_bytes: int, number: int) -> float:
    """Take memory in two steps, the second until it is granted, as imports go on without bytecode."""
    first = np.ones(size_bytes // 8)
    while True:
        try:
            return float(first[0] + np.ones(size_bytes // 8)[-1]) + number
        except MemoryError:
            time.sleep(0.005)


@needs_proc
def test_those_who_ask_again_and_again_do_not_keep_all_waiting():
    size_bytes = 64 * MIB
    with runtime_with_room(size_bytes * 5 // 2) as runtime:
        tasks = [dask.delayed(take_twice)(size_bytes, number) for number in range(4)]
        assert dask.compute(*tasks, scheduler=runtime.get) == (2.0, 3.0, 4.0, 5.0)


def _anonymous_share(pid: int) -> int:
    lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    return sum([int(line.split()[1]) << 10 for line in lines if line.startswith("Pss_Anon")])


@needs_proc
def test_what_was_asked_for_is_not_learned_as_what_was_not():
    watch = MemoryWatch(1 << 40, 1, os.getpid(), [])
    child = os.fork()
    if not child:
        _ = library_memory(64 * MIB)
        time.sleep(60)
    try:
        asked = 0
        watch.workers[0] = WorkerMemory(child, 0, 0)
        own_bytes = 0

        def look() -> WorkerMemory:
            watch.look([child], lambda number: (1, 2), lambda number: asked)
            return watch.workers[0]

        assert eventually(lambda: look().private_bytes >= 64 * MIB)
        own_bytes = look().private_bytes
        assert watch.growths() == [(1, 2, own_bytes)]
        # More than it has touched until now.
        watch.workers[0] = WorkerMemory(child, 0, 0)
        asked = 1 << 30
        assert look().asked_bytes == watch.workers[0].private_bytes
        assert watch.growths() == []
        assert watch.workers[0].grown_bytes == 0
        asked = own_bytes - 20 * MIB
        # Between two looks pages become its own that this process writes to, which had them with it.
        unasked_bytes = look().private_bytes - asked
        assert unasked_bytes > 19 * MIB
        assert watch.workers[0].unasked_bytes == unasked_bytes
        assert watch.growths() == [(1, 2, unasked_bytes)]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_what_is_kept_of_one_chunk_is_not_what_the_next_has_asked_for(monkeypatch):
    taken = {1: 50 * MIB, os.getpid(): 0}
    monkeypatch.setattr("dask_mars.engine.memory.estimate_memory", lambda pids: sum(taken[pid] for pid in pids))
    watch = MemoryWatch(1 << 40, 1, os.getpid(), [])
    watch.add(0, 1)

    def look(chunk: int, private_mib: int, asked_mib: int) -> tuple[int, int]:
        taken[1] = private_mib * MIB
        watch.look([1], lambda number: (1, chunk), lambda number: asked_mib * MIB, with_libraries=False)
        return watch.workers[0].grown_bytes // MIB, watch.workers[0].asked_bytes // MIB

    assert look(1, 150, 100) == (0, 100)
    # What the first has left is there still, and what the next has asked for is not touched yet.
    assert look(2, 150, 40) == (0, 0)
    assert look(2, 190, 40) == (0, 40)
    # Some of what was left has gone meanwhile.
    assert look(3, 110, 10) == (-80, 0)
    assert look(3, 120, 10) == (0, 10)
    assert look(3, 125, 10) == (5, 10)


@needs_proc
def test_what_the_user_takes_leaves_workers_enough_for_their_modules():
    watch = MemoryWatch(MIB, 2, os.getpid(), [])
    watch.look([], lambda number: None)
    assert watch.used_bytes > MIB
    assert watch.share_bytes == 64 * MIB
    assert not watch.is_short


# -- engines ------------------------------------------------------------------------------------------------------


@pytest.fixture
def limited() -> Iterator[Runtime]:
    with runtime_with_room(ROOM_BYTES) as runtime:
        yield runtime


@pytest.fixture
def large(limited: Runtime) -> int:
    """More than half of what there is room for, and less than all of it, in bytes."""
    return int(0.65 * limited.engine()._loop.memory.watch.free_bytes) // MIB * MIB


def library_memory(size_bytes: int) -> mmap.mmap:
    """Return memory that is taken past Python and NumPy, as most libraries do."""
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for _ in range(size_bytes // MIB):
        memory.write(bytes(MIB))
    return memory


def take(size_bytes: int, path: Path | str | None = None, *_: Any) -> int:
    """Take memory in steps, as most programs do."""
    if path is not None:
        note(path)
    parts = [library_memory(MIB) for _ in range(size_bytes // MIB)]
    return len(parts)


_kept: list[mmap.mmap] = []


def keep(size_bytes: int, number: int) -> int:
    _kept.append(library_memory(size_bytes))
    return number


@pytest.mark.slow
@needs_proc
def test_what_does_not_fit_alone_is_tried_twice_and_fails_with_numbers(limited, tmp_path):
    begun = tmp_path / "begun"
    with pytest.raises(WorkerOverLimit) as caught:
        dask.delayed(take)(20 * ROOM_BYTES, str(begun), dask_key_name="take").compute(scheduler=limited.get)
    error = caught.value
    assert isinstance(error, MemoryError)
    assert isinstance(error, MarsError)
    assert error.key == "'take'"
    assert error.limit_bytes == limited.engine().settings.memory_limit
    assert 0 < error.worker_bytes + error.others_bytes + error.store_bytes < 1.2 * error.limit_bytes
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert "alone" not in str(error)
    assert f"{error.limit_bytes:,}" in str(error)
    assert len(notes(begun)) == 2
    assert limited.get({"x": (pow, 2, 3)}, "x") == 8


@pytest.mark.nightly
@needs_proc
def test_what_tasks_leave_behind_goes_with_their_worker(limited):
    tasks = [dask.delayed(keep)(70 * MIB, number) for number in range(8)]
    assert dask.compute(*tasks, scheduler=limited.get) == tuple(range(8))


@pytest.fixture
def paused(limited: Runtime, large: int, tmp_path: Path) -> Iterator[tuple[Background, int]]:
    """Have one task wait, and another be paused on account of the memory that it takes."""
    held, go_on = tmp_path / "held", tmp_path / "go on"
    # Later a worker may have to wait for the memory that imports of this module take.
    imports = {("import", number): (take_slowly, 5 * MIB) for number in range(8)}
    limited.get(imports, list(imports))
    holder = Background(limited, {"hold": (hold, large, str(held), str(go_on))}, "hold")
    assert eventually(lambda: notes(held), 20)
    other = Background(limited, {"grow": (take_slowly, large)}, "grow")
    assert eventually(lambda: paused_workers(limited), 20)
    yield other, paused_workers(limited)[0]
    go_on.touch()
    holder.end()


def take_slowly(size_bytes: int) -> int:
    """Take memory in steps, which last longer than an engine may wait for a processor."""
    parts = []
    for _ in range(size_bytes // MIB):
        parts.append(library_memory(MIB))
        time.sleep(0.002)
    return len(parts)


def hold(size_bytes: int, path: str, gate: str) -> int:
    held = library_memory(size_bytes)
    note(path)
    wait_for(gate)
    return len(held)


def paused_workers(runtime: Runtime) -> list[int]:
    workers = runtime.engine()._loop.memory.watch.workers
    return [memory.pid for memory in [*workers.values()] if memory.paused_s is not None]


@pytest.mark.slow
@needs_proc
def test_a_paused_worker_goes_on_when_there_is_room(large, paused, tmp_path):
    other, pid = paused
    assert eventually(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    (tmp_path / "go on").touch()
    assert other.end() == large // MIB


@pytest.mark.nightly
@needs_proc
def test_a_computation_is_cancelled_while_its_worker_is_paused(paused):
    other, pid = paused
    other.cancel()
    assert eventually(lambda: not psutil.pid_exists(pid), 20)


@pytest.mark.nightly
@needs_proc
def test_a_paused_worker_dies(large, paused, tmp_path):
    other, pid = paused
    os.kill(pid, signal.SIGKILL)
    (tmp_path / "go on").touch()
    # One loss is allowed.
    assert other.end() == large // MIB


@pytest.mark.nightly
@needs_proc
def test_an_engine_ends_while_a_worker_is_paused(limited, paused, tmp_path):
    other, pid = paused
    (tmp_path / "go on").touch()
    limited.close()
    assert isinstance(other.end(), EngineStopped)
    assert not psutil.pid_exists(pid)


@needs_proc
def test_the_arena_of_a_worker_that_has_ended_is_given_back(limited):
    engine = limited.engine()
    kept = da.ones((4, MIB), chunks=(1, MIB)).persist(scheduler=limited.get)
    assert da.ones((8, MIB), chunks=(1, MIB)).sum(axis=0).mean().compute(scheduler=limited.get) == 8
    workers = limited.state()["workers"]
    for worker in workers:
        os.kill(worker["pid"], signal.SIGKILL)
    assert eventually(lambda: all(pid not in engine.worker_pids() for pid in [w["pid"] for w in workers]), 20)
    # What the user has stays, and no more than that.
    assert eventually(lambda: arena_bytes(engine._registry.resources.arena_files) <= 33 * MIB, 20)
    assert kept.sum().compute(scheduler=limited.get) == 4 * MIB
