"""Simulated clusters: times and bytes of runs that can be worked out by hand, and all policies to the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from studies.simulation.cluster import Cluster, Job, Simulation
from studies.simulation.jobs import job_of
from studies.simulation.policies import POLICIES, DaskPolicy, MarsPolicy


class Fixed:
    """Chunks go where a test says, in the order of their ids."""

    def __init__(self, workers: Sequence[int]) -> None:
        self._workers = workers

    def priorities(self) -> Sequence[int]:
        return range(len(self._workers))

    def choose(self, chunk: int, now: Simulation) -> int:
        return self._workers[chunk]


def job(*inputs: tuple[int, ...], sizes: Any = None, durations_s: Any = None, groups: Any = None) -> Job:
    count = len(inputs)
    return Job(inputs, sizes or [100] * count, durations_s or [1.0] * count, groups or [0] * count)


def cluster(workers: int, slots: int = 1) -> Cluster:
    return Cluster(workers, slots, bandwidth=100.0, latency_s=0.25)


def run(made: Job, workers: Sequence[int], slots: int = 1, stealing: bool = False) -> tuple[float, int]:
    outcome = Simulation(made, cluster(max(workers) + 2, slots), Fixed(workers), stealing).run()
    return outcome.makespan_s, outcome.moved_bytes


def test_a_worker_computes_as_many_chunks_at_once_as_it_has_slots():
    three = job((), (), ())
    assert run(three, [0, 0, 0]) == (3.0, 0)
    assert run(three, [0, 0, 0], slots=2) == (2.0, 0)
    assert run(three, [0, 1, 2]) == (1.0, 0)


def test_results_are_moved_to_where_they_are_needed():
    # Computed in a second, moved in a second and a latency.
    assert run(job((), (0,)), [0, 1]) == (3.25, 100)
    assert run(job((), (0,)), [0, 0]) == (2.0, 0)


def test_results_are_moved_once_to_each_worker():
    assert run(job((), (0,), (0,)), [0, 1, 1]) == (4.25, 100)
    assert run(job((), (0,), (0,), (1, 2), sizes=[100, 1, 1, 1]), [0, 1, 1, 1])[1] == 100


def test_a_link_carries_one_result_after_the_other():
    # Both need what is at worker 0, and both leave it over the same link.
    assert run(job((), (0,), (0,)), [0, 1, 2]) == (4.25, 200)
    # Two workers send to one.
    assert run(job((), (), (0, 1)), [0, 1, 2]) == (4.25, 200)


def test_chunks_run_in_the_order_of_priority():
    # The last chunk waits for 1, which comes before 2.
    assert run(job((), (), (), (1,), durations_s=[1, 1, 5, 5]), [0, 0, 0, 1])[0] == pytest.approx(8.25)


def test_idle_workers_take_work_if_fetching_takes_less_than_waiting():
    made = job((), *[(0,)] * 6)
    alone_s, _ = run(made, [0] * 7)
    helped_s, moved = run(made, [0] * 7, stealing=True)
    assert alone_s == 7.0
    assert helped_s < alone_s
    assert moved == 100
    dear = job((), *[(0,)] * 6, sizes=[100_000, *[1] * 6])
    assert run(dear, [0] * 7, stealing=True) == (7.0, 0)


def test_balance_is_the_most_over_the_mean():
    assert Simulation(job((), (), (), ()), cluster(2), Fixed([0, 0, 0, 1]), stealing=False).run().balance == 1.5


def test_values_that_come_with_the_graph_are_not_computed():
    made = Job([(), ()], [1, 1], [1.0, 1.0], [0, 0], absent=frozenset({0}))
    assert Simulation(made, cluster(1), Fixed([0, 0])).run().makespan_s == 1.0


def test_mars_goes_where_most_bytes_are():
    made = job((), (), (0, 1), sizes=[10, 20, 1])
    now = Simulation(made, cluster(3), Fixed([0, 1, 2]))
    now.holders = [[0], [1], []]
    policy = MarsPolicy(made, {0: 2})
    assert policy.choose(2, now) == 1
    now.holders[0].append(1)
    assert policy.choose(2, now) == 1
    now.occupancy_s[1] = 5.0
    now.holders[1].append(0)
    assert policy.choose(2, now) == 0
    assert policy.choose(0, now) == 2


def test_dask_goes_where_a_task_starts_first():
    made = job((), (), (0, 1), sizes=[10, 20, 1], groups=[0, 0, 1])
    now = Simulation(made, cluster(3), Fixed([0, 1, 2]))
    now.holders = [[0], [1], []]
    policy = DaskPolicy(made, cluster(3), 1.1)
    assert policy.choose(2, now) == 1
    now.occupancy_s[1] = 5.0
    assert policy.choose(2, now) == 0


def test_dask_keeps_root_tasks_back_when_all_threads_have_enough():
    made = job(*[()] * 20)
    now = Simulation(made, cluster(2), Fixed([0] * 20))
    policy = DaskPolicy(made, cluster(2), 1.1)
    now.given = [1, 0]
    assert policy.choose(0, now) == 1
    now.given = [2, 2]
    assert policy.choose(0, now) is None


def test_dask_without_saturation_puts_root_tasks_in_a_row_together():
    made = job(*[()] * 20)
    now = Simulation(made, cluster(2), Fixed([0] * 20))
    policy = DaskPolicy(made, cluster(2), float("inf"))
    chosen = []
    for chunk in range(20):
        chosen.append(policy.choose(chunk, now))
        now.occupancy_s[chosen[-1]] += 1.0
        now.given[chosen[-1]] += 1
    assert chosen == [0] * 10 + [1] * 10


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    count = draw(st.integers(1, 30))
    inputs = [
        tuple(draw(st.sets(st.integers(0, max(chunk - 1, 0)), max_size=3 if chunk else 0)))
        for chunk in range(count)
    ]
    return Job(
        inputs,
        draw(st.lists(st.integers(0, 1000), min_size=count, max_size=count)),
        draw(st.lists(st.floats(0.001, 2.0), min_size=count, max_size=count)),
        draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)),
    )


@settings(max_examples=10)
@pytest.mark.parametrize("name", POLICIES)
@given(jobs(), st.integers(1, 5), st.integers(1, 3), st.booleans())
def test_every_policy_comes_to_the_end_of_every_job_and_twice_to_the_same(name, made, workers, slots, stealing):
    hosts = cluster(workers, slots)
    outcomes = {Simulation(made, hosts, POLICIES[name](made, hosts, 1), stealing).run() for _ in range(2)}
    (outcome,) = outcomes
    longest = [0.0] * len(made.inputs)
    for chunk, inputs in enumerate(made.inputs):
        longest[chunk] = made.durations_s[chunk] + max((longest[source] for source in inputs), default=0.0)
    work_s = sum(made.durations_s) / (workers * slots)
    assert outcome.makespan_s >= max(work_s, *longest) * (1 - 1e-9)
    assert 1.0 <= outcome.balance <= workers
    if workers == 1:
        assert outcome.moved_bytes == 0


def test_jobs_know_the_work_of_what_was_merged_into_a_chunk():
    # Random numbers are made and added up in one chunk each, of which only the sum is left.
    made = job_of("random-sum", 1, 1)
    parts = [chunk for chunk, inputs in enumerate(made.inputs) if not inputs]
    assert {made.sizes[chunk] for chunk in parts} == {8}
    assert min(made.durations_s[chunk] for chunk in parts) > 0.005
