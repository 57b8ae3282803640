"""Quotas of running engines: tasks whose memory grows wait, go on, are tried again, or fail with numbers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

from dask_mars import Runtime
from dask_mars.errors import QuotaExceeded, WorkerDied
from dask_mars.store.in_place_sealing import has_object_quotas
from tests.background import Background
from tests.conftest import eventually, runtime_with_room, shared
from tests.tasks import note, note_and_grow, notes, wait_for

pytest.importorskip("dask_mars.store._arena")

MIB = 1 << 20
ROOM_BYTES = 160 * MIB


@pytest.fixture(scope="module")
def running(private_tmp: Path) -> Iterator[Runtime]:
    with runtime_with_room(ROOM_BYTES) as runtime, shared(runtime):
        yield runtime


@pytest.fixture
def limited(running: Runtime) -> Iterator[Runtime]:
    """Yield the engine of all tests, which leave it two workers that are ready."""
    yield running
    assert eventually(lambda: len(running.engine().worker_pids()) == 2, 20)


def temporaries(mib: int, count: int = 3) -> float:
    """Take so much memory in so many arrays, and give it back."""
    arrays = [np.ones(mib * MIB // 8 // count) for _ in range(count)]
    return float(sum([array[0] for array in arrays]))


def test_what_can_never_be_granted_raises_with_numbers(limited):
    with pytest.raises(QuotaExceeded) as caught:
        dask.delayed(np.ones)(10**10).compute(scheduler=limited.get)
    error = caught.value
    assert isinstance(error, MemoryError)
    assert error.growth_bytes >= 8 * 10**10
    assert error.granted_bytes < error.limit_bytes == limited.engine().settings.memory_limit
    assert error.private_bytes > 50 * MIB
    assert isinstance(error.__cause__, MemoryError)
    assert "80,000,0" in str(error)
    assert "of memory" in str(error)


@pytest.mark.slow
def test_temporaries_of_several_take_turns(limited):
    tasks = [dask.delayed(temporaries)(90, dask_key_name=f"temporaries-{number}") for number in range(4)]
    assert dask.compute(*tasks, scheduler=limited.get) == (3.0,) * 4


def test_two_that_wait_for_each_other_take_turns(limited, tmp_path):
    def half_and_whole(number: int) -> float:
        first = np.ones(70 * MIB // 8)
        note(tmp_path / "begun")
        deadline = time.monotonic() + 2
        # The other one has its first half, too, if there is room for it.
        while len(notes(tmp_path / "begun")) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        return float(first[0] + np.ones(70 * MIB // 8)[0])

    tasks = [dask.delayed(half_and_whole)(number) for number in range(2)]
    assert dask.compute(*tasks, scheduler=limited.get) == (2.0, 2.0)


@pytest.mark.slow
def test_what_is_not_to_be_begun_twice_is_not_tried_again(limited, tmp_path, monkeypatch):
    monkeypatch.setattr("dask_mars.optimize.known.APPENDING", frozenset({"tests.tasks.note_and_grow"}))
    tasks = [dask.delayed(note_and_grow)(str(tmp_path / "rows"), number, 50 * MIB) for number in range(6)]
    assert sorted(dask.compute(*tasks, scheduler=limited.get)) == list(range(6))
    assert sorted(notes(tmp_path / "rows")) == [str(number) for number in range(6)]


def test_results_of_unknown_size_go_to_disk(limited):
    parts = [dask.delayed(np.full)(50 * MIB // 8, float(number)) for number in range(8)]
    sums = [dask.delayed(np.sum)(part) for part in parts]
    total = dask.delayed(sum)([*sums, dask.delayed(lambda *arrays: float(len(arrays)))(*sums)])
    expected = sum(range(8)) * (50 * MIB // 8) + 8
    assert total.compute(scheduler=limited.get) == expected


def grow(path: str, go_on: str, mib: int) -> int:
    held = np.ones(mib * MIB // 8)
    note(path, str(os.getpid()))
    wait_for(go_on)
    return held.size


@pytest.fixture
def waiting(limited: Runtime, tmp_path: Path) -> Iterator[tuple[Background, Path]]:
    """Have one task hold memory until it is told to go on, and another one wait for it."""
    held, go_on = tmp_path / "held", tmp_path / "go on"
    # More than half of what there is room for, in each.
    mib = int(0.6 * limited.engine()._loop.memory.limits.store_bytes) // MIB
    holder = Background(limited, {"hold": (grow, str(held), str(go_on), mib)}, "hold")
    assert eventually(lambda: notes(held), 20)
    other = Background(limited, {"wait": (grow, str(tmp_path / "second"), str(tmp_path / "hold"), mib)}, "wait")
    assert eventually(lambda: "memory to grow" in limited.explain(), 20)
    yield other, go_on
    go_on.touch()
    (tmp_path / "hold").touch()
    holder.end()


def test_one_that_waits_is_shown_and_goes_on(limited, waiting, tmp_path):
    other, go_on = waiting
    assert "'wait'" in limited.explain()
    assert "waits for" in limited.explain("wait")
    assert not notes(tmp_path / "second")
    go_on.touch()
    assert eventually(lambda: notes(tmp_path / "second"), 20)
    (tmp_path / "hold").touch()
    assert other.end() > MIB


def test_one_that_waits_is_cancelled(limited, waiting, tmp_path):
    other, _ = waiting
    other.cancel()
    assert eventually(lambda: "memory to grow" not in limited.explain(), 20)
    assert not notes(tmp_path / "second")
    assert limited.get({"y": (pow, 2, 3)}, "y") == 8


def test_one_that_dies_while_it_waits_is_tried_again(limited, waiting, tmp_path):
    other, go_on = waiting
    (pid,) = set(limited.engine().worker_pids()) - {int(notes(tmp_path / "held")[0])}
    os.kill(pid, signal.SIGKILL)
    go_on.touch()
    assert eventually(lambda: notes(tmp_path / "second"), 30)
    (tmp_path / "hold").touch()
    assert other.end() > MIB


# -- Python's own objects -----------------------------------------------------------------------------------------


def one_object(mib: int) -> int:
    return len(bytearray(mib * MIB)) // MIB


def growing_object(mib: int) -> int:
    grown = bytearray()
    for _ in range(mib):
        grown += bytes(MIB)
    return len(grown) // MIB


#: Of a list's reference and of an integer that is not one of the small ones.
_INTEGER_BYTES = 8 + 32


def small_objects(mib: int) -> int:
    count = mib * MIB // _INTEGER_BYTES
    return round(len([number + 1000 for number in range(count)]) * _INTEGER_BYTES / MIB)


def single_call(mib: int) -> int:
    return round(len(list(range(1000, 1000 + mib * MIB // _INTEGER_BYTES))) * _INTEGER_BYTES / MIB)


COUNTED = pytest.mark.skipif(not has_object_quotas(1), reason="Python's allocator has no hooks here")


def objects(test: Any) -> Any:
    """Have a test run for each kind of objects."""
    rare = [pytest.param(take, marks=pytest.mark.nightly) for take in (one_object, growing_object)]
    last = pytest.param(single_call, marks=pytest.mark.slow)
    return COUNTED(pytest.mark.parametrize("take", [small_objects, *rare, last])(test))


def ended_tasks(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was said of workers that were ended in the middle of a task; idle ones may be replaced."""
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    return [text for level, text in told if level == "WARNING" and "is ended: it has taken" in text]


@objects
def test_objects_of_several_tasks_take_turns(limited, take, caplog):
    mib = int(0.6 * limited.engine()._loop.memory.limits.store_bytes) // MIB
    tasks = [dask.delayed(take)(mib, dask_key_name=f"take-{number}") for number in range(3)]
    assert dask.compute(*tasks, scheduler=limited.get) == (mib,) * 3
    # A single call takes a little more before it is refused, and where the engine is late a worker may be ended.
    assert take is single_call or not ended_tasks(caplog)


@objects
def test_objects_that_can_never_be_raise_with_numbers(limited, take, caplog):
    with pytest.raises(QuotaExceeded) as caught:
        dask.delayed(take)(4000).compute(scheduler=limited.get)
    assert caught.value.growth_bytes > caught.value.granted_bytes
    assert take is single_call or not ended_tasks(caplog)
    assert dask.delayed(take)(10).compute(scheduler=limited.get) == 10


@pytest.mark.parametrize("take", [np.ones, pytest.param(bytes, marks=COUNTED)])
def test_a_task_that_can_do_with_less_goes_on(limited, take):
    def choose() -> int:
        try:
            return len(take(10**10))
        except MemoryError:
            return len(take(10**3))

    assert dask.delayed(choose)().compute(scheduler=limited.get) == 1000


def test_nothing_is_left_reserved(limited):
    engine = limited.engine()
    memory = engine._loop.machine.memory
    assert eventually(lambda: not (memory.reserved_bytes or memory.awaited_bytes), 10)
    with pytest.raises(WorkerDied):
        dask.delayed(lambda: os.kill(os.getpid(), signal.SIGKILL))().compute(scheduler=limited.get)
    assert eventually(lambda: not memory.reserved_bytes, 10)
