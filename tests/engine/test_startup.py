"""When processes are started in place of threads that wait for each other, and when they join in."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dask_mars.engine import startup
from dask_mars.engine.lost_time import Lost
from dask_mars.engine.startup import Startup

#: What a start takes here, in seconds.
START_S = 1.5


@pytest.fixture(autouse=True)
def a_start_takes_as_long_as_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "_start_s", lambda: START_S)
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)
    monkeypatch.delitem(sys.modules, "numba", raising=False)


def run_of(chunks: int) -> Any:
    return SimpleNamespace(
        graph=range(chunks), finished=0, plan=SimpleNamespace(is_library_code=True), why_processes=""
    )


def begun(chunks: int, num_workers: int = 2) -> tuple[Startup, Any]:
    """Return what has had one computation since the time 0."""
    decides = Startup("", 1 << 33, num_workers)
    run = run_of(chunks)
    decides.note([run], 0.0)
    return decides, run


def wanted(decides: Startup, run: Any, now_s: float) -> int:
    return decides.wanted_processes([run], False, now_s)


# Threads that have not started lose nothing.
@pytest.mark.parametrize(("num_workers", "threads"), [(2, 2), (4, 4), (64, 3)])
def test_processes_start_when_as_much_is_lost_as_their_start_takes(num_workers: int, threads: int) -> None:
    decides, run = begun(100, num_workers)
    decides.started = threads
    decides.note_finished(run, 10)
    decides.note_lost(Lost(START_S * (threads - 1) - 0.1))
    assert wanted(decides, run, 1.0) == 0
    decides.note_lost(Lost(0.2))
    assert wanted(decides, run, 1.0) == threads - 1
    assert num_workers < 64 or decides.due_s([run], 1.0) == 4.0


def test_processes_start_early_where_a_template_forks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    can_fork = [False]
    decides = Startup("", 1 << 33, 2, lambda: can_fork[0])
    run = run_of(100)
    decides.note([run], 0.0)
    decides.note_finished(run, 10)
    decides.note_lost(Lost(0.1))
    assert wanted(decides, run, 1.0) == 0
    can_fork[0] = True
    decides.note_lost(Lost(0.1))
    assert wanted(decides, run, 1.0) == 1
    # Each would compile again.
    monkeypatch.setitem(sys.modules, "numba", sys)
    decides.note_lost(Lost(0.1))
    assert wanted(decides, run, 1.0) == 0
    monkeypatch.delitem(sys.modules, "numba")
    decides.note_lost(Lost(0.1))
    # Little work is left for them then.
    assert decides.is_worth_joining([run], 1.0)
    decides.note_finished(run, 80)
    assert decides.is_worth_joining([run], 22.4)
    assert not decides.is_worth_joining([run], 1.0)
    # Copies that threads have saved count all the same.
    decides.note_borrowed(1 << 31)
    assert wanted(decides, run, 22.4) == 0


@pytest.mark.parametrize(("chunks", "due_s"), [(1_000, 15.0), (2_000, 15.0), (5_000, 0.5)])
def test_processes_come_early_where_chunks_take_less_than_half_a_millisecond(chunks: int, due_s: float) -> None:
    # Of longer ones what is lost tells whether it pays.
    decides, run = begun(1_000_000)
    decides.note_finished(run, chunks)
    assert decides.due_s([run], 1.0) == due_s


def test_none_starts_near_the_end_but_with_the_next_computation() -> None:
    decides, run = begun(100)
    decides.note_finished(run, 90)
    decides.note_lost(Lost(2 * START_S))
    # A ninth of three seconds.
    assert wanted(decides, run, 3.0) == 0
    assert not decides.is_worth_joining([run], 3.0)
    decides.note([], 3.2)
    short = run_of(10)
    decides.note([short], 4.0)
    assert wanted(decides, short, 4.0) == 1
    assert decides.is_worth_joining([short], 4.0)
    decides.note_finished(short, 1)
    assert wanted(decides, short, 4.1) == 1
    assert not decides.is_worth_joining([short], 4.1)


def test_what_is_left_is_of_the_computations_that_there_are() -> None:
    decides, first = begun(1000)
    second = run_of(1000)
    decides.note([first, second], 1.0)
    decides.note_finished(first, 1000)
    # The first is over, and there was no pause.
    decides.note_finished(second, 100)
    decides.note([second], 2.0)
    decides.note_lost(Lost(START_S))
    assert wanted(decides, second, 2.0) == 1
    decides.note_finished(second, 800)
    assert wanted(decides, second, 2.5) == 0


def test_without_the_lock_threads_compute_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    decides, run = begun(1_000_000)
    decides.note_finished(run, 100_000)
    assert decides.due_s([run], 100.0) is None
    assert wanted(decides, run, 100.0) == 0
    # Quotas need processes.
    assert decides.wanted_processes([run], True, 100.0) == 2
    run.plan.is_library_code = False
    assert wanted(decides, run, 100.0) == 2
    run.plan.is_library_code = True
    # An extension has switched it on.
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True)
    assert wanted(decides, run, 100.0) == 2


def test_much_work_starts_processes_unless_little_is_left() -> None:
    decides, run = begun(2000)
    decides.note_finished(run, 1000)
    # Ten times what a start takes.
    assert wanted(decides, run, 14.9) == 0
    assert wanted(decides, run, 15.1) == 2
    decides.note_finished(run, 900)
    assert wanted(decides, run, 15.2) == 0
    assert wanted(decides, run, 30.1) == 2
    assert decides.due_s([run], 15.2) == pytest.approx(30.0)


@pytest.mark.parametrize(
    ("can_tell", "lost_s", "before", "after"),
    [
        pytest.param(False, 0.0, 0, 2, id="lost time is not measured"),
        pytest.param(True, 1.0, 0, 0, id="little is lost"),
        pytest.param(True, 1.8, 1, 2, id="a fifth is lost"),
    ],
)
def test_four_seconds_are_enough(can_tell: bool, lost_s: float, before: int, after: int) -> None:
    decides, run = begun(2000)
    decides.lost_time.can_tell = can_tell
    decides.note_finished(run, 1000)
    decides.note_lost(Lost(lost_s))
    assert wanted(decides, run, 3.9) == before
    assert wanted(decides, run, 4.1) == after


def test_threads_stay_while_copies_of_the_users_arrays_would_take_longer_than_they_lose() -> None:
    decides, run = begun(1000)
    decides.lost_time.can_tell = True
    decides.note_finished(run, 100)
    decides.note_lost(Lost(2.0))
    decides.note_borrowed(int(3 * startup._COPIED_BYTES_PER_S))
    assert decides.due_s([run], 20.0) is None
    assert wanted(decides, run, 20.0) == 0
    # It is told how much it is in all.
    decides.note_borrowed(int(3 * startup._COPIED_BYTES_PER_S))
    decides.note_lost(Lost(1.5))
    assert wanted(decides, run, 20.0) == 2
    # What is much is no matter of copies.
    decides.note_borrowed(int(30 * startup._COPIED_BYTES_PER_S))
    assert wanted(decides, run, 20.0) == 0
    decides.note_lost(Lost(8.0))
    assert wanted(decides, run, 20.0) == 2


def test_what_others_programs_take_is_no_work() -> None:
    decides, run = begun(1)
    decides.note_lost(Lost(others_s=6.0))
    assert wanted(decides, run, 20.9) == 0
    assert wanted(decides, run, 21.1) == 2


def test_what_is_left_takes_as_long_as_what_is_done_now() -> None:
    decides, run = begun(1000)
    # What is read is there at once; each chunk computed from it takes half a second.
    decides.note_finished(run, 900)
    decides.note([run], 0.3)
    assert not decides.is_worth_joining([run], 0.3)
    for now_s in (0.6, 0.9, 1.2, 1.5, 1.8):
        decides.note([run], now_s)
    decides.note_finished(run, 1)
    assert decides.is_worth_joining([run], 1.8)
    # And no longer.
    for now_s in (2.1, 2.4):
        decides.note_finished(run, 49)
        decides.note([run], now_s)
    assert not decides.is_worth_joining([run], 2.4)


def test_why_there_are_processes_is_said() -> None:
    decides, run = begun(100)
    assert decides.why_processes == ""
    decides.note_finished(run, 10)
    decides.note_lost(Lost(START_S + 0.1))
    assert wanted(decides, run, 1.0) == 1
    assert decides.why_processes == "threads have lost 1.6 s to the GIL"
    run.plan.is_library_code, run.why_processes = False, "__main__.f is not a library's"
    decides.note([run], 1.0)
    assert wanted(decides, run, 1.0) == 2
    # The next graph is prepared while there are processes, and does not say.
    decides.note([SimpleNamespace(plan=run.plan, why_processes="")], 1.0)
    assert decides.why_processes == "__main__.f is not a library's"
    decides.restart()
    assert decides.why_processes == ""
    assert "2.00 GiB" in Startup("", 1 << 30, 2).why_processes
    assert Startup("a setting", 1 << 30, 2).why_processes == "a setting"
