"""Initial assignment: its promises on random graphs, and its choices on graphs whose best division is plain."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_mars.scheduler.assigner import GraphProgress, assign
from dask_mars.scheduler.events import GraphPlan
from tests.machines import plan, tree

TRAVERSALS = ["breadth-first", "depth-first"]
both = pytest.mark.parametrize("traversal", TRAVERSALS)


@st.composite
def graphs(draw: st.DrawFn, data: bool = False) -> GraphPlan:
    count = draw(st.integers(1, 40))
    sources = [
        tuple(draw(st.lists(st.integers(0, max(chunk - 1, 0)), max_size=3 if chunk else 0)))
        for chunk in range(count)
    ]
    free = [chunk for chunk, inputs in enumerate(sources) if not inputs]
    return plan(*sources, data=draw(st.sets(st.sampled_from(free))) if data else ())


workers = st.dictionaries(st.integers(0, 20), st.integers(1, 4), min_size=1, max_size=6)
traversals = st.sampled_from(TRAVERSALS)


def initial(graph: GraphPlan, finished: Any = ()) -> list[int]:
    done = {chunk for chunk, operand in enumerate(graph.operand_of) if operand < 0} | set(finished)
    return [chunk for chunk, inputs in enumerate(graph.inputs) if chunk not in done and done.issuperset(inputs)]


@given(graphs(data=True), workers, traversals)
def test_each_initial_chunk_gets_a_worker_and_no_other_does(graph, slots, traversal):
    assigned = assign(graph, slots, traversal)
    assert list(assigned) == initial(graph)
    assert set(assigned.values()) <= set(slots)


@given(graphs(), workers, traversals)
def test_no_worker_is_a_whole_chunk_away_from_its_share(graph, slots, traversal):
    assigned = assign(graph, slots, traversal)
    counts = Counter(assigned.values())
    for worker, own in slots.items():
        assert abs(counts[worker] - Fraction(len(assigned) * own, sum(slots.values()))) < 1


@given(graphs(), workers, traversals, st.data())
def test_only_allowed_workers_get_a_chunk(graph, slots, traversal, data):
    names = st.lists(st.integers(0, 20), max_size=3)
    allowed = data.draw(st.dictionaries(st.sampled_from(range(len(graph.inputs))), names))
    assigned = assign(graph, slots, traversal, allowed)
    for chunk in initial(graph):
        choice = slots.keys() & set(allowed.get(chunk, slots))
        assert (chunk in assigned) == bool(choice)
        assert not choice or assigned[chunk] in choice


@given(graphs(), workers, traversals, st.data())
def test_what_is_left_is_assigned_when_workers_have_come_and_gone(graph, slots, traversal, data):
    before = assign(graph, slots, traversal)
    finished: list[int] = []
    for chunk, inputs in enumerate(graph.inputs):
        if set(finished).issuperset(inputs) and data.draw(st.booleans()):
            finished.append(chunk)
    now = data.draw(workers)
    held = {chunk: {data.draw(st.sampled_from(sorted(slots))): 10} for chunk in finished}
    dispatched = {chunk: worker for chunk, worker in before.items() if chunk not in finished and chunk % 2}
    progress = GraphProgress(finished, dispatched, held)
    assigned = assign(graph, now, traversal, progress=progress)
    staying = {chunk for chunk, worker in dispatched.items() if worker in now}
    assert set(assigned) == set(initial(graph, finished)) - staying
    assert set(assigned.values()) <= set(now)


@given(graphs(), workers, traversals, st.randoms(use_true_random=False))
def test_order_of_mappings_and_what_operands_are_does_not_matter(graph, slots, traversal, random):
    items = list(slots.items())
    random.shuffle(items)
    other = plan(*graph.inputs, operand_of=[chunk + 5 for chunk in graph.operand_of])
    assert assign(other, dict(items), traversal) == assign(graph, slots, traversal)


@both
@given(st.integers(1, 60), workers)
def test_chunks_that_have_nothing_to_do_with_each_other_are_dealt_in_order(traversal, count, slots):
    assigned = list(assign(plan(*[()] * count), slots, traversal).values())
    assert assigned == sorted(assigned)


@both
def test_trees_are_divided_into_subtrees(traversal):
    graph = tree(64, 4)
    assigned = assign(graph, dict.fromkeys(range(4), 1), traversal)
    leaves = list(assigned)
    assert [assigned[leaf] for leaf in leaves] == [number // 16 for number in range(64)]


@both
def test_what_meets_soon_begins_at_the_same_worker(traversal):
    # Left terms, right terms, and the sums of a left and a right one.
    count = 12
    sums = [(chunk, count + chunk) for chunk in range(count)]
    assigned = assign(plan(*[()] * (2 * count), *sums), dict.fromkeys(range(3), 1), traversal)
    assert all(assigned[left] == assigned[right] for left, right in sums)


def test_traversals_differ():
    # Consumer 4 needs 0 and 1, consumer 5 needs 0 and 2, consumer 6 needs 1 and 3.
    graph = plan((), (), (), (), (0, 1), (0, 2), (1, 3))
    slots = {0: 3, 1: 1}
    assert set(assign(graph, slots, "breadth-first")) == {0, 1, 2, 3}
    assert assign(graph, slots, "breadth-first")[3] == 1
    assert assign(graph, slots, "depth-first")[2] == 1


@both
def test_chunks_go_to_the_worker_with_more_than_half_of_their_inputs(traversal):
    graph = plan((), (), (), (0, 1, 2), (0, 1), (1, 1), data=(0, 1, 2))
    held = GraphProgress(replica_bytes={0: {7: 60}, 1: {8: 60}, 2: {8: 1}})
    assigned = assign(graph, {7: 1, 8: 1}, traversal, progress=held)
    assert assigned[3] == 8
    assert assigned[5] == 8
    # Of the fourth neither has more than half: it goes where less is to be done.
    assert assigned[4] == 7


def test_data_at_a_worker_that_the_user_does_not_allow_fix_nothing():
    graph = plan((), (0,), data=(0,))
    held = GraphProgress(replica_bytes={0: {7: 60}})
    assert assign(graph, {7: 1, 8: 1}, allowed={1: [8]}, progress=held) == {1: 8}


@both
def test_fixed_chunks_count_as_a_share(traversal):
    graph = plan((), (0,), (0,), (), (), (), (), data=(0,))
    held = GraphProgress(replica_bytes={0: {1: 60}})
    counts = Counter(assign(graph, {0: 1, 1: 1}, traversal, progress=held).values())
    assert counts == {0: 3, 1: 3}


@both
def test_what_is_left_goes_where_its_siblings_are(traversal):
    graph = tree(16, 4)
    leaves = initial(graph)
    # Of each subtree half is computed, at another worker than it would be given first.
    finished = [leaf for number, leaf in enumerate(leaves) if number % 4 < 2]
    at = {leaf: 3 - number // 4 for number, leaf in enumerate(leaves)}
    progress = GraphProgress(finished, replica_bytes={leaf: {at[leaf]: 10} for leaf in finished})
    assigned = assign(graph, dict.fromkeys(range(4), 1), traversal, progress=progress)
    assert assigned == {leaf: at[leaf] for leaf in leaves if leaf not in finished}


@both
def test_a_new_worker_gets_no_chunk_that_is_dispatched_to_another(traversal):
    graph = plan(*[()] * 9)
    progress = GraphProgress(dispatched={0: 0, 1: 0, 2: 1, 3: 5})
    assigned = assign(graph, {0: 1, 1: 1, 2: 1}, traversal, progress=progress)
    # Worker 5 is gone.
    assert list(assigned) == [3, 4, 5, 6, 7, 8]
    assert Counter(assigned.values()) == {0: 1, 1: 2, 2: 3}


def test_what_runs_in_the_users_process_is_not_assigned():
    assert assign(plan((), (), in_client=frozenset({0})), {0: 1}) == {1: 0}


def test_searches_look_at_each_neighbourhood_once():
    class Counting(tuple):
        looks = 0

        def __iter__(self) -> Any:
            Counting.looks += 1
            return super().__iter__()

    # Everything meets in one chunk, which many searches come to.
    count = 200
    graph = plan(*[()] * count, tuple(range(count)), *[(count,)] * count)
    graph.inputs = [Counting(inputs) for inputs in graph.inputs]
    assign(graph, dict.fromkeys(range(50), 1))
    assert Counting.looks <= 3 * len(graph.inputs)


@pytest.mark.parametrize("slots", [{}, {0: 0}])
def test_without_slots_nothing_can_be_assigned(slots):
    with pytest.raises(ValueError, match="at least one slot"):
        assign(plan(()), slots)
