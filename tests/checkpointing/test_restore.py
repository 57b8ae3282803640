"""Graphs minus what is saved."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dask_mars.checkpointing.restore import restored
from dask_mars.graph.chunks import DATA, ChunkGraph
from dask_mars.optimize.convert import convert


def add(*values: int) -> int:
    return 1 + sum(values)


def read(value: int) -> int:
    return value


def values_of(graph: ChunkGraph) -> dict[int, Any]:
    """Return the value of each chunk."""
    values: dict[int, Any] = {}
    for chunk, operand_id in enumerate(graph.operand_of):
        if operand_id == DATA:
            values[chunk] = graph.values[chunk]
        else:
            inputs = [values[source] for source in graph.inputs[chunk]]
            values[chunk] = graph.operands[operand_id].run(inputs, graph.literals[chunk])
    return values


@st.composite
def graphs(draw: st.DrawFn) -> ChunkGraph:
    count = draw(st.integers(1, 25))
    dsk: dict[Any, Any] = {"given": 5}
    for number in range(count):
        sources = draw(st.lists(st.sampled_from(["given", *range(number)]), max_size=4))
        dsk[number] = (add, *[("given" if source == "given" else source) for source in sources], 0)
    wanted = draw(st.lists(st.sampled_from([*range(count)]), min_size=1, max_size=3, unique=True))
    return convert(
        {("k", key) if key != "given" else key: _named(task) for key, task in dsk.items()},
        [("k", key) for key in wanted],
    )


def _named(task: Any) -> Any:
    if not isinstance(task, tuple):
        return task
    function, *sources, last = task
    return (function, *[source if source == "given" else ("k", source) for source in sources], last)


@given(graphs(), st.data())
def test_what_is_saved_is_read_and_what_only_it_needed_is_left_out(graph: ChunkGraph, data: st.DataObject) -> None:
    every = values_of(graph)
    computable = [chunk for chunk, operand_id in enumerate(graph.operand_of) if operand_id != DATA]
    saved = data.draw(st.sets(st.sampled_from(computable)))
    in_files = {chunk for chunk in saved if data.draw(st.booleans())}
    graph.priorities = {chunk: float(chunk) for chunk in computable}
    graph.in_client = set(data.draw(st.sets(st.sampled_from(computable))))
    left = restored(
        graph,
        {chunk: every[chunk] for chunk in saved - in_files},
        {chunk: every[chunk] for chunk in in_files},
        read,
    )
    values = values_of(left)
    operands = [left.operands[operand_id] for operand_id in left.operand_of if operand_id != DATA]
    computed = sum(operand.functions != (read,) for operand in operands)
    assert [values[chunk] for chunk in left.outputs] == [every[chunk] for chunk in graph.outputs]
    assert [left.keys[chunk] for chunk in left.outputs] == [graph.keys[chunk] for chunk in graph.outputs]
    assert computed <= len(computable) - len(saved & {graph.ids[key] for key in left.ids})
    for key, chunk in left.ids.items():
        assert graph.keys[graph.ids[key]] == left.keys[chunk]
    numbers = [graph.ids[key] for key in left.keys]
    assert numbers == sorted(numbers)
    assert {numbers[chunk] for chunk in left.in_client} == graph.in_client & set(numbers) - saved
    assert {numbers[chunk]: value for chunk, value in left.priorities.items()} == {
        chunk: value for chunk, value in graph.priorities.items() if chunk in numbers
    }
    # Everything that is left is needed.
    used = set(left.outputs).union(*[set(sources) for sources in left.inputs])
    assert used == set(range(len(left)))


def test_a_graph_of_which_nothing_is_saved_stays_as_it_is() -> None:
    graph = convert({"x": (add, 1)}, ["x"])
    assert restored(graph, {}, {}, read) is graph
