"""Selections of map outputs: what each host gets of a shuffle."""

from __future__ import annotations

import pickle

import dask.bag as db
import numpy as np
import pytest

from dask_mars.cluster.map_outputs import with_selections
from dask_mars.cluster.partition.subtasks import NO_HOST
from dask_mars.graph.chunks import ChunkGraph
from dask_mars.optimize.prepare import prepare
from dask_mars.store.map_output import pack
from studies.graphs import handed_over


def shuffle(maps: int, reducers: int) -> ChunkGraph:
    bag = db.range(maps * 5, npartitions=maps).groupby(lambda item: item % 7, shuffle="disk", npartitions=reducers)
    return prepare(*handed_over(bag))


def maps_and_reducers(graph: ChunkGraph) -> tuple[list[int], list[int]]:
    names = [graph.operands[operand].functions[-1].__name__ for operand in graph.operand_of]
    maps, reducers = (
        [chunk for chunk, name in enumerate(names) if name == wanted] for wanted in ("map_bag", "reduce_bag")
    )
    return maps, reducers


def test_hosts_have_reducers_by_their_slots():
    graph, selections, _ = with_selections(shuffle(3, 8), [1, 2, 1])
    _, reducers = maps_and_reducers(graph)
    assert [selections.host_of[chunk] for chunk in reducers] == [0, 0, 1, 1, 1, 1, 2, 2]


def test_reducers_read_map_outputs_of_their_host_and_selections_of_others():
    graph, selections, new = with_selections(shuffle(4, 4), [1, 1])
    maps, reducers = maps_and_reducers(graph)
    assert set(new) | set(selections.chunks.values()) == set(range(len(graph)))
    assert all(source < chunk for chunk, inputs in enumerate(graph.inputs) for source in inputs)
    # However often a graph is cut, and whatever was decided before.
    for homes in ([0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 0, 1]):
        placed = [0] * len(graph)
        for source, host in zip(maps, homes, strict=True):
            placed[source] = placed[selections.chunks[source, 0]] = placed[selections.chunks[source, 1]] = host
        for chunk, host in selections.host_of.items():
            placed[chunk] = host
        selections.route(graph, placed)
        for chunk in reducers:
            here = placed[chunk]
            assert graph.inputs[chunk] == tuple(
                [source if placed[source] == here else selections.chunks[source, here] for source in maps]
            )
        for (source, host), selection in selections.chunks.items():
            assert placed[selection] == (NO_HOST if placed[source] == host else placed[source])
            number_of = {reducers.index(chunk) for chunk in reducers if selections.host_of[chunk] == host}
            assert set(graph.literals[selection][0]) == number_of


@pytest.mark.parametrize("slots", [[4], [2, 2]])
def test_nothing_is_selected_where_there_is_one_host_or_reducers_are_placed(slots):
    given = shuffle(3, 3)
    fixed = range(len(given)) if len(slots) > 1 else ()
    graph, selections, new = with_selections(given, slots, fixed)
    assert graph is given
    assert not selections.chunks
    assert list(new) == list(range(len(graph)))


def test_a_selection_has_what_some_reducers_read():
    parts = {number: np.arange(number * 100.0) for number in range(0, 20, 2)}
    output = pack(iter(parts.items()), 20)
    for wanted in (range(4, 9), (), range(100)):
        selected = output.select(wanted)
        assert selected.reducers == [number for number in parts if number in wanted]
        for copy in (selected, pickle.loads(pickle.dumps(selected, protocol=5))):
            for number in range(20):
                found = copy.part(number)
                assert [part.tolist() for part in found] == (
                    [parts[number].tolist()] if number in parts and number in wanted else []
                )
