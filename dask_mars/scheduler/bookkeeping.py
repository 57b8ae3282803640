"""The state machine's record of one graph."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from dask_mars.errors import StateError
from dask_mars.graph.ids import SubtaskIds
from dask_mars.scheduler.estimates import Estimates, moved_mean
from dask_mars.scheduler.events import GraphPlan
from dask_mars.scheduler.objects import StoredObject
from dask_mars.scheduler.policies import GraphView, MarsPolicy, Policy
from dask_mars.scheduler.queues import Queues
from dask_mars.scheduler.states import ENDED, LEGAL, State

_STATES = len(State)
# Plain integers: an IntEnum member costs a look-up and a comparison through its class on the hot path.
UNSCHEDULED, READY, RUNNING, FINISHED, FREED, FATAL, CANCELLING, CANCELLED = (int(state) for state in State)


class ClientShare:
    """The chunks of one graph in the user's process."""

    def __init__(self, plan: GraphPlan) -> None:
        #: Whether each chunk must run there.
        self.is_needed = bytearray(len(plan.inputs))
        for chunk in plan.in_client:
            self.is_needed[chunk] = 1
        #: Number of dispatched chunks, and mean seconds of a chunk.
        self.count = 0
        self.mean_s: float | None = None
        #: Estimated bytes of dispatched chunks, and of the next one.
        self.bytes: dict[int, int] = {}

    def add(self, chunk: int, taken_bytes: int) -> None:
        """Record a dispatched chunk."""
        self.bytes[chunk] = taken_bytes
        self.count += 1

    def learn(self, durations_s: Iterable[float]) -> None:
        """Update the mean duration of chunks, which is independent of workers."""
        for duration_s in durations_s:
            self.mean_s = moved_mean(self.mean_s, duration_s)


class Graph:
    """One graph's bookkeeping; lists are indexed by chunk."""

    # For mypyc, as `forget_policy` deletes it.
    __deletable__ = ("queues",)

    def __init__(
        self,
        id: int,
        plan: GraphPlan,
        make_policy: Callable[[GraphView, Mapping[int, int]], Policy] = MarsPolicy,
        slots: Mapping[int, int] | None = None,
        credible_bytes: int | None = None,
    ) -> None:
        count = len(plan.inputs)
        self.id = id
        self.plan = plan
        #: State of each chunk.
        self.state = bytearray(count)
        #: Inputs that are not FINISHED yet.
        self.unfinished_inputs = [len(inputs) for inputs in plan.inputs]
        #: Inputs, and successors, that are neither dispatched nor computed.
        self.undispatched_inputs = list(self.unfinished_inputs)
        self.successors: list[list[int]] = [[] for _ in range(count)]
        for chunk, inputs in enumerate(plan.inputs):
            for source in inputs:
                self.successors[source].append(chunk)
        #: Successors that have not FINISHED. Without any, a chunk is FREED, unless it is an output.
        self.unfinished_consumers = list(map(len, self.successors))
        self.undispatched_consumers = list(self.unfinished_consumers)
        self.is_output = bytearray(count)
        for chunk in plan.outputs:
            self.is_output[chunk] = 1
        self.unfinished_outputs = sum(self.is_output)
        #: The worker that computed each chunk, if the policy asks for it.
        self.makers: dict[int, int] = {}
        self.client = ClientShare(plan)
        self.failures: dict[int, int] = {}
        self.losses: dict[int, int] = {}
        #: Chunks that are RUNNING or CANCELLING; and the worker of each of them, by operand.
        self.dispatched_count = 0
        self.holders: dict[int, dict[int, int]] = {}
        #: Failed or cancelled: no chunk starts any more.
        self.stopping = False
        #: The user has taken the results, or never will.
        self.results_taken = False
        self.estimates = Estimates(plan.operand_of, plan.declared_bytes, credible_bytes)
        #: Objects by chunk, and the bytes of objects on disk. The ledger updates both.
        self.objects: dict[int, StoredObject] = {}
        self.on_disk: dict[int, int] = {}
        policy = make_policy(self, slots or {})
        self.run_ahead = plan.run_ahead and policy.run_ahead
        #: The queues and the policy.
        self.queues = Queues(plan, self.state, self.client.is_needed, policy)

    def inputs(self, chunk: int) -> tuple[int, ...]:
        """Return the inputs of a chunk."""
        return self.plan.inputs[chunk]

    def restores(self, worker: int, chunks: list[int]) -> list[int]:
        """Return the inputs of chunks that a worker should put back into the store, and mark them."""
        # An input with a single remaining consumer is read into that worker's private memory instead.
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

    def is_in_use(self, chunk: int) -> bool:
        """Return whether a dispatched chunk reads this one, or the user takes it."""
        if self.is_output[chunk] and self.results_pending:
            return True
        return any(map(self.is_dispatched, self.successors[chunk]))

    def next_use(self, chunk: int) -> float:
        """Return the key of the first chunk that will read this one; infinite if only the user will."""
        waiting = [successor for successor in self.successors[chunk] if self.state[successor] <= READY]
        return min(map(self.queues.key_of, waiting), default=math.inf)

    def objects_of(self, chunks: Iterable[int]) -> Iterator[StoredObject]:
        """Return the objects among the chunks."""
        return filter(None, map(self.objects.get, chunks))

    # -- queues -----------------------------------------------------------------------------------------------

    def push(self, chunk: int) -> None:
        """Queue a READY chunk."""
        self.queues.push(chunk)

    def is_next(self, chunk: int) -> bool:
        """Return whether a queued chunk may be dispatched now."""
        return self.queues.is_next(chunk)

    def move_to_client(self, chunks: Collection[int]) -> None:
        """Move chunks that are not dispatched to the user's process."""
        queued = self.queues.withdraw(chunks)
        for chunk in chunks:
            self.client.is_needed[chunk] = 1
        for chunk in queued:
            self.push(chunk)

    @property
    def is_alone(self) -> bool:
        """Return whether nothing else can run before the one dispatched chunk has ended."""
        queues = self.queues
        return self.dispatched_count == 1 and not (queues.has_queued or queues.client or queues.delayed)

    def forget_policy(self) -> None:
        """Drop the policy: it and the graph form a cycle, which the garbage collector would free late."""
        del self.queues

    # -- state changes ----------------------------------------------------------------------------------------

    def move(self, chunk: int, target: int) -> None:
        """Change a chunk's state; raise `StateError` for an illegal move."""
        state = self.state
        if not LEGAL[state[chunk] * _STATES + target]:
            error = StateError(self.id, chunk, State(state[chunk]).name, State(target).name)
            found = SubtaskIds(self.id, self.plan.inputs)[chunk]
            error.add_note(f"dask_mars: the chunk's id is {found.hex()}")
            raise error
        state[chunk] = target

    def dispatch(self, chunk: int) -> list[int]:
        """Count a chunk as RUNNING; return the successors whose inputs are all dispatched now."""
        self.move(chunk, RUNNING)
        self.dispatched_count += 1
        return self.mark_dispatched(chunk)

    def hold(self, chunk: int, worker: int) -> None:
        """Record that a worker has a chunk."""
        self.holders.setdefault(self.plan.operand_of[chunk], {})[chunk] = worker

    def unhold(self, chunks: Iterable[int]) -> None:
        """Record that workers no longer have chunks."""
        operand_of, holders = self.plan.operand_of, self.holders
        for chunk in chunks:
            del holders[operand_of[chunk]][chunk]

    def is_dispatched(self, chunk: int) -> bool:
        """Return whether a worker or the user's process has a chunk."""
        return self.state[chunk] in (RUNNING, CANCELLING)

    def mark_dispatched(self, chunk: int) -> list[int]:
        """Count a chunk as dispatched; return the successors whose inputs are all dispatched now."""
        complete: list[int] = []
        if successors := self.successors[chunk]:
            undispatched_inputs = self.undispatched_inputs
            for successor in successors:
                undispatched_inputs[successor] -= 1
            complete = [successor for successor in successors if not undispatched_inputs[successor]]
        undispatched_consumers = self.undispatched_consumers
        for source in self.plan.inputs[chunk]:
            undispatched_consumers[source] -= 1
            if undispatched_consumers[source] == 1:
                last = [other for other in self.successors[source] if self.state[other] <= READY]
                self.queues.policy.on_last_consumer(last, chunk)
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
                self.queues.on_ready(successor, chunk)
                self.queues.push(successor)

    # -- invariants -------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Check every invariant; raise AssertionError where one does not hold."""
        state, plan = self.state, self.plan
        done = {FINISHED, FREED}
        ready = {chunk for chunk, current in enumerate(list(state)) if current == READY}
        queues = self.queues
        queued = {queues.chunk_of(key) for key in itertools.chain(*queues.all())}
        assert ready <= queued | queues.delayed, "a READY chunk would never run"
        assert self.stopping or queues.delayed <= ready
        operands = {chunk: operand for operand, held in self.holders.items() for chunk in held}
        assert all(
            plan.operand_of[chunk] == operand and self.is_dispatched(chunk) for chunk, operand in operands.items()
        )
        assert len(operands) + self.client.count == self.dispatched_count
        assert self.dispatched_count == state.count(RUNNING) + state.count(CANCELLING)
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
            assert not queues.has_queued, "a stopped graph has work queued"
            assert all(State(current) in ENDED or current == CANCELLING for current in list(state))
