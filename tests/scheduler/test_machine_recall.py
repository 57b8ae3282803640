"""What waits behind something slow goes to workers that have nothing to do."""

from __future__ import annotations

import pytest

from dask_mars.scheduler.events import ChunksReturned, GraphSubmitted, RecallQueued, Run, TimePassed, WorkerStarted
from tests.machines import CheckedMachine, plan

#: Chunks of an operand that takes next to no time, as a rule.
LEAVES = 20


def with_long_queue() -> CheckedMachine:
    """Let one worker have a long queue, and another nothing."""
    machine = CheckedMachine(1, silence_s=1.0)
    machine.submit(*[()] * LEAVES, outputs=range(LEAVES))
    assert machine.finish(0, 0, seconds=1e-6) == [Run(0, 1, list(range(1, LEAVES)))]
    assert machine.post(WorkerStarted(1)) == []
    return machine


def test_a_silent_worker_is_asked_to_give_back_what_waits() -> None:
    machine = with_long_queue()
    assert machine.machine.next_due_s() == pytest.approx(machine.now_s + 1.0)
    assert machine.post(TimePassed(), after_s=0.5) == []
    assert machine.post(TimePassed(), after_s=0.5) == [RecallQueued(0)]


def test_it_is_asked_again_after_twice_the_time() -> None:
    machine = with_long_queue()
    asked = [after_s for after_s in range(1, 20) if machine.post(TimePassed(), after_s=1.0)]
    assert asked == [1, 2, 4, 8, 16]


def test_what_it_gives_back_goes_to_the_others() -> None:
    machine = with_long_queue()
    machine.post(TimePassed(), after_s=1.0)
    back = list(range(2, LEAVES))
    assert machine.post(ChunksReturned(0, 1, back)) == [Run(1, 1, back)]
    assert machine.machine.next_due_s() is None
    machine.finish(1, *back, seconds=1e-6)
    assert machine.machine.dispatched_to(0) == [(1, 1)]


def test_a_silent_worker_gets_nothing_more_until_it_is_done() -> None:
    machine = with_long_queue()
    machine.post(TimePassed(), after_s=1.0)
    machine.post(ChunksReturned(0, 1, list(range(2, LEAVES))))
    further = machine.post(GraphSubmitted(2, plan((), (), outputs=range(2))))
    assert [each.worker for each in further if isinstance(each, Run)] == []
    done = machine.finish(0, 1, seconds=2.0)
    assert [(each.worker, each.graph) for each in done if isinstance(each, Run)] == [(0, 2)]


def test_nobody_is_asked_while_all_have_something_to_do() -> None:
    machine = with_long_queue()
    machine.post(GraphSubmitted(2, plan((), outputs=[0])))
    assert machine.machine.dispatched_to(1) == [(2, 0)]
    assert machine.machine.next_due_s() is None
    assert machine.post(TimePassed(), after_s=5.0) == []


def test_a_worker_that_reports_is_not_asked() -> None:
    machine = with_long_queue()
    for chunk in range(1, 8):
        assert machine.post(TimePassed(), after_s=0.9) == []
        machine.finish(0, chunk, seconds=1e-6)
    assert machine.machine.next_due_s() == pytest.approx(machine.now_s + 1.0)


def test_what_needs_the_running_chunk_is_not_asked_for() -> None:
    machine = CheckedMachine(2, silence_s=1.0)
    # A chain behind a slow chunk, of operands that are known to be fast.
    machine.submit((), (), (1,), (2,), outputs=[0, 3], operand_of=[0, 0, 1, 2])
    held = {worker: machine.machine.dispatched_to(worker) for worker in (0, 1)}
    assert held == {0: [(1, 0)], 1: [(1, 1)]}
    machine.finish(0, 0, seconds=1e-6)
    assert machine.post(TimePassed(), after_s=10.0) == []
    assert machine.machine.next_due_s() is None
