"""The state machine by example: post an event, compare instructions and states."""

from __future__ import annotations

import pytest

from dask_mars.scheduler.events import (
    CLIENT,
    ChunkFailed,
    ChunksFinished,
    ChunksReturned,
    FailGraph,
    FinishGraph,
    ForgetGraph,
    Free,
    GraphCancelled,
    GraphSubmitted,
    Interrupt,
    ResultsTaken,
    Run,
    TimePassed,
    WorkerLost,
    WorkerRetired,
    WorkerStarted,
)
from dask_mars.scheduler.machine import Machine
from tests.machines import CheckedMachine, plan

CHAIN = ((), (0,), (1,))


# -- from submission to results -------------------------------------------------------------------------------


def test_chain_runs_one_after_the_other_and_frees_behind_itself():
    machine = CheckedMachine()
    assert machine.submit(*CHAIN) == [Run(0, 1, [0])]
    assert machine.states() == ["RUNNING", "UNSCHEDULED", "UNSCHEDULED"]
    assert machine.finish(0, 0) == [Run(0, 1, [1])]
    assert machine.states() == ["FINISHED", "RUNNING", "UNSCHEDULED"]
    assert machine.finish(0, 1) == [Free(1, [0]), Run(0, 1, [2])]
    assert machine.states() == ["FREED", "FINISHED", "RUNNING"]
    assert machine.finish(0, 2) == [Free(1, [1]), FinishGraph(1)]
    assert machine.states() == ["FREED", "FREED", "FINISHED"]
    assert machine.post(ResultsTaken(1)) == [ForgetGraph(1)]
    assert machine.machine.graphs == []


def test_work_left_when_results_are_taken_is_stopped_but_not_by_force():
    machine = CheckedMachine()
    assert machine.submit((), (), outputs=[1], data=[1]) == [FinishGraph(1), Run(0, 1, [0])]
    assert machine.post(ResultsTaken(1)) == [Interrupt(0, 1, force=False)]
    assert machine.states() == ["CANCELLING", "FINISHED"]
    assert machine.finish(0, 0) == [Free(1, [0]), ForgetGraph(1)]


# -- the client -------------------------------------------------------------------------------------------------


def test_client_gets_as_many_chunks_as_it_has_threads_and_needs_no_worker():
    machine = CheckedMachine(workers=0, num_workers=2)
    assert machine.submit((), (), (), in_client=frozenset(range(3))) == [Run(CLIENT, 1, [0, 1])]
    assert machine.finish(CLIENT, 1) == [Run(CLIENT, 1, [2])]
    assert machine.finish(CLIENT, 2, 0) == [FinishGraph(1)]


def test_client_has_the_next_chunks_of_library_code_in_its_queue():
    machine = CheckedMachine(workers=0, num_workers=2)
    assert machine.submit(*[()] * 5, in_client=frozenset(range(5)), lends=True) == [Run(CLIENT, 1, [0, 1, 2, 3])]
    assert machine.finish(CLIENT, 1) == [Run(CLIENT, 1, [4])]


def test_client_has_as_many_threads_as_the_computation_wants_workers():
    machine = CheckedMachine(workers=0, num_workers=2)
    options = {"in_client": frozenset(range(3))}
    assert machine.submit((), (), (), worker_limit=1, **options) == [Run(CLIENT, 1, [0])]
    assert machine.submit((), (), (), graph=2, worker_limit=3, **options) == [Run(CLIENT, 2, [0, 1, 2])]


def test_client_gets_many_small_chunks_at_once():
    machine = CheckedMachine(workers=0, num_workers=2, window_s=0.02)
    assert machine.submit(*[()] * 9, in_client=frozenset(range(9))) == [Run(CLIENT, 1, [0, 1])]
    assert machine.finish(CLIENT, 0, seconds=0.01) == [Run(CLIENT, 1, [2, 3, 4])]


def test_a_chunk_of_the_client_is_alone_if_nothing_can_come_meanwhile():
    machine = CheckedMachine()
    # Another is under way in a worker.
    assert machine.submit((), (), (0, 1), (2,), in_client=frozenset({1, 2, 3})) == [
        Run(CLIENT, 1, [1]),
        Run(0, 1, [0]),
    ]
    assert machine.finish(CLIENT, 1) == []
    assert machine.finish(0, 0)[0] == Run(CLIENT, 1, [2], is_alone=True)
    assert Run(CLIENT, 1, [3], is_alone=True) in machine.finish(CLIENT, 2)


def test_a_chunk_of_the_client_is_not_alone_while_another_is_tried_again():
    machine = CheckedMachine(num_workers=2)
    machine.submit((), (), (1,), in_client=frozenset(range(3)), default_retries=1)
    machine.post(ChunkFailed(CLIENT, 1, 0))
    assert machine.finish(CLIENT, 1)[0] == Run(CLIENT, 1, [2])


def test_durations_in_the_client_say_nothing_of_workers():
    machine = CheckedMachine(workers=0)
    machine.submit((), (), (), in_client=frozenset({0}))
    machine.finish(CLIENT, 0, seconds=1e-6)
    assert machine.post(WorkerStarted(0)) == [Run(0, 1, [1])]


# -- failures ---------------------------------------------------------------------------------------------------


def test_retries_wait_twice_as_long_each_time_up_to_the_limit():
    machine = CheckedMachine(retry_delay_s=0.5, retry_delay_limit_s=3.0)
    machine.submit((), default_retries=5)
    for delay_s in (0.5, 1.0, 2.0, 3.0, 3.0):
        assert machine.post(ChunkFailed(0, 1, 0)) == []
        assert machine.states() == ["READY"]
        assert machine.machine.next_due_s() == pytest.approx(machine.now_s + delay_s)
        assert machine.post(TimePassed(), after_s=0.9 * delay_s) == []
        assert machine.post(TimePassed(), after_s=0.1 * delay_s + 1e-9) == [Run(0, 1, [0])]
        assert machine.machine.next_due_s() is None
    assert machine.post(ChunkFailed(0, 1, 0)) == [FailGraph(1, 0), ForgetGraph(1)]


def test_delay_of_a_thousandth_retry_is_the_limit():
    machine = CheckedMachine(retry_delay_s=0.1, retry_delay_limit_s=10.0)
    machine.submit((), default_retries=2000)
    for _ in range(1100):
        machine.post(ChunkFailed(0, 1, 0))
        assert machine.machine.next_due_s() <= machine.now_s + 10.0
        machine.post(TimePassed(), after_s=10.0)
    assert machine.states() == ["RUNNING"]


def test_failure_is_fatal_to_successors_and_cancels_all_else():
    machine = CheckedMachine(workers=3)
    # 0 is done; 1 fails, on which 3 and 4 depend; 2 runs; 5 waits for a worker, 6 for 5.
    machine.submit((), (0,), (0,), (1,), (2, 3), (0,), (5,), worker_limit=2)
    machine.finish(0, 0)
    assert machine.states() == ["FINISHED", *["RUNNING"] * 2, *["UNSCHEDULED"] * 2, "READY", "UNSCHEDULED"]
    assert machine.post(ChunkFailed(0, 1, 1)) == [FailGraph(1, 1), Interrupt(1, 1, force=False)]
    assert machine.states() == ["FINISHED", "FATAL", "CANCELLING", "FATAL", "FATAL", "CANCELLED", "CANCELLED"]
    assert machine.finish(1, 2) == [Free(1, [2]), ForgetGraph(1)]


# -- lost workers -----------------------------------------------------------------------------------------------


def known_fast(machine, count, graph=1):
    """Submit chunks of an operand that is known to be fast, and return the instructions that hand them out."""
    machine.submit(*[()] * (count + 1), graph=graph)
    return machine.finish(0, 0, graph=graph, seconds=1e-6)


def test_lost_worker_is_blamed_on_the_chunk_it_ran_and_the_rest_runs_elsewhere_at_once():
    machine = CheckedMachine(allowed_worker_losses=1, retry_delay_s=0.5)
    assert known_fast(machine, 3) == [Run(0, 1, [1, 2, 3])]
    assert machine.post(WorkerLost(0, running=(1, 1))) == []
    assert machine.states() == ["FINISHED", "READY", "READY", "READY"]
    assert machine.machine.next_due_s() == pytest.approx(machine.now_s + 0.5)
    assert machine.post(WorkerStarted(0)) == [Run(0, 1, [2, 3])]
    assert machine.finish(0, 2, 3) == []
    assert machine.post(TimePassed(), after_s=0.6) == [Run(0, 1, [1])]


def test_chunk_that_takes_too_many_workers_with_it_fails_its_graph():
    machine = CheckedMachine(allowed_worker_losses=2, retry_delay_s=0.5, retry_delay_limit_s=10.0)
    machine.submit(())
    for delay_s in (0.5, 1.0):
        assert machine.post(WorkerLost(0, running=(1, 0))) == []
        assert machine.post(WorkerStarted(0)) == []
        assert machine.post(TimePassed(), after_s=delay_s) == [Run(0, 1, [0])]
    assert machine.post(WorkerLost(0, running=(1, 0))) == [FailGraph(1, 0), ForgetGraph(1)]


@pytest.mark.parametrize(("allowed", "tries"), [(0, 1), (1, 2), (5, 2)])
def test_chunk_that_crashes_is_tried_once_more_at_most(allowed, tries):
    machine = CheckedMachine(allowed_worker_losses=allowed, retry_delay_s=0.5)
    machine.submit(())
    for _ in range(tries - 1):
        assert machine.post(WorkerLost(0, running=(1, 0), crashed=True)) == []
        machine.post(WorkerStarted(0))
        assert machine.post(TimePassed(), after_s=0.5) == [Run(0, 1, [0])]
    assert machine.post(WorkerLost(0, running=(1, 0), crashed=True)) == [FailGraph(1, 0), ForgetGraph(1)]


def test_retiring_is_held_against_no_chunk():
    machine = CheckedMachine(workers=2, allowed_worker_losses=0)
    machine.submit((), unrepeatable=frozenset({0}))
    assert machine.post(WorkerRetired(0)) == [Run(1, 1, [0])]


# -- cancelling -------------------------------------------------------------------------------------------------


def test_cancel_stops_what_waits_and_interrupts_what_runs():
    machine = CheckedMachine()
    machine.submit((), (), (0, 1))
    assert machine.states() == ["RUNNING", "READY", "UNSCHEDULED"]
    assert machine.post(GraphCancelled(1)) == [Interrupt(0, 1, force=True)]
    assert machine.states() == ["CANCELLING", "CANCELLED", "CANCELLED"]
    assert machine.post(ChunksReturned(0, 1, [0])) == [ForgetGraph(1)]


def test_a_cancelled_result_stays_while_dispatched_chunks_may_share_its_memory():
    machine = CheckedMachine(window_s=10.0)
    assert machine.submit((), (), (1,), outputs=[0, 2])[0].chunks == [0]
    assert [*machine.finish(0, 0, seconds=0.1)] == [Run(0, 1, [1, 2])]
    machine.post(GraphCancelled(1))
    assert machine.finish(0, 1) == []
    # Its result may be a view of the one before.
    assert machine.finish(0, 2) == [Free(1, [2]), ForgetGraph(1)]


def test_worker_that_is_cancelling_one_graph_gets_no_slow_work_of_another():
    machine = CheckedMachine()
    machine.submit((), graph=1)
    machine.submit((), graph=2)
    assert machine.post(GraphCancelled(1)) == [Interrupt(0, 1, force=True)]
    assert machine.finish(0, 0, graph=1) == [Free(1, [0]), ForgetGraph(1), Run(0, 2, [0])]


@pytest.mark.parametrize(
    "event",
    [
        ChunksFinished(0, 1, [0], [1.0]),
        ChunksFinished(CLIENT, 1, [0], [1.0]),
        ChunkFailed(0, 1, 0),
        ChunksReturned(0, 1, [0]),
        GraphCancelled(1),
        ResultsTaken(1),
        WorkerLost(5, running=None),
    ],
)
def test_late_messages_of_a_forgotten_graph_are_ignored(event):
    machine = CheckedMachine()
    machine.submit(())
    machine.finish(0, 0)
    assert machine.post(ResultsTaken(1)) == [ForgetGraph(1)]
    assert machine.post(event) == []


# -- who gets what ----------------------------------------------------------------------------------------------


def test_higher_priority_runs_before_lower_ids():
    machine = CheckedMachine()
    assert machine.submit(*[()] * 4, priorities={2: 1.0, 3: 5.0, 0: -1.0}) == [Run(0, 1, [3])]
    assert machine.finish(0, 3) == [Run(0, 1, [2])]
    assert machine.finish(0, 2) == [Run(0, 1, [1])]
    assert machine.finish(0, 1) == [Run(0, 1, [0])]
    # So it is in the client.
    machine = CheckedMachine(num_workers=3)
    run = machine.submit(*[()] * 3, priorities={2: 1.0}, in_client=frozenset(range(3)))
    assert run == [Run(CLIENT, 1, [2, 0, 1])]


def test_fast_operand_travels_many_in_a_message():
    machine = CheckedMachine(window_s=0.005)
    machine.submit(*[()] * 101)
    assert machine.finish(0, 0, seconds=1e-6) == [Run(0, 1, list(range(1, 101)))]


def test_message_carries_no_more_than_the_batch_limit():
    machine = CheckedMachine(batch_limit=10)
    instructions = known_fast(machine, 25)
    assert [len(run.chunks) for run in instructions] == [10, 10, 5]
    assert [chunk for run in instructions for chunk in run.chunks] == list(range(1, 26))


def test_queue_is_filled_up_to_the_window_and_topped_up_when_half_is_done():
    machine = CheckedMachine(window_s=0.125)
    machine.submit(*[()] * 20)
    assert machine.finish(0, 0, seconds=1 / 64) == [Run(0, 1, list(range(1, 9)))]
    for chunk in (1, 2, 3, 4):
        assert machine.finish(0, chunk, seconds=1 / 64) == []
    assert machine.finish(0, 5, seconds=1 / 64) == [Run(0, 1, [9, 10, 11, 12, 13])]


def test_slow_operand_is_not_queued_behind_fast_ones():
    machine = CheckedMachine(window_s=0.005)
    machine.submit(*[()] * 6, operand_of=[1, 0, 1, 0, 0, 1])
    assert machine.finish(0, 0, seconds=1.0) == [Run(0, 1, [1])]
    assert machine.finish(0, 1, seconds=1e-6) == [Run(0, 1, [2])]
    assert machine.finish(0, 2, seconds=1.0) == [Run(0, 1, [3, 4])]
    assert machine.finish(0, 3, 4, seconds=1e-6) == [Run(0, 1, [5])]


@pytest.mark.parametrize(("seconds", "count"), [(1e-6, 8), (1.0, 1)])
def test_unknown_operand_of_a_fast_graph_goes_a_few_at_a_time_and_of_a_slow_one_alone(seconds, count):
    machine = CheckedMachine(window_s=0.125)
    machine.submit(*[()] * 30, operand_of=[0, *[1] * 29])
    assert machine.finish(0, 0, seconds=seconds) == [Run(0, 1, list(range(1, count + 1)))]


def test_estimate_follows_the_newest_durations():
    machine = CheckedMachine(window_s=0.005)
    machine.submit(*[()] * 40)
    machine.finish(0, 0, seconds=1.0)
    for chunk in range(1, 30):
        run = machine.finish(0, chunk, seconds=0.0)
        if run[0].chunks != [chunk + 1]:
            break
    assert 10 < chunk < 29
    assert len(run[0].chunks) > 1


@pytest.mark.parametrize(("count", "shares"), [(8, [[1, 2, 3], [4, 5, 6], [7, 8]]), (4, [[1, 2], [3], [4]])])
def test_workers_get_even_shares(count, shares):
    machine = CheckedMachine(workers=3)
    machine.submit((), *[(0,)] * count)
    runs = machine.finish(0, 0, seconds=1e-6)
    assert runs == [Run(worker, 1, chunks) for worker, chunks in enumerate(shares)]


def test_least_loaded_worker_is_served_first():
    machine = CheckedMachine(workers=2, window_s=1.0)
    machine.submit((), (0,), (0,), (0,), (), (4,), in_client=frozenset({4}))
    assert machine.finish(0, 0, seconds=1e-4) == [Run(0, 1, [1, 2]), Run(1, 1, [3])]
    assert machine.finish(CLIENT, 4) == [Run(1, 1, [5])]


def test_the_last_chunks_go_to_the_workers_that_are_free_first():
    machine = CheckedMachine(workers=2, window_s=0.02, silence_s=0.05)
    # Their duration is not known yet.
    assert machine.submit(*[()] * 4) == [Run(0, 1, [0]), Run(1, 1, [1])]
    machine.now_s += 0.009
    assert machine.finish(0, 0, seconds=0.009) == [Run(0, 1, [2])]
    machine.now_s += 0.001
    assert machine.finish(1, 1, seconds=0.01) == [Run(1, 1, [3])]


def test_the_last_chunks_are_not_left_to_a_silent_worker():
    machine = CheckedMachine(workers=2, window_s=0.02, silence_s=0.005)
    machine.submit(*[()] * 4)
    machine.now_s += 0.009
    assert machine.finish(0, 0, seconds=0.009) == [Run(0, 1, [2, 3])]


def test_the_last_chunks_are_not_left_to_workers_that_may_not_take_them():
    machine = CheckedMachine(workers=3, window_s=0.02, silence_s=0.05)
    machine.submit(*[()] * 3, worker_limit=1)
    machine.submit(*[()] * 2, graph=2)
    machine.now_s += 0.009
    assert machine.finish(0, 0, seconds=0.009) == [Run(0, 1, [1, 2])]


def test_two_graphs_alternate():
    machine = CheckedMachine(workers=0)
    machine.submit(*[()] * 3, graph=1)
    machine.submit(*[()] * 3, graph=2)
    assert machine.post(WorkerStarted(0)) == [Run(0, 1, [0])]
    assert machine.finish(0, 0, graph=1) == [Run(0, 2, [0])]
    assert machine.finish(0, 0, graph=2) == [Run(0, 1, [1])]
    assert machine.finish(0, 1, graph=1) == [Run(0, 2, [1])]


# -- the interface ----------------------------------------------------------------------------------------------


def test_validate_notices_a_ready_chunk_that_nobody_would_run():
    machine = Machine()
    machine.handle(GraphSubmitted(1, plan(())), 0.0)
    machine._graphs[1].queues.ready.clear()
    with pytest.raises(AssertionError, match="never run"):
        machine.validate()


# -- chains that wait in a worker's queue -----------------------------------------------------------------------


def quick(*inputs, **options):
    """Submit a plan to a machine that knows how long its operands take: next to nothing."""
    # The chunks are counted from 1.
    checked = CheckedMachine()
    options["operand_of"] = [0] * (len(inputs) + 1)
    shifted = [tuple(source + 1 for source in sources) for sources in inputs]
    run = checked.submit((), *shifted, **options)
    assert run == [Run(0, 1, [0])]
    return checked, checked.finish(0, 0, seconds=1e-6)


def test_a_chain_is_queued_behind_itself():
    _, instructions = quick((), (0,), (1,))
    assert instructions == [Run(0, 1, [1, 2, 3])]


def test_what_follows_a_failure_is_not_computed():
    checked, _ = quick((), (0,), (1,))
    instructions = checked.post(ChunkFailed(0, 1, 1))
    assert instructions == [FailGraph(1, 1), Interrupt(0, 1, False)]
    assert checked.states()[1:] == ["FATAL", "CANCELLING", "CANCELLING"]
    checked.post(ChunksReturned(0, 1, [2, 3]))
    assert checked.machine.graphs == []


def test_what_follows_a_retry_is_given_once_more():
    checked, _ = quick((), (0,), default_retries=1)
    checked.post(ChunkFailed(0, 1, 1))
    checked.post(ChunksReturned(0, 1, [2]))
    assert checked.states()[1:] == ["READY", "UNSCHEDULED"]
    assert checked.post(TimePassed(), after_s=1.0) == [Run(0, 1, [1, 2])]


def test_nothing_follows_where_the_plan_says_so():
    _, instructions = quick((), (0,), run_ahead=False)
    assert instructions[-1] == Run(0, 1, [1])


# -- order ------------------------------------------------------------------------------------------------------


def order_of(*inputs, sizes=None, **options):
    """Return the order in which one worker runs a graph, one chunk after the other."""
    sizes = sizes or [1] * len(inputs)
    checked = CheckedMachine(store_limit=10**6, memory_limit=10**6)
    instructions = checked.submit(*inputs, **options)
    order = []
    while True:
        run = [instruction for instruction in instructions if isinstance(instruction, Run)]
        if not run:
            return order
        ((chunk,),) = [instruction.chunks for instruction in run]
        order.append(chunk)
        size = {chunk: sizes[chunk]}
        instructions = checked.post(ChunksFinished(0, 1, [chunk], [1.0], size, size))


#: Two columns of two chunks, each standardised by what is known of its column; by rows.
COLUMNS = ((), (), (0, 1), (0, 2), (), (), (4, 5), (4, 6), (1, 2), (5, 6))


def test_what_frees_memory_comes_right_behind_its_inputs():
    assert order_of(*COLUMNS) == [0, 1, 2, 3, 8, 4, 5, 6, 7, 9]


def test_what_takes_more_than_it_frees_waits_for_its_turn():
    sizes = [1 if chunk in (0, 1, 2, 4, 5, 6) else 100 for chunk in range(10)]
    operand_of = [min(size, 2) for size in sizes]
    order = order_of(*COLUMNS, sizes=sizes, operand_of=operand_of, declared_bytes=sizes)
    assert order == list(range(10))


def test_priorities_of_the_user_come_first():
    assert order_of(*COLUMNS, priorities={5: 1.0})[0] == 5
    assert order_of(*COLUMNS, priorities=dict.fromkeys((4, 5, 6, 7, 9), 1.0))[:5] == [4, 5, 6, 7, 9]


def test_what_the_user_wants_frees_nothing():
    assert order_of(*COLUMNS, outputs=list(range(10))) == list(range(10))


#: Means of squares and of products of two arrays of two chunks each: u, u², u, u², mean; v, v², ..; uv, uv, mean.
QUADRATIC = ((), (0,), (), (2,), (1, 3), (), (5,), (), (7,), (6, 8), (0, 5), (2, 7), (10, 11))


def test_an_input_is_brought_forward_for_what_frees_memory_with_it():
    operand_of = [0 if not inputs else 1 for inputs in QUADRATIC]
    sizes = [0 if operand else 10 for operand in operand_of]
    order = order_of(*QUADRATIC, sizes=sizes, operand_of=operand_of, declared_bytes=sizes)
    assert order == [0, 1, 5, 6, 10, 2, 3, 4, 7, 8, 11, 9, 12]


def test_what_was_brought_forward_and_failed_waits_for_its_retry():
    checked = CheckedMachine(store_limit=10**6, memory_limit=10**6)
    checked.submit(*COLUMNS, default_retries=1, declared_bytes=[1] * len(COLUMNS))
    for chunk in (0, 1, 2, 3):
        checked.post(ChunksFinished(0, 1, [chunk], [1.0], {chunk: 1}, {chunk: 1}))
    assert checked.machine.dispatched_to(0) == [(1, 8)]
    checked.post(ChunkFailed(0, 1, 8))
    started = []
    while places := checked.machine.dispatched_to(0):
        started.append(places[0][1])
        checked.finish(0, places[0][1])
    assert started == [4, 5, 6, 7, 9]
    assert checked.post(TimePassed(), after_s=1.0) == [Run(0, 1, [8])]
