"""The comparison of orders: each computes every chunk once and after its inputs, and peaks are counted right."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.arrays import COLLECTIONS
from dask_mars.graph.chunks import ChunkGraph
from dask_mars.optimize.prepare import prepare
from studies.graphs import SizedGraph, handed_over, scaled_workload, sized_graph
from studies.ordering import GRAPHS, ORDERS, by_priority, peak_bytes


def sized(
    *inputs: tuple[int, ...], sizes: list[int], known: tuple[int, ...] = (), blocks: Any = None
) -> SizedGraph:
    graph = ChunkGraph(
        keys=list(range(len(inputs))),
        inputs=list(inputs),
        operand_of=[-1 if chunk in known else 0 for chunk in range(len(inputs))],
        outputs=[len(inputs) - 1],
    )
    return SizedGraph(graph, sizes, blocks or list(range(len(inputs))))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", ORDERS)
def test_orders_compute_each_chunk_once_and_after_its_inputs(name, workers):
    graph = sized_graph(COLLECTIONS["standardise"](0.01, 1))
    ended = set()
    for chunk, ends in ORDERS[name](graph, workers):
        if ends:
            ended.add(chunk)
        else:
            assert chunk not in ended
            assert ended.issuperset(source for source in graph.graph.inputs[chunk] if not graph.is_known(source))
    assert sorted(ended) == graph.computed()


def test_results_count_from_the_beginning_of_their_chunk_to_the_end_of_their_last_consumer():
    graph = sized((), (0,), (0,), (1, 2), sizes=[100, 10, 1, 1000])
    steps = by_priority(graph, lambda chunk: chunk, workers=1)
    assert [chunk for chunk, ends in steps if not ends] == [0, 1, 2, 3]
    assert peak_bytes(graph, steps) == 1011
    assert peak_bytes(graph, steps[:-2]) == 111
    assert peak_bytes(graph, by_priority(graph, lambda chunk: chunk, workers=2)[:4]) == 111


def test_values_that_come_with_the_graph_take_nothing():
    graph = sized((), (0,), (1,), sizes=[100, 10, 1], known=(0,))
    assert peak_bytes(graph, by_priority(graph, lambda chunk: chunk, workers=1)) == 11


def test_results_of_the_user_stay():
    graph = sized((), (0,), sizes=[1, 5])
    graph.graph.outputs = [0, 1]
    steps = by_priority(graph, lambda chunk: chunk, workers=1)
    assert peak_bytes(graph, [*steps, (1, True)]) == 6


def test_views_take_nothing_and_keep_what_they_are_views_of():
    # A view of the first chunk is kept for the last one.
    graph = sized((), (0,), (), (1, 2), sizes=[100, 50, 10, 1], blocks=[0, 0, 2, 3])
    steps = by_priority(graph, lambda chunk: chunk, workers=1)
    assert peak_bytes(graph, steps[:4]) == 100
    assert peak_bytes(graph, steps) == 111


def test_sizes_are_those_of_results():
    graph = sized_graph(scaled_workload("rechunk", 0.1))
    # Twenty blocks of 50 rows of 1000 numbers; pieces of them are views, until they are put together.
    rows = [chunk for chunk in graph.computed() if not graph.graph.inputs[chunk]]
    assert {graph.sizes[chunk] for chunk in rows} == {50 * 1000 * 8}
    pieces = [chunk for chunk in graph.computed() if graph.blocks[chunk] != chunk]
    assert pieces
    assert {graph.graph.inputs[chunk] for chunk in pieces} == {(graph.blocks[chunk],) for chunk in pieces}


def test_form_of_workloads_is_that_of_full_scale():
    small, full = (sized_form("rechunk", scale) for scale in (0.1, 1.0))
    assert small == full


def sized_form(name: str, scale: float) -> list[tuple[int, ...]]:
    dsk, keys = handed_over(scaled_workload(name, scale))
    return prepare(dsk, keys).inputs


@pytest.mark.parametrize("name", ["overlap", "cumulative-sum", "histogram", "svd", "matmul"])
def test_growth_gives_more_chunks(name):
    before, after = (sized_graph(COLLECTIONS[name](0.01, 1, growth), composed=False) for growth in (1, 2))
    assert len(after.sizes) > 1.5 * len(before.sizes)


def test_our_order_needs_no_more_than_dasks_where_chunks_are_composed():
    for name in ("standardise", "shifted-difference", "overlap", "correlations"):
        graph = sized_graph(*GRAPHS[name]())
        assert peak_bytes(graph, ORDERS["memory"](graph, 1)) <= peak_bytes(graph, ORDERS["dask"](graph, 1))
