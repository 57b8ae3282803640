"""Any order of events: workers that fail and die, full stores, and users who keep things or change their minds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
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
    TimePassed,
    WorkerLost,
    WorkerRetired,
)
from tests.machines import plan
from tests.scheduler.limited import Host

WORKERS = 3
CHUNKS = 12
RETRY_DELAY_S, RETRY_DELAY_LIMIT_S = 0.5, 1.5
ALLOWED_WORKER_LOSSES = 2
PARAMETERS: dict[str, Any] = {
    "num_workers": WORKERS,
    "batch_limit": 5,
    "allowed_worker_losses": ALLOWED_WORKER_LOSSES,
    "retry_delay_s": RETRY_DELAY_S,
    "retry_delay_limit_s": RETRY_DELAY_LIMIT_S,
    "resources": {"GPU": 1.0},
}


@st.composite
def plans(draw: st.DrawFn, sizes: list[int], persisted: list[tuple[int, int]]) -> GraphPlan:
    """Draw a plan in which, as after culling, everything is needed for some output."""
    read = draw(st.lists(st.sampled_from(persisted), max_size=2, unique=True)) if persisted else []
    first = len(read)
    count = draw(st.integers(first + 1, CHUNKS))
    chunks = st.integers(first, count - 1)
    some = st.sets(chunks, max_size=3)
    inputs = [
        tuple(draw(st.lists(st.integers(0, chunk - 1), max_size=3))) if chunk > max(first - 1, 0) else ()
        for chunk in range(count)
    ]
    # All that is persisted is read.
    inputs[-1] += tuple(set(range(first)).difference(*inputs))
    values = {chunk for chunk in draw(some) if not inputs[chunk]}
    drawn = plan(
        *inputs,
        operand_of=[draw(st.integers(0, 3)) for _ in range(count)],
        data={*range(first), *values},
        objects=dict(enumerate(read)),
        in_client=frozenset(draw(some)),
        retries=draw(st.dictionaries(chunks, st.integers(0, 3), max_size=3)),
        default_retries=draw(st.integers(0, 3)),
        priorities=draw(st.dictionaries(chunks, st.sampled_from([-1.0, 0.0, 2.0]), max_size=4)),
        worker_limit=draw(st.sampled_from([None, None, 1, 2])),
    )
    drawn.outputs = sorted({*drawn.outputs, *draw(some)}.difference(range(first)))
    drawn.resources = dict.fromkeys(draw(some) - drawn.in_client, (("GPU", 1.0),))
    if draw(st.booleans()):
        drawn.declared_bytes = sizes[:count]
    return drawn


@pytest.fixture(autouse=True, scope="module")
def small_results_are_large() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dask_mars.scheduler.policies.mars._LARGE_BYTES", 1)
        yield


class AnyOrder(RuleBasedStateMachine):
    """A host with up to three graphs at a time; what it stores is the measure of what the ledger says."""

    @initialize(
        sizes=st.lists(st.sampled_from([0, 10, 40, 90]), min_size=CHUNKS, max_size=CHUNKS),
        limit=st.sampled_from([50, 100, 200, 10**5]),
        workers=st.integers(0, WORKERS),
        policy=st.sampled_from(["memory", "mars", "mars-strict"]),
        kept=st.integers(0, 4),
    )
    def begin(self, sizes: list[int], limit: int, workers: int, policy: str, kept: int) -> None:
        self.host = Host(sizes, limit, workers=1, policy=policy, **PARAMETERS)
        self.failures: Counter[tuple[int, int]] = Counter()
        self.losses: Counter[tuple[int, int]] = Counter()
        #: By graph, the chunk that made it fail.
        self.failed: dict[int, int] = {}
        # What is persisted is read all the time, though it takes long until a random graph is finished and kept.
        self.host.submit(plan(*[()] * kept))
        self.host.run()
        self.host.persist_results(1)
        self.host.end(WorkerRetired(0))
        for worker in range(workers):
            self.host.start(worker)

    @property
    def busy(self) -> list[int]:
        return [worker for worker, places in self.host.dispatched.items() if places]

    @property
    def idle(self) -> list[int]:
        return [worker for worker, places in self.host.dispatched.items() if not places and worker != CLIENT]

    @property
    def finished(self) -> list[int]:
        return sorted(graph for graph in self.host.finished if not self.host.is_over(graph))

    @property
    def kept(self) -> list[tuple[int, int]]:
        return sorted(self.host.persisted - self.host.released)

    def draw_chunks(self, data: st.DataObject, workers: list[int]) -> tuple[int, int, list[int]]:
        """Draw some of a worker's chunks of a graph."""
        worker = data.draw(st.sampled_from(workers))
        places = self.host.dispatched[worker]
        graph = data.draw(st.sampled_from(sorted({graph for graph, _ in places})))
        chunks = [chunk for graph_id, chunk in places if graph_id == graph]
        return worker, graph, data.draw(st.lists(st.sampled_from(chunks), min_size=1, unique=True))

    def attempted(self, graph: int, chunk: int, attempts: int, most: int) -> None:
        """Record a failed attempt: after `most` retries the graph fails, before them the chunk waits."""
        if attempts > most:
            self.failed[graph] = chunk
        else:
            delay_s = min(RETRY_DELAY_S * 2 ** (attempts - 1), RETRY_DELAY_LIMIT_S)
            self.host.not_before_s[graph, chunk] = self.host.now_s + delay_s

    # -- what happens -----------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.host.machine.graphs) < 3)
    @rule(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        self.host.submit(data.draw(plans(self.host.sizes, self.kept)), len(self.host.plans) + 1)

    @precondition(lambda self: self.busy)
    @rule(data=st.data(), steps=st.integers(1, 15))
    def work(self, data: st.DataObject, steps: int) -> None:
        for _ in range(steps):
            if self.busy:
                self.host.work(data.draw(st.sampled_from(self.busy)))
                self.ledger_agrees_with_the_store()

    @precondition(lambda self: self.busy)
    @rule(data=st.data(), seconds=st.sampled_from([0.0, 1e-4, 3e-3, 0.5]))
    def finish(self, data: st.DataObject, seconds: float) -> None:
        """Let those of a worker's chunks that were drawn succeed, as far as they can, in the worker's order."""
        worker, graph, drawn = self.draw_chunks(data, self.busy)
        if chunks := self.host.doable(worker, graph, drawn):
            self.host.finish(worker, graph, chunks, seconds)

    @precondition(lambda self: self.host.writing)
    @rule(written=st.sampled_from([True, True, True, False]))
    def answer(self, written: bool) -> None:
        self.host.answer(written)

    @precondition(lambda self: self.busy)
    @rule(data=st.data(), final=st.sampled_from([False, False, False, True]))
    def fail(self, data: st.DataObject, final: bool) -> None:
        worker, graph, drawn = self.draw_chunks(data, self.busy)
        host, chunk = self.host, drawn[0]
        if not host.is_complete(graph, chunk):
            return
        host.dispatched[worker].remove((graph, chunk))
        if not host.is_over(graph):
            self.failures[graph, chunk] += 1
            graph_plan = host.plans[graph]
            most = 0 if final else graph_plan.retries.get(chunk, graph_plan.default_retries)
            self.attempted(graph, chunk, self.failures[graph, chunk], most)
        host.post(ChunkFailed(worker, graph, chunk, final))

    @precondition(lambda self: any(worker != CLIENT for worker in self.busy))
    @rule(data=st.data(), to_client=st.booleans())
    def give_back(self, data: st.DataObject, to_client: bool) -> None:
        worker, graph, chunks = self.draw_chunks(data, [worker for worker in self.busy if worker != CLIENT])
        for chunk in chunks:
            self.host.dispatched[worker].remove((graph, chunk))
        if to_client and not self.host.is_over(graph):
            self.host.for_client[graph].update(chunks)
        self.host.post(ChunksReturned(worker, graph, chunks, to_client))

    @precondition(lambda self: len(self.host.dispatched) > 1)
    @rule(data=st.data(), restarts=st.booleans())
    def lose_worker(self, data: st.DataObject, restarts: bool) -> None:
        host = self.host
        worker = data.draw(st.sampled_from(sorted(host.dispatched.keys() - {CLIENT})))
        graphs = {graph for graph, _ in host.dispatched[worker]}
        could_run = [(graph, chunk) for graph in sorted(graphs) for chunk in host.doable(worker, graph)]
        running = data.draw(st.sampled_from([None, *could_run]))
        if running is not None and not host.is_over(running[0]):
            self.losses[running] += 1
            if self.losses[running] > ALLOWED_WORKER_LOSSES or host.is_complete(*running):
                self.attempted(*running, self.losses[running], ALLOWED_WORKER_LOSSES)
        host.end(WorkerLost(worker, running))
        if restarts:
            host.start(worker)

    @precondition(lambda self: self.idle)
    @rule(data=st.data())
    def retire_worker(self, data: st.DataObject) -> None:
        self.host.end(WorkerRetired(data.draw(st.sampled_from(self.idle))))

    @precondition(lambda self: len(self.host.dispatched) <= WORKERS)
    @rule(data=st.data())
    def start_worker(self, data: st.DataObject) -> None:
        self.host.start(data.draw(st.sampled_from(sorted(set(range(WORKERS)) - self.host.dispatched.keys()))))

    @precondition(lambda self: self.finished)
    @rule(data=st.data(), persists=st.booleans())
    def take_results(self, data: st.DataObject, persists: bool) -> None:
        graph = data.draw(st.sampled_from(self.finished))
        (self.host.persist_results if persists else self.host.take_results)(graph)

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.host.post(ObjectsReleased([data.draw(st.sampled_from(self.kept))]))

    @precondition(lambda self: set(self.host.plans) - self.host.taken)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        # Those that are over, too: the user may be late.
        self.host.post(GraphCancelled(data.draw(st.sampled_from(sorted(set(self.host.plans) - self.host.taken)))))

    @rule(seconds=st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    def pass_time(self, seconds: float) -> None:
        self.host.now_s += seconds
        self.host.post(TimePassed())

    # -- what has to be so ------------------------------------------------------------------------------------

    @invariant()
    def graphs_end_as_they_should(self) -> None:
        if not hasattr(self, "host"):
            return
        host = self.host
        assert host.failed == self.failed
        for graph, graph_plan in host.plans.items():
            if host.is_over(graph):
                continue
            waiting = [
                inputs for chunk, inputs in enumerate(graph_plan.inputs) if (graph, chunk) not in host.computed
            ]
            needed = set(graph_plan.outputs).union(*waiting)
            assert {chunk for at, chunk in host.stored.keys() | host.on_disk if at == graph} <= needed

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
        places = [place for worker, places in host.dispatched.items() if worker != CLIENT for place in places]
        taking = [chunk for graph, chunk in places if chunk in host.plans[graph].resources]
        assert machine._dispatcher.free_resources == {"GPU": 1.0 - len(taking)}
        assert memory._reserved.keys() <= set(places)
        assert memory.reserved_bytes == sum(memory._reserved.values()) == sum(memory.reserved_by_worker.values())
        assert memory.raised_bytes == sum(memory._raised.values()) == sum(memory.raised_by_worker.values())
        assert memory.spilling_bytes == sum(host.bytes_of[id] for id in host.writing)

    def teardown(self) -> None:
        """Let all work succeed and all users take their results: everything has to come to an end."""
        if not hasattr(self, "host"):
            return
        host = self.host
        for worker in set(range(WORKERS)) - host.dispatched.keys():
            host.start(worker)
        host.run()
        while host.machine.graphs:
            # Others may wait for the memory of results that the user has not taken.
            assert self.finished, "everything waits though nothing will happen"
            host.take_results(self.finished[0])
            host.run()
        self.graphs_end_as_they_should()
        host.post(ObjectsReleased(sorted(host.persisted)))
        assert host.forgotten == host.plans.keys() == host.finished | host.failed.keys() | host.cancelled
        assert not host.machine._objects._objects
        assert (host.machine.memory.reserved_bytes, host.machine.memory.spilling_bytes) == (0, 0)
        assert not any(host.machine._workers[worker].load_s for worker in range(WORKERS))


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(stateful_step_count=40, max_examples=60, derandomize=True)
