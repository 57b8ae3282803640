"""The state machine under a limit of memory: what may start, what goes to disk, and that nothing stalls."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest

from dask_mars.scheduler import events
from dask_mars.scheduler.estimates import Estimates
from dask_mars.scheduler.machine import Machine, Parameters
from dask_mars.scheduler.memory import RESERVATION, Memory
from dask_mars.scheduler.objects import Objects, StoredObject
from tests.machines import plan
from tests.scheduler.limited import Host, pairs, sizes_of

# -- admission ----------------------------------------------------------------------------------------------------


def test_declared_bytes_hold_back_what_was_never_seen():
    graph_plan = pairs(8)
    graph_plan.declared_bytes = [40] * len(graph_plan.inputs)
    host = Host(sizes_of(graph_plan, 40, 0, 0), limit=100, workers=4)
    host.submit(graph_plan)
    assert len(host.started) == 2
    host.run()
    assert host.finished == {1}
    assert host.peak_bytes <= 100


# -- copies of what the user's process has ------------------------------------------------------------------------


def values_read_twice(count: int, size: int) -> events.GraphPlan:
    """Return a plan of values, of what reads each, of the total of that, and of what reads that and each value."""
    inputs: list[tuple[int, ...]] = [()] * count
    inputs += [(number,) for number in range(count)]
    inputs.append(tuple(range(count, 2 * count)))
    inputs += [(number, 2 * count) for number in range(count)]
    operand_of = [0] * count + [1] * count + [2] + [3] * count
    copied_bytes = dict.fromkeys(range(count), size)
    return plan(*inputs, operand_of=operand_of, data=range(count), copied_bytes=copied_bytes)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_copies_are_made_as_they_are_needed_and_dropped_where_there_is_no_room(workers):
    graph_plan = values_read_twice(8, 30)
    host = Host([0] * len(graph_plan.inputs), limit=100, workers=workers)
    host.submit(graph_plan)
    host.run()
    assert host.finished == {1}
    assert host.copied.count((1, 7)) + host.copied.count((1, 0)) >= 2
    assert len(host.copied) > 8
    assert host.peak_bytes <= 100
    host.take_results(1)
    assert host.stored_bytes == 0


def test_copies_are_dropped_though_the_disk_has_failed():
    graph_plan = values_read_twice(8, 30)
    host = Host([0] * len(graph_plan.inputs), limit=100)
    host.machine.memory.can_spill = False
    host.submit(graph_plan)
    host.run()
    assert host.finished == {1}
    assert not host.machine.memory.can_spill


def test_one_copy_serves_all_who_read_it():
    operand_of, declared = [0] + [1] * 9, [60] + [0] * 9
    readers = [(0,)] * 9
    graph_plan = plan((), *readers, operand_of=operand_of, declared_bytes=declared, data=[0], copied_bytes={0: 60})
    host = Host([0] * 10, limit=100, workers=3)
    host.submit(graph_plan)
    # It is counted once.
    assert len(host.started) == 3
    host.run()
    assert host.copied == [(1, 0)]


def test_what_needs_too_much_besides_copies_is_refused():
    graph_plan = plan((), (0,), data=[0], operand_of=[0, 1], copied_bytes={0: 10}, declared_bytes=[10, 300])
    host = Host([0, 300], limit=100, hard_limit=200)
    host.submit(graph_plan)
    assert host.failed == {1: 1}


@pytest.mark.parametrize("declared", [150, 500])
def test_what_is_declared_falsely_is_not_refused_where_quotas_hold(declared):
    graph_plan = plan((), operand_of=[0], declared_bytes=[declared])
    host = Host([1], limit=100, hard_limit=120, quota_slack_bytes=10)
    host.submit(graph_plan)
    # More than there can be is not reserved.
    assert host.machine.memory.reserved_bytes <= 120
    host.run()
    assert host.finished == {1}


def test_what_can_go_to_disk_at_once_is_not_refused_for_what_it_took():
    graph_plan = plan((), (0,), (0,), outputs=[1, 2], operand_of=[0, 0, 0])
    host = Host([150, 150, 150], limit=100, hard_limit=200, workers=1, quota_slack_bytes=10)
    host.overflowing = {0, 1, 2}
    host.submit(graph_plan)
    host.run()
    assert host.finished == {1}


# -- what is learnt -----------------------------------------------------------------------------------------------


def test_what_operands_take_while_they_run_is_learnt():
    graph_plan = plan(*[()] * 6, tuple(range(6)), operand_of=[0] * 6 + [1])
    machine = Machine(Parameters(store_limit=100, memory_limit=100))
    for worker in range(4):
        machine.handle(events.WorkerStarted(worker), 0.0)
    runs = machine.handle(events.GraphSubmitted(1, graph_plan), 0.0)
    assert len(runs) == 4
    # Three are running without a promise; what they are promised now leaves no room for another.
    assert machine.handle(events.ChunksFinished(0, 1, [0], [0.1], {}, {}, {0: 40}), 1.0) == []
    assert machine.memory.reserved_bytes == 120
    assert machine.handle(events.ChunksFinished(1, 1, [1], [0.1]), 1.0) == []
    assert machine.handle(events.ChunksFinished(2, 1, [2], [0.1]), 1.0) == [events.Run(0, 1, [4])]
    machine.validate()


def test_results_count_where_they_take_more_than_the_operand_was_seen_to_take():
    estimates = Estimates([0, 0], None)
    assert estimates.learn([0], {0: 50}, {0: 20}) == {0}
    assert estimates.required_bytes(1) == 50
    assert estimates.learn([], {}, {0: 10}) == set()
    assert estimates.learn([], {}, {0: 70}) == {0}
    assert (estimates.required_bytes(1), estimates.expected_bytes(1)) == (70, 50)


def test_small_chunks_pass_a_large_one_that_has_no_room():
    graph_plan = plan((), (), (), (), (), (0, 1, 2, 3, 4), operand_of=[0, 1, 2, 2, 2, 3])
    graph_plan.declared_bytes = [60, 80, 5, 5, 5, 0]
    host = Host([60, 80, 5, 5, 5, 0], limit=100, workers=1)
    host.submit(graph_plan)
    host.finish(0, 1, [0], seconds=1e-3)
    assert 1 not in host.started
    assert 2 in host.started
    host.run()
    assert host.finished == {1}


def test_it_is_not_passed_for_ever():
    count = 40
    graph_plan = plan((), *[()] * count, tuple(range(count + 1)), operand_of=[0] + [1] * count + [2])
    graph_plan.declared_bytes = [80, *[5] * count, 0]
    host = Host([80, *[5] * count, 0], limit=100, workers=1, pass_limit=3)
    # Something else is in the store, and cannot leave it.
    host.stored[99, 0] = 50
    host.submit(graph_plan)
    host.step()
    assert len([chunk for chunk in host.started if chunk]) <= 4
    host.run()
    assert host.finished == {1}


def test_one_that_is_larger_than_the_limit_runs_alone():
    graph_plan = plan((), (), (0,), (1, 2), operand_of=[0, 1, 2, 3])
    graph_plan.declared_bytes = [10, 500, 10, 0]
    host = Host([10, 500, 10, 0], limit=100)
    host.submit(graph_plan)
    while host.step():
        dispatched = [chunk for places in host.dispatched.values() for _, chunk in places]
        assert 1 not in dispatched or dispatched == [1]
    assert host.finished == {1}


@pytest.mark.parametrize(
    ("bytes_", "result_limit", "refusal"),
    [
        pytest.param(500, None, events.Refuse(1, 1, 500, 200), id="all memory"),
        pytest.param(60, 50, events.Refuse(1, 1, 60, 50, is_result=True), id="an arena"),
    ],
)
def test_one_that_is_larger_than_all_memory_or_an_arena_is_refused_with_numbers(bytes_, result_limit, refusal):
    graph_plan = plan((), (), (0, 1), operand_of=[0, 1, 2])
    graph_plan.declared_bytes = [10, bytes_, 10]
    host = Host([10, bytes_, 10], limit=100, hard_limit=200, result_limit=result_limit)
    host.submit(graph_plan)
    host.run()
    assert host.failed == {1: 1}
    assert host.refused == {1: refusal}
    assert 1 not in host.started
    assert not host.machine.memory.reserved_bytes


# -- reservations for what comes from elsewhere -------------------------------------------------------------------


def test_what_an_operand_takes_besides_its_result_need_not_fit_an_arena():
    graph_plan = plan((), (), (0, 1), operand_of=[0, 0, 1])
    machine = Machine(Parameters(store_limit=200, memory_limit=200, result_limit=50))
    machine.handle(events.WorkerStarted(0), 0.0)
    assert machine.handle(events.GraphSubmitted(1, graph_plan), 0.0) == [events.Run(0, 1, [0])]
    finished = events.ChunksFinished(0, 1, [0], [0.1], {0: 40}, {0: 40}, {0: 90})
    assert machine.handle(finished, 1.0) == [events.Run(0, 1, [1])]
    assert machine.memory.reserved_bytes == 90


def test_what_is_known_of_results_comes_before_what_was_declared():
    graph_plan = plan((), (), (0, 1), operand_of=[0, 0, 1])
    graph_plan.declared_bytes = [50, 500, 10]
    host = Host([5, 5, 1], limit=200, hard_limit=200, result_limit=50)
    host.submit(graph_plan)
    host.run()
    assert host.finished == {1}


def test_results_that_are_on_disk_at_once_are_read_from_there():
    graph_plan = plan((), (), (0, 1), (0,), operand_of=[0, 0, 1, 1])
    host = Host(sizes_of(graph_plan, 60, 10), limit=200, workers=1)
    host.overflowing = {0}
    host.submit(graph_plan)
    host.run()
    assert host.finished == {1}
    # Two read it: the first puts it into the store.
    assert host.ever_loaded == [(1, 0)]
    assert not host.ever_spilled
    host.take_results(1)
    assert host.machine.memory.reserved_bytes == 0


def test_room_is_made_before_a_reservation_is_granted():
    host = Host([40, 40], limit=100, workers=1)
    host.submit(plan((), (), outputs=[0, 1], declared_bytes=[40, 40]))
    host.run()
    host.persist_results(1)
    host.post(events.ReservationRequested(7, 70))
    assert not host.granted
    assert host.machine.blocked == (RESERVATION, 7, 70)
    while host.writing:
        host.answer()
    assert host.granted == [7]
    assert host.ever_spilled == [(1, 0), (1, 1)]
    assert host.machine.memory.reserved_bytes == 70
    assert host.machine.stalled() == []
    host.post(events.ReservationReleased(7))
    assert not host.machine.memory.reserved_bytes
    assert host.machine.graphs == []


def test_a_reservation_is_released_before_it_is_granted():
    host = Host([60], limit=100, workers=1)
    host.submit(plan((), declared_bytes=[60]))
    host.post(events.ReservationRequested(7, 70))
    host.post(events.ReservationReleased(7))
    host.post(events.ReservationReleased(7))
    host.run()
    assert host.finished == {1}
    assert not host.granted
    assert host.machine.blocked is None


def test_a_reservation_past_the_limit_is_granted_alone_and_one_past_all_memory_refused():
    host = Host([], limit=100, hard_limit=200)
    assert host.machine.handle(events.ReservationRequested(1, 300), 0.0) == [events.RefuseReservation(1, 300, 200)]
    host.post(events.ReservationRequested(2, 150))
    assert host.granted == [2]
    assert host.machine.blocked is None


def test_work_of_workers_comes_before_what_comes_from_elsewhere():
    host = Host([60, 60], limit=100, workers=2)
    graph_plan = plan((), (), outputs=[0, 1], declared_bytes=[60, 60])
    host.submit(graph_plan)
    assert len(host.started) == 1
    host.post(events.ReservationRequested(2, 30))
    # It would fit, and then keep out the other chunk.
    assert not host.granted
    host.run_workers()
    assert host.granted == [2]
    host.post(events.ReservationReleased(2))
    host.take_results(1)


def test_idle_workers_are_given_what_waits_while_there_is_no_room_for_what_comes():
    host = Host([0] * 40, limit=100, workers=2)
    host.submit(plan(*[()] * 40, outputs=range(40)))
    host.work(0)
    assert len(host.dispatched[0]) > 1
    while host.dispatched[1]:
        host.work(1)
    host.post(events.ReservationRequested(2, 150))
    assert host.machine.blocked == (RESERVATION, 2, 150)
    assert host.machine.next_due_s() is not None


# -- spilling -----------------------------------------------------------------------------------------------------


@dataclass
class Group:
    """A graph as the ledger sees it."""

    id: int
    next_uses: dict[int, float]
    objects: dict[int, StoredObject] = field(default_factory=dict)
    on_disk: dict[int, int] = field(default_factory=dict)

    def is_in_use(self, chunk: int) -> bool:
        return False

    def next_use(self, chunk: int) -> float:
        return self.next_uses[chunk]


def test_what_is_needed_last_leaves_first():
    memory, objects = Memory(100, 1000), Objects()
    first, second = Group(1, {0: 7, 1: 4, 2: math.inf}), Group(2, {3: 9, 4: 5})
    for group in (first, second):
        objects.add(group, dict.fromkeys(group.next_uses, 10))
    assert memory.choose_to_spill(objects.spill_candidates(), 25, {first.objects[0]}) == [(1, 2), (2, 3), (2, 4)]
    assert memory.spilling_bytes == 30
    assert memory.choose_to_spill(objects.spill_candidates(), 5, set()) == [(1, 0)]
    assert memory.choose_to_spill(objects.spill_candidates(), 100, set()) == [(1, 1)]
    assert memory.choose_to_spill(objects.spill_candidates(), 100, set()) == []


def with_first_on_disk(count: int) -> Host:
    """Return a host whose chunk 0 of 40 bytes has left for chunk 1, and is needed by so many from chunk 3 on."""
    graph_plan = plan((), (), (1,), *[(0, 2)] * count, operand_of=[0, 1, 2] + [3] * count)
    sizes = sizes_of(graph_plan, 40, 90, 0, 10)
    graph_plan.declared_bytes = sizes
    host = Host(sizes, limit=100, workers=1)
    host.submit(graph_plan)
    while 3 not in host.started:
        assert host.step()
    assert host.on_disk == {(1, 0)}
    return host


@pytest.mark.parametrize(("readers", "loaded"), [(3, [(1, 0)]), (1, [])])
def test_what_several_still_need_is_loaded_into_the_store_by_the_first(readers, loaded):
    host = with_first_on_disk(readers)
    host.run()
    assert host.finished == {1}
    assert host.ever_loaded == loaded


def test_what_is_loaded_is_counted_once():
    host = with_first_on_disk(3)
    memory = host.machine.memory
    assert host.dispatched[0] == [(1, 3)]
    assert (host.stored_bytes, memory.reserved_bytes) == (0, 50)
    host.load(0, 1, [3])
    assert (host.stored_bytes, memory.reserved_bytes) == (40, 10)
    assert host.machine._graphs[1].required_bytes(4) == 10
    host.run()
    assert host.peak_bytes <= 100


def test_a_second_worker_reads_for_itself_what_the_first_is_to_load():
    host = with_first_on_disk(3)
    host.start(1)
    assert (host.dispatched[0], host.dispatched[1]) == ([(1, 3)], [(1, 4)])
    assert host.loads == {(1, 0): 0}
    host.load(0, 1, [3])
    # It is in the store, and in the second one's own memory.
    assert (host.stored_bytes, host.machine.memory.reserved_bytes) == (40, 10 + 50)
    host.run()
    assert host.finished == {1}


def test_the_users_process_runs_together_what_there_is_room_for():
    graph_plan = plan((), (), (), declared_bytes=[60, 60, 30], operand_of=[0, 1, 2], in_client=frozenset(range(3)))
    host = Host([0, 0, 0], limit=100, num_workers=3)
    host.submit(graph_plan)
    assert host.dispatched[events.CLIENT] == [(1, 0)]
    host.finish(events.CLIENT, 1, [0], seconds=1.0)
    assert host.dispatched[events.CLIENT] == [(1, 1), (1, 2)]
    host.run()
    assert host.finished == {1}


def test_the_users_process_copies_what_it_reads():
    graph_plan = plan((), (), (0,), (1,), operand_of=[0, 0, 1, 1], in_client=frozenset({2, 3}))
    host = Host([30, 30, 0, 0], limit=100, num_workers=2)
    host.submit(graph_plan)
    host.finish(0, 1, [0])
    host.finish(1, 1, [1])
    # 60 bytes are stored, and two copies of 30 have no room beside them.
    assert host.dispatched[events.CLIENT] == [(1, 2)]
    host.run()
    assert host.finished == {1}


def test_room_is_made_for_what_the_users_process_runs_together():
    graph_plan = plan((), (), declared_bytes=[40, 40], operand_of=[0, 1], in_client=frozenset(range(2)))
    host = Host([50, 0], limit=100, num_workers=2)
    host.submit(plan((), declared_bytes=[50]))
    host.finish(0, 1, [0])
    host.persist_results(1)
    host.submit(graph_plan, graph=2)
    assert host.dispatched[events.CLIENT] == [(2, 0)]
    host.answer()
    assert host.dispatched[events.CLIENT] == [(2, 0), (2, 1)]


@pytest.mark.parametrize("hard_limit", [1000, 150])
def test_without_a_disk_memory_is_used_as_far_as_it_goes(hard_limit):
    graph_plan = pairs(8)
    host = Host(sizes_of(graph_plan, 30, 0, 0), limit=100, hard_limit=hard_limit, workers=1)
    host.submit(graph_plan)
    while not host.writing:
        assert host.step()
    while host.writing:
        host.answer(written=False)
    host.run()
    if hard_limit == 1000:
        assert host.finished == {1}
        assert host.peak_bytes > 100
    else:
        assert host.failed
        assert host.refused


def test_a_disk_that_failed_is_tried_again_after_some_time():
    host = Host([40] * 8, limit=100)
    host.submit(plan(*[()] * 6, (0, 5), (1, 4), operand_of=[0] * 6 + [1, 1]))
    while not host.writing:
        assert host.step()
    host.answer(written=False)
    assert not host.machine.memory.can_spill
    host.now_s += host.machine.parameters.disk_delay_s / 2
    host.post(events.TimePassed())
    assert not host.machine.memory.can_spill
    host.now_s += host.machine.parameters.disk_delay_s / 2
    host.post(events.TimePassed())
    assert host.machine.memory.can_spill
    host.run()
    assert host.finished == {1}


@pytest.mark.parametrize(
    ("piece_bytes", "order"),
    [
        pytest.param(20, [0, 1, 5, 2, 3, 6, 7, 4], id="pieces are cut before the next chunk is made"),
        pytest.param(60, [0, 1, 2, 3, 4, 5, 6, 7], id="what is larger waits for its turn"),
    ],
)
def test_what_is_made_of_a_chunk_comes_next_if_it_takes_no_more_memory(piece_bytes, order):
    # Two chunks of which each makes two pieces; two results of which each needs a piece of both.
    graph_plan = plan((), (0,), (), (2,), (1, 3), (0,), (2,), (5, 6), operand_of=[0, 1, 0, 1, 2, 1, 1, 2])
    sizes = sizes_of(graph_plan, 40, piece_bytes, 0)
    graph_plan.declared_bytes = sizes
    host = Host(sizes, limit=1000, workers=1, policy="memory")
    host.submit(graph_plan)
    host.run()
    assert host.started == order
