"""Any order of events, under a limit: the ledger agrees with the store, and everything is given back."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dask_mars.scheduler.events import (
    CLIENT,
    ChunkFailed,
    ChunksReturned,
    GraphCancelled,
    GraphPlan,
    ObjectsReleased,
)
from tests.machines import plan
from tests.scheduler.limited import Host

CHUNKS = 12


@st.composite
def plans(draw: st.DrawFn, sizes: list[int], persisted: list[tuple[int, int]]) -> GraphPlan:
    read = draw(st.lists(st.sampled_from(persisted), max_size=2, unique=True)) if persisted else []
    first = len(read)
    count = draw(st.integers(first + 1, CHUNKS))
    some = st.sets(st.integers(first, count - 1), max_size=3)
    inputs = [
        tuple(draw(st.lists(st.integers(0, chunk - 1), max_size=3))) if chunk > max(first - 1, 0) else ()
        for chunk in range(count)
    ]
    # All that is persisted is read.
    inputs[-1] += tuple(set(range(first)).difference(*inputs))
    operand_of = [draw(st.integers(0, 3)) for _ in range(count)]
    graph_plan = plan(*inputs, operand_of=operand_of, data=range(first), objects=dict(enumerate(read)))
    graph_plan.outputs = sorted({*graph_plan.outputs, *draw(some)}.difference(range(first)))
    graph_plan.in_client = frozenset(draw(some))
    graph_plan.resources = dict.fromkeys(draw(some) - graph_plan.in_client, (("GPU", 1.0),))
    graph_plan.worker_limit = draw(st.sampled_from([None, None, 1]))
    graph_plan.default_retries = 3
    if draw(st.booleans()):
        graph_plan.declared_bytes = sizes[:count]
    return graph_plan


class Ledger(RuleBasedStateMachine):
    """A host with up to three graphs at a time; what it stores is the measure of what the ledger says."""

    @initialize(
        sizes=st.lists(st.sampled_from([0, 10, 40, 90]), min_size=CHUNKS, max_size=CHUNKS),
        limit=st.sampled_from([50, 100, 200]),
        workers=st.integers(1, 3),
        policy=st.sampled_from(["memory", "mars"]),
    )
    def begin(self, sizes: list[int], limit: int, workers: int, policy: str) -> None:
        self.host = Host(sizes, limit, workers=workers, policy=policy, resources={"GPU": 1.0})
        self.cancelled: set[int] = set()

    @property
    def busy(self) -> list[int]:
        return [worker for worker, places in self.host.dispatched.items() if places]

    @property
    def living(self) -> list[int]:
        return [graph for graph in self.host.machine.graphs if graph not in self.cancelled]

    @property
    def finished(self) -> list[int]:
        return [graph for graph in self.living if graph in self.host.finished - self.host.taken]

    @property
    def kept(self) -> list[tuple[int, int]]:
        return sorted(self.host.persisted - self.host.released)

    @precondition(lambda self: len(self.host.machine.graphs) < 3)
    @rule(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        self.host.submit(data.draw(plans(self.host.sizes, self.kept)), len(self.host.plans) + 1)

    @precondition(lambda self: self.busy)
    @rule(data=st.data(), steps=st.integers(1, 8))
    def work(self, data: st.DataObject, steps: int) -> None:
        for _ in range(steps):
            if self.busy:
                self.host.work(data.draw(st.sampled_from(self.busy)))
                self.ledger_agrees_with_the_store()

    @precondition(lambda self: self.host.writing)
    @rule(written=st.sampled_from([True, True, True, False]))
    def answer(self, written: bool) -> None:
        self.host.answer(written)

    @precondition(lambda self: self.busy)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(self.busy))
        graph, chunk = self.host.dispatched[worker][0]
        if not self.is_complete(graph, chunk):
            return
        self.host.dispatched[worker].pop(0)
        self.host.post(ChunkFailed(worker, graph, chunk))

    def is_complete(self, graph: int, chunk: int) -> bool:
        return all(self.host.is_there(graph, source) for source in self.host.plans[graph].inputs[chunk])

    @precondition(lambda self: any(worker != CLIENT for worker in self.busy))
    @rule(data=st.data(), dies=st.booleans())
    def give_back(self, data: st.DataObject, dies: bool) -> None:
        worker = data.draw(st.sampled_from([worker for worker in self.busy if worker != CLIENT]))
        if dies:
            self.host.lose(worker)
        else:
            graph, chunk = self.host.dispatched[worker].pop()
            self.host.post(ChunksReturned(worker, graph, [chunk]))

    @precondition(lambda self: self.finished)
    @rule(data=st.data(), persists=st.booleans())
    def take_results(self, data: st.DataObject, persists: bool) -> None:
        graph = data.draw(st.sampled_from(self.finished))
        (self.host.persist_results if persists else self.host.take_results)(graph)

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.host.post(ObjectsReleased([data.draw(st.sampled_from(self.kept))]))

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        graph = data.draw(st.sampled_from(self.living))
        self.cancelled.add(graph)
        self.host.taken.add(graph)
        self.host.post(GraphCancelled(graph))

    @rule()
    def pass_time(self) -> None:
        if not self.busy:
            self.host.step()

    @invariant()
    def ledger_agrees_with_the_store(self) -> None:
        if not hasattr(self, "host"):
            return
        host, machine = self.host, self.host.machine
        objects, graphs = machine._objects._objects, machine._graphs
        stored = {id for id, size_bytes in host.stored.items() if size_bytes}
        for id, found in objects.items():
            assert (id in host.on_disk) == found.is_on_disk
            assert (id in host.stored) != found.is_on_disk
            assert found.is_spilling == (id in host.writing)
            # References equal readers and the user's own.
            readers = {reader.id for reader, _ in found.readers}
            assert readers <= graphs.keys()
            assert found.is_persisted == (id in host.persisted - host.released)
            assert found.is_pinned == (id in host.pinned())
            # What workers were told to put back, and no more.
            assert found.restoring_worker == host.loads.get(id)
        assert {id for id in stored | host.on_disk if id[0] in graphs} <= objects.keys()
        memory = machine.memory
        taking = [
            chunk
            for places in host.dispatched.values()
            for graph, chunk in places
            if chunk in host.plans[graph].resources
        ]
        assert machine._dispatcher.free_resources == {"GPU": 1.0 - len(taking)}
        dispatched = {place for worker, places in host.dispatched.items() if worker != CLIENT for place in places}
        assert memory._reserved.keys() <= dispatched
        assert memory.reserved_bytes == sum(memory._reserved.values()) == sum(memory.reserved_by_worker.values())
        assert memory.raised_bytes == sum(memory._raised.values()) == sum(memory.raised_by_worker.values())
        assert memory.spilling_bytes == sum(host.bytes_of[id] for id in host.writing)

    def teardown(self) -> None:
        if not hasattr(self, "host"):
            return
        host = self.host
        host.run()
        while host.machine.graphs:
            # Others may wait for the memory of results that the user has not taken.
            ended = (host.finished | host.failed.keys()) & set(host.machine.graphs)
            assert ended, "everything waits though nothing will happen"
            host.take_results(min(ended))
            host.run()
        host.post(ObjectsReleased(sorted(host.persisted)))
        assert not host.machine.graphs
        assert not host.machine._objects._objects
        assert (host.machine.memory.reserved_bytes, host.machine.memory.spilling_bytes) == (0, 0)


TestLedger = Ledger.TestCase
TestLedger.settings = settings(stateful_step_count=30, max_examples=40, derandomize=True)
