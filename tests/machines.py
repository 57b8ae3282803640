"""State machines for tests: short plans, and a machine that is proved sound after each event."""

from __future__ import annotations

from typing import Any

from dask_mars.scheduler.events import ChunksFinished, Event, GraphPlan, GraphSubmitted, Instruction, WorkerStarted
from dask_mars.scheduler.machine import Machine, Parameters
from dask_mars.scheduler.objects import ObjectId


def plan(*inputs: tuple[int, ...], outputs: Any = None, data: Any = (), **options: Any) -> GraphPlan:
    """Make a plan. Unless told otherwise, what nobody needs is an output, and all chunks have one operand."""
    if outputs is None:
        needed = {source for sources in inputs for source in sources}
        outputs = [chunk for chunk in range(len(inputs)) if chunk not in needed]
    operand_of = options.pop("operand_of", [0] * len(inputs))
    return GraphPlan(
        inputs=list(inputs),
        outputs=outputs,
        operand_of=[-1 if chunk in data else operand for chunk, operand in enumerate(operand_of)],
        **options,
    )


def tree(leaves: int, fan_in: int) -> GraphPlan:
    """Make sums of sums, numbered as a depth-first walk leaves them."""
    sources: list[tuple[int, ...]] = []

    def add(count: int) -> int:
        sources.append(() if count == 1 else tuple([add(count // fan_in) for _ in range(fan_in)]))
        return len(sources) - 1

    add(leaves)
    return plan(*sources)


class CheckedMachine:
    """A machine with running workers, whose invariants are checked after each event."""

    def __init__(self, workers: int = 1, **parameters: Any) -> None:
        # The graph's own order is the easiest to foresee.
        self.machine = Machine(Parameters(**{"policy": "memory", **parameters}))
        self.now_s = 100.0
        for worker in range(workers):
            assert self.post(WorkerStarted(worker)) == []

    def post(self, event: Event, after_s: float = 0.0) -> list[Instruction]:
        """Let time pass, feed an event and return the instructions."""
        self.now_s += after_s
        instructions = self.machine.handle(event, self.now_s)
        self.machine.validate()
        return instructions

    def submit(self, *inputs: tuple[int, ...], graph: int = 1, **options: Any) -> list[Instruction]:
        """Submit a plan made by `plan`."""
        return self.post(GraphSubmitted(graph, plan(*inputs, **options)))

    def finish(self, worker: int, *chunks: int, graph: int = 1, seconds: float = 1.0) -> list[Instruction]:
        """Report chunks that each took so many seconds."""
        return self.post(ChunksFinished(worker, graph, chunks, [seconds] * len(chunks)))

    def states(self, graph: int = 1) -> list[str]:
        """Return the names of all chunks' states."""
        count = sum(self.machine.counts(graph).values())
        return [self.machine.state_of(graph, chunk).name for chunk in range(count)]


class LimitedMachine(CheckedMachine):
    """One with a limit of 100 bytes, 200 if nothing else helps, and a graph; each event takes a second."""

    def __init__(self, graph: GraphPlan, workers: int = 2, **parameters: Any) -> None:
        super().__init__(0, **{"store_limit": 100, "memory_limit": 200} | parameters)
        for worker in range(workers):
            self.post(WorkerStarted(worker))
        self.first = self.post(GraphSubmitted(1, graph))

    def post(self, event: Event, after_s: float = 1.0) -> list[Instruction]:
        """Let time pass, feed an event and return the instructions."""
        return super().post(event, after_s)

    def done(self, worker: int, *chunks: int, size: int = 0, seconds: float = 1.0) -> list[Instruction]:
        """Report chunks whose results took so many bytes each, if any."""
        sizes = {chunk: size for chunk in chunks if size}
        return self.post(ChunksFinished(worker, 1, chunks, [seconds] * len(chunks), sizes, sizes))


def unknown(count: int, **options: Any) -> GraphPlan:
    """Make a plan of chunks of operands of their own, of which nothing is known."""
    return plan(*[()] * count, operand_of=list(range(count)), **options)


def begin_writing(machine: Machine) -> list[ObjectId]:
    """Have all objects that may be spilled written, also those that are in use; return their ids."""
    found = list(machine._objects.spill_candidates())
    for stored in found:
        stored.is_spilling = True
        machine.memory.spilling_bytes += stored.size_bytes
    return [stored.id for stored in found]
