"""Who runs what next: READY chunks, and those that follow them, go to workers whose queue is short.

A part of the state machine, and pure.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dask_mars.scheduler.bookkeeping import FINISHED, UNSCHEDULED, Graph, Worker
from dask_mars.scheduler.events import CLIENT, ChunksFinished, Instruction, ReadAhead, RecallQueued, Run, Spill
from dask_mars.scheduler.memory import Memory

#: From here on the time between requests to give back what waits is not doubled any more.
_MOST_ASKS = 8


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
    silence_s : float
        A worker that has not reported anything for so long gets no more work, and if another has nothing to do, it
        is asked to give back what waits in its queue; after twice as long once more, and so on.
    lost_limit : int
        How often a worker may die on the same chunk before the chunk is FATAL.
    retry_delay_s, retry_delay_limit_s : float
        Delay before the first retry, doubled for each further one up to the limit.
    disk_delay_s : float
        How long nothing is written to a disk that has failed.
    store_limit : int or None
        Bytes that the store may hold; without a limit nothing is counted.
    memory_limit : int
        Bytes that it may hold if nothing else helps.
    announce_limit : int
        Of how many chunks that are next the inputs are read ahead from disk, at most.
    look_ahead, pass_limit : int
        Past how many chunks for which there is no room others are looked for, and how often in a row that is done.
    """

    window_s: float = 0.02
    batch_limit: int = 2000
    silence_s: float = 0.02
    lost_limit: int = 3
    retry_delay_s: float = 0.1
    retry_delay_limit_s: float = 10.0
    disk_delay_s: float = 5.0
    store_limit: int | None = None
    memory_limit: int = 0
    announce_limit: int = 4
    look_ahead: int = 8
    pass_limit: int = 100


@dataclass(frozen=True, slots=True)
class Refusal:
    """A chunk that needs more bytes than there can be."""

    graph: Graph
    chunk: int
    need_bytes: int
    limit_bytes: int


class Dispatcher:
    """Hands chunks out, and knows in whose hands they are.

    Parameters
    ----------
    policy : Policy
        The numbers behind its decisions.
    graphs : dict
        All graphs by number; whose turn it is comes first.
    emit : callable
        Takes the instructions.

    Attributes
    ----------
    workers : dict
        What each worker has in hand, by number.
    client_hand : set
        Graph and chunk of what the user's process is computing.
    """

    def __init__(self, policy: Policy, graphs: dict[int, Graph], emit: Callable[[Instruction], None]) -> None:
        self._policy = policy
        self._graphs = graphs
        self._emit = emit
        #: The time of the present event.
        self.now_s = 0.0
        self.workers: dict[int, Worker] = {}
        self.client_hand: set[tuple[int, int]] = set()
        self.memory = Memory(policy.store_limit, policy.memory_limit)
        # Mean duration in seconds of (graph, operand).
        self._estimates: dict[tuple[int, int], float] = {}
        #: The chunk that is next and has no room, with the bytes that it needs.
        self._blocked: tuple[Graph, int, int] | None = None

    @property
    def blocked(self) -> tuple[int, int, int] | None:
        """Graph and chunk of what is next and waits for memory, and the bytes that it needs."""
        if self._blocked is None:
            return None
        graph, chunk, need_bytes = self._blocked
        return graph.number, chunk, need_bytes

    def dispatch(self) -> Refusal | None:
        """Hand out what can be; return what can never be."""
        self._hand_out()
        self._ask_back()
        for graph in self._graphs.values():
            if chunks := graph.announce(min(len(self.workers), self._policy.announce_limit)):
                self._emit(ReadAhead(graph.number, chunks))
        if self._blocked is not None:
            return self._make_room_for(*self._blocked)
        if self.memory.limited and (missing := self.memory.missing_bytes(0)):
            # Results were larger than was thought.
            self._spill(missing, set())
        return None

    # -- hands ------------------------------------------------------------------------------------------------

    def take_back(self, number: int, graph: Graph, chunks: Iterable[int]) -> None:
        """Note that a worker no longer has chunks in hand."""
        self.memory.release(graph.number, chunks)
        if number == CLIENT:
            for chunk in chunks:
                self.client_hand.remove((graph.number, chunk))
                graph.in_hand -= 1
            return
        worker = self.workers[number]
        in_hand = worker.in_hand
        for chunk in chunks:
            worker.load_s -= in_hand.pop((graph.number, chunk))
            graph.in_hand -= 1
        if not in_hand:
            worker.load_s = 0.0

    def heard_of(self, number: int) -> None:
        """Note that a worker has come to the end of a chunk."""
        if number != CLIENT:
            worker = self.workers[number]
            worker.heard_s, worker.recall_attempts = self.now_s, 0

    def take_worker(self, number: int) -> list[tuple[int, int]]:
        """Forget a worker, and return graph and chunk of all that it had in hand; the graphs count them still."""
        worker = self.workers.pop(number, None)
        if worker is None:
            return []
        for owner, chunk in worker.in_hand:
            self.memory.release(owner, (chunk,))
        for graph in self._graphs.values():
            graph.followers.pop(number, None)
            graph.memory.forget_worker(number)
        return list(worker.in_hand)

    def learn(self, graph: Graph, chunks: Iterable[int], durations_s: Iterable[float]) -> None:
        """Update the mean duration of operands, the newest measurement counting for a quarter."""
        estimates, operand_of, number = self._estimates, graph.plan.operand_of, graph.number
        for chunk, duration_s in zip(chunks, durations_s, strict=True):
            key = (number, operand_of[chunk])
            old = estimates.get(key)
            estimates[key] = duration_s if old is None else old + 0.25 * (duration_s - old)
            mean_s = graph.mean_s
            graph.mean_s = duration_s if mean_s is None else mean_s + 0.25 * (duration_s - mean_s)

    def learn_sizes(self, graph: Graph, event: ChunksFinished) -> None:
        """Note what operands and their results have taken in the store."""
        new = graph.memory.learn(event.chunks, event.sizes, event.fresh, event.peaks)
        if not new:
            return
        # Chunks of these operands may be in hand without a promise.
        for worker in self.workers.values():
            for number, chunk in worker.in_hand:
                if number == graph.number and graph.plan.operand_of[chunk] in new:
                    self.memory.reserve(number, chunk, self.memory.need(graph, chunk))

    def loaded(self, number: int, graph: Graph, chunk: int) -> None:
        """Note that a worker has put a chunk back into the store, where it is counted from now on."""
        size = graph.memory.loaded(chunk)
        in_hand = self.workers[number].in_hand
        for successor in graph.successors[chunk]:
            # Of the same worker alone: others may be reading it into memory of their own.
            if (graph.number, successor) in in_hand:
                self.memory.repay(graph.number, successor, size)

    def forget(self, graph: Graph) -> None:
        """Forget a graph of which nothing is in any hands."""
        self._estimates = {key: value for key, value in self._estimates.items() if key[0] != graph.number}

    # -- handing out ------------------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        self._blocked = None
        waiting: list[Graph] = []
        for graph in self._graphs.values():
            if graph.client_ready:
                if graph.plan.client_stores:
                    waiting.append(graph)
                else:
                    self._give_to_client(graph)
        # Graphs take turns, so that a small one is not stuck behind a large one.
        given = True
        while given:
            given = False
            for graph in list(self._graphs.values()):
                if (graph.ready or graph.followers) and self._dispatch_graph(graph):
                    given = True
                    # To the end of the line: the next event's room goes to the others first.
                    self._graphs[graph.number] = self._graphs.pop(graph.number)
        # What workers do gives memory back in the end, and what comes from outside could take all of it.
        for graph in waiting:
            if self._blocked is None:
                self._give_to_client(graph)

    def _give_to_client(self, graph: Graph) -> None:
        memory, counts = self.memory, self.memory.limited and graph.plan.client_stores
        chunks = []
        while graph.client_ready:
            chunk = graph.chunk_of(graph.client_ready[0])
            if graph.is_next(chunk):
                need = graph.memory.need(chunk) if counts else 0
                if need:
                    if not memory.admits(need):
                        self._blocked = graph, chunk, need
                        break
                    memory.reserve(graph.number, chunk, need)
                graph.give(chunk)
                self.client_hand.add((graph.number, chunk))
                chunks.append(chunk)
            heapq.heappop(graph.client_ready)
        if chunks:
            self._emit(Run(CLIENT, graph.number, chunks))

    def _dispatch_graph(self, graph: Graph) -> bool:
        """Give each worker with room a share of the graph's READY chunks, and what follows them."""
        policy = self._policy
        limit = graph.plan.worker_limit
        busy = [
            (worker.load_s, len(worker.in_hand), number)
            for number, worker in self.workers.items()
            if limit is None or number < limit
        ]
        # A worker is topped up when half of its window is worked off, so that it does not run dry meanwhile. What
        # runs for longer than was thought may go on for as long again.
        heard_of_s = self.now_s - policy.silence_s
        free = [
            (load_s, count, number)
            for load_s, count, number in sorted(busy)
            if not count or (load_s < policy.window_s / 2 and self.workers[number].heard_s > heard_of_s)
        ]
        given = False
        for position, (_, _, number) in enumerate(free):
            if not graph.ready and number not in graph.followers:
                continue
            chunks = self._fill(graph, number, -(-len(graph.ready) // (len(free) - position)))
            if chunks:
                given = True
                self._emit(Run(number, graph.number, chunks, graph.loads(number, chunks)))
        return given

    def _fill(self, graph: Graph, number: int, share: int) -> list[int]:
        """Move chunks into a worker's hands until its window is full: so many READY ones, and what follows."""
        policy, memory, worker = self._policy, self.memory, self.workers[number]
        in_hand, load_s, operand_of = worker.in_hand, worker.load_s, graph.plan.operand_of
        if not in_hand:
            worker.heard_s, worker.recall_attempts = self.now_s, 0
        #: What chunks of an operand cost and need.
        demands: dict[int, tuple[float, int]] = {}
        ready, followers = graph.ready, graph.followers.pop(number, [])
        chunks: list[int] = []
        passed: list[int] = []
        while len(chunks) < policy.batch_limit:
            follows = bool(followers) and not (share and ready and ready[0] < followers[0])
            if not follows and not (share and ready):
                break
            queue = followers if follows else ready
            chunk = graph.chunk_of(queue[0])
            if not (self._can_follow(graph, worker, chunk) if follows else graph.is_next(chunk)):
                heapq.heappop(queue)
                continue
            operand = operand_of[chunk]
            if operand not in demands:
                demands[operand] = self._demand(graph, chunk)
            cost_s, need = demands[operand]
            if in_hand and load_s + cost_s > policy.window_s:
                break
            if graph.memory.spilled:
                need += graph.memory.spilled_bytes(graph.inputs(chunk))
            if need:
                if not memory.admits(need):
                    if follows or len(passed) > policy.look_ahead:
                        break
                    if self._blocked is None:
                        self._blocked = graph, chunk, need
                    passed.append(heapq.heappop(ready))
                    continue
                if passed and graph.passes >= policy.pass_limit:
                    break
                memory.reserve(graph.number, chunk, need)
                graph.passes = graph.passes + 1 if passed else 0
            heapq.heappop(queue)
            share -= not follows
            complete = graph.give(chunk)
            in_hand[graph.number, chunk] = cost_s
            load_s += cost_s
            chunks.append(chunk)
            if complete and graph.plan.run_ahead:
                for successor in complete:
                    graph.place(successor, chunk)
                    heapq.heappush(followers, graph.key_of(successor))
        for key in passed:
            heapq.heappush(ready, key)
        if followers:
            graph.followers[number] = followers
        worker.load_s = load_s
        return chunks

    # -- taking back ------------------------------------------------------------------------------------------

    def _ask_back(self) -> None:
        """Ask workers that run something for long to give back what waits behind it, if others could run it."""
        for number, due_s in self._recall_attempts():
            if due_s <= self.now_s:
                self.workers[number].recall_attempts += 1
                self._emit(RecallQueued(number))

    def next_ask_s(self) -> float | None:
        """Return when a worker is to be asked, if it has not reported anything until then."""
        return min([due_s for _, due_s in self._recall_attempts()], default=None)

    def _recall_attempts(self) -> list[tuple[int, float]]:
        """Return workers in whose queues others could find something to do, and when that is to be asked for."""
        workers = self.workers
        # A worker that has nothing to do for want of memory could do nothing with what it is given either.
        no_room = self._blocked is not None and not self._blocked[0].plan.client_stores
        if no_room or all(worker.in_hand for worker in workers.values()):
            return []
        silence_s = self._policy.silence_s
        return [
            (number, worker.heard_s + silence_s * 2 ** min(worker.recall_attempts, _MOST_ASKS))
            for number, worker in workers.items()
            if len(worker.in_hand) > 1 and self._could_run_elsewhere(worker)
        ]

    def _could_run_elsewhere(self, worker: Worker) -> bool:
        """Say whether some chunk that waits in a worker's queue needs nothing of what is before it there."""
        waiting = iter(worker.in_hand)
        # That is being computed.
        next(waiting)
        return any(not self._graphs[number].waiting[chunk] for number, chunk in waiting)

    def _demand(self, graph: Graph, chunk: int) -> tuple[float, int]:
        """Return the seconds that a chunk is thought to take, and the bytes that it needs besides its inputs."""
        need = graph.memory.need(chunk) if self.memory.limited else 0
        if not graph.plan.is_repeatable(chunk):
            # Always alone in a worker's hands: if that dies, it is clear which one may have been begun.
            return self._policy.window_s, need
        estimate = self._estimates.get((graph.number, graph.plan.operand_of[chunk]))
        if estimate is not None:
            return estimate, need
        # An operand never seen may be slow. Before anything is known of the graph it goes to a worker with nothing
        # else to do; after that a few at a time may stand in a queue.
        window_s = self._policy.window_s
        return window_s if graph.mean_s is None else max(graph.mean_s, window_s / 8), need

    @staticmethod
    def _can_follow(graph: Graph, worker: Worker, chunk: int) -> bool:
        """Say whether a worker would have a chunk's inputs when its turn came, were it queued there now."""
        if graph.state[chunk] != UNSCHEDULED or graph.in_client[chunk]:
            return False
        state, number, in_hand = graph.state, graph.number, worker.in_hand
        return all(state[source] == FINISHED or (number, source) in in_hand for source in graph.inputs(chunk))

    # -- memory -----------------------------------------------------------------------------------------------

    def pinned(self) -> set[tuple[int, int]]:
        """Return what is being read, by graph and chunk: inputs of what is in hand, and results the user takes."""
        hands = [self.client_hand, *[worker.in_hand for worker in self.workers.values()]]
        pinned: set[tuple[int, int]] = set()
        for number, chunk in itertools.chain(*hands):
            graph = self._graphs[number]
            pinned.update(graph.memory_of(graph.inputs(chunk)))
        for graph in self._graphs.values():
            if graph.is_read:
                pinned.update((graph.number, chunk) for chunk in graph.plan.outputs)
        return pinned

    def _spill(self, missing_bytes: int, spared: set[tuple[int, int]]) -> None:
        """Have chunks written to disk, but for those that are needed now."""
        for number, chosen in self.memory.choose(
            self._graphs.values(), missing_bytes, spared | self.pinned()
        ).items():
            self._emit(Spill(number, chosen))

    def _make_room_for(self, graph: Graph, chunk: int, need: int) -> Refusal | None:
        """Have chunks written to disk for the one that is next; if that cannot help, run it alone or refuse it."""
        memory = self.memory
        missing = memory.missing_bytes(need)
        if missing:
            self._spill(missing, set(graph.memory_of(graph.inputs(chunk))))
        if memory.spilling_bytes or any(other.in_hand or other.is_read for other in self._graphs.values()):
            return None
        limit = graph.plan.worker_limit
        if graph.in_client[chunk]:
            free = [CLIENT]
        else:
            free = [number for number in self.workers if limit is None or number < limit]
        if not free:
            return None
        self._blocked = None
        graph.withdraw(chunk)
        graph.give(chunk)
        if memory.stored_bytes + need > memory.hard_limit_bytes:
            graph.in_hand -= 1
            return Refusal(graph, chunk, need, memory.hard_limit_bytes - memory.stored_bytes)
        self._run_alone(graph, chunk, need, free[0])
        return None

    def _run_alone(self, graph: Graph, chunk: int, need: int, number: int) -> None:
        self.memory.reserve(graph.number, chunk, need)
        if number == CLIENT:
            self.client_hand.add((graph.number, chunk))
            self._emit(Run(CLIENT, graph.number, [chunk]))
            return
        worker = self.workers[number]
        worker.in_hand[graph.number, chunk] = self._policy.window_s
        worker.load_s += self._policy.window_s
        self._emit(Run(number, graph.number, [chunk], graph.loads(number, [chunk])))

    # -- proof ------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Check every invariant; raise AssertionError where one does not hold."""
        for worker in self.workers.values():
            for number, chunk in worker.in_hand:
                assert self._graphs[number].is_given(chunk), (number, chunk)
            assert abs(worker.load_s - sum(worker.in_hand.values())) < 1e-6
        assert all(self._graphs[number].is_given(chunk) for number, chunk in self.client_hand)
        handed = sum(len(worker.in_hand) for worker in self.workers.values())
        assert handed + len(self.client_hand) == sum(graph.in_hand for graph in self._graphs.values())
