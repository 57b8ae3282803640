"""Resources: what runs side by side, and that all that is taken comes back."""

from __future__ import annotations

from typing import Any

import pytest

from dask_mars.scheduler.events import ChunkFailed, GraphCancelled, Run, WorkerLost
from tests.machines import CheckedMachine

GPU = (("GPU", 1.0),)


def handed(instructions: Any) -> list[int]:
    return [chunk for run in instructions if isinstance(run, Run) for chunk in run.chunks]


@pytest.fixture(params=["memory", "mars"])
def machine(request: pytest.FixtureRequest) -> CheckedMachine:
    return CheckedMachine(3, resources={"GPU": 1.0}, num_workers=3, policy=request.param)


def test_what_takes_it_runs_one_after_the_other_and_others_beside_it(machine):
    resources = {0: GPU, 1: GPU, 2: GPU}
    first = handed(machine.submit((), (), (), (), (), outputs=range(5), resources=resources))
    assert len([chunk for chunk in first if chunk in resources]) == 1
    assert {3, 4} <= set(first)
    order = [chunk for chunk in first if chunk in resources]
    while len(order) < 3:
        worker = next(worker for worker in range(3) if (1, order[-1]) in machine.machine.dispatched_to(worker))
        order += handed(machine.finish(worker, order[-1]))
    assert sorted(order) == [0, 1, 2]


def test_many_that_wait_do_not_stand_in_the_way_of_others(machine):
    count = 100
    resources = dict.fromkeys(range(count - 1), GPU)
    first = handed(machine.submit(*[()] * count, outputs=range(count), resources=resources))
    assert count - 1 in first


def test_it_is_not_held_while_inputs_are_waited_for(machine):
    instructions = machine.submit((), (0,), outputs=[1], resources={1: GPU})
    assert handed(instructions) == [0]
    assert machine.machine._dispatcher.free_resources == {"GPU": 1.0}


@pytest.mark.parametrize("end", ["fail", "lose", "cancel"])
def test_it_comes_back_whatever_happens(machine, end):
    machine.submit((), outputs=[0], resources={0: GPU}, default_retries=1)
    (worker,) = [worker_id for worker_id in range(3) if machine.machine.dispatched_to(worker_id)]
    assert machine.machine._dispatcher.free_resources == {"GPU": 0.0}
    if end == "fail":
        machine.post(ChunkFailed(worker, 1, 0))
    elif end == "lose":
        machine.post(WorkerLost(worker, (1, 0)))
    else:
        machine.post(GraphCancelled(1))
        machine.finish(worker, 0)
    assert machine.machine._dispatcher.free_resources == {"GPU": 1.0}


def test_graphs_share_it(machine):
    one = handed(machine.submit((), graph=1, outputs=[0], resources={0: GPU}))
    two = handed(machine.submit((), graph=2, outputs=[0], resources={0: GPU}))
    assert (one, two) == ([0], [])
    (worker,) = [worker_id for worker_id in range(3) if machine.machine.dispatched_to(worker_id)]
    assert handed(machine.finish(worker, 0)) == [0]
