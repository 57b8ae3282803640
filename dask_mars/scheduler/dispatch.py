"""Dispatches READY chunks, and those that may run ahead, to workers with short queues.

A part of the state machine, and pure.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dask_mars.scheduler.assigner import Traversal
from dask_mars.scheduler.bookkeeping import FINISHED, READY, RUNNING, UNSCHEDULED, Graph, Worker
from dask_mars.scheduler.events import (
    CLIENT,
    ChunksFinished,
    GrantQuota,
    GrantReservation,
    Instruction,
    ReadAhead,
    RecallQueued,
    Refuse,
    RefuseQuota,
    RefuseReservation,
    RenewWorkers,
    Resources,
    Run,
    Spill,
)
from dask_mars.scheduler.memory import RESERVATION, Memory
from dask_mars.scheduler.objects import Objects, StoredObject

#: Maximum number of doublings of the back-off between recalls.
_MOST_RECALLS = 8


@dataclass(frozen=True, slots=True)
class Parameters:
    """The policy, and the numbers that shape the machine's decisions.

    Attributes
    ----------
    policy : str
        Order of chunks and choice of workers: a name in `policies.POLICIES`.
    assignment : {"breadth-first", "depth-first"}
        Search order for dividing initial chunks among workers, if the policy does that.
    num_workers : int
        Number of workers.
    resources : mapping
        Amount of each resource.
    window_s : float
        Seconds of estimated work that a worker's queue may hold. Small enough that queueing delays nothing, large
        enough that a message carries many small operands.
    batch_limit : int
        Maximum number of chunks in one `Run`.
    silence_s : float
        Silence after which a worker gets no new work and, if another is idle, its queue is recalled (exponential
        back-off).
    allowed_worker_losses : int
        How often a worker may die on the same chunk before the chunk is FATAL; see `allowed_losses`.
    retry_delay_s, retry_delay_limit_s : float
        Delay before the first retry, doubled for each further one up to the limit.
    disk_delay_s : float
        Seconds without writes after a disk has failed.
    store_limit : int or None
        Bytes that the store may hold; None disables accounting.
    memory_limit : int
        Bytes that the store may hold if nothing else helps.
    result_limit : int or None
        Bytes that a result may take, None if that is no less than the memory limit.
    quota_slack_bytes : int or None
        Growth of a worker's memory that needs no grant and is counted nowhere else; None without quotas.
    read_ahead_limit : int
        Maximum number of next chunks whose inputs are read ahead from disk.
    look_ahead, pass_limit : int
        Maximum number of chunks without room that one search passes, and of dispatches in a row that pass any.
    """

    policy: str = "memory"
    assignment: Traversal = "breadth-first"
    num_workers: int = 1
    resources: Mapping[str, float] = field(default_factory=dict)
    window_s: float = 0.02
    batch_limit: int = 2000
    silence_s: float = 0.02
    allowed_worker_losses: int = 3
    retry_delay_s: float = 0.1
    retry_delay_limit_s: float = 10.0
    disk_delay_s: float = 5.0
    store_limit: int | None = None
    memory_limit: int = 0
    result_limit: int | None = None
    quota_slack_bytes: int | None = None
    read_ahead_limit: int = 4
    look_ahead: int = 8
    pass_limit: int = 100

    def allowed_losses(self, crashed: bool) -> int:
        """Return how often a worker may die on the same chunk: once if its code crashes."""
        return min(self.allowed_worker_losses, 1) if crashed else self.allowed_worker_losses


class Blocked(NamedTuple):
    """The next chunk or reservation (graph None) that waits for memory."""

    graph: Graph | None
    number: int
    required_bytes: int


class Growth(NamedTuple):
    """A worker's request for memory in the middle of a chunk, for which it waits."""

    graph: Graph
    chunk: int
    growth_bytes: int


class Dispatcher:
    """Hands chunks out, and knows in whose hands they are.

    Parameters
    ----------
    parameters : Parameters
        Numbers that shape its decisions.
    graphs : dict
        All graphs by number, the next in turn first.
    emit : callable
        Takes the instructions.

    Attributes
    ----------
    workers : dict
        Each worker's chunks in hand, by number.
    client_in_hand : set
        Graph and chunk of each chunk in the user's process.
    objects : Objects
        All objects in the store.
    reservations : set
        Reservations granted and not released.
    free_resources : dict
        Amount of each resource that nothing in hand takes.
    blocked : Blocked or None
        The next chunk or reservation, if it waits for memory.
    to_run_alone : dict
        Graph and chunk of each chunk that took a worker past the memory limit, and is tried once more alone.
    is_renewed : bool or None
        Whether workers have given back leftover memory; None while the engine renews them.
    over_share : collection of int
        Workers that exceed their share of memory. They get no new chunks while they are busy.
    """

    def __init__(
        self, parameters: Parameters, graphs: dict[int, Graph], emit: Callable[[Instruction], None]
    ) -> None:
        self._parameters = parameters
        self._graphs = graphs
        self._emit = emit
        #: Time of the present event.
        self.now_s = 0.0
        self.workers: dict[int, Worker] = {}
        self.client_in_hand: set[tuple[int, int]] = set()
        self._client_bytes = 0
        self.memory = Memory(parameters.store_limit, parameters.memory_limit)
        self.objects = Objects()
        self.reservations: set[int] = set()
        self.free_resources = dict(parameters.resources)
        #: Bytes of requested reservations that are not granted yet.
        self._requested: dict[int, int] = {}
        # Mean duration in seconds of (graph, operand).
        self._estimates: dict[tuple[int, int], float] = {}
        self.blocked: Blocked | None = None
        #: Workers that wait for memory in the middle of a chunk, longest wait first.
        self.growing: dict[int, Growth] = {}
        self.to_run_alone: dict[tuple[int, int], None] = {}
        self.is_renewed: bool | None = False
        self.over_share: Collection[int] = ()
        #: Whether some operand has taken memory without asking.
        self._knows_private = False
        #: Whether something has waited for memory while the store holds map outputs.
        self._is_short = False

    def dispatch(self) -> Refuse | None:
        """Dispatch all chunks that can run; return a chunk that never can."""
        if self.growing:
            self._let_grow()
        if self.to_run_alone and (alone := self._next_alone()) is not None:
            self._dispatch_alone(*alone)
        else:
            self._dispatch_all()
        self._recall_queued()
        for graph in self._graphs.values():
            if objects := graph.read_ahead(min(len(self.workers), self._parameters.read_ahead_limit)):
                self._emit(ReadAhead(objects))
        refusal = None
        if self.blocked is not None:
            self._is_short = True
            refusal = self._make_room_for(self.blocked)
        elif self.memory.is_limited and (missing := self.memory.missing_bytes(0)):
            # Results were larger than estimated.
            self._spill(missing, set())
        if self._is_short:
            self._spill_ahead()
        if self._parameters.quota_slack_bytes is not None:
            self._grant_quotas(self._parameters.quota_slack_bytes)
        return refusal

    # -- chunks in hand ---------------------------------------------------------------------------------------

    def remove_from_worker(self, number: int, graph: Graph, chunks: Iterable[int]) -> None:
        """Record that a worker no longer has chunks in hand."""
        self.memory.release(graph.number, chunks)
        growth = self.growing.get(number)
        if growth is not None and growth.graph is graph and growth.chunk in chunks:
            self._forget_growth(number)
        if number == CLIENT:
            for chunk in chunks:
                self.client_in_hand.remove((graph.number, chunk))
                self._client_bytes -= graph.client_bytes.pop(chunk)
                graph.client_in_hand -= 1
                graph.in_hand_count -= 1
            return
        worker = self.workers[number]
        in_hand = worker.in_hand
        if graph.plan.resources:
            self._give_back(graph, chunks)
        for chunk in chunks:
            worker.load_s -= in_hand.pop((graph.number, chunk))
            graph.in_hand_count -= 1
        if not in_hand:
            worker.load_s = 0.0

    def note_report(self, number: int) -> None:
        """Record that a worker has reported a chunk."""
        if number != CLIENT:
            worker = self.workers[number]
            worker.last_report_s, worker.recall_attempts = self.now_s, 0

    def remove_worker(self, number: int) -> list[tuple[int, int]]:
        """Forget a worker and return its chunks in hand; their graphs still count them."""
        worker = self.workers.pop(number, None)
        self._forget_growth(number)
        if worker is None:
            return []
        for owner, chunk in worker.in_hand:
            self.memory.release(owner, (chunk,))
            if self._graphs[owner].plan.resources:
                self._give_back(self._graphs[owner], (chunk,))
        for graph in self._graphs.values():
            graph.run_ahead_keys.pop(number, None)
        self.objects.forget_worker(number)
        return list(worker.in_hand)

    def learn(self, graph: Graph, chunks: Iterable[int], durations_s: Iterable[float]) -> None:
        """Update the mean duration of operands; the newest measurement has a weight of one quarter."""
        estimates, operand_of, number = self._estimates, graph.plan.operand_of, graph.number
        for chunk, duration_s in zip(chunks, durations_s, strict=True):
            key = (number, operand_of[chunk])
            old = estimates.get(key)
            estimates[key] = duration_s if old is None else old + 0.25 * (duration_s - old)
            mean_s = graph.mean_s
            graph.mean_s = duration_s if mean_s is None else mean_s + 0.25 * (duration_s - mean_s)

    def learn_in_client(self, graph: Graph, durations_s: Iterable[float]) -> None:
        """Update the mean duration of chunks in the user's process, which tells nothing about workers."""
        for duration_s in durations_s:
            mean_s = graph.client_mean_s
            graph.client_mean_s = duration_s if mean_s is None else mean_s + 0.25 * (duration_s - mean_s)

    def learn_sizes(self, graph: Graph, event: ChunksFinished) -> None:
        """Record the bytes that operands and their results have taken in the store."""
        new = graph.estimates.learn(event.chunks, event.fresh, event.peaks)
        if not new:
            return
        # Chunks of these operands may be in hand without a reservation.
        for worker_number, worker in self.workers.items():
            for number, chunk in worker.in_hand:
                if number == graph.number and graph.plan.operand_of[chunk] in new:
                    # Bytes granted meanwhile stay granted.
                    required_bytes = max(graph.required_bytes(chunk), self.memory.reserved_for(number, chunk))
                    self.memory.raise_reserved(number, chunk, required_bytes, worker_number)

    def learn_private(self, growths: Iterable[tuple[int, int, int]]) -> None:
        """Record bytes that chunks have taken without asking, and reserve as much for others of their operand."""
        for number, chunk, growth_bytes in growths:
            graph = self._graphs.get(number)
            more_bytes = 0 if graph is None else graph.estimates.learn_private(chunk, growth_bytes)
            if graph is None or not more_bytes:
                continue
            self._knows_private = True
            operand = graph.plan.operand_of[chunk]
            for worker_number, worker in self.workers.items():
                for other_number, other in worker.in_hand:
                    if other_number == number and graph.plan.operand_of[other] == operand:
                        required_bytes = self.memory.reserved_for(number, other) + more_bytes
                        self.memory.reserve(number, other, required_bytes, worker_number)

    def expected_private_bytes(self, number: int) -> int:
        """Return the bytes of the worker's reservation that cover unaccounted allocations."""
        if not self._knows_private:
            return 0
        in_hand = self.workers[number].in_hand if number in self.workers else ()
        return sum([self._graphs[graph].estimates.private_bytes(chunk) for graph, chunk in in_hand])

    def restored(self, number: int, graph: Graph, chunk: int) -> None:
        """Record that a worker has put a chunk back into the store, which counts it from now on."""
        found = graph.objects[chunk]
        self.objects.moved_to_memory(found)
        in_hand = self.workers[number].in_hand
        for successor in graph.successors[chunk]:
            # Only this worker's chunks: others may be reading the value into private memory.
            if (graph.number, successor) in in_hand:
                self.memory.consume_reservation(graph.number, successor, found.size_bytes)

    def forget(self, graph: Graph) -> None:
        """Forget a graph without chunks in hand."""
        self._estimates = {key: value for key, value in self._estimates.items() if key[0] != graph.number}
        graph.forget_policy()
        self._knows_private = any(other.estimates.knows_private for other in self._graphs.values())

    # -- resources --------------------------------------------------------------------------------------------

    def _are_free(self, taken: Resources) -> bool:
        """Return whether the given amount of each resource is free."""
        return all(amount <= self.free_resources.get(name, 0.0) for name, amount in taken)

    def _take(self, graph: Graph, chunk: int) -> None:
        for name, amount in graph.plan.resources.get(chunk, ()):
            self.free_resources[name] -= amount

    def _give_back(self, graph: Graph, chunks: Iterable[int]) -> None:
        for chunk in chunks:
            for name, amount in graph.plan.resources.get(chunk, ()):
                self.free_resources[name] += amount

    # -- dispatch ---------------------------------------------------------------------------------------------

    def _next_alone(self) -> tuple[Graph, int] | None:
        """Return the first chunk that has to run alone and is runnable or running."""
        for number, chunk in list(self.to_run_alone):
            graph = self._graphs.get(number)
            if graph is None or graph.stopping or graph.state[chunk] not in (UNSCHEDULED, READY, RUNNING):
                del self.to_run_alone[number, chunk]
            elif graph.state[chunk] == RUNNING or graph.is_next(chunk):
                return graph, chunk
        return None

    def _dispatch_alone(self, graph: Graph, chunk: int) -> None:
        """Dispatch a chunk once workers have nothing in hand and all that can be spilled is on disk."""
        self.blocked = None
        self._dispatch_to_clients()
        if any(worker.in_hand for worker in self.workers.values()):
            return
        self._spill(self.memory.stored_bytes, set(graph.objects_of(graph.inputs(chunk))))
        free = self._workers_for(graph)
        if self.memory.spilling_bytes or not free:
            return
        if not self._are_renewed(is_strict=True):
            return
        graph.withdraw(chunk)
        graph.dispatch(chunk)
        room_bytes = max(self.memory.hard_limit_bytes - self.memory.stored_bytes, 0)
        self._hand_out(free[0], graph, chunk, min(graph.required_bytes(chunk), room_bytes))

    def _are_renewed(self, is_strict: bool) -> bool:
        """Return whether workers have given back leftover memory; if unknown, have the engine renew them."""
        if self.is_renewed:
            self.is_renewed = False
            return True
        if self.is_renewed is False:
            self.is_renewed = None
            self._emit(RenewWorkers(is_strict))
        return False

    def _hand_out(self, number: int, graph: Graph, chunk: int, required_bytes: int) -> None:
        """Give a worker a single chunk that is dispatched already."""
        required_bytes = max(required_bytes - self._note_copies(graph, chunk), 0)
        self.memory.reserve(graph.number, chunk, required_bytes, number)
        self._take(graph, chunk)
        worker = self.workers[number]
        worker.in_hand[graph.number, chunk] = self._parameters.window_s
        worker.load_s += self._parameters.window_s
        self._emit(Run(number, graph.number, [chunk], graph.restores(number, [chunk])))

    def _dispatch_to_clients(self) -> None:
        for graph in self._graphs.values():
            if graph.client_ready:
                self._dispatch_to_client(graph)

    def _dispatch_all(self) -> None:
        self.blocked = None
        self._dispatch_to_clients()
        # Graphs take turns, so that a large one does not hold up a small one.
        given = True
        while given:
            given = False
            for graph in list(self._graphs.values()):
                if graph.has_queued and self._dispatch_graph(graph):
                    given = True
                    # To the end of the line, so that the next event serves other graphs first.
                    self._graphs[graph.number] = self._graphs.pop(graph.number)
        # Reservations come last: chunks give memory back in the end, and reservations could take all of it.
        for number, size_bytes in list(self._requested.items()):
            if self.blocked is not None:
                break
            if not self.memory.is_limited or self.memory.admits(size_bytes):
                self._grant(number)
            else:
                self.blocked = Blocked(None, number, size_bytes)

    def _dispatch_to_client(self, graph: Graph) -> None:
        """Keep the threads of the user's process busy within the memory limit."""
        parameters, memory, queue = self._parameters, self.memory, graph.client_ready
        most = threads = graph.plan.worker_limit or parameters.num_workers
        if graph.client_mean_s is not None:
            # Small chunks go in batches, or threads would mostly wait for them.
            window = threads * parameters.window_s / max(graph.client_mean_s, 1e-6)
            most = max(threads, min(int(window), parameters.batch_limit))
        chunks = []
        while queue and graph.client_in_hand < most:
            chunk = graph.chunk_of(queue[0])
            if graph.is_next(chunk):
                taken_bytes = self._bytes_in_client(graph, chunk) if memory.is_limited else 0
                if graph.client_in_hand and taken_bytes and not memory.admits(self._client_bytes + taken_bytes):
                    if missing := memory.missing_bytes(self._client_bytes + taken_bytes):
                        self._spill(missing, set(graph.objects_of(graph.inputs(chunk))))
                    break
                graph.dispatch(chunk)
                graph.client_bytes[chunk] = taken_bytes
                graph.client_in_hand += 1
                self._client_bytes += taken_bytes
                self.client_in_hand.add((graph.number, chunk))
                chunks.append(chunk)
            heapq.heappop(queue)
        if chunks:
            self._emit(Run(CLIENT, graph.number, chunks, is_alone=graph.is_alone))

    def _bytes_in_client(self, graph: Graph, chunk: int) -> int:
        """Return the bytes that a chunk takes in the user's process, copies of stored inputs included."""
        taken_bytes = graph.client_bytes.get(chunk)
        if taken_bytes is None:
            stored = [found.size_bytes for found in graph.objects_of(graph.inputs(chunk)) if not found.is_copy]
            taken_bytes = graph.client_bytes[chunk] = graph.taken_bytes(chunk) + sum(stored)
        return taken_bytes

    def _workers_for(self, graph: Graph) -> list[int]:
        """Return the workers that may compute chunks of a graph."""
        limit, is_library_code = graph.plan.worker_limit, graph.plan.is_library_code
        return [
            number
            for number, worker in self.workers.items()
            if (limit is None or number < limit) and (is_library_code or not worker.is_thread)
        ]

    def _dispatch_graph(self, graph: Graph) -> bool:
        """Give each worker with room a share of the graph's READY chunks and their successors."""
        parameters = self._parameters
        busy = []
        for number in self._workers_for(graph):
            worker = self.workers[number]
            if not (worker.in_hand and number in self.over_share):
                busy.append((worker.load_s, len(worker.in_hand), number))
        # Top workers up at half a window, so that they do not run dry. A silent worker's chunk may run for as long
        # again.
        heard_of_s = self.now_s - parameters.silence_s
        free = [
            (load_s, count, number)
            for load_s, count, number in sorted(busy)
            if not count or (load_s < parameters.window_s / 2 and self.workers[number].last_report_s > heard_of_s)
        ]
        given = False
        for position, (_, _, number) in enumerate(free):
            if graph.has_queues:
                share = parameters.batch_limit
            elif graph.ready or number in graph.run_ahead_keys:
                share = -(-len(graph.ready) // (len(free) - position))
            else:
                continue
            chunks = self._fill(graph, number, share)
            if chunks:
                given = True
                self.is_renewed = None if self.is_renewed is None else False
                self._emit(Run(number, graph.number, chunks, graph.restores(number, chunks)))
        return given

    def _fill(self, graph: Graph, number: int, share: int) -> list[int]:
        """Fill a worker's window with up to `share` READY chunks and the successors that can follow them."""
        parameters, memory, worker = self._parameters, self.memory, self.workers[number]
        in_hand, load_s, operand_of = worker.in_hand, worker.load_s, graph.plan.operand_of
        if not in_hand:
            worker.last_report_s, worker.recall_attempts = self.now_s, 0
        #: Seconds and bytes of an operand's chunks, and whether the bytes are known.
        costs: dict[int, tuple[float, int, bool]] = {}
        ready, run_ahead_keys = graph.ready, graph.run_ahead_keys.pop(number, [])
        chunks: list[int] = []
        passed: list[tuple[list[int], int]] = []
        has_queues, resources = graph.has_queues, graph.plan.resources
        result_limit = parameters.result_limit
        while len(chunks) < parameters.batch_limit:
            if has_queues:
                ready = graph.queue_for(number, not in_hand, self._are_free)
            follows = bool(run_ahead_keys) and not (share and ready and ready[0] < run_ahead_keys[0])
            if not follows and not (share and ready):
                break
            queue = run_ahead_keys if follows else ready
            chunk = graph.chunk_of(queue[0])
            if not (self._can_follow(graph, worker, chunk) if follows else graph.is_next(chunk)):
                heapq.heappop(queue)
                continue
            operand = operand_of[chunk]
            if operand not in costs:
                is_known = not memory.is_limited or graph.estimates.is_known(chunk)
                costs[operand] = (*self._cost(graph, chunk), is_known)
            cost_s, required_bytes, is_known = costs[operand]
            if in_hand and load_s + cost_s > parameters.window_s:
                break
            if graph.on_disk:
                required_bytes += graph.disk_bytes(chunk)
            is_first = not is_known and memory.is_tight
            if is_first:
                # The first chunk of an operand gets a share of free memory; the others wait for its measurement.
                required_bytes = max(required_bytes, memory.free_bytes // len(self.workers))
            if required_bytes or is_first:
                too_large = result_limit is not None and graph.estimates.expected_bytes(chunk) > result_limit
                waits = is_first and self._is_in_hand(graph.number, graph.plan.operand_of, operand)
                if too_large or waits or not memory.admits(required_bytes):
                    if follows or len(passed) > parameters.look_ahead:
                        break
                    if self.blocked is None:
                        self.blocked = Blocked(graph, chunk, required_bytes)
                    passed.append((ready, heapq.heappop(ready)))
                    continue
                if passed and graph.passes >= parameters.pass_limit:
                    break
                if graph.on_disk:
                    required_bytes -= self._note_copies(graph, chunk)
                memory.reserve(graph.number, chunk, required_bytes, number)
                graph.passes = graph.passes + 1 if passed else 0
            heapq.heappop(queue)
            share -= not follows
            complete = graph.dispatch(chunk)
            if resources:
                self._take(graph, chunk)
                # A chunk with resources must not wait in a worker's queue while it holds them.
                complete = [successor for successor in complete if successor not in resources]
            in_hand[graph.number, chunk] = cost_s
            load_s += cost_s
            chunks.append(chunk)
            if complete and graph.run_ahead:
                for successor in complete:
                    graph.on_ready(successor, chunk)
                    heapq.heappush(run_ahead_keys, graph.key_of(successor))
        for queue, key in passed:
            heapq.heappush(queue, key)
        if run_ahead_keys:
            graph.run_ahead_keys[number] = run_ahead_keys
        worker.load_s = load_s
        return chunks

    # -- recall -----------------------------------------------------------------------------------------------

    def _recall_queued(self) -> None:
        """Recall the queues of workers that run a long chunk, if others could run what waits there."""
        for number, due_s in self._recalls_due():
            if due_s <= self.now_s:
                self.workers[number].recall_attempts += 1
                self._emit(RecallQueued(number))

    def next_recall_s(self) -> float | None:
        """Return the time of the next recall, if no worker reports before."""
        return min([due_s for _, due_s in self._recalls_due()], default=None)

    def _recalls_due(self) -> list[tuple[int, float]]:
        """Return workers whose queues others could take from, and the times of their recalls."""
        workers = self.workers
        # A worker that is idle for lack of memory cannot run recalled chunks either.
        no_room = self.blocked is not None and self.blocked.graph is not None
        if no_room or all(worker.in_hand for worker in workers.values()):
            return []
        silence_s = self._parameters.silence_s
        return [
            (number, worker.last_report_s + silence_s * 2 ** min(worker.recall_attempts, _MOST_RECALLS))
            for number, worker in workers.items()
            if len(worker.in_hand) > 1 and self._could_run_elsewhere(worker)
        ]

    def _could_run_elsewhere(self, worker: Worker) -> bool:
        """Return whether a queued chunk depends on no unfinished chunk."""
        waiting = iter(worker.in_hand)
        # The first one is being computed.
        next(waiting)
        return any(not self._graphs[number].unfinished_inputs[chunk] for number, chunk in waiting)

    def _is_in_hand(self, number: int, operand_of: Sequence[int], operand: int) -> bool:
        """Return whether a worker has a chunk of an operand in hand."""
        return any(
            other == number and operand_of[chunk] == operand
            for worker in self.workers.values()
            for other, chunk in worker.in_hand
        )

    def _cost(self, graph: Graph, chunk: int) -> tuple[float, int]:
        """Return a chunk's estimated seconds, and the bytes that it needs besides its inputs."""
        required_bytes = graph.taken_bytes(chunk) if self.memory.is_limited else 0
        if not graph.plan.is_repeatable(chunk):
            # Always alone in a worker's hands: at a death it is clear which chunk may have begun.
            return self._parameters.window_s, required_bytes
        estimate = self._estimates.get((graph.number, graph.plan.operand_of[chunk]))
        if estimate is not None:
            return estimate, required_bytes
        # A new operand may be slow: without any measurement its chunks run alone, then a few share a queue.
        window_s = self._parameters.window_s
        return window_s if graph.mean_s is None else max(graph.mean_s, window_s / 8), required_bytes

    def _can_follow(self, graph: Graph, worker: Worker, chunk: int) -> bool:
        """Return whether a worker would have a chunk's inputs by the time it reaches the chunk."""
        if graph.state[chunk] != UNSCHEDULED or graph.in_client[chunk]:
            return False
        if self.to_run_alone and (graph.number, chunk) in self.to_run_alone:
            return False
        state, number, in_hand = graph.state, graph.number, worker.in_hand
        return all(state[source] == FINISHED or (number, source) in in_hand for source in graph.inputs(chunk))

    # -- memory -----------------------------------------------------------------------------------------------

    def pinned(self) -> set[StoredObject]:
        """Return the objects in use: inputs of chunks in hand, and results that the user takes."""
        hands = [self.client_in_hand, *[worker.in_hand for worker in self.workers.values()]]
        pinned: set[StoredObject] = set()
        for number, chunk in itertools.chain(*hands):
            graph = self._graphs[number]
            pinned.update(graph.objects_of(graph.inputs(chunk)))
        for graph in self._graphs.values():
            if graph.results_pending:
                pinned.update(graph.objects_of(graph.plan.outputs))
        return pinned

    def _spill(self, missing_bytes: int, excluded: set[StoredObject]) -> None:
        """Spill objects that are neither pinned nor excluded."""
        candidates = self.objects.spill_candidates()
        if chosen := self.memory.choose_to_spill(candidates, missing_bytes, excluded | self.pinned()):
            self._emit(Spill(chosen))

    def _spill_ahead(self) -> None:
        """Spill map outputs while chunks compute: they never return to memory."""
        candidates = self.objects.map_outputs()
        if not candidates:
            self._is_short = False
            return
        missing = self.memory.missing_ahead_bytes()
        if missing and (chosen := self.memory.choose_to_spill(candidates, missing, self.pinned())):
            self._emit(Spill(chosen))

    def _make_room_for(self, blocked: Blocked) -> Refuse | None:
        """Spill objects for the blocked chunk or reservation; if that cannot help, run it alone or refuse it."""
        memory, graph = self.memory, blocked.graph
        missing = memory.missing_bytes(blocked.required_bytes)
        if missing:
            inputs = () if graph is None else graph.objects_of(graph.inputs(blocked.number))
            self._spill(missing, {found for found in inputs if not found.is_map_output})
        if memory.spilling_bytes or self.reservations:
            return None
        if any(other.in_hand_count or other.results_pending for other in self._graphs.values()):
            return None
        limit_bytes = memory.hard_limit_bytes - memory.stored_bytes
        if graph is not None:
            return self._run_alone(graph, blocked.number, blocked.required_bytes, limit_bytes)
        self.blocked = None
        if blocked.required_bytes > limit_bytes:
            self._emit(RefuseReservation(blocked.number, self._requested.pop(blocked.number), limit_bytes))
        else:
            self._grant(blocked.number)
        return None

    def _run_alone(self, graph: Graph, chunk: int, required_bytes: int, limit_bytes: int) -> Refuse | None:
        free = self._workers_for(graph)
        if not free:
            return None
        if self._parameters.quota_slack_bytes is not None and not self._are_renewed(is_strict=False):
            return None
        self.blocked = None
        if required_bytes > limit_bytes and self._move_to_client(graph, chunk, required_bytes, limit_bytes):
            return None
        graph.withdraw(chunk)
        graph.dispatch(chunk)
        result_bytes, result_limit = graph.estimates.expected_bytes(chunk), self._parameters.result_limit
        if result_limit is not None and result_bytes > result_limit:
            graph.in_hand_count -= 1
            return Refuse(graph.number, chunk, result_bytes, result_limit, is_result=True)
        # Neither unaccounted allocations nor guesses are certain needs.
        estimates = graph.estimates
        least_bytes = estimates.required_bytes(chunk) - estimates.private_bytes(chunk) + graph.disk_bytes(chunk)
        if least_bytes > limit_bytes and self._is_certain(graph, chunk, limit_bytes):
            graph.in_hand_count -= 1
            return Refuse(graph.number, chunk, least_bytes, limit_bytes)
        self._hand_out(free[0], graph, chunk, min(required_bytes, limit_bytes))
        return None

    def _is_certain(self, graph: Graph, chunk: int, limit_bytes: int) -> bool:
        """Return whether a chunk certainly needs more than `limit_bytes`.

        Declared sizes may be wrong, results may go to disk, and quotas refuse excess; only inputs have to be read.
        """
        if self._parameters.quota_slack_bytes is None:
            return True
        return graph.disk_bytes(chunk) > limit_bytes

    def _note_copies(self, graph: Graph, chunk: int) -> int:
        """Record that a chunk's inputs from the user's process are copied into the store; return their bytes.

        From now on they count as stored, and the next reader needs no room for them.
        """
        copied_bytes = 0
        for source in graph.inputs(chunk):
            if source in graph.on_disk and (found := graph.objects[source]).is_copy:
                self.objects.moved_to_memory(found)
                copied_bytes += found.size_bytes
        self.memory.stored_bytes += copied_bytes
        return copied_bytes

    def _move_to_client(self, graph: Graph, chunk: int, required_bytes: int, limit_bytes: int) -> bool:
        """Move a chunk to the user's process if only copies of that process's values lack room; return whether.

        Other readers of a value that is too large to copy move there as well.
        """
        copies = {found for found in graph.objects_of(graph.inputs(chunk)) if found.is_copy}
        if required_bytes - limit_bytes > sum([found.size_bytes for found in copies]):
            return False
        chunks = {chunk}
        for _, source in [found.id for found in copies if found.size_bytes > limit_bytes]:
            chunks.update(
                [other for other in graph.successors[source] if graph.state[other] in (UNSCHEDULED, READY)]
            )
        graph.move_to_client(chunks)
        self._dispatch_to_client(graph)
        return True

    def request(self, reservation: int, size_bytes: int) -> None:
        """Record a request for bytes of the store from outside."""
        self._requested[reservation] = size_bytes

    def release(self, reservation: int) -> None:
        """Release a reservation, granted or not."""
        self._requested.pop(reservation, None)
        if reservation in self.reservations:
            self.reservations.remove(reservation)
            self.memory.release(RESERVATION, (reservation,))

    def _grant(self, reservation: int) -> None:
        size_bytes = self._requested.pop(reservation)
        self.reservations.add(reservation)
        self.memory.reserve(RESERVATION, reservation, size_bytes)
        self._emit(GrantReservation(reservation))

    # -- quotas -----------------------------------------------------------------------------------------------

    def request_growth(self, number: int, graph: Graph, chunk: int, growth_bytes: int) -> None:
        """Record that a worker waits in the middle of a chunk for its memory to grow."""
        self._forget_growth(number)
        self.growing[number] = growth = Growth(graph, chunk, growth_bytes)
        graph.estimates.learn_growth(chunk, growth_bytes)
        self.memory.awaited_bytes += self._more_for(number, growth)

    def _forget_growth(self, number: int) -> None:
        if self.growing.pop(number, None) is not None:
            waiting = self.growing.items()
            self.memory.awaited_bytes = sum([self._more_for(other, growth) for other, growth in waiting])

    def missing_for(self, number: int, growth: Growth) -> int:
        """Return how many bytes a worker's reservation lacks for its request."""
        return max(growth.growth_bytes - self._quota_bytes(number), 0)

    def _more_for(self, number: int, growth: Growth) -> int:
        """Return how many bytes have to be reserved in addition for a worker's request."""
        return max(self.missing_for(number, growth) - self.memory.raised_by_worker.get(number, 0), 0)

    def _quota_bytes(self, number: int) -> int:
        """Return by how much a worker's memory may grow.

        This excludes the reservation for unaccounted allocations, and bytes learned meanwhile, for which the
        worker has to ask.
        """
        memory = self.memory
        quota_bytes = memory.reserved_by_worker.get(number, 0) - memory.raised_by_worker.get(number, 0)
        return quota_bytes - self.expected_private_bytes(number)

    def _let_grow(self) -> None:
        """Grant the requests of waiting workers, make room for them, or refuse what can never fit."""
        memory = self.memory
        for number, growth in list(self.growing.items()):
            missing_bytes = self.missing_for(number, growth)
            if not missing_bytes or memory.has_room(missing_bytes):
                self._grow(number, growth)
        if not self.growing:
            return
        self._is_short = True
        number, growth = next(iter(self.growing.items()))
        missing_bytes = self.missing_for(number, growth)
        if spilled_bytes := memory.missing_bytes(missing_bytes):
            self._spill(spilled_bytes, set())
        if memory.spilling_bytes or self._may_free_memory():
            return
        # All workers wait for each other. One continues, and the others follow when it is done.
        room_bytes = memory.hard_limit_bytes - memory.stored_bytes - memory.admitted_bytes
        for number, growth in self.growing.items():
            if self.missing_for(number, growth) <= room_bytes:
                self._grow(number, growth)
                return
        if not self._are_renewed(is_strict=True):
            return
        others = [other for other, waits in self.growing.items() if waits.graph.plan.is_repeatable(waits.chunk)]
        postponed = others[-1] if len(self.growing) > 1 and others else None
        number = next(iter(self.growing)) if postponed is None else postponed
        growth = self.growing[number]
        self._forget_growth(number)
        is_postponed = postponed is not None
        self._emit(RefuseQuota(number, growth.graph.number, growth.chunk, growth.growth_bytes, is_postponed))

    def _grow(self, number: int, growth: Growth) -> None:
        graph, chunk, memory = growth.graph.number, growth.chunk, self.memory
        missing_bytes = self.missing_for(number, growth)
        more_bytes = max(missing_bytes - memory.admit_raised(graph, chunk), 0)
        memory.reserve(graph, chunk, memory.reserved_for(graph, chunk) + more_bytes, number)
        self._forget_growth(number)
        # The waiting worker needs a grant even if the number is unchanged.
        self.workers[number].granted_bytes = -1

    def _may_free_memory(self) -> bool:
        """Return whether memory will become free without further decisions."""
        if (
            self.client_in_hand
            or self.reservations
            or any(graph.results_pending for graph in self._graphs.values())
        ):
            return True
        return any(worker.in_hand and number not in self.growing for number, worker in self.workers.items())

    def _grant_quotas(self, slack_bytes: int) -> None:
        """Inform workers of changed quotas."""
        for number, worker in self.workers.items():
            growth_bytes = max(self._quota_bytes(number), 0)
            if growth_bytes != worker.granted_bytes:
                worker.granted_bytes = growth_bytes
                self._emit(GrantQuota(number, growth_bytes + slack_bytes))

    # -- invariants -------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Check every invariant; raise AssertionError where one does not hold."""
        for worker in self.workers.values():
            for number, chunk in worker.in_hand:
                assert self._graphs[number].is_dispatched(chunk), (number, chunk)
            assert abs(worker.load_s - sum(worker.in_hand.values())) < 1e-6
        assert all(self._graphs[number].is_dispatched(chunk) for number, chunk in self.client_in_hand)
        in_client = Counter(number for number, _ in self.client_in_hand)
        for graph in self._graphs.values():
            assert graph.client_in_hand == in_client[graph.number]
            waiting = any(graph.is_next(graph.chunk_of(key)) for key in graph.client_ready)
            assert graph.client_in_hand or not waiting, "the user's process could run something"
        taken = [self._graphs[number].client_bytes[chunk] for number, chunk in self.client_in_hand]
        assert self._client_bytes == sum(taken)
        self.objects.validate()
        free = dict(self._parameters.resources)
        for worker in self.workers.values():
            for number, chunk in worker.in_hand:
                for name, amount in self._graphs[number].plan.resources.get(chunk, ()):
                    free[name] -= amount
        assert all(
            abs(free[name] - amount) < 1e-6 and amount > -1e-6 for name, amount in self.free_resources.items()
        )
        handed = sum(len(worker.in_hand) for worker in self.workers.values())
        assert handed + len(self.client_in_hand) == sum(graph.in_hand_count for graph in self._graphs.values())
