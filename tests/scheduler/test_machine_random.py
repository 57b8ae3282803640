"""The state machine against random graphs, workers that fail and die, and users who change their minds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from dask_mars.scheduler.events import (
    CLIENT,
    ChunkFailed,
    ChunksFinished,
    ChunksReturned,
    Event,
    FailGraph,
    FinishGraph,
    ForgetGraph,
    Free,
    GraphCancelled,
    GraphPlan,
    GraphSubmitted,
    Instruction,
    Interrupt,
    RecallQueued,
    ResultsTaken,
    Run,
    TimePassed,
    WorkerLost,
    WorkerRetired,
    WorkerStarted,
)
from dask_mars.scheduler.machine import Machine, Parameters
from dask_mars.scheduler.policies.mars import MarsPolicy

WORKERS = 3
PARAMETERS = Parameters(
    num_workers=WORKERS,
    window_s=0.01,
    batch_limit=5,
    allowed_worker_losses=2,
    retry_delay_s=0.5,
    retry_delay_limit_s=1.5,
)
CHUNKS = 12
DURATIONS_S = [0.0, 1e-4, 3e-3, 0.5]


@st.composite
def plans(draw: st.DrawFn) -> GraphPlan:
    """Draw a plan in which, as after culling, everything is needed for some output."""
    count = draw(st.integers(1, CHUNKS))
    inputs = [
        tuple(draw(st.lists(st.integers(0, chunk - 1), max_size=3))) if chunk else () for chunk in range(count)
    ]
    some = st.sets(st.integers(0, count - 1))
    needed = {source for sources in inputs for source in sources}
    outputs = set(range(count)) - needed | draw(some)
    data = {chunk for chunk in draw(some) if not inputs[chunk]}
    return GraphPlan(
        inputs=inputs,
        outputs=sorted(outputs),
        operand_of=[-1 if chunk in data else draw(st.integers(0, 2)) for chunk in range(count)],
        in_client=frozenset(draw(some)),
        retries=draw(st.dictionaries(st.integers(0, count - 1), st.integers(0, 3), max_size=3)),
        default_retries=draw(st.integers(0, 2)),
        priorities=draw(st.dictionaries(st.integers(0, count - 1), st.sampled_from([-1.0, 0.0, 2.0]), max_size=4)),
        worker_limit=draw(st.sampled_from([None, None, 1, 2])),
    )


@dataclass
class Computation:
    """What the user and the store know of one graph."""

    plan: GraphPlan
    #: Chunks whose data exist.
    stored: set[int] = field(default_factory=set)
    computed: set[int] = field(default_factory=set)
    freed: set[int] = field(default_factory=set)
    #: Chunks that only the client can run.
    for_client: set[int] = field(default_factory=set)
    failures: dict[int, int] = field(default_factory=dict)
    losses: dict[int, int] = field(default_factory=dict)
    #: Time before which a failed chunk is not to run again.
    not_before_s: dict[int, float] = field(default_factory=dict)
    outcome: str = ""
    cancelled: bool = False
    taken: bool = False

    def __post_init__(self) -> None:
        self.stored = {chunk for chunk, operand in enumerate(self.plan.operand_of) if operand < 0}
        self.computed = set(self.stored)
        self.for_client = set(self.plan.in_client)

    def needed(self) -> set[int]:
        """Return the chunks that are outputs, or inputs of what is not computed yet."""
        waiting = [inputs for chunk, inputs in enumerate(self.plan.inputs) if chunk not in self.computed]
        return set(self.plan.outputs).union(*waiting)

    @property
    def over(self) -> bool:
        return self.cancelled or self.taken or self.outcome == "failed"


class World:
    """Workers, a client and a store that do what the machine says, and object to what makes no sense."""

    # All events go to two machines, whose instructions have to be the same.

    def __init__(self, policy: str = "memory") -> None:
        parameters = replace(PARAMETERS, policy=policy)
        self.machine, self.twin = Machine(parameters), Machine(parameters)
        self.now_s = 0.0
        self.graphs: dict[int, Computation] = {}
        self.forgotten: set[int] = set()
        #: Chunks dispatched to each living worker, and to the client.
        self.dispatched: dict[int, list[tuple[int, int]]] = {CLIENT: []}
        #: By graph, what runs in the client while nothing else of it can.
        self.alone: dict[int, set[tuple[int, int]]] = {}
        #: What the event at hand may make the machine say of a graph.
        self.may_fail: tuple[int, int, bool] | None = None

    def post(self, event: Event) -> None:
        """Feed an event to both machines and carry out the instructions."""
        instructions = self.machine.handle(event, self.now_s)
        assert self.twin.handle(event, self.now_s) == instructions
        self.machine.validate()
        for instruction in instructions:
            self.carry_out(instruction)
        assert self.may_fail is None, "a failure for good was not reported"
        for computation in self.graphs.values():
            assert computation.over or computation.stored <= computation.needed()
        for worker, places in self.dispatched.items():
            if worker != CLIENT:
                assert self.machine.dispatched_to(worker) == places

    # -- instructions -----------------------------------------------------------------------------------------

    def carry_out(self, instruction: Instruction) -> None:
        if isinstance(instruction, RecallQueued):
            # Whether it does is left to chance, as it is when code does not return to the interpreter.
            assert len(self.dispatched[instruction.worker]) > 1
            assert any(not places for worker, places in self.dispatched.items() if worker != CLIENT)
            return
        computation = self.graphs[instruction.graph]
        assert instruction.graph not in self.forgotten
        match instruction:
            case Run(worker, graph, chunks):
                assert not self.alone.get(graph, set()) & set(self.dispatched[CLIENT])
                self.run(worker, graph, chunks)
                if instruction.is_alone:
                    self.alone[graph] = {(graph, chunk) for chunk in chunks}
                    dispatched = {
                        place for places in self.dispatched.values() for place in places if place[0] == graph
                    }
                    assert dispatched == self.alone[graph]
            case Free(graph, chunks):
                self.free(graph, chunks)
            case Interrupt(worker, graph, force):
                assert any(graph_id == graph for graph_id, _ in self.dispatched[worker])
                assert force == computation.cancelled
            case FinishGraph(graph):
                assert not computation.outcome
                assert not computation.over
                assert computation.stored.issuperset(computation.plan.outputs)
                computation.outcome = "finished"
            case FailGraph(graph, chunk, worker_lost):
                assert not computation.outcome
                assert not computation.over
                assert self.may_fail == (graph, chunk, worker_lost)
                self.may_fail = None
                computation.outcome = "failed"
            case ForgetGraph(graph):
                assert computation.over
                assert not any(graph_id == graph for places in self.dispatched.values() for graph_id, _ in places)
                self.forgotten.add(graph)

    def run(self, worker: int, graph: int, chunks: list[int]) -> None:
        computation = self.graphs[graph]
        plan = computation.plan
        assert chunks
        assert not computation.over
        if worker != CLIENT:
            assert len(chunks) <= PARAMETERS.batch_limit
            assert plan.worker_limit is None or worker < plan.worker_limit
        for chunk in chunks:
            assert all((graph, chunk) not in places for places in self.dispatched.values())
            assert chunk not in computation.computed
            assert not self.missing(worker, graph, chunk, [source for _, source in self.dispatched[worker]])
            assert (worker == CLIENT) == (chunk in computation.for_client)
            assert computation.not_before_s.get(chunk, 0.0) <= self.now_s
            self.dispatched[worker].append((graph, chunk))

    def missing(self, worker: int, graph: int, chunk: int, computed: Iterable[int] = ()) -> list[int]:
        """Return the inputs of a chunk that are not there, for a worker that has computed some by itself."""
        known = self.graphs[graph].stored | (set() if worker == CLIENT else set(computed))
        return [source for source in self.graphs[graph].plan.inputs[chunk] if source not in known]

    def doable(self, worker: int, graph: int) -> list[int]:
        """Return what a worker could come to if all before it succeeded."""
        chunks: list[int] = []
        for graph_id, chunk in self.dispatched[worker]:
            if graph_id == graph and not self.missing(worker, graph, chunk, chunks):
                chunks.append(chunk)
        return chunks

    def free(self, graph: int, chunks: list[int]) -> None:
        computation = self.graphs[graph]
        for chunk in chunks:
            assert chunk not in computation.freed
            assert chunk in computation.stored
            computation.freed.add(chunk)
            computation.stored.remove(chunk)
            if computation.over:
                continue
            assert chunk not in computation.plan.outputs
            for consumer, inputs in enumerate(computation.plan.inputs):
                assert chunk not in inputs or consumer in computation.computed

    # -- what happens -----------------------------------------------------------------------------------------

    def submit(self, plan: GraphPlan) -> None:
        graph = len(self.graphs) + 1
        self.graphs[graph] = Computation(plan)
        self.post(GraphSubmitted(graph, plan))

    def put_down(self, worker: int, graph: int, chunks: Iterable[int]) -> Computation:
        for chunk in chunks:
            self.dispatched[worker].remove((graph, chunk))
        return self.graphs[graph]

    def finish(self, worker: int, graph: int, chunks: list[int], durations_s: list[float]) -> None:
        computation = self.put_down(worker, graph, chunks)
        for position, chunk in enumerate(chunks):
            assert not self.missing(worker, graph, chunk, chunks[:position])
        computation.stored.update(chunks)
        computation.computed.update(chunks)
        self.post(ChunksFinished(worker, graph, chunks, durations_s))

    def fail(self, worker: int, graph: int, chunk: int, final: bool) -> None:
        computation = self.put_down(worker, graph, [chunk])
        if not computation.over:
            plan = computation.plan
            failures = computation.failures[chunk] = computation.failures.get(chunk, 0) + 1
            if final or failures > plan.retries.get(chunk, plan.default_retries):
                self.may_fail = (graph, chunk, False)
            else:
                self.delay(computation, chunk, failures)
        self.post(ChunkFailed(worker, graph, chunk, final))

    def delay(self, computation: Computation, chunk: int, attempt: int) -> None:
        delay_s = min(PARAMETERS.retry_delay_s * 2 ** (attempt - 1), PARAMETERS.retry_delay_limit_s)
        computation.not_before_s[chunk] = self.now_s + delay_s

    def give_back(self, worker: int, graph: int, chunks: list[int], to_client: bool) -> None:
        computation = self.put_down(worker, graph, chunks)
        if to_client and not computation.over:
            computation.for_client.update(chunks)
        self.post(ChunksReturned(worker, graph, chunks, to_client))

    def lose(self, worker: int, running: tuple[int, int] | None) -> None:
        self.dispatched.pop(worker)
        if running is not None:
            graph, chunk = running
            computation = self.graphs[graph]
            if not computation.over:
                losses = computation.losses[chunk] = computation.losses.get(chunk, 0) + 1
                if losses > PARAMETERS.allowed_worker_losses:
                    self.may_fail = (graph, chunk, True)
                elif not self.missing(worker, graph, chunk):
                    self.delay(computation, chunk, losses)
        self.post(WorkerLost(worker, running))

    def retire(self, worker: int) -> None:
        assert not self.dispatched.pop(worker)
        self.post(WorkerRetired(worker))

    def start(self, worker: int) -> None:
        self.dispatched[worker] = []
        self.post(WorkerStarted(worker))

    def cancel(self, graph: int) -> None:
        self.graphs[graph].cancelled = True
        self.post(GraphCancelled(graph))

    def take_results(self, graph: int) -> None:
        self.graphs[graph].taken = True
        self.post(ResultsTaken(graph))

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.post(TimePassed())

    # -- what could happen ------------------------------------------------------------------------------------

    def busy(self) -> list[int]:
        return sorted(worker for worker, places in self.dispatched.items() if places)

    def finished_graphs(self) -> list[int]:
        return [graph for graph, it in self.graphs.items() if it.outcome == "finished" and not it.over]

    def work(self, worker: int, duration_s: float) -> None:
        """Let a worker do what it has been given first, or give it back if an input is missing."""
        graph, chunk = self.dispatched[worker][0]
        if self.missing(worker, graph, chunk):
            self.give_back(worker, graph, [chunk], to_client=False)
        else:
            self.finish(worker, graph, [chunk], [duration_s])

    def run_to_the_end(self) -> None:
        """Let all work succeed and all users take their results: everything has to come to an end."""
        for worker in range(WORKERS):
            if worker not in self.dispatched:
                self.start(worker)
        while self.forgotten != set(self.graphs):
            if busy := self.busy():
                self.work(busy[0], 1e-3)
            elif finished := self.finished_graphs():
                self.take_results(finished[0])
            else:
                due_s = self.machine.next_due_s()
                assert due_s is not None, "everything waits and nothing will happen"
                self.pass_time(max(due_s - self.now_s, 0.0))
        for computation in self.graphs.values():
            assert computation.cancelled or computation.outcome
        assert self.machine.graphs == []
        assert not any(self.dispatched.values())
        while (due_s := self.machine.next_due_s()) is not None:
            self.pass_time(max(due_s - self.now_s, 0.0))
        for worker in range(WORKERS):
            assert self.machine._workers[worker].load_s == 0.0


@pytest.fixture(autouse=True, scope="module")
def small_results_are_large() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MarsPolicy, "large_bytes", 1)
        yield


class RandomWorld(RuleBasedStateMachine):
    """Anything that can happen, in any order."""

    policy = "mars"

    @initialize(workers=st.integers(0, WORKERS))
    def begin(self, workers: int) -> None:
        self.world = World(self.policy)
        for worker in range(workers):
            self.world.start(worker)

    @precondition(lambda self: len(self.world.graphs) - len(self.world.forgotten) < 3)
    @rule(plan=plans())
    def submit(self, plan: GraphPlan) -> None:
        self.world.submit(plan)

    def draw_chunks(
        self, data: st.DataObject, client: bool = True, doable: bool = False
    ) -> tuple[int, int, list[int]]:
        busy = [worker for worker in self.world.busy() if client or worker != CLIENT]
        worker = data.draw(st.sampled_from(busy))
        places = self.world.dispatched[worker]
        graph = data.draw(st.sampled_from(sorted({graph for graph, _ in places})))
        chunks = [chunk for graph_id, chunk in places if graph_id == graph]
        if doable:
            chunks = self.world.doable(worker, graph)
        if not chunks:
            return worker, graph, []
        return worker, graph, data.draw(st.lists(st.sampled_from(chunks), min_size=1, unique=True))

    @precondition(lambda self: self.world.busy())
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        worker, graph, drawn = self.draw_chunks(data, doable=True)
        # A worker computes them in the order in which it got them; those drawn are the ones that succeed.
        chunks: list[int] = []
        for chunk in self.world.doable(worker, graph):
            if chunk in drawn and not self.world.missing(worker, graph, chunk, chunks):
                chunks.append(chunk)
        if not chunks:
            return
        seconds = data.draw(st.sampled_from(DURATIONS_S))
        self.world.finish(worker, graph, chunks, [seconds] * len(chunks))

    @precondition(lambda self: self.world.busy())
    @rule(data=st.data(), final=st.sampled_from([False, False, False, True]))
    def fail(self, data: st.DataObject, final: bool) -> None:
        worker, graph, chunks = self.draw_chunks(data, doable=True)
        # What it has computed before that is reported first.
        chunks = [chunk for chunk in chunks if not self.world.missing(worker, graph, chunk)]
        if chunks:
            self.world.fail(worker, graph, chunks[0], final)

    @precondition(lambda self: any(worker != CLIENT for worker in self.world.busy()))
    @rule(data=st.data(), to_client=st.booleans())
    def give_back(self, data: st.DataObject, to_client: bool) -> None:
        worker, graph, chunks = self.draw_chunks(data, client=False)
        self.world.give_back(worker, graph, chunks, to_client)

    @precondition(lambda self: len(self.world.dispatched) > 1)
    @rule(data=st.data(), restart=st.booleans())
    def lose_worker(self, data: st.DataObject, restart: bool) -> None:
        worker = data.draw(st.sampled_from(sorted(self.world.dispatched.keys() - {CLIENT})))
        graphs = {graph for graph, _ in self.world.dispatched[worker]}
        could_run = [(graph, chunk) for graph in sorted(graphs) for chunk in self.world.doable(worker, graph)]
        running = data.draw(st.sampled_from([None, *could_run]))
        self.world.lose(worker, running)
        if restart:
            self.world.start(worker)

    @precondition(
        lambda self: not all(places for worker, places in self.world.dispatched.items() if worker != CLIENT)
    )
    @rule(data=st.data())
    def retire_worker(self, data: st.DataObject) -> None:
        idle = self.world.dispatched.keys() - {CLIENT, *self.world.busy()}
        self.world.retire(data.draw(st.sampled_from(sorted(idle))))

    @precondition(lambda self: len(self.world.dispatched) <= WORKERS)
    @rule(data=st.data())
    def start_worker(self, data: st.DataObject) -> None:
        self.world.start(data.draw(st.sampled_from(sorted(set(range(WORKERS)) - self.world.dispatched.keys()))))

    @precondition(lambda self: self.world.graphs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        graph = data.draw(st.sampled_from(sorted(self.world.graphs)))
        if not self.world.graphs[graph].taken:
            self.world.cancel(graph)

    @precondition(lambda self: self.world.finished_graphs())
    @rule(data=st.data())
    def take_results(self, data: st.DataObject) -> None:
        self.world.take_results(data.draw(st.sampled_from(self.world.finished_graphs())))

    @rule(seconds=st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(steps=st.integers(1, 15))
    def go_on(self, steps: int) -> None:
        """Let work succeed for a while, that graphs may come to their ends."""
        for _ in range(steps):
            if busy := self.world.busy():
                self.world.work(busy[-1], 1e-4)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.run_to_the_end()


class RandomWorldOfOffers(RandomWorld):
    """The same where chunks stand in queues of single workers."""

    policy = "mars-strict"


TestRandomWorld = RandomWorld.TestCase
TestRandomWorldOfOffers = RandomWorldOfOffers.TestCase
TestRandomWorld.settings = TestRandomWorldOfOffers.settings = settings(stateful_step_count=40, max_examples=12)
