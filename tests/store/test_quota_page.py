"""Quotas of memory: what is within is taken, and what is beyond waits for an answer."""

from __future__ import annotations

import functools
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dask_mars.protocol import control
from dask_mars.store.arena import Arena, create

_arena = pytest.importorskip("dask_mars.store._arena")

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
#: Of a graph that a worker is in the middle of.
GRAPH = 7


class Room:
    """An arena of 16 MiB with a quota, and the engine's side of it."""

    def __init__(self, engine: int) -> None:
        self.descriptor = create("test", 16 * MIB)
        self.arena = Arena(self.descriptor, 16 * MIB)
        self.memory = mmap.mmap(-1, control.page_bytes(1))
        self.control = control.ControlPage(memoryview(self.memory))
        self.control.clear(0)
        self.part = self.control.part_of(0)
        self.reader, self.wake = os.pipe()
        self.heap = _arena.Heap(self.arena.view(0, 16 * MIB).data)
        self.quota = _arena.Quota(self.heap, self.part, self.wake, engine)
        _arena.install(self.heap, 4096, self.quota)

    def close(self) -> None:
        _arena.uninstall()
        for descriptor in (self.descriptor, self.reader, self.wake):
            os.close(descriptor)
        # Pytest has the room for a while longer.
        self.__dict__.clear()


@pytest.fixture
def room() -> Iterator[Room]:
    room = Room(os.getppid())
    yield room
    room.close()


def answer(room: Room, reason: int = 0) -> tuple[threading.Thread, list[int]]:
    """Wait for a question in another thread, and answer it; return what was asked."""
    asked: list[int] = []

    def wait() -> None:
        os.read(room.reader, 64)
        asked.append(dict(room.control.asking())[0])
        if reason == control.STOPPED:
            room.part[:4].cast("I")[0] = GRAPH
            room.control.stop(0, GRAPH)
        elif reason:
            room.control.refuse(0, reason, control.QuotaFigures(1, 2, 3, 4))
        else:
            room.control.grant(0, asked[0])

    thread = threading.Thread(target=wait)
    thread.start()
    return thread, asked


def test_what_is_within_the_quota_is_taken(room):
    room.control.grant(0, 2 * MIB)
    array = np.ones(MIB, "u1")
    assert room.control.asking() == []
    assert room.quota.growth_bytes == MIB
    assert control.granted_bytes(room.part) == 2 * MIB
    del array
    assert room.quota.growth_bytes == 0


def test_what_is_beyond_it_waits_until_it_is_granted(room):
    room.control.grant(0, MIB)
    first = np.ones(MIB, "u1")
    # The answer cannot come from a thread while this one has the interpreter.
    answering = in_another_process(room)
    second = np.ones(2 * MIB, "u1")
    assert answering.wait(100) == 0
    assert room.quota.refusal == (0, 0)
    assert room.control.asking() == []
    assert room.quota.growth_bytes == 3 * MIB
    assert first.sum() + second.sum() == 3 * MIB


def in_another_process(room: Room, reason: int = 0) -> Any:
    """Answer the next question from a process that shares the page."""
    pid = os.fork()
    if not pid:
        thread, _ = answer(room, reason)
        thread.join()
        os._exit(0)
    return Child(pid)


class Child:
    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self, seconds: float) -> int:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return status
            time.sleep(0.01)
        raise TimeoutError


pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.mark.parametrize("reason", [control.REFUSED, control.POSTPONED, control.STOPPED])
def test_what_is_refused_raises(room, reason):
    child = in_another_process(room, reason)
    with pytest.raises(MemoryError):
        np.ones(MIB, "u1")
    assert child.wait(100) == 0
    assert room.quota.refusal == (reason, MIB)
    if reason != control.STOPPED:
        assert control.quota_figures(room.part) == control.QuotaFigures(1, 2, 3, 4)
    room.control.stop(0, 0)
    # The next operand begins anew.
    room.quota.begin()
    assert room.quota.refusal == (0, 0)
    room.control.grant(0, 4 * MIB)
    assert np.ones(MIB, "u1").sum() == MIB


@pytest.mark.parametrize("make", ["empty", "zeros", "resize"])
def test_all_ways_to_get_memory_count(room, make):
    room.control.grant(0, MIB)
    array = np.ones(MIB, "u1")
    child = in_another_process(room, control.REFUSED)
    take = partial(array.resize, refcheck=False) if make == "resize" else partial(getattr(np, make), dtype="u1")
    with pytest.raises(MemoryError):
        take(3 * MIB)
    assert child.wait(100) == 0
    assert array.sum() == MIB


def test_private_memory_counts_where_the_arena_is_full(room):
    room.control.grant(0, 64 * MIB)
    arrays = [np.ones(10 * MIB, "u1") for _ in range(3)]
    assert 30 * MIB <= room.quota.growth_bytes < 31 * MIB
    child = in_another_process(room, control.REFUSED)
    with pytest.raises(MemoryError):
        arrays[2].resize(60 * MIB, refcheck=False)
    assert child.wait(100) == 0
    assert arrays[2].size == 10 * MIB
    arrays.clear()
    assert room.quota.growth_bytes == 0


def test_what_was_there_before_an_operand_does_not_count(room):
    room.control.grant(0, 4 * MIB)
    kept = np.ones(3 * MIB, "u1")
    room.quota.begin()
    assert room.control.held_bytes(0) == 3 * MIB
    more = np.ones(3 * MIB, "u1")
    assert room.quota.growth_bytes == 3 * MIB
    room.quota.excuse(2 * MIB)
    assert room.quota.growth_bytes == MIB
    assert kept.size == more.size


def test_what_is_sealed_is_not_held(room):
    room.control.grant(0, 4 * MIB)
    array = np.ones(2 * MIB, "u1")
    offset, _ = room.heap.array_block(array.__array_interface__["data"][0])
    room.heap.seal(offset)
    room.quota.publish()
    assert room.control.held_bytes(0) == 0
    room.heap.free(offset)
    room.quota.publish()
    assert room.control.held_bytes(0) == 2 * MIB


# -- Python's own objects -----------------------------------------------------------------------------------------


class RefusedError(Exception):
    """Raised by the signal's handler."""


@pytest.fixture
def objects(room: Room) -> Iterator[Room]:
    def refuse(*_: Any) -> None:
        if room.quota.raise_exceeded():
            raise RefusedError

    before = signal.signal(signal.SIGUSR2, refuse)
    if not _arena.limit_objects(room.quota, signal.SIGUSR2):
        pytest.skip("Python has another allocator here")
    # Free blocks that earlier tests have left in Python's pools are given out without asking.
    room.control.grant(0, 64 * MIB)
    room.quota.begin()
    used_up: list[list[float]] = []
    while room.quota.growth_bytes < MIB:
        used_up.append([float(number) for number in range(1000)])
    room.control.clear(0)
    room.quota.begin()
    yield room
    del used_up
    _arena.limit_objects(None)
    signal.signal(signal.SIGUSR2, before)


def test_objects_count_while_they_are_there(objects):
    objects.control.grant(0, 64 * MIB)
    objects.quota.begin()
    grown = bytearray(2 * MIB)
    assert 2 * MIB <= objects.quota.growth_bytes < 3 * MIB
    assert objects.control.private_growth_bytes(0) == objects.quota.growth_bytes
    grown.extend(bytes(3 * MIB))
    assert 5 * MIB <= objects.quota.growth_bytes < 7 * MIB
    numbers = list(range(10**6))
    assert objects.quota.growth_bytes >= 35 * MIB
    # What was there before an operand does not count, and neither does its end.
    objects.control.grant(0, MIB)
    assert objects.control.private_growth_bytes(0) == MIB
    objects.quota.begin()
    assert objects.control.private_growth_bytes(0) == 0
    numbers.clear()
    grown.clear()
    assert objects.control.private_growth_bytes(0) == objects.quota.growth_bytes == 0


def test_arrays_that_are_private_count_once(objects):
    objects.control.grant(0, 64 * MIB)
    objects.quota.begin()
    arrays = [np.ones(size * MIB, "u1") for size in (16, 4)]
    assert 20 * MIB <= objects.quota.growth_bytes < 21 * MIB
    arrays.clear()
    assert objects.quota.growth_bytes == 0


@pytest.mark.parametrize("make", [bytes, bytearray, lambda size: [None] * (size // 8), lambda size: b"x" * size])
def test_large_objects_that_are_refused_raise(objects, make):
    child = in_another_process(objects, control.REFUSED)
    with pytest.raises(MemoryError):
        make(16 * MIB)
    assert child.wait(100) == 0
    reason, asked_bytes = objects.quota.refusal
    assert reason == control.REFUSED
    assert asked_bytes >= 16 * MIB
    assert not objects.quota.raise_exceeded()


def test_what_a_result_needs_on_its_way_is_not_refused(objects):
    objects.part[control.STEP_AT] = control.SEAL
    child = in_another_process(objects, control.REFUSED)
    assert len(bytes(16 * MIB)) == 16 * MIB
    assert child.wait(100) == 0
    assert objects.quota.refusal == (0, 0)


@pytest.fixture
def refused(objects: Room) -> Iterator[Room]:
    """Objects that are refused as often as they ask."""
    pid = os.fork()
    if not pid:
        while True:
            os.read(objects.reader, 64)
            if objects.control.asking():
                objects.control.refuse(0, control.REFUSED, control.QuotaFigures(1, 2, 3, 4))
    yield objects
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_small_objects_that_are_refused_interrupt(refused):
    with pytest.raises(RefusedError):
        # No list of them, which is a large object that may be refused first.
        functools.reduce(lambda chain, number: (number + 1000, chain), range(10**7), ())
    # Once.
    assert not refused.quota.raise_exceeded()


def test_a_single_call_is_refused_small_blocks(refused):
    refused.part[control.STEP_AT] = control.COMPUTE
    refused.control.grant(0, 32 * MIB)
    for _ in range(2):
        # The signal may come between what the call is given and the call.
        with pytest.raises((MemoryError, RefusedError)):
            list(range(10**7))
        assert refused.control.private_growth_bytes(0) < 48 * MIB
        # What comes next may take again what has become free.
        assert len(list(range(10**5, 2 * 10**5))) == 10**5


def test_other_threads_are_refused_no_small_blocks(refused):
    refused.part[control.STEP_AT] = control.COMPUTE
    refused.control.grant(0, 24 * MIB)
    signal.signal(signal.SIGUSR2, lambda *_: None)
    with ThreadPoolExecutor(1) as executor:
        assert executor.submit(lambda: len(list(range(10**6)))).result(100) == 10**6
    assert refused.quota.raise_exceeded()


def test_a_forked_process_has_its_objects_for_itself(objects):
    objects.control.grant(0, 4 * MIB)
    pid = os.fork()
    if not pid:
        kept = bytes(32 * MIB)
        os._exit(len(kept) != 32 * MIB)
    assert Child(pid).wait(100) == 0
    assert objects.control.private_growth_bytes(0) == 0


@pytest.mark.slow
def test_allocators_that_check_blocks_are_left_alone():
    code = "from dask_mars.store import _arena; from tests.store.test_quota_page import Room; r = Room(1); "
    code += "print(_arena.limit_objects(r.quota))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONMALLOC": "debug"},
    )
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_one_without_an_engine_waits_for_nobody():
    room = Room(engine=1 if os.getppid() != 1 else 2)
    try:
        with pytest.raises(MemoryError):
            np.ones(MIB, "u1")
        assert room.quota.refusal == (control.STOPPED, MIB)
    finally:
        room.close()


def test_a_forked_process_has_its_memory_for_itself(room):
    pid = os.fork()
    if not pid:
        os._exit(int(np.ones(MIB, "u1").sum() != MIB))
    assert Child(pid).wait(100) == 0
    assert room.control.asking() == []


@pytest.mark.skipif(sys.platform != "linux", reason="needs MADV_REMOVE")
def test_free_pages_go_back_at_once_while_others_want_them(room):
    room.control.grant(0, 16 * MIB)

    def taken() -> int:
        return os.fstat(room.descriptor).st_blocks * 512

    np.ones(4 * MIB, "u1")
    assert taken() >= 4 * MIB
    room.control.set_eager(0, True)
    # What was freed before goes when memory is next asked for.
    array = np.ones(MIB, "u1")
    assert MIB <= taken() < 2 * MIB
    del array
    assert taken() < MIB
    room.control.set_eager(0, False)
    np.ones(4 * MIB, "u1")
    assert taken() >= 4 * MIB


def test_bad_arguments(room):
    with pytest.raises(ValueError, match="too small"):
        _arena.Quota(room.heap, bytearray(control.PART_BYTES // 4), room.wake, 1)
    with pytest.raises(TypeError):
        _arena.Quota(None, room.part, room.wake, 1)
    with pytest.raises(TypeError, match="Quota"):
        _arena.install(room.heap, 4096, 5)
    with pytest.raises(TypeError, match="Quota"):
        _arena.limit_objects(5)
