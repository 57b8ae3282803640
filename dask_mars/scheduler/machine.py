"""The scheduler's state machine: events in, instructions out.

The law of this module: it is pure. It knows no clock, no process and no byte of data; the time comes in as an
argument, ties break on chunk ids, and equal event sequences give equal instructions. An event that does not fit
the present state is ignored where a race of messages can explain it (a worker finished what was just cancelled).
Where only a bug can, it raises: `StateError` for a move that is not in the table, KeyError for a graph or a worker
that never was.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection
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
from dask_mars.scheduler.dispatch import Dispatcher, Policy
from dask_mars.scheduler.events import (
    CLIENT,
    ChunkFailed,
    ChunksFinished,
    ChunksLoaded,
    ChunksReleased,
    ChunksReturned,
    ChunksSpilled,
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
    Refuse,
    ResultsKept,
    ResultsTaken,
    TimePassed,
    UseSpilled,
    WorkerLost,
    WorkerStarted,
)
from dask_mars.scheduler.states import State


class Machine:
    """All graphs and workers of one engine.

    Parameters
    ----------
    policy : Policy
        The numbers behind its decisions.
    """

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self._graphs: dict[int, Graph] = {}
        # Heap of (due, graph, chunk): READY chunks that wait for their retry's delay to pass.
        self._delayed: list[tuple[float, int, int]] = []
        #: When a disk that has failed is tried again.
        self._disk_due_s = math.inf
        self._out: list[Instruction] = []
        self._dispatcher = Dispatcher(self.policy, self._graphs, self._out.append)
        self.memory = self._dispatcher.memory
        self._handlers = {
            GraphSubmitted: self._graph_submitted,
            ChunksFinished: self._operands_finished,
            ChunkFailed: self._operand_failed,
            ChunksReturned: self._operands_returned,
            WorkerStarted: self._worker_started,
            WorkerLost: self._worker_lost,
            GraphCancelled: self._graph_cancelled,
            ResultsTaken: self._results_taken,
            ResultsKept: self._results_kept,
            ChunksReleased: self._chunks_released,
            ChunksSpilled: self._chunks_spilled,
            ChunksLoaded: self._chunks_loaded,
            TimePassed: self._time_passed,
        }

    # -- the interface ----------------------------------------------------------------------------------------

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Take note of one event and say what is to be done.

        Parameters
        ----------
        event : Event
            What happened.
        now_s : float
            The time, in seconds of any clock that does not go back.

        Returns
        -------
        list of Instruction
            To be carried out in this order.
        """
        self._dispatcher.now_s = now_s
        self._handlers[type(event)](event, now_s)  # type: ignore[operator]
        if self._delayed:
            self._wake(now_s)
        if now_s >= self._disk_due_s:
            self.memory.can_spill = True
            self._disk_due_s = math.inf
        refusal = self._dispatcher.dispatch()
        if refusal is not None:
            graph, chunk = refusal.graph, refusal.chunk
            self._out.append(Refuse(graph.number, chunk, refusal.need_bytes, refusal.limit_bytes))
            self._fail(graph, chunk, worker_lost=False)
        out = self._out.copy()
        self._out.clear()
        return out

    def next_due_s(self) -> float | None:
        """Return the time at which a `TimePassed` event is needed, if one is."""
        times = [due_s for due_s, *_ in self._delayed[:1]]
        if (ask_s := self._dispatcher.next_ask_s()) is not None:
            times.append(ask_s)
        return min(times, default=None)

    def state_of(self, graph: int, chunk: int) -> State:
        """Return a chunk's state."""
        return State(self._graphs[graph].state[chunk])

    def is_done(self, graph: int) -> bool:
        """Return whether all outputs of a graph are there."""
        return not self._graphs[graph].unfinished_outputs

    def counts(self, graph: int) -> dict[str, int]:
        """Count a graph's chunks by state name."""
        state = self._graphs[graph].state
        return {member.name: state.count(member) for member in State}

    @property
    def blocked(self) -> tuple[int, int, int] | None:
        """Graph and chunk of what is next and waits for memory, and the bytes that it needs."""
        return self._dispatcher.blocked

    @property
    def graphs(self) -> list[int]:
        """Numbers of the graphs that are not forgotten."""
        return list(self._graphs)

    def in_hand(self, worker: int) -> list[tuple[int, int]]:
        """Return the (graph, chunk) pairs that a worker has, in the order in which it got them, or the client."""
        if worker == CLIENT:
            return sorted(self._dispatcher.client_hand)
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

    def retry_due_s(self, graph: int, chunk: int) -> float | None:
        """Return when a chunk is to be tried again, if it waits for that."""
        return next((due_s for due_s, *what in self._delayed if what == [graph, chunk]), None)

    def stalled(self) -> list[int]:
        """Return the graphs that wait although nothing is under way that they could wait for: a bug.

        Time alone, a disk, a worker that starts and a user who takes results are such things.
        """
        dispatcher = self._dispatcher
        if self._delayed or dispatcher.memory.spilling_bytes or not dispatcher.workers:
            return []
        if any(graph.in_hand or graph.is_read for graph in self._graphs.values()):
            return []
        return [
            number for number, graph in self._graphs.items() if graph.unfinished_outputs and not graph.stopping
        ]

    # -- events -----------------------------------------------------------------------------------------------

    def _graph_submitted(self, event: GraphSubmitted, now_s: float) -> None:
        plan = event.plan
        graph = self._graphs[event.graph] = Graph(event.graph, plan)
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
            # Values that came with the graph were never computed: they start where others end.
            state[chunk] = FINISHED
            graph.mark_given(chunk)
        for chunk, (number, source) in plan.borrowed.items():
            self._lend(graph, chunk, self._graphs[number], source)
        for chunk in finished:
            graph.after_finish(chunk)
        if not graph.unfinished_outputs:
            self._out.append(FinishGraph(graph.number))

    def _operands_finished(self, event: ChunksFinished, now_s: float) -> None:
        graph = self._graphs.get(event.graph)
        if graph is None:
            return
        self._dispatcher.take_back(event.worker, graph, event.chunks)
        self._dispatcher.heard_of(event.worker)
        state = graph.state
        if event.worker != CLIENT:
            self._dispatcher.learn(graph, event.chunks, event.durations_s)
        if self.memory.limited and (event.sizes or event.worker != CLIENT):
            self._dispatcher.learn_sizes(graph, event)
        freed: list[int] = []
        all_inputs, consumers, output = graph.plan.inputs, graph.consumers, graph.output
        outputs_before = graph.unfinished_outputs
        for chunk in event.chunks:
            if state[chunk] == CANCELLING:
                graph.move(chunk, CANCELLED)
                # The result of what is in hand behind it may lie in the same memory: that goes with the graph.
                if not any(state[successor] == CANCELLING for successor in graph.successors[chunk]):
                    freed.append(chunk)
                continue
            graph.move(chunk, FINISHED)
            graph.after_finish(chunk)
            for source in all_inputs[chunk]:
                consumers[source] -= 1
                if not consumers[source] and not output[source]:
                    graph.move(source, FREED)
                    freed.append(source)
            if not consumers[chunk] and not output[chunk]:
                graph.move(chunk, FREED)
                freed.append(chunk)
        if freed:
            if graph.memory.sizes or graph.memory.spilled:
                for chunk in freed:
                    graph.memory.forget(chunk)
            self._out.append(Free(graph.number, freed))
        if outputs_before and not graph.unfinished_outputs and not graph.stopping:
            self._out.append(FinishGraph(graph.number))
        self._maybe_forget(graph)

    def _operand_failed(self, event: ChunkFailed, now_s: float) -> None:
        graph = self._graphs.get(event.graph)
        if graph is None:
            return
        self._dispatcher.take_back(event.worker, graph, (event.chunk,))
        self._dispatcher.heard_of(event.worker)
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
        policy = self.policy
        if not graph.give_back(chunk):
            # An input that the same worker had computed is to come once more.
            return
        # The exponent is bounded before it is used: a thousand retries must not overflow a float.
        graph.delayed.add(chunk)
        delay = min(policy.retry_delay_s * 2.0 ** min(attempt - 1, 60), policy.retry_delay_limit_s)
        heapq.heappush(self._delayed, (now_s + delay, graph.number, chunk))

    def _operands_returned(self, event: ChunksReturned, now_s: float) -> None:
        graph = self._graphs.get(event.graph)
        if graph is None:
            return
        self._dispatcher.take_back(event.worker, graph, event.chunks)
        for chunk in event.chunks:
            if graph.state[chunk] == CANCELLING:
                graph.move(chunk, CANCELLED)
                continue
            if event.to_client:
                graph.in_client[chunk] = 1
            if graph.give_back(chunk):
                graph.push(chunk)
        self._maybe_forget(graph)

    def _worker_started(self, event: WorkerStarted, now_s: float) -> None:
        self._dispatcher.workers[event.worker] = Worker()

    def _worker_lost(self, event: WorkerLost, now_s: float) -> None:
        in_hand = self._dispatcher.take_worker(event.worker)
        for number, chunk in in_hand:
            graph = self._graphs[number]
            graph.in_hand -= 1
            if graph.state[chunk] == CANCELLING:
                graph.move(chunk, CANCELLED)
            elif event.was_up and not graph.plan.is_repeatable(chunk):
                # It may be done and not have been reported.
                self._fail(graph, chunk, worker_lost=True)
            elif (number, chunk) != event.running:
                # It had not started, so its worker's death is not held against it.
                if graph.give_back(chunk):
                    graph.push(chunk)
            else:
                losses = graph.losses[chunk] = graph.losses.get(chunk, 0) + 1
                if losses > self.policy.lost_limit:
                    self._fail(graph, chunk, worker_lost=True)
                else:
                    self._delay(graph, chunk, losses, now_s)
        for number in dict.fromkeys(number for number, _ in in_hand):
            if number in self._graphs:
                self._maybe_forget(self._graphs[number])

    def _graph_cancelled(self, event: GraphCancelled, now_s: float) -> None:
        graph = self._graphs.get(event.graph)
        if graph is None:
            return
        graph.taken = True
        self._stop(graph, force=True)
        self._maybe_forget(graph)

    def _results_taken(self, event: ResultsTaken, now_s: float) -> None:
        graph = self._graphs.get(event.graph)
        if graph is None:
            return
        graph.taken = True
        if not graph.stopping:
            # All outputs are there, so whatever is left is of no use to anybody.
            self._stop(graph, force=False)
        self._maybe_forget(graph)

    def _results_kept(self, event: ResultsKept, now_s: float) -> None:
        graph = self._graphs[event.graph]
        count = len(event.chunks)
        kept = self._graphs[event.kept] = Graph(event.kept, GraphPlan([()] * count, range(count), [-1] * count))
        kept.state[:] = bytes([FINISHED]) * count
        kept.unfinished_outputs = 0
        # Idle data: nobody reads them, but for the graphs that borrow them.
        kept.taken = True
        for number, chunk in enumerate(event.chunks):
            graph.memory.hand_over(chunk, kept.memory, number)
        self._results_taken(ResultsTaken(event.graph), now_s)

    def _chunks_released(self, event: ChunksReleased, now_s: float) -> None:
        graph = self._graphs.get(event.graph)
        if graph is None:
            return
        released = [chunk for chunk in event.chunks if graph.state[chunk] == FINISHED]
        for chunk in released:
            graph.move(chunk, FREED)
            graph.memory.forget(chunk)
        self._out.append(Free(graph.number, released))
        if not graph.state.count(FINISHED):
            self._stop(graph, force=False)
            self._maybe_forget(graph)

    def _lend(self, graph: Graph, chunk: int, kept: Graph, source: int) -> None:
        kept.lent.setdefault(source, []).append((graph, chunk))
        if source in kept.memory.spilled:
            graph.memory.spilled[chunk] = kept.memory.spilled[source]

    def _take_home(self, graph: Graph) -> None:
        """Note that a graph needs nothing of what it has borrowed any more."""
        for chunk, (number, source) in graph.plan.borrowed.items():
            kept = self._graphs.get(number)
            if kept is not None:
                kept.lent[source].remove((graph, chunk))
                if not kept.lent[source]:
                    del kept.lent[source]

    def _chunks_spilled(self, event: ChunksSpilled, now_s: float) -> None:
        self.memory.answered(sum(event.sizes.values()))
        if event.written:
            self.memory.can_spill = True
        else:
            self.memory.can_spill = False
            self._disk_due_s = now_s + self.policy.disk_delay_s
        graph = self._graphs.get(event.graph)
        if graph is None:
            return
        graph.memory.spilling.difference_update(event.sizes)
        if not event.written:
            return
        pinned = self._dispatcher.pinned()
        used, borrowed = [], []
        for chunk, size in event.sizes.items():
            if chunk in graph.memory.sizes and (graph.number, chunk) not in pinned:
                del graph.memory.sizes[chunk]
                graph.memory.spilled[chunk] = size
                for user, its in graph.lent.get(chunk, ()):
                    if user.state[its] == FINISHED:
                        user.memory.spilled[its] = size
                        borrowed.append((user.number, its, chunk))
                # The instruction below makes it so; until the next event this is what is known.
                self.memory.stored_bytes -= size
                used.append(chunk)
        if used:
            self._out.append(UseSpilled(graph.number, used, borrowed))

    def _chunks_loaded(self, event: ChunksLoaded, now_s: float) -> None:
        graph = self._graphs[event.graph]
        for chunk in event.chunks:
            self._dispatcher.loaded(event.worker, graph, chunk)

    def _time_passed(self, event: TimePassed, now_s: float) -> None:
        pass

    # -- stopping ---------------------------------------------------------------------------------------------

    def _fail(self, graph: Graph, chunk: int, worker_lost: bool) -> None:
        """Make a chunk and all that depend on it FATAL, and stop the rest of its graph."""
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
                    # It stands in a queue, and will be returned.
                    behind.add(successor)
                    stack.append(successor)
        self._out.append(FailGraph(graph.number, chunk, worker_lost))
        # As under Dask's threads, what runs elsewhere may run to its end; nobody waits for it.
        self._stop(graph, force=False)
        graph.taken = not graph.plan.keeps_failed
        self._maybe_forget(graph)

    def _stop(self, graph: Graph, force: bool) -> None:
        graph.stopping = True
        graph.ready.clear()
        graph.client_ready.clear()
        graph.followers.clear()
        state = graph.state
        # Counting bytes is a thousand times faster than walking them, and most graphs end with nothing to stop.
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
        """Forget a graph that the user is done with once nothing of it is in any worker's hands."""
        if graph.taken and graph.stopping and not graph.in_hand and graph.number in self._graphs:
            del self._graphs[graph.number]
            self._take_home(graph)
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

    # -- proof ------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Check every invariant; raise AssertionError where one does not hold. For tests and debugging."""
        for graph in self._graphs.values():
            graph.validate()
            delayed = {chunk for _, number, chunk in self._delayed if number == graph.number}
            assert graph.stopping or graph.delayed == delayed
        self._dispatcher.validate()


__all__ = ["Machine", "Policy"]
