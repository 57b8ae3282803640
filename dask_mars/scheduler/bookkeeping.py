"""The state machine's records, one for each graph and one for each worker."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from dask_mars.errors import StateError
from dask_mars.graph.ids import SubtaskIds
from dask_mars.scheduler.estimates import Estimates
from dask_mars.scheduler.events import GraphPlan, Resources
from dask_mars.scheduler.objects import ObjectId, StoredObject
from dask_mars.scheduler.policies import GraphView, MemoryPolicy, Policy, Prioritized
from dask_mars.scheduler.states import ENDED, LEGAL, State

_STATES = len(State)
# Plain integers: an IntEnum member costs a look-up and a comparison through its class on the hot path.
UNSCHEDULED, READY, RUNNING, FINISHED, FREED, FATAL, CANCELLING, CANCELLED = (int(state) for state in State)


class Graph:
    """One graph's bookkeeping; lists are indexed by chunk.

    Parameters
    ----------
    number : int
        The graph's number.
    plan : GraphPlan
        The chunks to compute.
    make_policy : callable, optional
        Makes the policy that decides on order and workers.
    slots : mapping, optional
        Number of chunks that each worker computes at the same time, by worker.
    credible_bytes : int or None, optional
        As `Estimates` takes it.
    """

    __slots__ = (
        "chunk_of",
        "client_bytes",
        "client_in_hand",
        "client_mean_s",
        "client_ready",
        "delayed",
        "estimates",
        "failures",
        "has_queues",
        "in_client",
        "in_hand_count",
        "is_output",
        "key_of",
        "losses",
        "makers",
        "mean_s",
        "number",
        "objects",
        "offers",
        "on_disk",
        "on_ready",
        "passes",
        "plan",
        "policy",
        "ready",
        "restricted",
        "results_taken",
        "run_ahead",
        "run_ahead_keys",
        "state",
        "stopping",
        "successors",
        "undispatched_consumers",
        "undispatched_inputs",
        "unfinished_consumers",
        "unfinished_inputs",
        "unfinished_outputs",
    )

    def __init__(
        self,
        number: int,
        plan: GraphPlan,
        make_policy: Callable[[GraphView, Mapping[int, int]], Policy] = MemoryPolicy,
        slots: Mapping[int, int] | None = None,
        credible_bytes: int | None = None,
    ) -> None:
        count = len(plan.inputs)
        self.number = number
        self.plan = plan
        #: State of each chunk.
        self.state = bytearray(count)
        #: Inputs that are not FINISHED yet.
        self.unfinished_inputs = [len(inputs) for inputs in plan.inputs]
        #: Inputs that are neither in hand nor computed.
        self.undispatched_inputs = list(self.unfinished_inputs)
        #: Successors that are neither in hand nor computed.
        self.undispatched_consumers = [0] * count
        self.successors: list[list[int]] = [[] for _ in range(count)]
        #: Successors that have not FINISHED. Without any, a chunk is FREED, unless it is an output.
        self.unfinished_consumers = [0] * count
        for chunk, inputs in enumerate(plan.inputs):
            for source in inputs:
                self.successors[source].append(chunk)
                self.unfinished_consumers[source] += 1
                self.undispatched_consumers[source] += 1
        self.is_output = bytearray(count)
        for chunk in plan.outputs:
            self.is_output[chunk] = 1
        self.unfinished_outputs = sum(self.is_output)
        #: Heaps of the keys of READY chunks, for all workers and for the client.
        self.ready: list[int] = []
        self.client_ready: list[int] = []
        #: By worker, the heap of the keys of READY chunks offered to it; None if every worker may take any chunk.
        self.offers: dict[int, list[int]] | None = None
        #: By their resources, heaps of the keys of READY chunks.
        self.restricted: dict[Resources, list[int]] = {}
        #: The worker that computed each chunk, if the policy asks for it.
        self.makers: dict[int, int] = {}
        #: By worker, the heap of the keys of chunks whose missing inputs are all in that worker's hands.
        self.run_ahead_keys: dict[int, list[int]] = {}
        #: Chunks that the user's process has in hand; and mean seconds of a chunk there.
        self.client_in_hand = 0
        self.client_mean_s: float | None = None
        #: Estimated bytes of chunks in hand there, and of the next one.
        self.client_bytes: dict[int, int] = {}
        self.in_client = bytearray(count)
        for chunk in plan.in_client:
            self.in_client[chunk] = 1
        #: READY chunks in no queue, whose retry is delayed.
        self.delayed: set[int] = set()
        self.failures: dict[int, int] = {}
        self.losses: dict[int, int] = {}
        #: Chunks that are RUNNING or CANCELLING.
        self.in_hand_count = 0
        #: Failed or cancelled: no chunk starts any more.
        self.stopping = False
        #: The user has taken the results, or never will.
        self.results_taken = False
        #: Mean duration of its chunks in seconds, the guess for new operands; None before the first.
        self.mean_s: float | None = None
        self.estimates = Estimates(plan.operand_of, plan.declared_bytes, credible_bytes)
        #: Objects by chunk, and the bytes of objects on disk. The ledger updates both.
        self.objects: dict[int, StoredObject] = {}
        self.on_disk: dict[int, int] = {}
        #: Dispatches in a row that passed a chunk without room.
        self.passes = 0
        policy = make_policy(self, slots or {})
        if type(policy).workers_for is not Policy.workers_for:
            self.offers = {}
        #: Whether workers take from more queues than one.
        self.has_queues = self.offers is not None or bool(plan.resources)
        #: Decides the order of chunks after the user's priorities; None once the graph is forgotten.
        self.policy: Policy | None = Prioritized(policy) if any(plan.priorities.values()) else policy
        self.run_ahead = plan.run_ahead and policy.run_ahead
        self.on_ready = self.policy.on_ready
        #: Key of a queued chunk, smallest first; and chunk of a key.
        self.key_of: Callable[[int], int] = self.policy.key_of
        self.chunk_of: Callable[[int], int] = self.policy.chunk_of

    def inputs(self, chunk: int) -> tuple[int, ...]:
        """Return the inputs of a chunk."""
        return self.plan.inputs[chunk]

    def restores(self, worker: int, chunks: list[int]) -> list[int]:
        """Return the inputs of chunks that a worker should put back into the store, and mark them.

        An input with a single remaining consumer is read into that worker's private memory instead.
        """
        on_disk, objects = self.on_disk, self.objects
        if not on_disk:
            return []
        found = []
        for chunk in chunks:
            for source in self.plan.inputs[chunk]:
                if (
                    source in on_disk
                    and objects[source].restoring_worker is None
                    and self.unfinished_consumers[source] > 1
                ):
                    objects[source].restoring_worker = worker
                    found.append(source)
        return found

    def read_ahead(self, count: int) -> list[ObjectId]:
        """Return the objects on disk that the next `count` READY chunks need, each object once."""
        on_disk = self.on_disk
        if not on_disk:
            return []
        # The smallest `count` keys of a heap are among these.
        first = heapq.nsmallest(count, self.ready[: 2**count - 1])
        for queue in self._other_queues():
            first += queue[:1]
        found = []
        for key in first:
            for source in self.plan.inputs[self.chunk_of(key)]:
                if source not in on_disk:
                    continue
                stored = self.objects[source]
                if not (stored.is_read_ahead or stored.is_copy):
                    stored.is_read_ahead = True
                    found.append(stored.id)
        return found

    def required_bytes(self, chunk: int) -> int:
        """Return the bytes that have to be free before a chunk runs: those it takes, and its inputs on disk."""
        return self.taken_bytes(chunk) + self.disk_bytes(chunk)

    def taken_bytes(self, chunk: int) -> int:
        """Return the estimated bytes that a chunk takes while it runs, its result included."""
        required_bytes = self.estimates.required_bytes(chunk)
        temporaries = self.plan.temporaries
        if temporaries and not self.estimates.is_learned(chunk):
            share = temporaries.get(self.plan.operand_of[chunk])
            if share is not None:
                largest = max(map(self.bytes_of, self.plan.inputs[chunk]), default=0)
                required_bytes += int(share * max(largest, self.estimates.expected_bytes(chunk)))
        return required_bytes

    def disk_bytes(self, chunk: int) -> int:
        """Return the bytes of a chunk's inputs that are on disk."""
        on_disk = self.on_disk
        return sum([on_disk.get(source, 0) for source in self.plan.inputs[chunk]]) if on_disk else 0

    def bytes_of(self, chunk: int) -> int:
        """Return a chunk's size in bytes, estimated before it is computed."""
        found = self.objects.get(chunk)
        return self.estimates.expected_bytes(chunk) if found is None else found.size_bytes

    @property
    def results_pending(self) -> bool:
        """Return whether the results have been reported and the user has not taken them yet."""
        return not self.unfinished_outputs and not self.results_taken

    def next_use(self, chunk: int) -> float:
        """Return the key of the first chunk that will read this one; infinite if only the user will."""
        waiting = [successor for successor in self.successors[chunk] if self.state[successor] <= READY]
        return min(map(self.key_of, waiting), default=math.inf)

    def objects_of(self, chunks: Iterable[int]) -> Iterator[StoredObject]:
        """Return the objects among the chunks."""
        return filter(None, map(self.objects.get, chunks))

    # -- queues -----------------------------------------------------------------------------------------------

    def push(self, chunk: int) -> None:
        """Queue a READY chunk."""
        for queue in self._queues_of(chunk) if self.has_queues else (self.ready,):
            heapq.heappush(self.client_ready if self.in_client[chunk] else queue, self.key_of(chunk))

    def _queues_of(self, chunk: int) -> list[list[int]]:
        """Return the queues of a chunk: by its resources, or by the workers it is offered to."""
        taken = self.plan.resources.get(chunk)
        if taken is not None:
            return [self.restricted.setdefault(taken, [])]
        if self.offers is None or self.in_client[chunk]:
            return [self.ready]
        assert self.policy is not None
        workers = self.policy.workers_for(chunk)
        return [self.offers.setdefault(worker, []) for worker in workers] if workers else [self.ready]

    def push_all(self, chunks: Iterable[int]) -> None:
        """Queue the first READY chunks."""
        if self.has_queues:
            for chunk in chunks:
                self.push(chunk)
            return
        for chunk in chunks:
            (self.client_ready if self.in_client[chunk] else self.ready).append(self.key_of(chunk))
        heapq.heapify(self.ready)
        heapq.heapify(self.client_ready)

    def is_next(self, chunk: int) -> bool:
        """Return whether a queued chunk may be dispatched now."""
        return self.state[chunk] == READY and chunk not in self.delayed

    def withdraw(self, chunk: int) -> None:
        """Remove a chunk from its queues out of turn."""
        for queue in (self.client_ready, self.ready, *self._other_queues()):
            queue[:] = [key for key in queue if self.chunk_of(key) != chunk]
            heapq.heapify(queue)

    def move_to_client(self, chunks: Collection[int]) -> None:
        """Move chunks that are not in hand to the user's process."""
        queued = set()
        for queue in (self.ready, *self._other_queues()):
            queued.update([chunk for key in queue if (chunk := self.chunk_of(key)) in chunks])
            queue[:] = [key for key in queue if self.chunk_of(key) not in chunks]
            heapq.heapify(queue)
        for chunk in chunks:
            self.in_client[chunk] = 1
        for chunk in sorted(queued):
            self.push(chunk)

    def clear_queues(self) -> None:
        """Empty all queues."""
        for queue in (self.ready, self.client_ready, *self._other_queues()):
            queue.clear()
        self.run_ahead_keys.clear()

    def forget_policy(self) -> None:
        """Drop the policy: it and the graph form a cycle, which the garbage collector would free late."""
        self.policy = None
        self.key_of = self.chunk_of = int
        self.on_ready = _ignore

    @property
    def has_queued(self) -> bool:
        """Return whether a worker could be given a chunk."""
        return bool(self.ready or self.run_ahead_keys or any(self._other_queues()))

    @property
    def is_alone(self) -> bool:
        """Return whether nothing else can run before the one chunk in hand has ended."""
        return self.in_hand_count == 1 and not (self.has_queued or self.client_ready or self.delayed)

    def _other_queues(self) -> list[list[int]]:
        """Return the queues that are not open to every worker at all times."""
        return [*self.restricted.values(), *(self.offers or {}).values()]

    def queue_for(self, worker: int, is_idle: bool, are_free: Callable[[Resources], bool]) -> list[int]:
        """Return the queue that a worker should take its next chunk from.

        Its head is the first of the chunks offered to the worker, offered to all, or with free resources. An idle
        worker without offers takes from the worker with the most.
        """
        offers = self.offers or {}
        candidates = [offers.get(worker, []), self.ready]
        candidates += [queue for taken, queue in self.restricted.items() if queue and are_free(taken)]
        for queue in candidates:
            self._drop_stale(queue)
        found = min(filter(None, candidates), default=self.ready)
        if found or not is_idle:
            return found
        others = sorted(offers.items(), key=lambda entry: (-len(entry[1]), entry[0]))
        for _, queue in others:
            self._drop_stale(queue)
        return next((queue for _, queue in others if queue), found)

    def _drop_stale(self, queue: list[int]) -> None:
        """Drop chunks from the head of a queue that other queues have given out."""
        while queue and not self.is_next(self.chunk_of(queue[0])):
            heapq.heappop(queue)

    # -- state changes ----------------------------------------------------------------------------------------

    def move(self, chunk: int, target: int) -> None:
        """Change a chunk's state; raise `StateError` for an illegal move."""
        state = self.state
        if not LEGAL[state[chunk] * _STATES + target]:
            error = StateError(self.number, chunk, State(state[chunk]).name, State(target).name)
            id = SubtaskIds(self.number, self.plan.inputs)[chunk]
            error.add_note(f"dask_mars: the chunk's id is {id.hex()}")
            raise error
        state[chunk] = target

    def dispatch(self, chunk: int) -> Sequence[int]:
        """Put a chunk in hand; return the successors whose inputs are all dispatched now."""
        self.move(chunk, RUNNING)
        self.in_hand_count += 1
        return self.mark_dispatched(chunk)

    def is_dispatched(self, chunk: int) -> bool:
        """Return whether a chunk is in hand."""
        return self.state[chunk] in (RUNNING, CANCELLING)

    def mark_dispatched(self, chunk: int) -> Sequence[int]:
        """Count a chunk as dispatched; return the successors whose inputs are all dispatched now."""
        complete: Sequence[int] = ()
        if self.successors[chunk]:
            undispatched_inputs = self.undispatched_inputs
            for successor in self.successors[chunk]:
                undispatched_inputs[successor] -= 1
            complete = [successor for successor in self.successors[chunk] if not undispatched_inputs[successor]]
        undispatched_consumers = self.undispatched_consumers
        for source in self.plan.inputs[chunk]:
            undispatched_consumers[source] -= 1
            if undispatched_consumers[source] == 1:
                assert self.policy is not None
                last = [other for other in self.successors[source] if self.state[other] <= READY]
                self.policy.on_last_consumer(last, chunk)
        return complete

    def reschedule(self, chunk: int) -> bool:
        """Record that a chunk has to run once more; return whether it is READY with its inputs."""
        for source in self.plan.inputs[chunk]:
            self.undispatched_consumers[source] += 1
        for successor in self.successors[chunk]:
            self.undispatched_inputs[successor] += 1
        self.move(chunk, UNSCHEDULED if self.unfinished_inputs[chunk] else READY)
        return not self.unfinished_inputs[chunk]

    def after_finish(self, chunk: int) -> None:
        """Count a FINISHED chunk, and make successors READY that waited for it alone."""
        if self.is_output[chunk]:
            self.unfinished_outputs -= 1
        waiting, state = self.unfinished_inputs, self.state
        for successor in self.successors[chunk]:
            waiting[successor] -= 1
            if not waiting[successor] and state[successor] == UNSCHEDULED:
                # Legal: the condition has checked the present state.
                state[successor] = READY
                self.on_ready(successor, chunk)
                self.push(successor)

    # -- invariants -------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Check every invariant; raise AssertionError where one does not hold."""
        state, plan = self.state, self.plan
        done = {FINISHED, FREED}
        ready = {chunk for chunk, current in enumerate(state) if current == READY}
        offered = itertools.chain(*self._other_queues())
        queued = [self.chunk_of(key) for key in [*self.ready, *self.client_ready, *offered]]
        assert ready <= set(queued) | self.delayed, "a READY chunk would never run"
        assert self.stopping or self.delayed <= ready
        assert self.in_hand_count == state.count(RUNNING) + state.count(CANCELLING)
        unfinished_outputs = 0
        for chunk, inputs in enumerate(plan.inputs):
            current = state[chunk]
            unfinished_outputs += bool(self.is_output[chunk]) and current not in done
            if current in (UNSCHEDULED, READY):
                missing = sum(state[source] not in done for source in inputs)
                assert self.unfinished_inputs[chunk] == missing, (chunk, self.unfinished_inputs[chunk], missing)
                assert (current == READY) == (missing == 0)
            if not self.stopping:
                assert self.undispatched_inputs[chunk] == sum(
                    state[source] in (UNSCHEDULED, READY) for source in inputs
                )
                undispatched_consumers = sum(
                    state[successor] in (UNSCHEDULED, READY) for successor in self.successors[chunk]
                )
                assert self.undispatched_consumers[chunk] == undispatched_consumers
            if current == READY:
                assert all(state[source] == FINISHED for source in inputs), "an input is gone"
            if current == RUNNING:
                assert FREED not in [state[source] for source in inputs], "an input is gone"
            unfinished_consumers = sum(state[successor] not in done for successor in self.successors[chunk])
            if not self.stopping:
                assert self.unfinished_consumers[chunk] == unfinished_consumers
                if current == FINISHED:
                    assert unfinished_consumers or self.is_output[chunk], "data without a reader"
        assert self.unfinished_outputs == unfinished_outputs
        if self.stopping:
            assert not ready, "a stopped graph has work"
            assert not self.has_queued, "a stopped graph has work queued"
            assert all(State(current) in ENDED or current == CANCELLING for current in state)


def _ignore(chunk: int, last: int | None) -> None:
    pass


class Worker:
    """One worker's chunks in hand."""

    __slots__ = ("granted_bytes", "in_hand", "is_thread", "last_report_s", "load_s", "recall_attempts")

    def __init__(self, is_thread: bool = False) -> None:
        #: Whether it computes library code only.
        self.is_thread = is_thread
        #: (graph, chunk) to the estimated duration that it adds to `load_s`.
        self.in_hand: dict[tuple[int, int], float] = {}
        #: Estimated seconds of work in hand.
        self.load_s = 0.0
        #: Last granted quota in bytes, -1 before the first.
        self.granted_bytes = -1
        #: Time of its last report, or when it last had nothing in hand.
        self.last_report_s = 0.0
        #: Number of recalls since then.
        self.recall_attempts = 0
