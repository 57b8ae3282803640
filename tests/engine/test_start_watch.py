"""Which worker processes are ended while they start, in virtual time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dask_mars.engine.start_watch import StartWatch
from dask_mars.engine.workforce import Workforce
from dask_mars.errors import WorkerStartFailed

TIMEOUT_S = 60.0


class Starting:
    """Processes that begin to start at the same time."""

    def __init__(self, count: int) -> None:
        self.watch = StartWatch(TIMEOUT_S)
        self.progress = dict.fromkeys(range(count), 0)
        for number in range(count):
            self.watch.begin(number, 0, 0.0)

    def until(self, end_s: float) -> list[int]:
        """Return which are found stuck until then."""
        found = []
        while (due_s := self.watch.next_s()) is not None and due_s <= end_s:
            found += self.watch.stuck(self.progress.__getitem__, due_s)
        return found


def test_a_start_may_take_as_long_as_it_goes_on() -> None:
    starting = Starting(64)
    for minute in range(1, 30):
        starting.progress = dict.fromkeys(range(64), minute)
        assert starting.until(minute * TIMEOUT_S) == []


def test_who_makes_no_progress_is_found_once() -> None:
    starting = Starting(3)
    starting.progress[1] = 7
    assert starting.until(TIMEOUT_S - 1) == []
    assert starting.until(TIMEOUT_S) == [0, 2]
    assert starting.until(2 * TIMEOUT_S) == [1]
    assert starting.watch.next_s() is None


def test_who_is_up_is_watched_no_more() -> None:
    starting = Starting(2)
    starting.watch.end(0)
    starting.watch.end(0)
    assert starting.until(10 * TIMEOUT_S) == [1]


def test_failures_count_for_each_worker_until_one_comes_up() -> None:
    watch = StartWatch(TIMEOUT_S)
    assert [watch.failed(number) for number in range(64)] == [1] * 64
    assert not any(watch.is_hopeless(number) for number in range(64))
    assert [watch.failed(5), watch.failed(5)] == [2, 3]
    assert watch.is_hopeless(5)
    assert not watch.is_hopeless(6)
    watch.came_up()
    assert not watch.is_hopeless(5)


@pytest.mark.parametrize(
    ("up", "threads_suffice", "fails"),
    [
        ([], True, True),
        ([(False, True)], True, True),
        ([(True, True)], False, False),
        ([(True, False)], True, False),
        ([(True, False)], False, True),
    ],
    ids=["none", "others that start", "a process", "threads that suffice", "threads that do not"],
)
def test_starts_that_fail_matter_where_nothing_else_computes(
    up: list[tuple[bool, bool]], threads_suffice: bool, fails: bool
) -> None:
    workers = {number: SimpleNamespace(ready=ready, is_process=kind) for number, (ready, kind) in enumerate(up, 1)}
    engine: Any = SimpleNamespace(
        _starts=StartWatch(TIMEOUT_S),
        _startup=SimpleNamespace(may_use_threads=lambda runs: threads_suffice),
        _runs={},
        _workers=workers,
    )
    handle: Any = SimpleNamespace(id=0, start_error=None)
    for _ in range(2):
        Workforce._note_start_failure(engine, handle, 1)
    if fails:
        with pytest.raises(WorkerStartFailed, match="3 in a row"):
            Workforce._note_start_failure(engine, handle, 1)
    else:
        Workforce._note_start_failure(engine, handle, 1)
