"""Workers, a store and a disk that do what a machine with a limit says, and object to what makes no sense."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from dask_mars.scheduler.events import (
    CLIENT,
    ChunksFinished,
    ChunksRestored,
    ChunksReturned,
    Event,
    FailGraph,
    FinishGraph,
    ForgetGraph,
    ForgetObjects,
    Free,
    GrantReservation,
    GraphCancelled,
    GraphPlan,
    GraphSubmitted,
    Instruction,
    Interrupt,
    MemoryMeasured,
    ObjectSpilled,
    RecallQueued,
    Refuse,
    RenewWorkers,
    ResultsTaken,
    Run,
    Spill,
    TimePassed,
    UseSpilled,
    WorkerLost,
    WorkerRetired,
    WorkersRenewed,
    WorkerStarted,
)
from dask_mars.scheduler.machine import Machine, Parameters
from tests.machines import plan


class Host:
    """Workers, a store of limited size and a disk, which execute instructions and count the bytes."""

    def __init__(
        self, sizes: Any, limit: int, hard_limit: int = 10**6, workers: int = 2, **parameters: Any
    ) -> None:
        #: Bytes of each chunk's result.
        self.sizes = sizes
        self.limit = limit
        self.parameters = Parameters(store_limit=limit, memory_limit=hard_limit, window_s=0.01, **parameters)
        # Both get all events, and have to give the same instructions.
        self.machine, self.twin = Machine(self.parameters), Machine(self.parameters)
        self.dispatched: dict[int, list[tuple[int, int]]] = {CLIENT: []}
        self.plans: dict[int, GraphPlan] = {}
        self.stored: dict[tuple[int, int], int] = {}
        #: Bytes of each result, wherever it is; those of the user's process are not in the store.
        self.bytes_of: dict[tuple[int, int], int] = {}
        self.on_disk: set[tuple[int, int]] = set()
        self.writing: list[tuple[int, int]] = []
        #: What has a file, wherever it is read.
        self.written: set[tuple[int, int]] = set()
        #: Which worker is to put which object back into the store.
        self.loads: dict[tuple[int, int], int] = {}
        #: What was copied from the user's process, whenever it was.
        self.copied: list[tuple[int, int]] = []
        self.done_in_client: list[int] = []
        self.ever_loaded: list[tuple[int, int]] = []
        self.ever_spilled: list[tuple[int, int]] = []
        #: Chunks that only the user's process can run, and the time before which one is not to run again.
        self.for_client: dict[int, set[int]] = {}
        self.not_before_s: dict[tuple[int, int], float] = {}
        self.computed: set[tuple[int, int]] = set()
        self.finished: set[int] = set()
        self.taken: set[int] = set()
        self.cancelled: set[int] = set()
        #: By graph, what runs in the client while nothing else of it can.
        self.alone: dict[int, set[tuple[int, int]]] = {}
        self.forgotten: set[int] = set()
        self.persisted: set[tuple[int, int]] = set()
        #: Those of them that the user has dropped.
        self.released: set[tuple[int, int]] = set()
        self.granted: list[int] = []
        self.failed: dict[int, int] = {}
        self.refused: dict[int, Refuse] = {}
        self.started: list[int] = []
        self.peak_bytes = 0
        #: Chunks whose results have no room where they are made, and are written to disk at once.
        self.overflowing: Collection[int] = ()
        self.now_s = 0.0
        for worker in range(workers):
            self.start(worker)

    def start(self, worker: int) -> None:
        self.dispatched[worker] = []
        self.post(WorkerStarted(worker))

    @property
    def stored_bytes(self) -> int:
        return sum(self.stored.values())

    def submit(self, graph_plan: GraphPlan, graph: int = 1) -> None:
        self.plans[graph] = graph_plan
        self.for_client[graph] = set(graph_plan.in_client)
        self.post(GraphSubmitted(graph, graph_plan))

    def post(self, event: Event) -> None:
        events = [event]
        while events:
            before, event = self.stored_bytes, events.pop(0)
            if type(event) is GraphCancelled:
                self.cancelled.add(event.graph)
            assert self.handle(MemoryMeasured(before, self.limit)) == []
            for instruction in self.handle(event):
                if type(instruction) is RenewWorkers:
                    events.append(WorkersRenewed())
                else:
                    self.carry_out(instruction)
            self.machine.validate()
            self.forget({id for id in self.released if self.machine._objects.get(id) is None})
            self.peak_bytes = max(self.peak_bytes, self.stored_bytes)
            if self.machine.blocked and self.stored_bytes < before:
                events.append(TimePassed())
            for worker, places in self.dispatched.items():
                assert worker == CLIENT or self.machine.dispatched_to(worker) == places

    def handle(self, event: Event) -> list[Instruction]:
        instructions = self.machine.handle(event, self.now_s)
        assert self.twin.handle(event, self.now_s) == instructions
        return instructions

    def is_over(self, graph: int) -> bool:
        return graph in self.cancelled or graph in self.taken or graph in self.failed

    def carry_out(self, instruction: Any) -> None:
        graph = getattr(instruction, "graph", None)
        match instruction:
            case Run(worker, _, chunks, loads):
                for source in loads:
                    assert self.id_of(graph, source) in self.on_disk - self.loads.keys()
                    assert any(source in self.plans[graph].inputs[chunk] for chunk in chunks)
                    self.loads[self.id_of(graph, source)] = worker
                self.dispatch(worker, graph, chunks, instruction.is_alone)
            case RecallQueued(worker):
                # Whether it does is left to chance, as it is when code does not return to the interpreter.
                assert len(self.dispatched[worker]) > 1
                assert any(not places for other, places in self.dispatched.items() if other != CLIENT)
            case Free(_, chunks):
                self.free(graph, chunks)
            case Spill(objects):
                assert self.stored.keys() >= set(objects)
                assert not set(objects) & set(self.writing)
                self.writing += objects
            case UseSpilled(id, places) if self.is_copy(id):
                assert places == [id]
                assert id not in self.pinned()
                del self.stored[id]
            case UseSpilled(id, places):
                assert {self.id_of(*place) for place in places} <= {id}
                assert (id in places) == (id not in self.persisted)
                assert id in self.written
                assert id not in self.pinned()
                del self.stored[id]
                self.on_disk.add(id)
                self.ever_spilled.append(id)
            case GrantReservation(reservation_id):
                self.granted.append(reservation_id)
            case FinishGraph():
                assert graph not in self.finished
                assert not self.is_over(graph)
                assert all(self.is_there(graph, chunk) for chunk in self.plans[graph].outputs)
                self.finished.add(graph)
            case Refuse(_, chunk, _, _):
                self.refused[graph] = instruction
            case FailGraph(_, chunk):
                assert graph not in self.finished
                assert not self.is_over(graph)
                self.failed[graph] = chunk
            case ForgetGraph():
                assert self.is_over(graph)
                assert graph not in {at for places in self.dispatched.values() for at, _ in places}
                self.forgotten.add(graph)
                everywhere = self.stored.keys() | self.on_disk | self.written
                self.forget({id for id in everywhere if id[0] == graph} - self.persisted)
            case ForgetObjects(objects):
                self.released.update(objects)
            case Interrupt(worker, _, force):
                assert graph in [at for at, _ in self.dispatched[worker]]
                assert force == (graph in self.cancelled)

    def dispatch(self, worker: int, graph: int, chunks: list[int], is_alone: bool) -> None:
        graph_plan = self.plans[graph]
        dispatched = {place for places in self.dispatched.values() for place in places}
        assert chunks
        assert not self.is_over(graph)
        assert not self.alone.get(graph, set()) & dispatched
        assert not (is_alone and graph in {at for at, _ in dispatched})
        if is_alone:
            self.alone[graph] = {(graph, chunk) for chunk in chunks}
        if worker != CLIENT:
            assert len(chunks) <= self.parameters.batch_limit
            assert graph_plan.worker_limit is None or worker < graph_plan.worker_limit
        for chunk in chunks:
            id = graph, chunk
            assert id not in dispatched | self.computed
            assert (worker == CLIENT) == (chunk in self.for_client[graph])
            assert self.not_before_s.get(id, 0.0) <= self.now_s
            for source in graph_plan.inputs[chunk]:
                if worker != CLIENT:
                    self.copy(graph, source)
                ahead = worker != CLIENT and (graph, source) in self.dispatched[worker]
                assert ahead or self.is_there(graph, source)
            self.dispatched[worker].append(id)
            self.started.append(chunk)

    def free(self, graph: int, chunks: list[int]) -> None:
        graph_plan = self.plans[graph]
        for chunk in chunks:
            assert self.is_there(graph, chunk)
            if not self.is_over(graph):
                assert chunk not in graph_plan.outputs
                readers = {(graph, reader) for reader, inputs in enumerate(graph_plan.inputs) if chunk in inputs}
                assert readers <= self.computed
        self.forget({(graph, chunk) for chunk in chunks})

    def forget(self, ids: set[tuple[int, int]]) -> None:
        for id in ids:
            self.stored.pop(id, None)
        self.on_disk -= ids
        self.written -= ids

    def id_of(self, graph: int, chunk: int) -> tuple[int, int]:
        return self.plans[graph].objects.get(chunk, (graph, chunk))

    def is_copy(self, id: tuple[int, int]) -> bool:
        return id[1] in self.plans[id[0]].copied_bytes

    def copy(self, graph: int, chunk: int) -> None:
        """Copy what the user's process has, unless that was done and is there still."""
        id = graph, chunk
        if self.is_copy(id) and id not in self.stored:
            self.stored[id] = self.plans[graph].copied_bytes[chunk]
            self.copied.append(id)

    def is_there(self, graph: int, chunk: int) -> bool:
        id = self.id_of(graph, chunk)
        is_value = self.plans[graph].operand_of[chunk] < 0 and id == (graph, chunk)
        return is_value or id in self.stored or id in self.on_disk

    def is_complete(self, graph: int, chunk: int, computed: Collection[int] = ()) -> bool:
        """Return whether the inputs of a chunk are there, for a worker that has computed some itself."""
        return all(
            source in computed or self.is_there(graph, source) for source in self.plans[graph].inputs[chunk]
        )

    def doable(self, worker: int, graph: int, chosen: Collection[int] | None = None) -> list[int]:
        """Return what a worker comes to of its chunks, or of some, if they succeed one after the other."""
        found: list[int] = []
        for at, chunk in self.dispatched[worker]:
            is_chosen = at == graph and (chosen is None or chunk in chosen)
            if is_chosen and self.is_complete(graph, chunk, () if worker == CLIENT else found):
                found.append(chunk)
        return found

    def work(self, worker: int) -> None:
        """Let a worker do what it has been given first, or give it back if an input is missing."""
        graph, chunk = self.dispatched[worker][0]
        if self.is_complete(graph, chunk):
            self.finish(worker, graph, [chunk])
        else:
            self.dispatched[worker].pop(0)
            self.post(ChunksReturned(worker, graph, [chunk]))

    def pinned(self) -> set[tuple[int, int]]:
        """Return what workers, and the client, are reading."""
        inputs = {
            self.id_of(graph, source)
            for places in self.dispatched.values()
            for graph, chunk in places
            for source in self.plans[graph].inputs[chunk]
        }
        return inputs | {
            self.id_of(graph, chunk)
            for graph in self.finished - self.taken - self.cancelled
            for chunk in self.plans[graph].outputs
        }

    def finish(self, worker: int, graph: int, chunks: Iterable[int], seconds: float = 1e-4) -> None:
        chunks = list(chunks)
        sizes, on_disk = {}, []
        self.load(worker, graph, chunks)
        for chunk in chunks:
            if worker == CLIENT:
                self.done_in_client.append(chunk)
            self.dispatched[worker].remove((graph, chunk))
            self.computed.add((graph, chunk))
            size = self.bytes_of[graph, chunk] = 0 if worker == CLIENT else self.sizes[chunk]
            if size and chunk in self.overflowing:
                sizes[chunk] = size
                on_disk.append(chunk)
                self.on_disk.add((graph, chunk))
                self.written.add((graph, chunk))
            elif size:
                sizes[chunk] = self.stored[graph, chunk] = size
            else:
                self.stored[graph, chunk] = 0
        durations = [seconds] * len(chunks)
        self.post(ChunksFinished(worker, graph, chunks, durations, sizes, sizes, on_disk=on_disk))

    def load(self, worker: int, graph: int, chunks: Iterable[int]) -> None:
        """Put back into the store what a worker needs for chunks and was told to load."""
        for source in {source for chunk in chunks for source in self.plans[graph].inputs[chunk]}:
            id = self.id_of(graph, source)
            if self.loads.get(id) == worker and id in self.on_disk:
                del self.loads[id]
                self.on_disk.remove(id)
                self.stored[id] = self.bytes_of[id]
                self.ever_loaded.append(id)
                self.post(ChunksRestored(worker, graph, [source]))

    def end(self, event: WorkerLost | WorkerRetired) -> None:
        """Let a worker end."""
        self.dispatched.pop(event.worker)
        self.loads = {id: loader for id, loader in self.loads.items() if loader != event.worker}
        self.post(event)

    def take_results(self, graph: int) -> None:
        self.taken.add(graph)
        self.post(ResultsTaken(graph))

    def persist_results(self, graph: int) -> None:
        """Let the results of a graph stay in the store."""
        outputs = [chunk for chunk in self.plans[graph].outputs if (graph, chunk) in self.computed]
        self.persisted.update((graph, chunk) for chunk in outputs)
        self.taken.add(graph)
        self.post(ResultsTaken(graph, outputs))

    def answer(self, written: bool = True) -> None:
        """Let the disk answer the oldest request."""
        id = self.writing.pop(0)
        if written and id in self.stored:
            self.written.add(id)
        size_bytes = self.plans[id[0]].copied_bytes[id[1]] if self.is_copy(id) else self.bytes_of[id]
        self.post(ObjectSpilled(id, size_bytes, written))

    def step(self) -> bool:
        """Let something happen; False if nothing can."""
        for worker, places in self.dispatched.items():
            if places:
                self.work(worker)
                return True
        if self.writing:
            self.answer()
            return True
        due_s = self.machine.next_due_s()
        if due_s is not None:
            self.now_s = due_s
            self.post(TimePassed())
            return True
        return False

    def run(self) -> None:
        while self.step():
            pass

    def run_workers(self) -> None:
        """Let everything happen but in the user's process."""
        while any(self.dispatched[worker] for worker in self.dispatched if worker != CLIENT) or self.writing:
            for worker in self.dispatched:
                if worker != CLIENT and self.dispatched[worker]:
                    self.work(worker)
            if self.writing:
                self.answer()


def pairs(count: int) -> GraphPlan:
    """Return a plan in which sources are joined in pairs, from both ends, and a last chunk reads all pairs."""
    inputs: list[tuple[int, ...]] = [()] * count
    inputs += [(number, count - 1 - number) for number in range(count // 2)]
    inputs.append(tuple(range(count, len(inputs))))
    return plan(*inputs, operand_of=[0] * count + [1] * (count // 2) + [2])


def sizes_of(graph_plan: GraphPlan, *by_operand: int) -> list[int]:
    return [by_operand[operand] for operand in graph_plan.operand_of]
