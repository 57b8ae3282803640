"""The state machine and chunks that outlive their graph: who may read them, when they go to disk, when they go."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from machines import CheckedMachine, plan

from dask_mars.scheduler.events import (
    ChunksFinished,
    ChunksLoaded,
    ChunksReleased,
    ChunksSpilled,
    FinishGraph,
    ForgetGraph,
    Free,
    GraphCancelled,
    GraphSubmitted,
    ReadAhead,
    ResultsKept,
    ResultsTaken,
    Run,
    Spill,
    UseSpilled,
)

SOURCE, KEPT, USER = 1, 2, 3


def keeping(sizes: tuple[int, ...] = (), limit: int | None = None, **policy: Any) -> CheckedMachine:
    """Return a machine that keeps chunks of graph 1 as graph 2."""
    machine = CheckedMachine(store_limit=limit, memory_limit=10**6, **policy)
    count = len(sizes) or 2
    machine.submit(*[()] * count, (), outputs=range(count))
    for chunk in range(count + 1):
        size = dict(zip([chunk], sizes[chunk : chunk + 1], strict=False))
        machine.post(ChunksFinished(0, SOURCE, [chunk], [1.0], size, size))
    machine.machine.memory.stored_bytes = sum(sizes)
    assert machine.post(ResultsKept(SOURCE, KEPT, [*range(count)]))[0] == ForgetGraph(SOURCE)
    return machine


def borrowing(*inputs: tuple[int, ...], **borrowed: int) -> GraphSubmitted:
    """Return a graph whose first chunks are kept ones."""
    first = {chunk: (KEPT, chunk) for chunk in range(borrowed["count"])}
    return GraphSubmitted(USER, plan(*[()] * len(first), *inputs, data=[*first], borrowed=first))


def test_kept_chunks_are_freed_one_by_one_and_the_graph_with_the_last():
    machine = keeping()
    assert machine.states(KEPT) == ["FINISHED", "FINISHED"]
    assert machine.machine.graphs == [KEPT]
    assert machine.post(ChunksReleased(KEPT, [1])) == [Free(KEPT, [1])]
    assert machine.post(ChunksReleased(KEPT, [1, 0])) == [Free(KEPT, [0]), ForgetGraph(KEPT)]
    assert machine.post(ChunksReleased(KEPT, [0])) == []


def test_what_is_not_kept_goes():
    machine = CheckedMachine()
    machine.submit((), (), outputs=[0, 1])
    machine.finish(0, 0)
    machine.finish(0, 1)
    assert machine.post(ResultsKept(SOURCE, KEPT, [1])) == [ForgetGraph(SOURCE)]
    assert machine.states(KEPT) == ["FINISHED"]


def test_a_graph_reads_what_it_has_borrowed():
    machine = keeping()
    assert machine.post(borrowing((0, 1), count=2)) == [Run(0, USER, [2])]
    assert machine.finish(0, 2, graph=USER) == [Free(USER, [0, 1]), FinishGraph(USER)]
    assert machine.post(ResultsTaken(USER)) == [ForgetGraph(USER)]
    assert machine.states(KEPT) == ["FINISHED", "FINISHED"]


def test_idle_chunks_go_to_disk_where_results_that_are_being_taken_do_not():
    machine = keeping((40, 40), limit=100)
    machine.submit((), graph=USER)
    machine.machine.memory.stored_bytes = 120
    assert machine.post(ChunksFinished(0, USER, [0], [1.0], {0: 40}, {0: 40})) == [
        FinishGraph(USER),
        Spill(KEPT, [0]),
    ]
    assert machine.post(ChunksSpilled(KEPT, {0: 40})) == [UseSpilled(KEPT, [0])]


def test_chunks_that_no_graph_borrows_go_first_and_then_those_needed_last():
    machine = keeping((40, 40, 40), limit=1000)
    borrowed = {0: (KEPT, 0), 1: (KEPT, 1)}
    machine.post(GraphSubmitted(USER, plan((), (), (), (1, 2), (0, 3), data=[0, 1], borrowed=borrowed)))
    graphs = machine.machine._graphs.values()
    assert machine.machine.memory.choose(graphs, 41, set()) == {KEPT: [2, 0]}


def test_what_is_being_read_stays_and_the_borrower_hears_of_what_does_not():
    machine = keeping((40, 40), limit=100)
    assert machine.post(borrowing((0,), (1,), count=2)) == [Run(0, USER, [2])]
    machine.machine._graphs[KEPT].memory.spilling.update([0, 1])
    assert machine.post(ChunksSpilled(KEPT, {0: 40, 1: 40})) == [
        UseSpilled(KEPT, [1], [(USER, 1, 1)]),
        ReadAhead(USER, [1]),
    ]
    # Reading it back takes room.
    graph = machine.machine._graphs[USER]
    assert machine.machine.memory.need(graph, 3) == 40 + machine.machine.memory.need(graph, 2)


def test_a_copy_that_was_read_back_stays_as_long_as_it_is_read():
    machine = keeping((40,), limit=100)
    machine.post(ChunksSpilled(KEPT, {0: 40}))
    assert Run(0, USER, [1], [0]) in machine.post(borrowing((0,), (0,), count=1))
    machine.machine.memory.stored_bytes = 120
    assert not any(isinstance(said, Spill) for said in machine.post(ChunksLoaded(0, USER, [0])))
    # Being written when it began to be read is not enough either.
    machine.machine._graphs[USER].memory.spilling.add(0)
    assert not any(isinstance(said, UseSpilled) for said in machine.post(ChunksSpilled(USER, {0: 40})))


def test_what_is_on_disk_already_takes_room_too():
    machine = keeping((40, 40), limit=100)
    machine.post(ChunksSpilled(KEPT, {0: 40}))
    machine.post(borrowing((0,), count=1))
    graph = machine.machine._graphs[USER]
    assert machine.machine.memory.need(graph, 1) == 40
    machine.post(GraphCancelled(USER))
    machine.finish(0, 1, graph=USER)
    assert not machine.machine._graphs[KEPT].lent


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_order_of_events_leaves_nothing(data):
    machine = keeping((40,) * 4, limit=90)
    running: dict[int, set[int]] = {}
    released: set[int] = set()
    writing: set[int] = set()
    number = USER

    def note(instructions: list[Any]) -> None:
        for instruction in instructions:
            match instruction:
                case Run(_, graph, chunks):
                    running[graph].update(chunks)
                case Spill(2, chunks):
                    writing.update(chunks)
                case UseSpilled(2, chunks, borrowed):
                    machine.machine.memory.stored_bytes -= 40 * len(chunks)
                    in_use = {
                        source
                        for graph, hand in running.items()
                        for chunk in hand
                        for source in sources[graph][chunk]
                    }
                    assert not in_use & set(chunks)
                    assert {source for _, _, source in borrowed} <= set(chunks)
                case ForgetGraph(graph) if graph != KEPT:
                    del running[graph]

    sources: dict[int, dict[int, tuple[int, ...]]] = {}
    for _ in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["submit", "finish", "answer", "cancel", "release"]))
        living = [chunk for chunk in range(4) if chunk not in released]
        if action == "submit" and living:
            chosen = data.draw(st.lists(st.sampled_from(living), min_size=1, max_size=4, unique=True))
            count = len(chosen)
            inputs = data.draw(st.lists(st.integers(0, count - 1), min_size=count, max_size=2 * count))
            submitted = plan(
                *[()] * count,
                *[(source,) for source in inputs],
                data=range(count),
                borrowed={chunk: (KEPT, source) for chunk, source in enumerate(chosen)},
            )
            sources[number] = {count + at: (chosen[source],) for at, source in enumerate(inputs)}
            running[number] = set()
            note(machine.post(GraphSubmitted(number, submitted)))
            number += 1
        elif action == "finish" and any(running.values()):
            graph = data.draw(st.sampled_from([graph for graph, hand in running.items() if hand]))
            chunk = min(running[graph])
            running[graph].remove(chunk)
            note(machine.finish(0, chunk, graph=graph))
        elif action == "answer" and writing:
            chunk = writing.pop()
            note(machine.post(ChunksSpilled(KEPT, {chunk: 40}, data.draw(st.booleans()))))
        elif action == "cancel" and running:
            note(machine.post(GraphCancelled(data.draw(st.sampled_from([*running])))))
        elif action == "release" and living:
            # Nobody releases what a graph that is running has borrowed.
            borrowed = {source for graph in running for chunks in sources[graph].values() for source in chunks}
            free = [chunk for chunk in living if chunk not in borrowed]
            if free:
                released.add(free[0])
                note(machine.post(ChunksReleased(KEPT, [free[0]])))
    for graph in [*running]:
        note(machine.post(GraphCancelled(graph)))
        for chunk in sorted(running.get(graph, ())):
            note(machine.finish(0, chunk, graph=graph))
    note(machine.post(ChunksReleased(KEPT, [chunk for chunk in range(4) if chunk not in released])))
    assert machine.machine.graphs == []
