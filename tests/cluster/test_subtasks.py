"""Subtasks: their promises on random graphs, and the shape they have where it is plain what is best."""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_mars.cluster.partition import subtasks
from dask_mars.cluster.partition.subtasks import NO_HOST, Subtask, cut, place
from dask_mars.graph.ids import decode_subtask_id
from dask_mars.scheduler.assigner import assign
from dask_mars.scheduler.events import CLIENT, GraphPlan
from tests.machines import plan, tree


@st.composite
def cases(draw: st.DrawFn) -> tuple[GraphPlan, list[int], dict[int, int]]:
    """Make a graph with data, tasks of the user's process and sizes, the host of each chunk, and hosts."""
    count = draw(st.integers(1, 40))
    sources = [
        tuple(draw(st.lists(st.integers(0, max(chunk - 1, 0)), max_size=3 if chunk else 0)))
        for chunk in range(count)
    ]
    free = [chunk for chunk, inputs in enumerate(sources) if not inputs]
    data = draw(st.sets(st.sampled_from(free)))
    hosts = draw(st.dictionaries(st.integers(0, 9), st.integers(1, 4), min_size=1, max_size=4))
    wanted = draw(st.sets(st.integers(0, count - 1), min_size=1))
    in_client = frozenset(draw(st.sets(st.integers(0, count - 1), max_size=5))) - data
    sizes = draw(st.lists(st.integers(0, 10**9), min_size=count, max_size=count))
    graph = plan(*sources, data=data, outputs=wanted, in_client=in_client, declared_bytes=sizes)
    anywhere = st.sampled_from(sorted(hosts))
    placed = [
        NO_HOST if chunk in data else CLIENT if chunk in in_client else draw(anywhere) for chunk in range(count)
    ]
    return graph, placed, hosts


def computed(graph: GraphPlan) -> list[int]:
    return [chunk for chunk, operand in enumerate(graph.operand_of) if operand >= 0]


def cut_assigned(graph: GraphPlan, hosts: dict[int, int], **options: Any) -> list[Subtask]:
    return cut(graph, place(graph, assign(graph, hosts), hosts), hosts, **options)


@given(cases())
def test_subtasks_and_the_chunks_that_cross_their_borders(case):
    graph, placed, hosts = case
    found = cut(graph, placed, hosts, task=5)
    assert sorted(chunk for subtask in found for chunk in subtask.chunks) == computed(graph)
    assert all(placed[chunk] == subtask.host for subtask in found for chunk in subtask.chunks)
    sources = [{at for chunk in subtask.chunks for at in graph.inputs[chunk]} for subtask in found]
    inputs = [read.difference(subtask.chunks) for read, subtask in zip(sources, found, strict=True)]
    assert [subtask.inputs for subtask in found] == [tuple(sorted(read)) for read in inputs]
    needed = set(graph.outputs).union(*inputs)
    there = {chunk for chunk, operand in enumerate(graph.operand_of) if operand < 0}
    stage_of: dict[int, int] = {}
    for number, subtask in enumerate(found):
        assert subtask.outputs == tuple([chunk for chunk in subtask.chunks if chunk in needed])
        # Each comes after those whose outputs it reads, and on a later level.
        assert there.issuperset(subtask.inputs)
        there.update(subtask.outputs)
        own = decode_subtask_id(subtask.id)
        assert (own.graph, own.number) == (5, number)
        assert all(stage_of.get(source, -1) < own.stage for source in subtask.inputs)
        stage_of.update(dict.fromkeys(subtask.chunks, own.stage))
    assert [*stage_of.values()] == sorted(stage_of.values())
    # Equal graphs are cut alike.
    assert cut(graph, list(placed), dict(reversed(hosts.items())), task=5) == found
    share = sum(host >= 0 for host in placed) / (subtasks.SUBTASKS_PER_SLOT * sum(hosts.values()))
    for subtask in cut(graph, placed, hosts, seconds=[1.0] * len(graph.inputs)):
        if subtask.host != CLIENT and len(subtask.chunks) > 1:
            assert len(subtask.chunks) <= share * (1 + 1e-6)


@given(cases(), st.data())
def test_chunks_share_subtasks_with_their_kind_only(case, data):
    graph, placed, hosts = case
    kinds = data.draw(st.dictionaries(st.sampled_from(range(len(graph.inputs))), st.integers(1, 2)))
    found = cut(graph, placed, hosts, kinds=kinds)
    assert sorted(chunk for subtask in found for chunk in subtask.chunks) == computed(graph)
    there = {chunk for chunk, operand in enumerate(graph.operand_of) if operand < 0}
    for subtask in found:
        assert len({kinds.get(chunk) for chunk in subtask.chunks}) == 1
        assert there.issuperset(subtask.inputs)
        there.update(subtask.outputs)


@given(cases())
def test_chunks_follow_most_of_their_bytes(case):
    graph, _, hosts = case
    initial = assign(graph, hosts)
    placed = place(graph, initial, hosts)
    for chunk, host in enumerate(placed):
        if graph.operand_of[chunk] < 0:
            assert host == NO_HOST
        elif chunk in graph.in_client:
            assert host == CLIENT
        elif chunk in initial:
            assert host == initial[chunk]
        else:
            held = Counter({host: 0})
            for source in set(graph.inputs[chunk]):
                if placed[source] >= 0:
                    held[placed[source]] += graph.declared_bytes[source]
            assert held[host] == max(held.values())


def test_among_equal_hosts_the_one_with_least_to_do_is_taken():
    graph = plan((), (), (0, 1), (0, 1))
    assert place(graph, {0: 4, 1: 5}, [5, 4]) == [4, 5, 4, 5]


@pytest.mark.parametrize("slots", [1, 8])
def test_a_tree_is_cut_into_a_few_subtrees_a_slot(slots):
    hosts = {0: slots, 1: slots}
    found = cut_assigned(tree(4096, 4), hosts)
    first = [subtask for subtask in found if not subtask.inputs]
    assert 4 * 2 * slots <= len(first) <= 8 * 2 * slots
    assert len(found) <= 12 * 2 * slots
    # What is left of a subtree is its sum, or those of the subtrees that had room together.
    assert all(len(subtask.outputs) <= 4 for subtask in first)


def test_chunks_that_have_nothing_to_do_with_each_other_share_subtasks():
    found = cut_assigned(plan(*[()] * 10_000), {0: 2, 1: 2})
    assert 4 * 4 <= len(found) <= 8 * 4
    assert all(subtask.chunks == tuple(range(subtask.chunks[0], subtask.chunks[-1] + 1)) for subtask in found)


def test_a_chain_is_cut_lengthwise():
    graph = plan((), *[(chunk,) for chunk in range(999)])
    found = cut_assigned(graph, {0: 1, 1: 1})
    assert 8 <= len(found) <= 16
    assert max(len(subtask.chunks) for subtask in found) <= 125
    assert all(len(subtask.outputs) == 1 for subtask in found)


def test_more_levels_than_an_id_can_say(monkeypatch):
    monkeypatch.setattr(subtasks, "STAGE_LIMIT", 100)
    count = 150
    graph = plan((), *[(chunk,) for chunk in range(count - 1)])
    found = cut(graph, [chunk % 2 for chunk in range(count)], {0: 1, 1: 1})
    assert len(found) == len({subtask.id for subtask in found}) == count


def steps(call: Any) -> int:
    """Count the lines of the module that a call executes."""
    count = 0

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        return line if frame.f_code.co_filename == subtasks.__file__ else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def braid(count: int) -> GraphPlan:
    """Make chunks that need their neighbours of the row before."""
    width = 32
    sources = [
        tuple(chunk - width + step for step in (-1, 0, 1) if chunk - width + step >= 0) for chunk in range(count)
    ]
    return plan(*sources)


@pytest.mark.parametrize("make", [lambda count: tree(count, 2), braid], ids=["binary tree", "braid"])
def test_the_time_is_linear_in_the_graph(make):
    hosts = {0: 2, 1: 2, 2: 2}

    def work(graph: GraphPlan) -> float:
        initial = assign(graph, hosts)
        return steps(lambda: cut(graph, place(graph, initial, hosts), hosts)) / len(graph.inputs)

    assert work(make(1024)) < 1.25 * work(make(256))
