"""Scheduling policies: the contract, and what Mars's own say by the letter of its documents."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_mars import Runtime
from dask_mars.scheduler.bookkeeping import Graph
from dask_mars.scheduler.events import ChunksFinished, GraphSubmitted, Offer, Run, WithdrawOffer
from dask_mars.scheduler.policies import POLICIES, Policy, RankedPolicy
from dask_mars.scheduler.policies.guarded import Guarded
from dask_mars.scheduler.policies.mars import MarsPolicy, StrictMarsPolicy
from dask_mars.scheduler.policies.mars import depths as depth_and_demand
from dask_mars.scheduler.policies.memory import MemoryPolicy
from dask_mars.scheduler.policies.plugins import load_policy
from dask_mars.testing import PolicyTests
from studies.graphs import sized_graph
from tests.machines import CheckedMachine, plan, tree
from tests.scheduler.decisions import REASONS, counted_decisions, fields


class TestMemory(PolicyTests):
    @pytest.fixture
    def policy(self) -> Any:
        return MemoryPolicy


class TestMars(PolicyTests):
    @pytest.fixture
    def policy(self) -> Any:
        return MarsPolicy


class TestStrictMars(PolicyTests):
    @pytest.fixture
    def policy(self) -> Any:
        return StrictMarsPolicy


class Widest(RankedPolicy):
    """Those first that most others wait for."""

    def sort_key(self, chunk: int) -> int:
        return -len(self.graph.successors[chunk])


class TestOfAUser(PolicyTests):
    @pytest.fixture
    def policy(self) -> Any:
        return Widest


# -- seeds 001 and 003 --------------------------------------------------------------------------------------------


def strict(workers: int = 1, **parameters: Any) -> CheckedMachine:
    """Make a machine whose workers take one chunk at a time, as all chunks take long."""
    options = {"policy": "mars-strict", "num_workers": workers, "window_s": 0.001, **parameters}
    return CheckedMachine(workers, **options)


def run_all(machine: CheckedMachine, submitted: Any, sizes: Any = None) -> list[tuple[int, int]]:
    """Compute a plan in steps of equal length; return worker and chunk in the order of the beginnings."""
    order: list[tuple[int, int]] = []

    def take(instructions: Any) -> None:
        for instruction in instructions:
            if isinstance(instruction, Run):
                order.extend((instruction.worker, chunk) for chunk in instruction.chunks)

    take(machine.post(GraphSubmitted(1, submitted)))
    done = 0
    while done < len(order):
        # What has begun together ends together.
        begun = order[done:]
        done = len(order)
        for worker, chunk in begun:
            stored = {chunk: sizes[chunk]} if sizes and sizes[chunk] else {}
            take(machine.post(ChunksFinished(worker, 1, [chunk], [1.0], stored, stored)))
    return order


def chunks(order: list[tuple[int, int]]) -> list[int]:
    return [chunk for _, chunk in order]


def test_those_that_deeper_ones_rely_upon_come_first() -> None:
    """Seed 001, selection policy for operands, rule 2: of two chains the one that leads deeper is begun first."""
    short, long = [(), (0,)], [(), (2,), (3,), (4,)]
    assert chunks(run_all(strict(), plan(*short, *long))) == [2, 3, 4, 5, 0, 1]


def test_deeper_ones_come_first() -> None:
    """Seed 001, rule 1: what was begun is ended before anything else is begun."""
    assert chunks(run_all(strict(), plan((), (), (), (0,), (1,), (2,)))) == [0, 3, 1, 4, 2, 5]


def test_those_with_smaller_results_come_first() -> None:
    """Seed 001: rule 3, where the others decide nothing; depth comes before demand, demand before size."""
    sizes = [30, 10, 20]
    assert chunks(run_all(strict(), plan((), (), (), declared_bytes=sizes))) == [1, 2, 0]
    sizes = [1, 50, 1, 1, 1]
    # 1 leads deeper than 0 and is larger; 4 is alone.
    assert chunks(run_all(strict(), plan((), (), (1,), (2,), (), declared_bytes=sizes))) == [1, 2, 3, 0, 4]


class RulesAlone(StrictMarsPolicy):
    """All chunks are offered to all."""

    def workers_for(self, chunk: int) -> None:
        return None


def test_a_tree_is_walked_as_the_picture_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 003, 分布式地执行3: two workers, five steps: two results are kept; by levels, six."""
    monkeypatch.setitem(POLICIES, "rules alone", RulesAlone)
    submitted = tree(8, 2)
    order = chunks(run_all(strict(2, policy="rules alone"), submitted))
    assert kept_after(submitted, order, 10) == 2
    levels = sorted(order, key=lambda chunk: (depths(submitted)[chunk], chunk))
    assert kept_after(submitted, levels, 10) == 6


def kept_after(submitted: Any, order: list[int], count: int) -> int:
    """Count the results that are there and still needed after so many chunks."""
    done = set(order[:count])
    return sum(
        any(chunk in inputs and other not in done for other, inputs in enumerate(submitted.inputs))
        for chunk in done
    )


def depths(submitted: Any) -> list[int]:
    depth: list[int] = []
    for inputs in submitted.inputs:
        depth.append(max([depth[source] + 1 for source in inputs], default=0))
    return depth


def test_initial_chunks_are_divided_by_a_search_of_the_graph() -> None:
    """Seed 001, allocating an initial worker: what meets again soon begins at the same worker."""
    # 0 1 -> 4 and 2 3 -> 5, numbered so that turns would mix them.
    order = run_all(strict(2, assignment="depth-first"), plan((), (), (), (), (0, 2), (1, 3)))
    where = {chunk: worker for worker, chunk in order}
    assert where[0] == where[2] != where[1] == where[3]


def test_others_go_where_most_bytes_of_their_inputs_are() -> None:
    """Seed 003, Worker 选择策略: the worker that has most bytes of the inputs computes a chunk."""
    machine = strict(2)
    machine.post(GraphSubmitted(1, plan((), (), (0, 1), (0, 1))))
    for worker, chunk, size in ((0, 0, 10), (1, 1, 1000)):
        instructions = machine.post(ChunksFinished(worker, 1, [chunk], [1.0], {chunk: size}, {chunk: size}))
    given = [(run.worker, run.chunks) for run in instructions if isinstance(run, Run)]
    # The second is for that worker too, but the other one has nothing else to do.
    assert (1, [2]) in given or (1, [3]) in given


def test_of_several_that_have_as_much_the_first_that_is_free_takes_it() -> None:
    """Seed 003, READY: a chunk is offered to all that were chosen; who is ready first gets it, once."""
    machine = strict(3)
    machine.post(GraphSubmitted(1, plan((), (), (), (0, 1))))
    machine.post(ChunksFinished(0, 1, [0], [1.0], {0: 5}, {0: 5}))
    instructions = machine.post(ChunksFinished(1, 1, [1], [1.0], {1: 5}, {1: 5}))
    (run,) = [run for run in instructions if isinstance(run, Run)]
    assert run.chunks == [3]
    assert run.worker in (0, 1)


def test_nothing_is_handed_out_before_its_inputs_are_there() -> None:
    """Seed 001, UNSCHEDULED: by Mars's letter a chunk waits for its inputs at the scheduler, not at a worker."""
    machine = strict(1, window_s=1.0)
    instructions = machine.post(GraphSubmitted(1, plan((), (0,))))
    assert [run.chunks for run in instructions if isinstance(run, Run)] == [[0]]


# -- depths -------------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 29), max_size=4), max_size=30))
def test_depth_and_demand(drawn):
    inputs = [
        tuple([source % chunk for source in sources]) if chunk else () for chunk, sources in enumerate(drawn)
    ]
    depth, demand = depth_and_demand(plan(*inputs))
    relying: list[set[int]] = [set() for _ in inputs]
    for chunk in reversed(range(len(inputs))):
        for source in inputs[chunk]:
            relying[source] |= {chunk, *relying[chunk]}
    for chunk, (sources, others) in enumerate(zip(inputs, relying, strict=True)):
        assert depth[chunk] == max((depth[source] + 1 for source in sources), default=0)
        assert demand[chunk] == max((depth[other] for other in others), default=-1)


# -- the default: Mars's rules, behind what frees memory ----------------------------------------------------------


def test_each_of_the_rules_and_of_the_choices_of_workers_decides() -> None:
    graphs = [sized_graph(*collections) for collections in fields()]
    for workers in (2, 3):
        with counted_decisions() as counts:
            for graph in graphs:
                assert sorted(graph.simulate(workers, "mars").order) == sorted(graph.computed())
        assert counts.keys() >= REASONS, counts


@pytest.fixture
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dask_mars.scheduler.policies.mars._LARGE_BYTES", 1)


def by_default(workers: int) -> CheckedMachine:
    return CheckedMachine(workers, policy="mars", num_workers=workers, window_s=0.001)


@pytest.mark.usefixtures("small_is_large")
def test_a_chunk_is_offered_to_those_that_made_its_inputs_and_withdrawn_when_one_takes_it() -> None:
    """Seeds 001 and 003, READY: the first free worker of several takes an operand, the others are told."""
    machine = by_default(3)
    machine.post(GraphSubmitted(1, plan((), (), (), (0, 1))))
    for worker, chunk in ((0, 0), (1, 1)):
        instructions = machine.post(ChunksFinished(worker, 1, [chunk], [1.0], {chunk: 5}, {chunk: 5}))
    assert instructions == [Offer(1, 3, [0, 1]), WithdrawOffer(1, 3, [1]), Run(0, 1, [3])]


@pytest.mark.usefixtures("small_is_large")
def test_a_worker_leaves_a_few_chunks_to_those_that_they_are_offered_to() -> None:
    machine = by_default(2)
    # Nothing frees memory, as all are results. Chunk 2 is offered to worker 0, which made most of its inputs.
    inputs = [(), (), (0, 1), *[()] * 6, *[(source,) for source in range(3, 9)]]
    machine.post(GraphSubmitted(1, plan(*inputs, outputs=range(15))))
    assert machine.post(ChunksFinished(0, 1, [0], [1.0], {0: 50}, {0: 50})) == [Run(0, 1, [3])]
    assert machine.post(ChunksFinished(1, 1, [1], [1.0], {1: 5}, {1: 5})) == [Run(1, 1, [4])]
    assert machine.machine.offered_to(1, 2) == [0]
    assert machine.post(ChunksFinished(1, 1, [4], [1.0])) == [Run(1, 1, [2])]


# -- names --------------------------------------------------------------------------------------------------------


def test_unknown_policies_are_refused() -> None:
    with pytest.raises(ValueError, match="no scheduling policy 'nonsense', but mars, mars-strict, memory"):
        Runtime(policy="nonsense")


def test_policies_of_other_packages_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        name = "widest"

        def load(self) -> Any:
            return Widest

    monkeypatch.setattr("dask_mars.entry_points.entry_points", lambda group: [Entry()])
    load_policy("widest")
    made = POLICIES.pop("widest")
    graph = Graph(1, plan((), (), (1,), (1,)), made, {0: 1})
    assert sorted(range(4), key=graph.queues.key_of) == [1, 0, 2, 3]


class TestGuarded(PolicyTests):
    @pytest.fixture
    def policy(self) -> Any:
        return partial(Guarded, StrictMarsPolicy)


def fails(*_: Any) -> Any:
    raise LookupError("on purpose")


WRONG: dict[str, Any] = {
    "no policy at all": lambda *_: object(),
    "raises at once": fails,
    "raises for a key": type("WrongKey", (Policy,), {"key_of": fails}),
    "keys that are none": type("NoKey", (Policy,), {"key_of": lambda *_: "first"}),
    "raises for workers": type("WrongWorkers", (Policy,), {"workers_for": fails}),
    "workers that are none": type("NoWorkers", (Policy,), {"workers_for": lambda *_: 3}),
    "workers that are not there": type("Others", (Policy,), {"workers_for": lambda *_: [99, -5]}),
    "raises when told": type("Told", (Policy,), {"on_ready": fails, "on_last_consumer": fails}),
    "raises in the middle": type(
        "Late", (Widest,), {"workers_for": lambda self, chunk: [0] if chunk < 5 else 1 / 0}
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_policy_that_is_wrong_never_ends_an_engine(wrong: str, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setitem(POLICIES, "wrong", partial(Guarded, WRONG[wrong]))
    submitted = tree(16, 2)
    assert sorted(chunks(run_all(strict(2, policy="wrong"), submitted))) == list(range(31))
    told = [record for record in caplog.records if "a scheduling policy has failed" in record.message]
    assert len(told) == (wrong != "workers that are not there")


# -- the documentation --------------------------------------------------------------------------------------------


def of_the_documentation() -> Any:
    page = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()
    (code,) = re.findall(r"```python\n(from dask_mars\.scheduler.*?)```", page, re.DOTALL)
    assert len(code.splitlines()) <= 30
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    return namespace["CriticalPath"]


class TestOfTheDocumentation(PolicyTests):
    @pytest.fixture
    def policy(self) -> Any:
        return of_the_documentation()


def test_every_policy_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()
    assert all(f"| `{name}`" in page for name in POLICIES)
