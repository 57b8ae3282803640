"""The contract of a scheduling policy as a test class, for authors of policies.

Derive a class from `PolicyTests`, add the fixture that it needs, and run it with pytest.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from dask_mars.scheduler import events
from dask_mars.scheduler.machine import Parameters
from dask_mars.scheduler.policies import POLICIES, PolicyFactory
from dask_mars.scheduler.virtual import GRAPH, VirtualRun

_NAME = "under test"
_SEEDS = range(4)


def _random_plan(chance: random.Random, **options: Any) -> events.GraphPlan:
    inputs: list[tuple[int, ...]] = []
    for chunk in range(chance.randint(1, 40)):
        near = range(max(0, chunk - chance.choice([1, 3, 40])), chunk)
        inputs.append(tuple(chance.sample(near, min(len(near), chance.choice([0, 1, 1, 2, 3])))))
    needed = {source for sources in inputs for source in sources}
    outputs = [chunk for chunk in range(len(inputs)) if chunk not in needed or chance.random() < 0.1]
    return events.GraphPlan(
        inputs=inputs,
        outputs=outputs,
        operand_of=[chance.randint(0, 2) for _ in inputs],
        declared_bytes=[chance.choice([None, 0, 10, 100]) for _ in inputs],
        **options,
    )


class _World(VirtualRun):
    """Workers whose chunks take random times."""

    def __init__(self, workers: int, plan: events.GraphPlan, seed: int) -> None:
        parameters = Parameters(
            policy=_NAME, num_workers=workers, window_s=0.01, allowed_worker_losses=1000, memory_limit=10**9
        )
        super().__init__(plan, parameters)
        self.chance = random.Random(seed)
        #: Dispatched chunks in order, with their workers.
        self.order: list[tuple[int, int]] = []
        self.finished: set[int] = set()
        self.ended = False
        #: Whether any chunk has failed or any worker was lost.
        self.troubled = False
        self.submit()

    def begin(self, worker: int, chunk: int, restores: list[int]) -> float:
        return self.chance.uniform(0.001, 0.009)

    def end(self, worker: int, chunk: int, duration_s: float) -> events.Event:
        if not self.finished.issuperset(self.plan.inputs[chunk]):
            # An earlier chunk of the same queue has failed, or its worker was lost.
            assert self.troubled, "an input is missing"
            return events.ChunksReturned(worker, GRAPH, [chunk])
        self.finished.add(chunk)
        size = self.plan.declared_bytes[chunk] if self.plan.declared_bytes else None
        sizes = {chunk: size} if size else {}
        return events.ChunksFinished(worker, GRAPH, [chunk], [duration_s], sizes, sizes)

    def post(self, event: events.Event) -> None:
        super().post(event)
        self.machine.validate()

    def carry_out(self, instruction: events.Instruction) -> None:
        super().carry_out(instruction)
        if isinstance(instruction, events.Run):
            self.order += [(instruction.worker, chunk) for chunk in instruction.chunks]
        elif isinstance(instruction, events.FinishGraph):
            self.post(events.ResultsTaken(GRAPH))
        elif isinstance(instruction, events.ForgetGraph):
            self.ended = True

    def fail(self) -> None:
        """Fail the running chunk of a random worker, for a retry."""
        worker = self.chance.choice(self.busy)
        self.troubled = True
        self.post(events.ChunkFailed(worker, GRAPH, self.stop(worker)))

    def lose(self) -> None:
        """Lose a worker, and restart it."""
        worker = self.chance.choice(self.busy)
        self.troubled = True
        self.post(events.WorkerLost(worker, (GRAPH, self.stop(worker, drops_queue=True))))
        self.post(events.WorkerStarted(worker))

    def run(self) -> list[tuple[int, int]]:
        """Continue until the graph has ended."""
        while not self.ended:
            assert self.step(), "nothing runs, and the graph has not ended"
        return self.order


class PolicyTests:
    """The contract of `dask_mars.scheduler.policies.Policy`.

    A derived class has a fixture ``policy``, which returns the policy to test: its class, or another factory for a
    graph's policy.
    """

    @pytest.fixture
    def policy(self) -> PolicyFactory:
        """Return the policy to test."""
        raise NotImplementedError("the fixture `policy` is for the derived class")

    @pytest.fixture(autouse=True)
    def known(self, policy: PolicyFactory) -> Iterator[None]:
        """Register the policy during a test."""
        POLICIES[_NAME] = policy
        yield
        del POLICIES[_NAME]

    @pytest.mark.parametrize("workers", [1, 2, 5])
    @pytest.mark.parametrize("seed", _SEEDS)
    def test_every_chunk_runs_once_and_after_its_inputs(self, seed: int, workers: int) -> None:
        plan = _random_plan(random.Random(seed))
        order = _World(workers, plan, seed).run()
        assert sorted(chunk for _, chunk in order) == list(range(len(plan.inputs)))

    @pytest.mark.parametrize("seed", _SEEDS)
    def test_equal_events_give_equal_decisions(self, seed: int) -> None:
        plan = _random_plan(random.Random(seed))
        assert _World(3, plan, seed).run() == _World(3, plan, seed).run()

    @pytest.mark.parametrize("workers", [1, 2, 5])
    @pytest.mark.parametrize("seed", _SEEDS)
    def test_the_users_priorities_come_first(self, seed: int, workers: int) -> None:
        count = 20
        chance = random.Random(seed)
        priorities = {chunk: float(chance.choice([-1, 0, 3])) for chunk in range(count)}
        plan = events.GraphPlan([()] * count, range(count), [0] * count, priorities=priorities)
        order = [chunk for _, chunk in _World(workers, plan, seed).run()]
        told = [priorities[chunk] for chunk in order]
        assert told == sorted(told, reverse=True)

    @pytest.mark.parametrize("seed", _SEEDS)
    def test_no_more_workers_are_used_than_the_user_allows(self, seed: int) -> None:
        plan = _random_plan(random.Random(seed), worker_limit=2)
        assert {worker for worker, _ in _World(4, plan, seed).run()} <= {0, 1}

    @pytest.mark.parametrize("seed", _SEEDS)
    def test_no_worker_is_idle_while_there_is_work_for_all(self, seed: int) -> None:
        count = 40
        plan = events.GraphPlan([()] * count, range(count), [0] * count)
        world = _World(4, plan, seed)
        assert {worker for worker, _ in world.order} == {0, 1, 2, 3}
        world.run()

    @pytest.mark.parametrize("seed", _SEEDS)
    def test_failures_and_lost_workers_are_made_up_for(self, seed: int) -> None:
        plan = _random_plan(random.Random(seed), default_retries=100)
        world = _World(3, plan, seed)
        troubles = random.Random(seed)
        while not world.ended:
            if world.is_running and troubles.random() < 0.2:
                troubles.choice([world.fail, world.lose])()
            else:
                assert world.step(), "nothing runs, and the graph has not ended"
        assert world.finished == set(range(len(plan.inputs)))


__all__ = ["PolicyTests"]
