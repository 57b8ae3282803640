"""The profile: timers count what is theirs alone, and every part of a computation has its figure."""

from __future__ import annotations

import pytest

from studies.profiling import Timers, table_of


class Clock:
    """Processor time that passes when somebody works."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def work(self, seconds: float) -> None:
        self.now_s += seconds


def test_a_part_does_not_count_the_parts_within_it():
    clock = Clock()
    timers = Timers(clock)
    inner = timers._timed(lambda: clock.work(2), ("client", "inner"))
    outer = timers._timed(lambda: (clock.work(1), inner(), inner()), ("client", "outer"))
    outer()
    inner()
    assert timers.seconds == {("client", "inner"): 6, ("client", "outer"): 1}


def test_a_timer_hands_on_results_and_errors():
    timers = Timers(Clock())
    timed = timers._timed(int, ("client", "int"))
    assert timed("11", base=2) == 3
    with pytest.raises(ValueError, match="invalid literal"):
        timed("x")
    assert timers._inner.stack == []


def test_shares_are_of_the_medians():
    computing, sealing = ("workers", "computing"), ("workers", "sealing results")
    runs = [(1.0, {computing: 3.0, sealing: 1.0}), (1.0, {computing: 9.0, sealing: 1.0}), (2.0, {computing: 0.0})]
    table = table_of(runs, 1_000_000)
    assert [list(column.cells) for column in table.columns[1:]] == [
        ["computing", "sealing results", ""],
        ["3.00", "1.00", "4.00"],
        ["75.0%", "25.0%", "100.0%"],
    ]
