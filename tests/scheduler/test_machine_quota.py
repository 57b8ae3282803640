"""The state machine and workers whose memory is to grow in the middle of a chunk."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dask_mars.scheduler import events
from tests.machines import CheckedMachine, LimitedMachine, plan, unknown

SLACK = 10
MIB = 1 << 20


class Driven(LimitedMachine):
    """One whose workers have quotas; none of them has kept memory."""

    def __init__(self, graph: events.GraphPlan, workers: int = 2) -> None:
        super().__init__(graph, workers, quota_slack_bytes=SLACK)

    def post(self, event: Any, after_s: float = 1.0) -> list[events.Instruction]:
        found = super().post(event, after_s)
        if renewals := of_kind(events.RenewWorkers, found):
            found.remove(renewals[0])
            found += super().post(events.WorkersRenewed(), 0.0)
        return found

    def grow(self, worker: int, chunk: int, size: int) -> list[events.Instruction]:
        return self.post(events.QuotaRequested(worker, 1, chunk, size))


def of_kind(kind: type, instructions: list[events.Instruction]) -> list[Any]:
    return [instruction for instruction in instructions if type(instruction) is kind]


def test_a_worker_has_the_slack_and_what_is_reserved():
    driven = Driven(plan((), declared_bytes=[30]), workers=1)
    assert of_kind(events.GrantQuota, driven.first) == [events.GrantQuota(0, 30 + SLACK)]
    assert of_kind(events.GrantQuota, driven.done(0, 0, size=30)) == [events.GrantQuota(0, SLACK)]


def test_what_there_is_room_for_is_granted():
    driven = Driven(unknown(2))
    assert driven.grow(0, 0, 60) == [events.GrantQuota(0, 60 + SLACK)]
    assert driven.machine.memory.reserved_bytes == 60
    assert driven.grow(0, 0, 90) == [events.GrantQuota(0, 90 + SLACK)]
    assert driven.machine.memory.reserved_bytes == 90
    assert events.GrantQuota(0, SLACK) in driven.done(0, 0)


def test_what_waits_is_not_given_to_what_has_not_begun():
    declared = [None, None, 30, 30]
    driven = Driven(plan(*[()] * 4, operand_of=[0, 1, 2, 3], declared_bytes=declared))
    running = [run.chunks for run in of_kind(events.Run, driven.first)]
    assert running == [[0], [1]]
    driven.grow(0, 0, 60)
    driven.grow(1, 1, 60)
    # 40 bytes are free, and wanted.
    finished = driven.done(0, 0)
    assert events.GrantQuota(1, 60 + SLACK) in finished
    assert [run.chunks for run in of_kind(events.Run, finished)] == [[2]]


def test_objects_go_to_disk_for_it():
    driven = Driven(plan((), (), (0, 1), operand_of=[0, 1, 2]), workers=1)
    driven.grow(0, 0, 70)
    driven.done(0, 0, size=70)
    driven.post(events.MemoryMeasured(70, 100, 200))
    found = driven.grow(0, 1, 90)
    assert of_kind(events.Spill, found) == [events.Spill([(1, 0)])]
    driven.post(events.MemoryMeasured(0, 100, 200))
    assert events.GrantQuota(0, 90 + SLACK) in driven.post(events.ObjectSpilled((1, 0), 70))


def test_one_that_nobody_helps_goes_past_the_limit():
    driven = Driven(unknown(2))
    # The other one has nothing to do.
    driven.done(1, 1)
    assert driven.grow(0, 0, 180) == [events.GrantQuota(0, 180 + SLACK)]


def test_when_all_wait_the_first_goes_on():
    driven = Driven(unknown(2))
    driven.grow(0, 0, 50)
    driven.grow(1, 1, 50)
    assert driven.grow(0, 0, 120) == []
    assert driven.grow(1, 1, 120) == [events.GrantQuota(0, 120 + SLACK)]
    assert driven.machine.growing() == {1: (1, 1, 70)}


def test_when_none_can_go_on_the_last_gives_back():
    driven = Driven(unknown(2))
    driven.grow(0, 0, 50)
    driven.grow(1, 1, 50)
    driven.grow(0, 0, 180)
    assert driven.grow(1, 1, 180) == [events.RefuseQuota(1, 1, 1, 180, is_postponed=True)]
    found = driven.post(events.ChunksReturned(1, 1, [1]))
    assert events.GrantQuota(0, 180 + SLACK) in found
    # It is tried again when there is room for all that it wants.
    assert not of_kind(events.Run, found)
    last = driven.done(0, 0)
    assert [run.chunks for run in of_kind(events.Run, last)] == [[1]]
    worker = of_kind(events.Run, last)[0].worker
    assert driven.machine.memory.reserved_by_worker[worker] == 180
    assert driven.grow(worker, 1, 190) == [events.GrantQuota(worker, 190 + SLACK)]


def test_what_must_not_be_begun_twice_is_not_put_back():
    driven = Driven(unknown(2, unrepeatable=frozenset({1})))
    driven.grow(0, 0, 50)
    driven.grow(1, 1, 50)
    driven.grow(0, 0, 180)
    assert driven.grow(1, 1, 180) == [events.RefuseQuota(0, 1, 0, 180, is_postponed=True)]


@pytest.mark.parametrize("unrepeatable", [frozenset(), frozenset({0})])
def test_what_can_never_be_is_refused(unrepeatable):
    driven = Driven(unknown(1, unrepeatable=unrepeatable))
    assert driven.grow(0, 0, 201) == [events.RefuseQuota(0, 1, 0, 201, is_postponed=False)]
    assert driven.machine.growing() == {}
    # It does with less.
    assert driven.grow(0, 0, 150) == [events.GrantQuota(0, 150 + SLACK)]


def test_one_that_ends_waits_no_more():
    for end in (events.ChunkFailed(1, 1, 1), events.WorkerLost(1, (1, 1))):
        driven = Driven(unknown(2, default_retries=1))
        driven.grow(0, 0, 60)
        driven.grow(1, 1, 60)
        driven.post(end)
        assert driven.machine.growing() == {}
        assert driven.machine.memory.awaited_bytes == 0
    driven = Driven(unknown(2))
    driven.grow(0, 0, 60)
    driven.grow(1, 1, 60)
    driven.post(events.GraphCancelled(1))
    driven.done(0, 0)
    driven.done(1, 1)
    assert driven.machine.growing() == {}
    assert driven.machine.memory.reserved_bytes == 0


def test_a_chunk_that_is_not_dispatched_asks_in_vain():
    driven = Driven(unknown(2))
    assert driven.grow(0, 1, 60) == []
    assert driven.post(events.QuotaRequested(0, 5, 0, 60)) == []
    assert driven.machine.growing() == {}


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_asked_for_all_is_computed_or_refused(seed):
    chance = random.Random(seed)
    count, workers = chance.randint(1, 12), chance.randint(1, 4)
    needs = [chance.choice([0, 20, 60, 110, 190]) for _ in range(count)]
    driven = Driven(unknown(count), workers)
    machine = driven.machine
    waiting: dict[int, int] = {}
    pending = driven.first
    held: dict[int, int] = {}
    finished: set[int] = set()
    for _ in range(2000):
        follow: list[events.Instruction] = []
        for instruction in pending:
            if type(instruction) is events.GrantQuota:
                held[instruction.worker] = instruction.growth_bytes
            elif type(instruction) is events.RefuseQuota:
                assert instruction.is_postponed
                waiting.pop(instruction.worker, None)
                follow += driven.post(events.ChunksReturned(instruction.worker, 1, [instruction.chunk]))
        pending = follow
        if pending:
            continue
        running = {worker: places[0][1] for worker in range(workers) if (places := machine.dispatched_to(worker))}
        able = [worker for worker in running if worker not in machine.growing()]
        if not able:
            break
        worker = chance.choice(able)
        chunk = running[worker]
        if needs[chunk] > held.get(worker, 0):
            pending = driven.grow(worker, chunk, needs[chunk])
        else:
            finished.add(chunk)
            pending = driven.done(worker, chunk)
    assert finished == set(range(count))
    assert driven.post(events.ResultsTaken(1))[-1].graph == 1


# -- what nobody has seen -----------------------------------------------------------------------------------------


def test_the_first_of_its_kind_has_a_share_and_nothing_of_its_kind_beside_it():
    driven = Driven(plan())
    # More than half is in use.
    driven.post(events.MemoryMeasured(60, 100, 200))
    found = driven.post(events.GraphSubmitted(2, plan(*[()] * 4, operand_of=[0, 0, 1, 0])))
    # One of another kind passes.
    assert of_kind(events.Run, found) == [events.Run(0, 2, [0]), events.Run(1, 2, [2])]
    assert driven.machine.memory.reserved_by_worker == {0: 20, 1: 10}
    assert driven.post(events.ChunksFinished(1, 2, [2], [1.0]))[-1] == events.GrantQuota(1, SLACK)
    # Once it is known, the others go side by side.
    found = driven.post(events.ChunksFinished(0, 2, [0], [1.0], {0: 5}, {0: 5}))
    assert of_kind(events.Run, found) == [events.Run(0, 2, [1]), events.Run(1, 2, [3])]
    assert driven.machine.memory.reserved_by_worker == {0: 5, 1: 5}


def test_temporaries_of_known_functions_are_reserved_until_they_are_measured():
    driven = Driven(plan((), (), declared_bytes=[10, 10], operand_of=[0, 0], temporaries={0: 2.5}), workers=1)
    assert driven.machine.memory.reserved_by_worker[0] == 35
    driven.done(0, 0, size=10)
    assert driven.machine.memory.reserved_by_worker[0] == 10


def test_what_becomes_known_meanwhile_is_no_quota():
    driven = Driven(plan((), (), operand_of=[0, 0]))
    driven.post(events.MemoryMeasured(0, 100, 100))
    assert driven.grow(0, 0, 60) == [events.GrantQuota(0, 60 + SLACK)]
    assert driven.grow(1, 1, 60) == []
    # That chunks of this operand take 60 bytes does not make these free: they go to disk first.
    driven.post(events.MemoryMeasured(60, 100, 100))
    assert of_kind(events.GrantQuota, driven.done(0, 0, size=60)) == [events.GrantQuota(0, SLACK)]
    assert driven.machine.memory.reserved_by_worker[1] == driven.machine.memory.raised_by_worker[1] == 60
    found = driven.post(events.ObjectSpilled((1, 0), 60))
    assert of_kind(events.GrantQuota, found) == [events.GrantQuota(1, 60 + SLACK)]
    assert driven.machine.memory.raised_bytes == 0


def test_one_that_asks_again_for_what_it_has_is_answered():
    driven = Driven(unknown(2))
    driven.post(events.MemoryMeasured(0, 100, 100))
    assert driven.grow(0, 0, 90) == [events.GrantQuota(0, 90 + SLACK)]
    driven.post(events.MemoryMeasured(50, 100, 100))
    assert driven.grow(0, 0, 90) == [events.GrantQuota(0, 90 + SLACK)]


@pytest.mark.parametrize(
    ("slack_bytes", "seconds", "reports"),
    [
        # Chunk 1 waits for chunk 3, which worker 1 has.
        (7 * MIB // 2, 0.001, [(1, 2, {0: MIB}), (0, 0, {0: MIB}), (0, 8, {})]),
        # Worker 0 is late with chunks 1, 4, 5 and 6. Chunk 3 waits until chunk 1 is measured.
        (4 * MIB, 0.0008, [(0, 0, {0: MIB}), (1, 2, {0: MIB}), (1, 8, {}), (1, 10, {})]),
    ],
    ids=["the chunk itself", "chunks behind it"],
)
def test_nothing_is_spilled_while_a_chunk_waits_until_its_operand_is_measured(slack_bytes, seconds, reports):
    limits = {"store_limit": 8 * MIB, "memory_limit": 224 * MIB, "quota_slack_bytes": slack_bytes}
    machine = CheckedMachine(0, policy="mars", num_workers=2, **limits)
    for worker in range(2):
        machine.post(events.WorkerStarted(worker))
    # Each even chunk has a mebibyte, which the next one reads.
    inputs = [sources for chunk in range(0, 80, 2) for sources in ((), (chunk,))]
    machine.submit(*inputs, operand_of=[0, 1] * 40)
    for stored, (worker, chunk, peaks) in enumerate(reports, 1):
        machine.post(events.MemoryMeasured(stored * MIB, 8 * MIB, 64 * MIB))
        sizes = {chunk: MIB}
        instructions = machine.post(events.ChunksFinished(worker, 1, [chunk], [seconds], sizes, sizes, peaks))
        assert not [found for found in instructions if isinstance(found, events.Spill)]
    assert machine.states()[1 if reports[0][0] else 3] == "READY"
    assert machine.machine.blocked is None
