"""The state machine and chunks that take a worker past the memory limit without asking."""

from __future__ import annotations

import random

import pytest

from dask_mars.scheduler import events
from tests.machines import LimitedMachine, plan, unknown


class Driven(LimitedMachine):
    def end(self, worker: int, chunk: int) -> list[events.Instruction]:
        found = self.post(events.WorkerLost(worker, (1, chunk), over_limit=True))
        return found + self.post(events.WorkerStarted(worker))


def test_what_went_past_the_limit_is_tried_once_more_alone():
    driven = Driven(unknown(3))
    assert driven.first == [events.Run(0, 1, [0]), events.Run(1, 1, [1])]
    assert driven.end(0, 0) == []
    assert driven.machine.is_to_run_alone(1, 0)
    # Nothing else is begun before, and nothing beside it.
    assert driven.done(1, 1) == [events.RenewWorkers(is_strict=True)]
    assert driven.post(events.WorkersRenewed()) == [events.Run(1, 1, [0])]
    assert driven.post(events.TimePassed()) == []
    assert driven.done(1, 0) == [events.Run(0, 1, [2])]
    assert not driven.machine.is_to_run_alone(1, 0)


def test_a_second_time_is_the_last():
    driven = Driven(unknown(2))
    driven.end(0, 0)
    driven.done(1, 1)
    assert driven.post(events.WorkersRenewed()) == [events.Run(1, 1, [0])]
    found = driven.post(events.WorkerLost(1, (1, 0), over_limit=True))
    assert events.FailGraph(1, 0) in found
    driven.post(events.WorkerStarted(1))
    # Others find all as it was.
    assert driven.post(events.GraphSubmitted(2, unknown(2))) == [events.Run(0, 2, [0]), events.Run(1, 2, [1])]


def test_what_must_not_be_begun_twice_is_not_tried_again():
    driven = Driven(unknown(2, unrepeatable=frozenset({0})))
    found = driven.post(events.WorkerLost(0, (1, 0), over_limit=True))
    assert [type(instruction) for instruction in found].count(events.FailGraph) == 1
    assert not driven.machine.is_to_run_alone(1, 0)


def test_an_idle_worker_takes_nothing_with_it():
    driven = Driven(unknown(1))
    assert driven.post(events.WorkerLost(1, None, over_limit=True)) == []
    driven.post(events.WorkerStarted(1))
    assert driven.done(0, 0) == [events.FinishGraph(1)]


def test_what_is_stored_goes_to_disk_first():
    # The third needs the first; nobody the second, which the user wants.
    driven = Driven(plan((), (), (0,), operand_of=[0, 1, 2], outputs=(1, 2)))
    driven.done(0, 0, size=30)
    assert driven.done(1, 1, size=40) == []
    driven.post(events.MemoryMeasured(70, 100, 200))
    assert driven.end(0, 2) == [events.Spill([(1, 1)])]
    assert driven.post(events.ObjectSpilled((1, 1), 40))[-1] == events.RenewWorkers(is_strict=True)
    driven.post(events.MemoryMeasured(30, 100, 200))
    assert driven.post(events.WorkersRenewed()) == [events.Run(1, 1, [2])]


def test_two_take_turns():
    driven = Driven(unknown(2))
    assert driven.end(0, 0) == []
    assert driven.end(1, 1) == [events.RenewWorkers(is_strict=True)]
    assert driven.post(events.WorkersRenewed()) == [events.Run(0, 1, [0])]
    assert driven.done(0, 0) == [events.RenewWorkers(is_strict=True)]
    assert driven.post(events.WorkersRenewed()) == [events.Run(0, 1, [1])]
    assert driven.done(0, 1) == [events.FinishGraph(1)]


def test_a_cancelled_one_holds_nobody_up():
    driven = Driven(unknown(2))
    driven.end(0, 0)
    driven.post(events.GraphSubmitted(2, unknown(1)))
    assert events.Run(0, 2, [0]) in driven.post(events.GraphCancelled(1))


def test_inputs_that_were_lost_come_before_it():
    # One that takes no time, and behind it in the same worker's queue what reads it.
    driven = Driven(plan((), (), (1,), operand_of=[0, 0, 1], default_retries=1), workers=1)
    assert driven.first == [events.Run(0, 1, [0])]
    assert driven.done(0, 0, seconds=1e-4) == [events.Run(0, 1, [1, 2])]
    driven.machine._dispatcher.to_run_alone[1, 2] = None
    # What is to run alone is not queued behind its input again.
    assert driven.post(events.ChunkFailed(0, 1, 1)) == []
    assert driven.post(events.ChunksReturned(0, 1, [2])) == [events.Run(0, 1, [1])]
    assert driven.done(0, 1) == [events.RenewWorkers(is_strict=True)]
    assert driven.post(events.WorkersRenewed()) == [events.Run(0, 1, [2])]


def test_what_one_has_taken_is_kept_free_for_others_of_its_kind():
    driven = Driven(plan(*[()] * 3, operand_of=[0, 0, 0]))
    assert driven.post(events.PrivateMeasured([(1, 0, 60)], [])) == []
    memory = driven.machine.memory
    assert memory.reserved_bytes == 120
    assert driven.machine.expected_private_bytes(0) == driven.machine.expected_private_bytes(1) == 60
    assert driven.done(0, 0) == []
    assert driven.machine.blocked == (1, 2, 60)
    assert driven.done(1, 1) == [events.Run(0, 1, [2])]


def test_what_is_taken_without_asking_is_no_quota():
    driven = Driven(unknown(1), workers=1, quota_slack_bytes=10)
    assert driven.post(events.PrivateMeasured([(1, 0, 60)], [])) == []
    assert driven.machine.memory.reserved_bytes == 60
    assert driven.post(events.QuotaRequested(0, 1, 0, 30)) == [events.GrantQuota(0, 40)]
    assert driven.machine.memory.reserved_bytes == 90


def test_what_took_more_than_there_is_is_not_refused_before_it_does():
    driven = Driven(plan(*[()] * 2, operand_of=[0, 0]), workers=1)
    driven.post(events.PrivateMeasured([(1, 0, 500)], []))
    assert driven.done(0, 0) == [events.Run(0, 1, [1])]


def test_a_busy_worker_over_its_share_is_given_nothing_more():
    driven = Driven(unknown(6), window_s=10.0)
    driven.done(0, 0)
    waiting = [chunk for _, chunk in driven.machine.dispatched_to(0)]
    assert len(waiting) > 1
    assert events.RecallQueued(0) in driven.post(events.PrivateMeasured([], [0]))
    assert events.RecallQueued(0) not in driven.post(events.PrivateMeasured([], [0]))
    assert driven.machine.over_share == [0]
    # Once it is idle it is as good as any other.
    driven.done(0, *waiting)
    driven.post(events.GraphSubmitted(2, unknown(2)))
    assert (2, 0) in driven.machine.dispatched_to(0) + driven.machine.dispatched_to(1)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_goes_past_the_limit_all_is_computed_or_fails(seed):
    chance = random.Random(seed)
    count = chance.randint(1, 12)
    inputs = [tuple(chance.sample(range(n), min(n, chance.randint(0, 2)))) for n in range(count)]
    driven = Driven(plan(*inputs, operand_of=list(range(count))), chance.randint(1, 3))
    pending = list(driven.first)
    running: dict[int, list[int]] = {}
    ended = dict.fromkeys(range(count), 0)
    failed = finished = False
    for _ in range(1000):
        for instruction in pending:
            if type(instruction) is events.Run:
                running.setdefault(instruction.worker, []).extend(instruction.chunks)
            failed |= type(instruction) is events.FailGraph
            finished |= type(instruction) is events.FinishGraph
        renewed = any(type(instruction) is events.RenewWorkers for instruction in pending)
        pending = driven.post(events.WorkersRenewed()) if renewed else []
        if pending:
            continue
        if failed or finished:
            break
        alone = [chunk for chunk in range(count) if driven.machine.is_to_run_alone(1, chunk)]
        busy = [worker for worker, chunks in running.items() if chunks]
        worker = chance.choice(busy)
        chunk = running[worker].pop(0)
        if chunk in alone:
            assert busy == [worker]
        if chance.random() < 0.2:
            ended[chunk] += 1
            running[worker] = []
            pending = driven.end(worker, chunk)
        else:
            pending = driven.done(worker, chunk)
    assert failed != finished
    assert failed == (max(ended.values()) == 2)
