"""The analysis of graphs: against plain definitions, on random graphs, and where sums could grow out of hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dask_mars.scheduler.analyzer import analyse
from dask_mars.scheduler.events import GraphPlan
from tests.machines import plan


@st.composite
def plans(draw: st.DrawFn, largest: int = 30, inputs: int = 4) -> GraphPlan:
    count = draw(st.integers(1, largest))
    sources = [
        tuple(draw(st.lists(st.integers(0, chunk - 1), max_size=inputs))) if chunk else ()
        for chunk in range(count)
    ]
    sizes = draw(st.lists(st.integers(0, 100), min_size=count, max_size=count))
    return plan(*sources, declared_bytes=sizes)


def descendants(graph: GraphPlan, chunk: int) -> set[int]:
    found = {chunk}
    for other, inputs in enumerate(graph.inputs):
        if not found.isdisjoint(inputs):
            found.add(other)
    return found - {chunk}


@given(plans())
def test_depth_is_the_longest_way_from_a_chunk_without_inputs(graph):
    depth = analyse(graph).depth
    for chunk, inputs in enumerate(graph.inputs):
        assert depth[chunk] == max((depth[source] + 1 for source in inputs), default=0)


@given(plans())
def test_demand_is_the_depth_of_the_deepest_chunk_that_relies_upon_it(graph):
    analysis = analyse(graph)
    relying: list[set[int]] = [set() for _ in graph.inputs]
    for chunk in reversed(range(len(graph.inputs))):
        for source in graph.inputs[chunk]:
            relying[source] |= {chunk, *relying[chunk]}
    for chunk, others in enumerate(relying):
        assert analysis.demand[chunk] == max((analysis.depth[other] for other in others), default=-1)


@given(plans())
def test_descendants_are_never_too_few_nor_more_than_there_are(graph):
    analysis = analyse(graph)
    for chunk in range(len(graph.inputs)):
        exact = descendants(graph, chunk)
        assert len(exact) <= analysis.descendants[chunk] <= len(graph.inputs) - 1 - chunk
        assert sum(map(graph.declared_bytes.__getitem__, exact)) <= analysis.descendant_bytes[chunk]


@given(plans(inputs=1))
def test_descendants_are_exact_where_no_two_ways_lead_to_a_chunk(graph):
    analysis = analyse(graph)
    for chunk in range(len(graph.inputs)):
        exact = descendants(graph, chunk)
        assert analysis.descendants[chunk] == len(exact)
        assert analysis.descendant_bytes[chunk] == sum(map(graph.declared_bytes.__getitem__, exact))


def test_an_input_that_stands_twice_counts_once():
    assert analyse(plan((), (0, 0))).descendants == [1, 0]


def test_many_ways_to_the_same_chunks_do_not_add_up_to_more_than_there_are():
    sources: list[tuple[int, ...]] = [()]
    for _ in range(300):
        last = len(sources) - 1
        sources += [(last,), (last,), (last + 1, last + 2)]
    assert analyse(plan(*sources)).descendants[0] == 900


def test_bytes_come_from_the_caller_if_it_knows_them():
    graph = plan((), (0,), (1,), declared_bytes=[1, 1, 1])
    assert analyse(graph, bytes_of=lambda chunk: 10**chunk).descendant_bytes == [110, 100, 0]


def test_without_declarations_nothing_is_said_of_bytes():
    assert analyse(plan((), (0,))).descendant_bytes == [0, 0]


def test_graph_without_chunks():
    assert analyse(plan()) == ([], [], [], [])
