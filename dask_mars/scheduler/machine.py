"""The scheduler's state machine: events in, instructions out.

The law of this module: it is pure. It knows no clock, no process and no byte of data; the time is an argument,
ties break on chunk ids, and equal event sequences give equal instructions. The machine ignores an event that does
not fit the present state if a race of messages can explain it (a worker finished a chunk just cancelled). If only
a bug can, it raises: `StateError` for a move that is not in the table, KeyError for an unknown graph or worker.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection
from functools import partial
from itertools import repeat

from dask_mars.scheduler.bookkeeping import (
    CANCELLED,
    CANCELLING,
    FATAL,
    FINISHED,
    FREED,
    READY,
    RUNNING,
    UNSCHEDULED,
    Graph,
    Worker,
)
from dask_mars.scheduler.dispatch import Dispatcher, Parameters
from dask_mars.scheduler.events import (
    CLIENT,
    ChunkFailed,
    ChunksFinished,
    ChunksRestored,
    ChunksReturned,
    Event,
    FailGraph,
    FinishGraph,
    ForgetGraph,
    ForgetObjects,
    Free,
    GraphCancelled,
    GraphSubmitted,
    Instruction,
    Interrupt,
    MemoryMeasured,
    ObjectSpilled,
    ObjectsPut,
    ObjectsReleased,
    PrivateMeasured,
    QuotaRequested,
    RecallQueued,
    ReservationReleased,
    ReservationRequested,
    ResultsPersisted,
    ResultsTaken,
    TimePassed,
    UseRestored,
    UseSpilled,
    WorkerLost,
    WorkerRetired,
    WorkersRenewed,
    WorkerStarted,
)
from dask_mars.scheduler.memory import RESERVATION
from dask_mars.scheduler.policies import POLICIES
from dask_mars.scheduler.states import State


class Machine:
    """All graphs and workers of one engine.

    Parameters
    ----------
    parameters : Parameters
        Numbers that shape its decisions.
    """

    def __init__(self, parameters: Parameters | None = None) -> None:
        self.parameters = parameters or Parameters()
        self._graphs: dict[int, Graph] = {}
        # Heap of (due, graph, chunk): READY chunks that wait for the delay of their retry.
        self._delayed: list[tuple[float, int, int]] = []
        #: Time at which a failed disk is tried again.
        self._disk_due_s = math.inf
        self._out: list[Instruction] = []
        self._dispatcher = Dispatcher(self.parameters, self._graphs, self._out.append)
        self.memory = self._dispatcher.memory
        self._objects = self._dispatcher.objects
        self._handlers = {
            GraphSubmitted: self._graph_submitted,
            ChunksFinished: self._chunks_finished,
            ChunkFailed: self._chunk_failed,
            ChunksReturned: self._chunks_returned,
            WorkerStarted: self._worker_started,
            WorkerLost: self._worker_lost,
            WorkerRetired: self._worker_retired,
            GraphCancelled: self._graph_cancelled,
            ResultsTaken: self._results_taken,
            ResultsPersisted: self._results_persisted,
            ObjectsPut: self._objects_put,
            ObjectsReleased: self._objects_released,
            ObjectSpilled: self._object_spilled,
            ChunksRestored: self._chunks_restored,
            QuotaRequested: self._quota_requested,
            PrivateMeasured: self._private_measured,
            WorkersRenewed: self._workers_renewed,
            ReservationRequested: self._reservation_requested,
            ReservationReleased: self._reservation_released,
            TimePassed: self._time_passed,
        }

    # -- interface --------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Handle one event and return the instructions that follow.

        Parameters
        ----------
        event : Event
            The event.
        now_s : float
            The time, in seconds of any clock that does not go back.

        Returns
        -------
        list of Instruction
            Instructions, to be executed in this order.
        """
        if type(event) is MemoryMeasured:
            self.memory.stored_bytes, self.memory.limit_bytes = event.stored_bytes, event.limit_bytes
            if event.hard_limit_bytes >= 0:
                self.memory.hard_limit_bytes = event.hard_limit_bytes
            return []
        self._dispatcher.now_s = now_s
        self._handlers[type(event)](event, now_s)  # type: ignore[operator]
        if self._delayed:
            self._wake(now_s)
        if now_s >= self._disk_due_s:
            self.memory.can_spill = True
            self._disk_due_s = math.inf
        refusal = self._dispatcher.dispatch()
        if refusal is not None:
            self._out.append(refusal)
            self._fail(self._graphs[refusal.graph], refusal.chunk, worker_lost=False)
        out = self._out.copy()
        self._out.clear()
        return out

    def next_due_s(self) -> float | None:
        """Return the time at which a `TimePassed` event is needed, if one is."""
        times = [due_s for due_s, *_ in self._delayed[:1]]
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
        """Return graph, chunk and required bytes of the next chunk if it waits for memory.

        For a reservation the graph is `RESERVATION`, and the chunk is its number.
        """
        blocked = self._dispatcher.blocked
        if blocked is None:
            return None
        number = RESERVATION if blocked.graph is None else blocked.graph.number
        return number, blocked.number, blocked.required_bytes

    def growing(self) -> dict[int, tuple[int, int, int]]:
        """Return graph, chunk and missing bytes of each worker that waits for memory in the middle of a chunk."""
        dispatcher = self._dispatcher
        return {
            number: (growth.graph.number, growth.chunk, dispatcher.missing_for(number, growth))
            for number, growth in dispatcher.growing.items()
        }

    def is_growing(self, worker: int) -> bool:
        """Return whether a worker waits for memory in the middle of a chunk."""
        return worker in self._dispatcher.growing

    @property
    def graphs(self) -> list[int]:
        """Return the numbers of the graphs that are not forgotten."""
        return list(self._graphs)

    def in_hand(self, worker: int) -> list[tuple[int, int]]:
        """Return the (graph, chunk) pairs that a worker, or the client, has in hand, in the order of dispatch."""
        if worker == CLIENT:
            return sorted(self._dispatcher.client_in_hand)
        return list(self._dispatcher.workers[worker].in_hand)

    def holds(self, worker: int, graph: int, chunks: Collection[int]) -> bool:
        """Return whether a worker has chunks of a graph in hand, each of them named once."""
        in_hand = self._dispatcher.workers[worker].in_hand
        return len(set(chunks)) == len(chunks) and all(map(in_hand.__contains__, zip(repeat(graph), chunks)))

    def holder_of(self, graph: int, chunk: int) -> int | None:
        """Return the worker that has a chunk in hand, if one does."""
        for number, worker in self._dispatcher.workers.items():
            if (graph, chunk) in worker.in_hand:
                return number
        return None

    def missing_inputs(self, graph: int, chunk: int) -> list[int]:
        """Return the inputs of a chunk that are not computed."""
        record = self._graphs[graph]
        return [source for source in record.inputs(chunk) if record.state[source] not in (FINISHED, FREED)]

    def missing_resources(self, graph: int, chunk: int) -> list[tuple[str, float, float]]:
        """Return name, required and free amount of each resource that a chunk lacks."""
        free = self._dispatcher.free_resources
        taken = self._graphs[graph].plan.resources.get(chunk, ())
        return [(name, amount, free[name]) for name, amount in taken if amount > free[name]]

    @property
    def over_share(self) -> list[int]:
        """Return the workers that exceeded their share at the last measurement."""
        return list(self._dispatcher.over_share)

    def is_to_run_alone(self, graph: int, chunk: int) -> bool:
        """Return whether a chunk took a worker past the memory limit, and is tried once more alone."""
        return (graph, chunk) in self._dispatcher.to_run_alone

    def expected_private_bytes(self, worker: int) -> int:
        """Return the bytes of the worker's reservation that cover unaccounted allocations."""
        return self._dispatcher.expected_private_bytes(worker)

    def retry_due_s(self, graph: int, chunk: int) -> float | None:
        """Return when a chunk is tried again, if it waits for that."""
        return next((due_s for due_s, *what in self._delayed if what == [graph, chunk]), None)

    def stalled(self) -> list[int]:
        """Return the graphs that wait although nothing will change, which is a bug.

        A retry's delay, a disk, a worker that starts, and a user who takes results are possible changes.
        """
        dispatcher = self._dispatcher
        if self._delayed or dispatcher.memory.spilling_bytes or dispatcher.reservations or not dispatcher.workers:
            return []
        if any(graph.in_hand_count or graph.results_pending for graph in self._graphs.values()):
            return []
        return [
            number for number, graph in self._graphs.items() if graph.unfinished_outputs and not graph.stopping
        ]

    # -- events -----------------------------------------------------------------------------------------------

    def _graph_submitted(self, event: GraphSubmitted, now_s: float) -> None:
        plan = event.plan
        parameters = self.parameters
        limit = plan.worker_limit or parameters.num_workers
        slots = dict.fromkeys(range(min(limit, parameters.num_workers)), 1)
        make_policy = partial(POLICIES[parameters.policy], assignment=parameters.assignment)
        # Where the engine measures chunks as they run, false declarations do no harm.
        credible_bytes = parameters.memory_limit if parameters.quota_slack_bytes is not None else None
        graph = self._graphs[event.graph] = Graph(event.graph, plan, make_policy, slots, credible_bytes)
        state = graph.state
        finished = []
        initial = []
        for chunk, operand in enumerate(plan.operand_of):
            if operand < 0:
                finished.append(chunk)
            elif not plan.inputs[chunk]:
                state[chunk] = READY
                initial.append(chunk)
        graph.push_all(initial)
        for chunk in finished:
            # Values that came with the graph were never computed: they start as FINISHED.
            state[chunk] = FINISHED
            graph.mark_dispatched(chunk)
        for chunk, id in plan.objects.items():
            self._objects.add_reader(graph, chunk, id)
        if plan.copied_bytes and self.memory.is_limited:
            self._objects.add_copies(graph, plan.copied_bytes)
        for chunk in finished:
            graph.after_finish(chunk)
        if not graph.unfinished_outputs:
            self._out.append(FinishGraph(graph.number))

    def _chunks_finished(self, event: ChunksFinished, now_s: float) -> None:
        graph = self._graphs.get(event.graph)
        if graph is None:
            return
        self._dispatcher.remove_from_worker(event.worker, graph, event.chunks)
        self._dispatcher.note_report(event.worker)
        state = graph.state
        if event.worker == CLIENT:
            self._dispatcher.learn_in_client(graph, event.durations_s)
        else:
            self._dispatcher.learn(graph, event.chunks, event.durations_s)
        if event.sizes and event.worker == CLIENT:
            self._objects.add_copies(graph, event.sizes)
        elif event.sizes:
            self._objects.add(graph, event.sizes, event.map_outputs)
            for chunk in event.on_disk:
                self._objects.moved_to_disk(graph.objects[chunk])
        if graph.offers is not None:
            graph.makers.update(dict.fromkeys(event.chunks, event.worker))
        if self.memory.is_limited and event.worker != CLIENT:
            self._dispatcher.learn_sizes(graph, event)
        freed: list[int] = []
        all_inputs, unfinished_consumers, is_output = (
            graph.plan.inputs,
            graph.unfinished_consumers,
            graph.is_output,
        )
        outputs_before = graph.unfinished_outputs
        for chunk in event.chunks:
            if state[chunk] == CANCELLING:
                graph.move(chunk, CANCELLED)
                # Results of chunks in hand behind it may share its memory, which is freed with the graph.
                if not any(state[successor] == CANCELLING for successor in graph.successors[chunk]):
                    freed.append(chunk)
                continue
            graph.move(chunk, FINISHED)
            graph.after_finish(chunk)
            for source in all_inputs[chunk]:
                unfinished_consumers[source] -= 1
                if not unfinished_consumers[source] and not is_output[source]:
                    graph.move(source, FREED)
                    freed.append(source)
            if not unfinished_consumers[chunk] and not is_output[chunk]:
                graph.move(chunk, FREED)
                freed.append(chunk)
        if freed:
            if graph.objects:
                for chunk in freed:
                    self._objects.remove_reader(graph, chunk)
            self._out.append(Free(graph.number, freed))
        if outputs_before and not graph.unfinished_outputs and not graph.stopping:
            self._out.append(FinishGraph(graph.number))
        self._maybe_forget(graph)

    def _chunk_failed(self, event: ChunkFailed, now_s: float) -> None:
        graph = self._graphs.get(event.graph)
        if graph is None:
            return
        self._dispatcher.remove_from_worker(event.worker, graph, (event.chunk,))
        self._dispatcher.note_report(event.worker)
        chunk = event.chunk
        if graph.state[chunk] == CANCELLING:
            graph.move(chunk, CANCELLED)
            self._maybe_forget(graph)
            return
        failures = graph.failures[chunk] = graph.failures.get(chunk, 0) + 1
        allowed = graph.plan.retries.get(chunk, graph.plan.default_retries)
        if event.final or failures > allowed or not graph.plan.is_repeatable(chunk):
            self._fail(graph, chunk, worker_lost=False)
        else:
            self._delay(graph, chunk, failures, now_s)

    def _delay(self, graph: Graph, chunk: int, attempt: int, now_s: float) -> None:
        parameters = self.parameters
        if not graph.reschedule(chunk):
            # An input that the same worker computed has to be computed again first.
            return
        # The bound on the exponent keeps a thousand retries from overflowing a float.
        graph.delayed.add(chunk)
        delay = min(parameters.retry_delay_s * 2.0 ** min(attempt - 1, 60), parameters.retry_delay_limit_s)
        heapq.heappush(self._delayed, (now_s + delay, graph.number, chunk))

    def _chunks_returned(self, event: ChunksReturned, now_s: float) -> None:
        graph = self._graphs.get(event.graph)
        if graph is None:
            return
        self._dispatcher.remove_from_worker(event.worker, graph, event.chunks)
        for chunk in event.chunks:
            if graph.state[chunk] == CANCELLING:
                graph.move(chunk, CANCELLED)
                continue
            if event.to_client:
                graph.in_client[chunk] = 1
            if graph.reschedule(chunk):
                graph.push(chunk)
        self._maybe_forget(graph)

    def _worker_started(self, event: WorkerStarted, now_s: float) -> None:
        self._dispatcher.workers[event.worker] = Worker(event.is_thread)

    def _worker_lost(self, event: WorkerLost, now_s: float) -> None:
        in_hand = self._dispatcher.remove_worker(event.worker)
        for number, chunk in in_hand:
            graph = self._graphs[number]
            graph.in_hand_count -= 1
            if graph.state[chunk] == CANCELLING:
                graph.move(chunk, CANCELLED)
            elif event.was_up and not graph.plan.is_repeatable(chunk):
                # It may have finished without a report.
                self._fail(graph, chunk, worker_lost=True)
            elif (number, chunk) != event.running:
                # It had not started, so its worker's death does not count against it.
                if graph.reschedule(chunk):
                    graph.push(chunk)
            elif event.over_limit:
                if (number, chunk) in self._dispatcher.to_run_alone:
                    self._fail(graph, chunk, worker_lost=False)
                else:
                    self._dispatcher.to_run_alone[number, chunk] = None
                    if graph.reschedule(chunk):
                        graph.push(chunk)
            else:
                losses = graph.losses[chunk] = graph.losses.get(chunk, 0) + 1
                if losses > self.parameters.allowed_losses(event.crashed):
                    self._fail(graph, chunk, worker_lost=True)
                else:
                    self._delay(graph, chunk, losses, now_s)
        for number in dict.fromkeys(number for number, _ in in_hand):
            if number in self._graphs:
                self._maybe_forget(self._graphs[number])

    def _worker_retired(self, event: WorkerRetired, now_s: float) -> None:
        # It begins none of the chunks it may still have in hand.
        self._worker_lost(WorkerLost(event.worker, None, was_up=False), now_s)

    def _graph_cancelled(self, event: GraphCancelled, now_s: float) -> None:
        graph = self._graphs.get(event.graph)
        if graph is None:
            return
        graph.results_taken = True
        self._stop(graph, force=True)
        self._maybe_forget(graph)

    def _results_taken(self, event: ResultsTaken, now_s: float) -> None:
        graph = self._graphs.get(event.graph)
        if graph is None:
            return
        graph.results_taken = True
        if not graph.stopping:
            # All outputs are available, so nothing needs the remaining chunks.
            self._stop(graph, force=False)
        self._maybe_forget(graph)

    def _results_persisted(self, event: ResultsPersisted, now_s: float) -> None:
        for chunk in event.chunks:
            self._objects.persist((event.graph, chunk))
        self._results_taken(ResultsTaken(event.graph), now_s)

    def _objects_put(self, event: ObjectsPut, now_s: float) -> None:
        for id, size_bytes in event.sizes.items():
            self._objects.persist(id, size_bytes, id in event.map_outputs)

    def _objects_released(self, event: ObjectsReleased, now_s: float) -> None:
        if released := [id for id in event.objects if self._objects.release(id)]:
            self._out.append(ForgetObjects(released))

    def _object_spilled(self, event: ObjectSpilled, now_s: float) -> None:
        self.memory.spill_ended(event.size_bytes)
        found = self._objects.get(event.object)
        if not event.written:
            self.memory.can_spill = False
            self._disk_due_s = now_s + self.parameters.disk_delay_s
        elif found is not None and not found.is_copy:
            self.memory.can_spill = True
        if found is None:
            return
        found.is_spilling = False
        if event.written and found not in self._dispatcher.pinned():
            self._objects.moved_to_disk(found)
            # The instruction below frees these bytes; until the next measurement this estimate holds.
            self.memory.stored_bytes -= found.size_bytes
            self._out.append(UseSpilled(found.id, found.read_as()))

    def _chunks_restored(self, event: ChunksRestored, now_s: float) -> None:
        graph = self._graphs[event.graph]
        for chunk in event.chunks:
            self._dispatcher.restored(event.worker, graph, chunk)
            found, restored = graph.objects[chunk], (graph.number, chunk)
            others = [place for place in found.read_as() if place != restored]
            if others or found.is_persisted:
                self._out.append(UseRestored(found.id, restored, others))

    def _quota_requested(self, event: QuotaRequested, now_s: float) -> None:
        graph = self._graphs.get(event.graph)
        worker = self._dispatcher.workers.get(event.worker)
        if graph is not None and worker is not None and (event.graph, event.chunk) in worker.in_hand:
            self._dispatcher.request_growth(event.worker, graph, event.chunk, event.growth_bytes)

    def _private_measured(self, event: PrivateMeasured, now_s: float) -> None:
        dispatcher = self._dispatcher
        dispatcher.learn_private(event.growths)
        for worker in event.over_share:
            record = dispatcher.workers.get(worker)
            if record is not None and worker not in dispatcher.over_share and len(record.in_hand) > 1:
                # Other workers can begin the queued chunks.
                self._out.append(RecallQueued(worker))
        dispatcher.over_share = event.over_share

    def _workers_renewed(self, event: WorkersRenewed, now_s: float) -> None:
        self._dispatcher.is_renewed = True

    def _reservation_requested(self, event: ReservationRequested, now_s: float) -> None:
        self._dispatcher.request(event.reservation, event.size_bytes)

    def _reservation_released(self, event: ReservationReleased, now_s: float) -> None:
        self._dispatcher.release(event.reservation)

    def _time_passed(self, event: TimePassed, now_s: float) -> None:
        pass

    # -- stopping ---------------------------------------------------------------------------------------------

    def _fail(self, graph: Graph, chunk: int, worker_lost: bool) -> None:
        """Make a chunk and all its dependents FATAL, and stop the rest of its graph."""
        state = graph.state
        graph.move(chunk, FATAL)
        stack = [chunk]
        behind: set[int] = set()
        while stack:
            for successor in graph.successors[stack.pop()]:
                if state[successor] == UNSCHEDULED:
                    graph.move(successor, FATAL)
                    stack.append(successor)
                elif state[successor] == RUNNING and successor not in behind:
                    # The dependent stands in a queue, and will be returned.
                    behind.add(successor)
                    stack.append(successor)
        self._out.append(FailGraph(graph.number, chunk, worker_lost))
        # As under Dask's threads, other running chunks may finish, though nothing waits for them.
        self._stop(graph, force=False)
        graph.results_taken = not graph.plan.keeps_data_on_failure
        self._maybe_forget(graph)

    def _stop(self, graph: Graph, force: bool) -> None:
        graph.stopping = True
        graph.clear_queues()
        state = graph.state
        # Counting bytes is a thousand times faster than a loop, and most graphs end with nothing to stop.
        if not any(state.count(live) for live in (UNSCHEDULED, READY, RUNNING)):
            return
        for chunk, current in enumerate(state):
            if current in (UNSCHEDULED, READY):
                graph.move(chunk, CANCELLED)
            elif current == RUNNING:
                graph.move(chunk, CANCELLING)
        for number, worker in self._dispatcher.workers.items():
            if any(owner == graph.number for owner, _ in worker.in_hand):
                self._out.append(Interrupt(number, graph.number, force))

    def _maybe_forget(self, graph: Graph) -> None:
        """Forget a graph that the user is done with once nothing of it is in hand."""
        if graph.results_taken and graph.stopping and not graph.in_hand_count and graph.number in self._graphs:
            del self._graphs[graph.number]
            self._objects.forget_reader(graph)
            self._dispatcher.forget(graph)
            self._out.append(ForgetGraph(graph.number))

    # -- dispatch ---------------------------------------------------------------------------------------------

    def _wake(self, now_s: float) -> None:
        while self._delayed and self._delayed[0][0] <= now_s:
            _, number, chunk = heapq.heappop(self._delayed)
            graph = self._graphs.get(number)
            if graph is not None:
                graph.delayed.discard(chunk)
                if graph.state[chunk] == READY:
                    graph.push(chunk)

    # -- invariants -------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Check every invariant; raise AssertionError where one does not hold. For tests and debugging."""
        for graph in self._graphs.values():
            graph.validate()
            delayed = {chunk for _, number, chunk in self._delayed if number == graph.number}
            assert graph.stopping or graph.delayed == delayed
        self._dispatcher.validate()


__all__ = ["Machine", "Parameters"]
