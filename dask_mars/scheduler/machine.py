"""The scheduler's state machine: events in, instructions out.

The law of this module: it is pure. It knows no clock, no process and no byte of data; the time is an argument,
ties break on chunk ids, and equal event sequences give equal instructions. The machine ignores an event that does
not fit the present state if a race of messages can explain it (a worker finished a chunk just cancelled). If only
a bug can, it raises: `StateError` for a move that is not in the table, KeyError for an unknown graph or worker.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import repeat

from dask_mars.scheduler.bookkeeping import FINISHED, FREED
from dask_mars.scheduler.events import CLIENT, Event, Instruction, MemoryMeasured
from dask_mars.scheduler.handlers import Handlers
from dask_mars.scheduler.memory import RESERVATION
from dask_mars.scheduler.parameters import Parameters
from dask_mars.scheduler.states import State


class Machine:
    """All graphs and workers of one engine."""

    def __init__(self, parameters: Parameters | None = None) -> None:
        self.parameters = parameters or Parameters()
        self._handlers = Handlers(self.parameters)
        self._graphs = self._handlers.graphs
        self._dispatcher = self._handlers.dispatcher
        self._workers = self._dispatcher.workforce.by_id
        self._objects = self._dispatcher.admission.objects
        self.memory = self._dispatcher.admission.memory

    # -- interface --------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Handle one event and return the instructions that follow."""
        if type(event) is MemoryMeasured:
            self.memory.stored_bytes, self.memory.limit_bytes = event.stored_bytes, event.limit_bytes
            if event.hard_limit_bytes >= 0:
                self.memory.hard_limit_bytes = event.hard_limit_bytes
            return []
        handlers = self._handlers
        handlers.apply(event, now_s)
        refusal = self._dispatcher.dispatch()
        if refusal is not None:
            handlers.refuse(refusal)
        out = handlers.out.copy()
        handlers.out.clear()
        return out

    def next_due_s(self) -> float | None:
        """Return the time at which a `TimePassed` event is needed, if one is."""
        times = [due_s for due_s, *_ in self._handlers.delayed[:1]]
        if (recall_s := self._dispatcher.next_recall_s()) is not None:
            times.append(recall_s)
        return min(times, default=None)

    def state_of(self, graph: int, chunk: int) -> State:
        """Return a chunk's state."""
        return State(self._graphs[graph].state[chunk])

    def is_done(self, graph: int) -> bool:
        """Return whether all outputs of a graph are available."""
        return not self._graphs[graph].unfinished_outputs

    def counts(self, graph: int) -> dict[str, int]:
        """Count a graph's chunks by state name."""
        state = self._graphs[graph].state
        return {member.name: state.count(member) for member in State}

    @property
    def blocked(self) -> tuple[int, int, int] | None:
        """Return graph, chunk and required bytes of the next chunk if it waits for memory."""
        # For a reservation the graph is `RESERVATION`, and the chunk is its id.
        blocked = self._dispatcher.admission.blocked
        if blocked is None:
            return None
        graph = RESERVATION if blocked.graph is None else blocked.graph.id
        return graph, blocked.id, blocked.required_bytes

    def growing(self) -> dict[int, tuple[int, int, int]]:
        """Return graph, chunk and missing bytes of each worker that waits for memory in the middle of a chunk."""
        quotas = self._dispatcher.quotas
        return {
            id: (growth.graph.id, growth.chunk, quotas.missing_bytes(id, growth))
            for id, growth in quotas.growing.items()
        }

    def is_growing(self, worker: int) -> bool:
        """Return whether a worker waits for memory in the middle of a chunk."""
        return worker in self._dispatcher.quotas.growing

    @property
    def graphs(self) -> list[int]:
        """Return the ids of the graphs that are not forgotten."""
        return list(self._graphs)

    def useful_workers(self) -> int:
        """Return for how many workers there is work now: the number of READY and dispatched chunks."""
        return sum([graph.dispatched_count + graph.queues.queued_count for graph in self._graphs.values()])

    def unserved_limit(self, coming: Collection[int]) -> int:
        """Return the largest worker limit of graphs whose READY chunks no worker may take, or 0."""
        # A limit n admits workers with ids below n; those in `coming` are starting.
        least = min([*self._workers, *coming], default=0)
        limits = [graph.plan.worker_limit or 0 for graph in self._graphs.values() if graph.queues.queued_count]
        return max([limit for limit in limits if limit <= least], default=0)

    def dispatched_to(self, worker: int) -> list[tuple[int, int]]:
        """Return the (graph, chunk) pairs dispatched to a worker, or to the client, in order."""
        if worker == CLIENT:
            return sorted(self._dispatcher.client_chunks)
        return list(self._workers[worker].dispatched)

    def holds(self, worker: int, graph: int, chunks: Collection[int]) -> bool:
        """Return whether chunks of a graph are dispatched to a worker, each of them named once."""
        dispatched = self._workers[worker].dispatched
        return len(set(chunks)) == len(chunks) and all(map(dispatched.__contains__, zip(repeat(graph), chunks)))

    def holder_of(self, graph: int, chunk: int) -> int | None:
        """Return the worker to which a chunk is dispatched, if it is."""
        record = self._graphs[graph]
        return record.holders.get(record.plan.operand_of[chunk], {}).get(chunk)

    def missing_inputs(self, graph: int, chunk: int) -> list[int]:
        """Return the inputs of a chunk that are not computed."""
        record = self._graphs[graph]
        return [source for source in record.inputs(chunk) if record.state[source] not in (FINISHED, FREED)]

    def missing_resources(self, graph: int, chunk: int) -> list[tuple[str, float, float]]:
        """Return name, required and free amount of each resource that a chunk lacks."""
        free = self._dispatcher.free_resources
        taken = self._graphs[graph].plan.resources.get(chunk, ())
        return [(name, amount, free[name]) for name, amount in taken if amount > free[name]]

    def offered_to(self, graph: int, chunk: int) -> list[int]:
        """Return the workers that a READY chunk is offered to; none if every worker may take it."""
        return self._graphs[graph].queues.offered_to(chunk)

    @property
    def over_share(self) -> list[int]:
        """Return the workers that exceeded their share at the last measurement."""
        return list(self._dispatcher.workforce.over_share)

    def is_to_run_alone(self, graph: int, chunk: int) -> bool:
        """Return whether a chunk took a worker past the memory limit, and is tried once more alone."""
        return (graph, chunk) in self._dispatcher.to_run_alone

    def expected_private_bytes(self, worker: int) -> int:
        """Return the bytes of the worker's reservation that cover unaccounted allocations."""
        return self._dispatcher.quotas.expected_private_bytes(worker)

    def retry_due_s(self, graph: int, chunk: int) -> float | None:
        """Return when a chunk is tried again, if it waits for that."""
        return next((due_s for due_s, *what in self._handlers.delayed if what == [graph, chunk]), None)

    def stalled(self) -> list[int]:
        """Return the graphs that wait although nothing will change, which is a bug."""
        # A retry's delay, a disk, a worker that starts, and a user who takes results are possible changes.
        memory, graphs = self.memory, self._graphs.values()
        if self._handlers.delayed or memory.spilling_bytes or not self._workers:
            return []
        if self._dispatcher.admission.reservations:
            return []
        if any(graph.dispatched_count or graph.results_pending for graph in graphs):
            return []
        return [graph.id for graph in graphs if graph.unfinished_outputs and not graph.stopping]

    # -- invariants -------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Check every invariant; raise AssertionError where one does not hold. For tests and debugging."""
        for graph in self._graphs.values():
            graph.validate()
            delayed = {chunk for _, id, chunk in self._handlers.delayed if id == graph.id}
            assert graph.stopping or graph.queues.delayed == delayed
        self._dispatcher.validate()


__all__ = ["Machine", "Parameters"]
