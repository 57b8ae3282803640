"""The state machine and chunks that outlive their graph: who may read them, when they go to disk, when they go."""

from __future__ import annotations

from typing import Any

from dask_mars.scheduler import events
from tests.machines import CheckedMachine, begin_writing, plan

MAKER, USER = 1, 3


def persisting(sizes: tuple[int, ...] = (), limit: int | None = None, **parameters: Any) -> CheckedMachine:
    """Return a machine with persisted chunks of graph 1."""
    machine = CheckedMachine(store_limit=limit, memory_limit=10**6, **parameters)
    count = len(sizes) or 2
    machine.submit(*[()] * count, (), outputs=range(count))
    for chunk in range(count + 1):
        size = dict(zip([chunk], sizes[chunk : chunk + 1], strict=False))
        machine.post(events.ChunksFinished(0, MAKER, [chunk], [1.0], size, size))
    measured(machine, sum(sizes))
    assert machine.post(events.ResultsTaken(MAKER, [*range(count)]))[0] == events.ForgetGraph(MAKER)
    return machine


def measured(machine: CheckedMachine, stored_bytes: int) -> None:
    """Say what the store holds."""
    assert machine.post(events.MemoryMeasured(stored_bytes, machine.machine.memory.limit_bytes)) == []


def reading(*inputs: tuple[int, ...], count: int) -> events.GraphSubmitted:
    """Return a graph whose first chunks are persisted ones."""
    first = {chunk: (MAKER, chunk) for chunk in range(count)}
    return events.GraphSubmitted(USER, plan(*[()] * len(first), *inputs, data=[*first], objects=first))


def test_persisted_chunks_are_forgotten_one_by_one():
    machine = persisting()
    assert machine.machine.graphs == []
    assert machine.post(events.ObjectsReleased([(MAKER, 1)])) == [events.ForgetObjects([(MAKER, 1)])]
    assert machine.post(events.ObjectsReleased([(MAKER, 1), (MAKER, 0)])) == [events.ForgetObjects([(MAKER, 0)])]
    assert machine.post(events.ObjectsReleased([(MAKER, 0)])) == []


def test_what_is_not_persisted_goes():
    machine = CheckedMachine()
    machine.submit((), (), outputs=[0, 1])
    machine.finish(0, 0)
    machine.finish(0, 1)
    assert machine.post(events.ResultsTaken(MAKER, [1])) == [events.ForgetGraph(MAKER)]
    assert machine.post(events.ObjectsReleased([(MAKER, 0), (MAKER, 1)])) == [events.ForgetObjects([(MAKER, 1)])]


def test_what_was_put_is_read_and_released_like_what_is_persisted():
    machine = CheckedMachine(store_limit=100, memory_limit=10**6)
    measured(machine, 40)
    assert machine.post(events.ObjectsPut({(9, 4): 40})) == []
    assert machine.post(events.GraphSubmitted(USER, plan((), (0,), data=[0], objects={0: (9, 4)}))) == [
        events.Run(0, USER, [1])
    ]
    measured(machine, 120)
    # It is being read.
    assert machine.post(events.TimePassed()) == []
    assert events.Spill([(9, 4)]) in machine.finish(0, 1, graph=USER)
    assert machine.post(events.ResultsTaken(USER)) == [events.ForgetGraph(USER)]
    assert machine.post(events.ObjectSpilled((9, 4), 40)) == [events.UseSpilled((9, 4), [])]
    assert machine.post(events.ObjectsReleased([(9, 4)])) == [events.ForgetObjects([(9, 4)])]


def test_a_graph_reads_what_is_persisted():
    machine = persisting()
    assert machine.post(reading((0, 1), count=2)) == [events.Run(0, USER, [2])]
    assert machine.finish(0, 2, graph=USER) == [events.Free(USER, [0, 1]), events.FinishGraph(USER)]
    assert machine.post(events.ResultsTaken(USER)) == [events.ForgetGraph(USER)]
    assert machine.post(events.ObjectsReleased([(MAKER, 0)])) == [events.ForgetObjects([(MAKER, 0)])]


def test_idle_chunks_go_to_disk_where_results_that_are_being_taken_do_not():
    machine = persisting((40, 40), limit=100)
    machine.submit((), graph=USER)
    measured(machine, 120)
    assert machine.post(events.ChunksFinished(0, USER, [0], [1.0], {0: 40}, {0: 40})) == [
        events.FinishGraph(USER),
        events.Spill([(MAKER, 0)]),
    ]
    assert machine.post(events.ObjectSpilled((MAKER, 0), 40)) == [events.UseSpilled((MAKER, 0), [])]


def test_chunks_that_no_graph_reads_go_first_and_then_those_needed_last():
    machine = persisting((40, 40, 40), limit=1000)
    objects = {0: (MAKER, 0), 1: (MAKER, 1)}
    machine.post(events.GraphSubmitted(USER, plan((), (), (), (1, 2), (0, 3), data=[0, 1], objects=objects)))
    chosen = machine.machine.memory.choose_to_spill(machine.machine._objects.spill_candidates(), 41, set())
    assert chosen == [(MAKER, 2), (MAKER, 0)]


def test_what_is_being_read_stays_and_the_reader_hears_of_what_does_not():
    machine = persisting((40, 40), limit=100)
    assert machine.post(reading((0,), (1,), count=2)) == [events.Run(0, USER, [2])]
    assert len(begin_writing(machine.machine)) == 2
    assert machine.post(events.ObjectSpilled((MAKER, 0), 40)) == []
    assert machine.post(events.ObjectSpilled((MAKER, 1), 40)) == [events.UseSpilled((MAKER, 1), [(USER, 1)])]
    # Reading it back takes room.
    graph = machine.machine._graphs[USER]
    assert graph.required_bytes(3) == 40 + graph.required_bytes(2)


def test_what_was_read_back_is_in_memory_for_all_and_stays_as_long_as_it_is_read():
    machine = persisting((40,), limit=100)
    machine.post(events.ObjectSpilled((MAKER, 0), 40))
    assert events.Run(0, USER, [1], [0]) in machine.post(reading((0,), (0,), count=1))
    other = plan((), (0,), data=[0], objects={0: (MAKER, 0)})
    machine.post(events.GraphSubmitted(USER + 1, other))
    measured(machine, 120)
    loaded = machine.post(events.ChunksRestored(0, USER, [0]))
    assert loaded[0] == events.UseRestored((MAKER, 0), (USER, 0), [(USER + 1, 0)])
    assert not any(isinstance(said, events.Spill) for said in loaded)
    assert machine.machine._graphs[USER + 1].required_bytes(1) == 0
    # Being written when it began to be read is not enough either.
    assert not any(
        isinstance(said, events.UseSpilled) for said in machine.post(events.ObjectSpilled((MAKER, 0), 40))
    )


def test_what_is_on_disk_already_takes_room_too():
    machine = persisting((40, 40), limit=100)
    machine.post(events.ObjectSpilled((MAKER, 0), 40))
    machine.post(reading((0,), count=1))
    assert machine.machine._graphs[USER].required_bytes(1) == 40
    machine.post(events.GraphCancelled(USER))
    machine.finish(0, 1, graph=USER)
    assert not machine.machine._objects.get((MAKER, 0)).readers
