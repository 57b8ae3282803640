"""The scheduler's state machine: events in, instructions out.

The law of this module: it is pure. It knows no clock, no process and no byte of data; the time comes in as an
argument, ties break on chunk ids, and equal event sequences give equal instructions. An event that does not fit
the present state is ignored where a race of messages can explain it (a worker finished what was just cancelled)
and raises `StateError` where only a bug can.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass

from dask_mars.errors import StateError
from dask_mars.scheduler.events import (
    CLIENT,
    ChunksSpilled,
    DropSpilled,
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
    OperandFailed,
    OperandsFinished,
    OperandsReturned,
    Refuse,
    ResultsTaken,
    Run,
    Spill,
    TimePassed,
    UseSpilled,
    WorkerLost,
    WorkerStarted,
)
from dask_mars.scheduler.memory import GraphMemory, Memory
from dask_mars.scheduler.states import ENDED, LEGAL, MOVES, State

_STATES = len(State)
# Plain integers: an IntEnum member costs a look-up and a comparison through its class on the hot path.
_UNSCHEDULED, _READY, _RUNNING, _FINISHED, _FREED, _FATAL, _CANCELLING, _CANCELLED = (
    int(state) for state in State
)


@dataclass(frozen=True, slots=True)
class Policy:
    """Numbers that shape the machine's decisions.

    Attributes
    ----------
    window_s : float
        How many seconds of estimated work may stand in a worker's queue. Small enough that a queue is never a
        reason to wait, large enough that a message carries many small operands.
    batch_limit : int
        Most chunks in one `Run`.
    lost_limit : int
        How often a worker may die on the same chunk before the chunk is FATAL.
    retry_delay_s, retry_delay_limit_s : float
        Delay before the first retry, doubled for each further one up to the limit.
    store_limit : int or None
        Bytes that the store may hold; without a limit nothing is counted.
    memory_limit : int
        Bytes that it may hold if nothing else helps.
    look_ahead, pass_limit : int
        Past how many chunks for which there is no room others are looked for, and how often in a row that is done.
    """

    window_s: float = 0.005
    batch_limit: int = 2000
    lost_limit: int = 3
    retry_delay_s: float = 0.1
    retry_delay_limit_s: float = 10.0
    store_limit: int | None = None
    memory_limit: int = 0
    look_ahead: int = 8
    pass_limit: int = 100


class _Graph:
    """One graph's bookkeeping; lists are indexed by chunk."""

    __slots__ = (
        "client_ready",
        "consumers",
        "failures",
        "finished_outputs",
        "in_client",
        "in_hand",
        "losses",
        "mean_s",
        "memory",
        "number",
        "output",
        "passes",
        "plan",
        "rank",
        "ready",
        "state",
        "stopping",
        "successors",
        "taken",
        "unfinished_outputs",
        "waiting",
    )

    def __init__(self, number: int, plan: GraphPlan) -> None:
        count = len(plan.inputs)
        self.number = number
        self.plan = plan
        #: State of each chunk.
        self.state = bytearray(count)
        #: Inputs of an UNSCHEDULED chunk that are not FINISHED yet.
        self.waiting = [len(inputs) for inputs in plan.inputs]
        self.successors: list[list[int]] = [[] for _ in range(count)]
        #: Successors that have not FINISHED: when none is left a chunk is FREED, unless it is an output.
        self.consumers = [0] * count
        self.output = bytearray(count)
        for chunk in plan.outputs:
            self.output[chunk] = 1
        self.unfinished_outputs = sum(self.output)
        #: Heap of READY chunks for workers, as (rank, chunk) or chunk where ranks are the chunk ids.
        self.ready: list[int] = []
        self.client_ready: list[int] = []
        self.in_client = bytearray(count)
        for chunk in plan.in_client:
            self.in_client[chunk] = 1
        #: Position of each chunk in the order of priority, and its inverse; None where it is the id itself.
        self.rank = _ranks(plan)
        self.failures: dict[int, int] = {}
        self.losses: dict[int, int] = {}
        #: Chunks that are RUNNING or CANCELLING.
        self.in_hand = 0
        #: Failed or cancelled: nothing new is started.
        self.stopping = False
        #: The user has the results, or never will.
        self.taken = False
        #: Mean duration of its chunks in seconds, the guess for operands never seen; None before the first.
        self.mean_s: float | None = None
        self.memory = GraphMemory(plan.operand_of, plan.declared_bytes)
        #: How often in a row others have passed the chunk that is next and has no room.
        self.passes = 0

    def inputs(self, chunk: int) -> tuple[int, ...]:
        return self.plan.inputs[chunk]

    @property
    def is_read(self) -> bool:
        """Whether the user has been told that the results are there, and has not taken them yet."""
        return not self.unfinished_outputs and not self.taken

    def next_use(self, chunk: int) -> float:
        """Return the rank of the first chunk that will need another's data; infinite if only the user does."""
        waiting = [successor for successor in self.successors[chunk] if self.state[successor] <= _READY]
        if not waiting:
            return math.inf
        return min(waiting) if self.rank is None else min(self.rank[0][successor] for successor in waiting)

    def push(self, chunk: int) -> None:
        rank = chunk if self.rank is None else self.rank[0][chunk]
        heapq.heappush(self.client_ready if self.in_client[chunk] else self.ready, rank)

    def withdraw(self, chunk: int) -> None:
        """Take a chunk for workers out of turn."""
        self.ready.remove(chunk if self.rank is None else self.rank[0][chunk])
        heapq.heapify(self.ready)

    def pop(self, heap: list[int]) -> int:
        rank = heapq.heappop(heap)
        return rank if self.rank is None else self.rank[1][rank]


def _ranks(plan: GraphPlan) -> tuple[list[int], list[int]] | None:
    if not any(plan.priorities.values()):
        return None
    priorities = plan.priorities
    order = sorted(range(len(plan.inputs)), key=lambda chunk: (-priorities.get(chunk, 0.0), chunk))
    rank = [0] * len(order)
    for position, chunk in enumerate(order):
        rank[chunk] = position
    return rank, order


class _Worker:
    """What one worker has in hand."""

    __slots__ = ("in_hand", "load_s")

    def __init__(self) -> None:
        #: (graph, chunk) to the estimated duration that it adds to `load_s`.
        self.in_hand: dict[tuple[int, int], float] = {}
        #: Estimated seconds of work in hand.
        self.load_s = 0.0


class Machine:
    """All graphs and workers of one engine.

    Parameters
    ----------
    policy : Policy
        The numbers behind its decisions.
    """

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self._graphs: dict[int, _Graph] = {}
        self._workers: dict[int, _Worker] = {}
        #: Graph and chunk of what the user's process is computing.
        self._client_hand: set[tuple[int, int]] = set()
        # Mean duration in seconds of (graph, operand).
        self._estimates: dict[tuple[int, int], float] = {}
        # Heap of (due, graph, chunk): READY chunks that wait for their retry's delay to pass.
        self._delayed: list[tuple[float, int, int]] = []
        self._out: list[Instruction] = []
        self.memory = Memory(self.policy.store_limit, self.policy.memory_limit)
        #: The chunk that is next and has no room, with the bytes that it needs.
        self._blocked: tuple[_Graph, int, int] | None = None
        self._handlers = {
            GraphSubmitted: self._graph_submitted,
            OperandsFinished: self._operands_finished,
            OperandFailed: self._operand_failed,
            OperandsReturned: self._operands_returned,
            WorkerStarted: self._worker_started,
            WorkerLost: self._worker_lost,
            GraphCancelled: self._graph_cancelled,
            ResultsTaken: self._results_taken,
            ChunksSpilled: self._chunks_spilled,
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
        self._handlers[type(event)](event, now_s)  # type: ignore[operator]
        if self._delayed:
            self._wake(now_s)
        self._dispatch()
        if self._blocked is not None:
            self._make_room_for(*self._blocked)
        elif self.memory.limited and (missing := self.memory.missing_bytes(0)):
            # Results were larger than was thought.
            self._spill(missing, set())
        out, self._out = self._out, []
        return out

    def next_due_s(self) -> float | None:
        """Return the time at which a `TimePassed` event is needed, if one is."""
        return self._delayed[0][0] if self._delayed else None

    def state_of(self, graph: int, chunk: int) -> State:
        """Return a chunk's state."""
        return State(self._graphs[graph].state[chunk])

    def counts(self, graph: int) -> dict[str, int]:
        """Count a graph's chunks by state name."""
        state = self._graphs[graph].state
        return {member.name: state.count(member) for member in State}

    @property
    def blocked(self) -> bool:
        """Whether something waits for memory."""
        return self._blocked is not None

    @property
    def graphs(self) -> list[int]:
        """Numbers of the graphs that are not forgotten."""
        return list(self._graphs)

    def in_hand(self, worker: int) -> list[tuple[int, int]]:
        """Return the (graph, chunk) pairs that a worker has, in the order in which it got them."""
        return list(self._workers[worker].in_hand)

    # -- moves ------------------------------------------------------------------------------------------------

    def _move(self, graph: _Graph, chunk: int, target: int) -> None:
        state = graph.state
        if not LEGAL[state[chunk] * _STATES + target]:
            raise StateError(graph.number, chunk, State(state[chunk]).name, State(target).name)
        state[chunk] = target

    # -- events -----------------------------------------------------------------------------------------------

    def _graph_submitted(self, event: GraphSubmitted, now_s: float) -> None:
        plan = event.plan
        graph = self._graphs[event.graph] = _Graph(event.graph, plan)
        state, successors, consumers = graph.state, graph.successors, graph.consumers
        for chunk, inputs in enumerate(plan.inputs):
            for source in inputs:
                successors[source].append(chunk)
                consumers[source] += 1
        finished = []
        for chunk, operand in enumerate(plan.operand_of):
            if operand < 0:
                finished.append(chunk)
            elif not plan.inputs[chunk]:
                state[chunk] = _READY
                graph.push(chunk)
        for chunk in finished:
            # Values that came with the graph were never computed: they start where others end.
            state[chunk] = _FINISHED
        for chunk in finished:
            self._after_finish(graph, chunk)
        if not graph.unfinished_outputs:
            self._out.append(FinishGraph(graph.number))

    def _operands_finished(self, event: OperandsFinished, now_s: float) -> None:
        graph = self._graphs.get(event.graph)
        if graph is None:
            return
        self._take_back(event.worker, graph, event.chunks)
        state = graph.state
        if event.worker != CLIENT:
            self._learn(graph, event.chunks, event.durations_s)
            if self.memory.limited:
                new = graph.memory.learn(event.chunks, event.sizes, event.fresh)
                if new:
                    self._promise_in_hand(graph, new)
        freed: list[int] = []
        all_inputs, consumers, output = graph.plan.inputs, graph.consumers, graph.output
        outputs_before = graph.unfinished_outputs
        for chunk in event.chunks:
            if state[chunk] == _CANCELLING:
                self._move(graph, chunk, _CANCELLED)
                freed.append(chunk)
                continue
            self._move(graph, chunk, _FINISHED)
            self._after_finish(graph, chunk)
            for source in all_inputs[chunk]:
                consumers[source] -= 1
                if not consumers[source] and not output[source]:
                    self._move(graph, source, _FREED)
                    freed.append(source)
            if not consumers[chunk] and not output[chunk]:
                self._move(graph, chunk, _FREED)
                freed.append(chunk)
        if freed:
            if graph.memory.sizes or graph.memory.spilled:
                for chunk in freed:
                    graph.memory.forget(chunk)
            self._out.append(Free(graph.number, freed))
        if outputs_before and not graph.unfinished_outputs and not graph.stopping:
            self._out.append(FinishGraph(graph.number))
        self._maybe_forget(graph)

    def _after_finish(self, graph: _Graph, chunk: int) -> None:
        """Count a chunk that has just FINISHED, and ready those that waited for it alone."""
        if graph.output[chunk]:
            graph.unfinished_outputs -= 1
        waiting, state = graph.waiting, graph.state
        for successor in graph.successors[chunk]:
            waiting[successor] -= 1
            if not waiting[successor] and state[successor] == _UNSCHEDULED:
                state[successor] = _READY
                graph.push(successor)

    def _operand_failed(self, event: OperandFailed, now_s: float) -> None:
        graph = self._graphs.get(event.graph)
        if graph is None:
            return
        self._take_back(event.worker, graph, (event.chunk,))
        chunk = event.chunk
        if graph.state[chunk] == _CANCELLING:
            self._move(graph, chunk, _CANCELLED)
            self._maybe_forget(graph)
            return
        failures = graph.failures[chunk] = graph.failures.get(chunk, 0) + 1
        allowed = graph.plan.retries.get(chunk, graph.plan.default_retries)
        if event.final or failures > allowed:
            self._fail(graph, chunk, worker_lost=False)
        else:
            self._delay(graph, chunk, failures, now_s)

    def _delay(self, graph: _Graph, chunk: int, attempt: int, now_s: float) -> None:
        policy = self.policy
        self._move(graph, chunk, _READY)
        # The exponent is bounded before it is used: a thousand retries must not overflow a float.
        delay = min(policy.retry_delay_s * 2.0 ** min(attempt - 1, 60), policy.retry_delay_limit_s)
        heapq.heappush(self._delayed, (now_s + delay, graph.number, chunk))

    def _operands_returned(self, event: OperandsReturned, now_s: float) -> None:
        graph = self._graphs.get(event.graph)
        if graph is None:
            return
        self._take_back(event.worker, graph, event.chunks)
        for chunk in event.chunks:
            if graph.state[chunk] == _CANCELLING:
                self._move(graph, chunk, _CANCELLED)
                continue
            if event.to_client:
                graph.in_client[chunk] = 1
            self._move(graph, chunk, _READY)
            graph.push(chunk)
        self._maybe_forget(graph)

    def _worker_started(self, event: WorkerStarted, now_s: float) -> None:
        self._workers[event.worker] = _Worker()

    def _worker_lost(self, event: WorkerLost, now_s: float) -> None:
        worker = self._workers.pop(event.worker, None)
        if worker is None:
            return
        for number, chunk in worker.in_hand:
            self.memory.release(number, (chunk,))
            graph = self._graphs[number]
            graph.in_hand -= 1
            if graph.state[chunk] == _CANCELLING:
                self._move(graph, chunk, _CANCELLED)
            elif (number, chunk) != event.running:
                # It had not started, so its worker's death is not held against it.
                self._move(graph, chunk, _READY)
                graph.push(chunk)
            else:
                losses = graph.losses[chunk] = graph.losses.get(chunk, 0) + 1
                if losses > self.policy.lost_limit:
                    self._fail(graph, chunk, worker_lost=True)
                else:
                    self._delay(graph, chunk, losses, now_s)
        for number in dict.fromkeys(number for number, _ in worker.in_hand):
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

    def _chunks_spilled(self, event: ChunksSpilled, now_s: float) -> None:
        self.memory.answered(sum(event.sizes.values()))
        if not event.written:
            self.memory.can_spill = False
        graph = self._graphs.get(event.graph)
        if graph is None:
            return
        graph.memory.spilling.difference_update(event.sizes)
        if not event.written:
            return
        pinned = self._pinned()
        used, useless = [], []
        for chunk, size in event.sizes.items():
            if chunk in graph.memory.sizes and (graph.number, chunk) not in pinned:
                del graph.memory.sizes[chunk]
                graph.memory.spilled[chunk] = size
                # The instruction below makes it so; until the next event this is what is known.
                self.memory.stored_bytes -= size
                used.append(chunk)
            else:
                useless.append(chunk)
        if used:
            self._out.append(UseSpilled(graph.number, used))
        if useless:
            self._out.append(DropSpilled(graph.number, useless))

    def _time_passed(self, event: TimePassed, now_s: float) -> None:
        pass

    # -- stopping ---------------------------------------------------------------------------------------------

    def _fail(self, graph: _Graph, chunk: int, worker_lost: bool) -> None:
        """Make a chunk and all that depend on it FATAL, and stop the rest of its graph."""
        state = graph.state
        self._move(graph, chunk, _FATAL)
        stack = [chunk]
        while stack:
            for successor in graph.successors[stack.pop()]:
                if state[successor] == _UNSCHEDULED:
                    self._move(graph, successor, _FATAL)
                    stack.append(successor)
        self._out.append(FailGraph(graph.number, chunk, worker_lost))
        # As under Dask's threads, what runs elsewhere may run to its end; nobody waits for it.
        self._stop(graph, force=False)
        graph.taken = True
        self._maybe_forget(graph)

    def _stop(self, graph: _Graph, force: bool) -> None:
        graph.stopping = True
        graph.ready.clear()
        graph.client_ready.clear()
        state = graph.state
        # Counting bytes is a thousand times faster than walking them, and most graphs end with nothing to stop.
        if not any(state.count(live) for live in (_UNSCHEDULED, _READY, _RUNNING)):
            return
        for chunk, current in enumerate(state):
            if current in (_UNSCHEDULED, _READY):
                self._move(graph, chunk, _CANCELLED)
            elif current == _RUNNING:
                self._move(graph, chunk, _CANCELLING)
        for number, worker in self._workers.items():
            if any(owner == graph.number for owner, _ in worker.in_hand):
                self._out.append(Interrupt(number, graph.number, force))

    def _maybe_forget(self, graph: _Graph) -> None:
        """Forget a graph that the user is done with once nothing of it is in any worker's hands."""
        if graph.taken and graph.stopping and not graph.in_hand and graph.number in self._graphs:
            del self._graphs[graph.number]
            self._estimates = {key: value for key, value in self._estimates.items() if key[0] != graph.number}
            self._out.append(ForgetGraph(graph.number))

    # -- dispatch ---------------------------------------------------------------------------------------------

    def _take_back(self, number: int, graph: _Graph, chunks: Iterable[int]) -> None:
        """Note that a worker no longer has chunks in hand."""
        self.memory.release(graph.number, chunks)
        if number == CLIENT:
            for chunk in chunks:
                self._client_hand.remove((graph.number, chunk))
                graph.in_hand -= 1
            return
        worker = self._workers[number]
        in_hand = worker.in_hand
        for chunk in chunks:
            worker.load_s -= in_hand.pop((graph.number, chunk))
            graph.in_hand -= 1
        if not in_hand:
            worker.load_s = 0.0

    def _learn(self, graph: _Graph, chunks: Iterable[int], durations_s: Iterable[float]) -> None:
        """Update the mean duration of operands, the newest measurement counting for a quarter."""
        estimates, operand_of, number = self._estimates, graph.plan.operand_of, graph.number
        for chunk, duration_s in zip(chunks, durations_s, strict=True):
            key = (number, operand_of[chunk])
            old = estimates.get(key)
            estimates[key] = duration_s if old is None else old + 0.25 * (duration_s - old)
            mean_s = graph.mean_s
            graph.mean_s = duration_s if mean_s is None else mean_s + 0.25 * (duration_s - mean_s)

    def _wake(self, now_s: float) -> None:
        while self._delayed and self._delayed[0][0] <= now_s:
            _, number, chunk = heapq.heappop(self._delayed)
            graph = self._graphs.get(number)
            if graph is not None and graph.state[chunk] == _READY:
                graph.push(chunk)

    def _dispatch(self) -> None:
        """Hand READY chunks to the client and to workers whose queue is short."""
        self._blocked = None
        for graph in self._graphs.values():
            if graph.client_ready:
                chunks = []
                while graph.client_ready:
                    chunk = graph.pop(graph.client_ready)
                    self._move(graph, chunk, _RUNNING)
                    chunks.append(chunk)
                self._client_hand.update((graph.number, chunk) for chunk in chunks)
                graph.in_hand += len(chunks)
                self._out.append(Run(CLIENT, graph.number, chunks))
        # Graphs take turns, so that a small one is not stuck behind a large one.
        while True:
            given = False
            for graph in list(self._graphs.values()):
                if graph.ready and self._dispatch_graph(graph):
                    given = True
                    # To the end of the line: the next event's room goes to the others first.
                    self._graphs[graph.number] = self._graphs.pop(graph.number)
            if not given:
                return

    def _dispatch_graph(self, graph: _Graph) -> bool:
        """Give each worker with room a share of the graph's READY chunks."""
        policy = self.policy
        limit = graph.plan.worker_limit
        busy = [
            (worker.load_s, len(worker.in_hand), number)
            for number, worker in self._workers.items()
            if limit is None or number < limit
        ]
        # A worker is topped up when half of its window is worked off, so that it does not run dry meanwhile.
        free = [entry for entry in sorted(busy) if not entry[1] or entry[0] < policy.window_s / 2]
        given = False
        for position, (_, _, number) in enumerate(free):
            if not graph.ready:
                break
            share = -(-len(graph.ready) // (len(free) - position))
            chunks = self._fill(graph, self._workers[number], min(share, policy.batch_limit))
            if chunks:
                given = True
                self._out.append(Run(number, graph.number, chunks))
        return given

    def _fill(self, graph: _Graph, worker: _Worker, most: int) -> list[int]:
        """Move chunks into a worker's hands until its window is full."""
        estimates, operand_of, number = self._estimates, graph.plan.operand_of, graph.number
        window_s, in_hand, state = self.policy.window_s, worker.in_hand, graph.state
        chunks: list[int] = []
        load_s = worker.load_s
        # An operand never seen may be slow. Before anything is known of the graph it goes to a worker with nothing
        # else to do; after that a few at a time may stand in a queue.
        unknown_s = window_s if graph.mean_s is None else max(graph.mean_s, window_s / 8)
        memory = self.memory if self.memory.limited else None
        passed: list[int] = []
        while graph.ready and len(chunks) < most:
            rank = graph.ready[0]
            chunk = rank if graph.rank is None else graph.rank[1][rank]
            estimate = estimates.get((number, operand_of[chunk]))
            cost_s = unknown_s if estimate is None else estimate
            if in_hand and load_s + cost_s > window_s:
                break
            need = 0
            if memory is not None and (need := memory.need(graph, chunk)):
                if not memory.admits(need):
                    if self._blocked is None:
                        self._blocked = graph, chunk, need
                    passed.append(heapq.heappop(graph.ready))
                    if len(passed) > self.policy.look_ahead:
                        break
                    continue
                if passed and graph.passes >= self.policy.pass_limit:
                    break
                memory.promise(number, chunk, need)
                graph.passes = graph.passes + 1 if passed else 0
            heapq.heappop(graph.ready)
            if not LEGAL[state[chunk] * _STATES + _RUNNING]:
                self._move(graph, chunk, _RUNNING)
            state[chunk] = _RUNNING
            in_hand[number, chunk] = cost_s
            load_s += cost_s
            chunks.append(chunk)
        for rank in passed:
            heapq.heappush(graph.ready, rank)
        worker.load_s = load_s
        graph.in_hand += len(chunks)
        return chunks

    # -- memory -----------------------------------------------------------------------------------------------

    def _promise_in_hand(self, graph: _Graph, operands: set[int]) -> None:
        """Promise what the chunks in hand of some operands need, now that it is known."""
        for worker in self._workers.values():
            for number, chunk in worker.in_hand:
                if number == graph.number and graph.plan.operand_of[chunk] in operands:
                    self.memory.promise(number, chunk, self.memory.need(graph, chunk))

    def _pinned(self) -> set[tuple[int, int]]:
        """Return what is being read, by graph and chunk: inputs of what is in hand, and results the user takes."""
        hands = [self._client_hand, *[worker.in_hand for worker in self._workers.values()]]
        pinned = {
            (number, source)
            for hand in hands
            for number, chunk in hand
            for source in self._graphs[number].inputs(chunk)
        }
        for graph in self._graphs.values():
            if graph.is_read:
                pinned.update((graph.number, chunk) for chunk in graph.plan.outputs)
        return pinned

    def _spill(self, missing_bytes: int, spared: set[tuple[int, int]]) -> None:
        """Have chunks written to disk, but for those that are needed now."""
        for number, chosen in self.memory.choose(
            self._graphs.values(), missing_bytes, spared | self._pinned()
        ).items():
            self._out.append(Spill(number, chosen))

    def _make_room_for(self, graph: _Graph, chunk: int, need: int) -> None:
        """Have chunks written to disk for the one that is next; if that cannot help, run it alone or refuse it."""
        memory = self.memory
        missing = memory.missing_bytes(need)
        if missing:
            self._spill(missing, {(graph.number, source) for source in graph.inputs(chunk)})
        if memory.spilling_bytes or any(other.in_hand or other.is_read for other in self._graphs.values()):
            return
        limit = graph.plan.worker_limit
        free = [number for number in self._workers if limit is None or number < limit]
        if not free:
            return
        self._blocked = None
        graph.withdraw(chunk)
        self._move(graph, chunk, _RUNNING)
        if memory.stored_bytes + need > memory.hard_limit_bytes:
            self._out.append(Refuse(graph.number, chunk, need, memory.hard_limit_bytes - memory.stored_bytes))
            self._fail(graph, chunk, worker_lost=False)
            return
        self._run_alone(graph, chunk, need, free[0])

    def _run_alone(self, graph: _Graph, chunk: int, need: int, number: int) -> None:
        worker = self._workers[number]
        self.memory.promise(graph.number, chunk, need)
        worker.in_hand[graph.number, chunk] = self.policy.window_s
        worker.load_s += self.policy.window_s
        graph.in_hand += 1
        self._out.append(Run(number, graph.number, [chunk]))

    # -- proof ------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Check every invariant; raise AssertionError where one does not hold. For tests and debugging."""
        for graph in self._graphs.values():
            _validate_graph(graph, self._delayed)
        for worker in self._workers.values():
            for number, chunk in worker.in_hand:
                state = self._graphs[number].state[chunk]
                assert state in (_RUNNING, _CANCELLING), (number, chunk, State(state))
            assert abs(worker.load_s - sum(worker.in_hand.values())) < 1e-6
        for number, chunk in self._client_hand:
            assert self._graphs[number].state[chunk] in (_RUNNING, _CANCELLING)
        handed = sum(len(worker.in_hand) for worker in self._workers.values())
        assert handed + len(self._client_hand) == sum(graph.in_hand for graph in self._graphs.values())


def _validate_graph(graph: _Graph, delayed: list[tuple[float, int, int]]) -> None:
    state, plan = graph.state, graph.plan
    done = {_FINISHED, _FREED}
    ready = {chunk for chunk, current in enumerate(state) if current == _READY}
    queued = [rank if graph.rank is None else graph.rank[1][rank] for rank in [*graph.ready, *graph.client_ready]]
    assert len(queued) == len(set(queued)), "a chunk is queued twice"
    waiting_for_retry = {chunk for _, number, chunk in delayed if number == graph.number}
    assert ready <= set(queued) | waiting_for_retry, "a READY chunk would never run"
    assert set(queued) <= ready, "a chunk that is not READY is queued"
    in_hand = 0
    unfinished_outputs = 0
    for chunk, inputs in enumerate(plan.inputs):
        current = state[chunk]
        in_hand += current in (_RUNNING, _CANCELLING)
        unfinished_outputs += bool(graph.output[chunk]) and current not in done
        if current in (_UNSCHEDULED, _READY):
            missing = sum(state[source] not in done for source in inputs)
            assert graph.waiting[chunk] == missing, (chunk, graph.waiting[chunk], missing)
            assert (current == _READY) == (missing == 0)
        if current in (_READY, _RUNNING):
            assert all(state[source] == _FINISHED for source in inputs), "an input is gone"
        consumers = sum(state[successor] not in done for successor in graph.successors[chunk])
        if not graph.stopping:
            assert graph.consumers[chunk] == consumers
            if current == _FINISHED:
                assert consumers or graph.output[chunk], "data kept for nobody"
    assert graph.in_hand == in_hand
    assert graph.unfinished_outputs == unfinished_outputs
    if graph.stopping:
        assert not ready, "a stopped graph has work"
        assert all(State(current) in ENDED or current == _CANCELLING for current in state)


__all__ = ["CLIENT", "MOVES", "Machine", "Policy", "State"]
