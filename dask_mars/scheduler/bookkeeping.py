"""What the state machine knows of each graph and each worker."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence

from dask_mars.errors import StateError
from dask_mars.scheduler.events import GraphPlan
from dask_mars.scheduler.memory import GraphMemory
from dask_mars.scheduler.states import ENDED, LEGAL, State

_STATES = len(State)
# Plain integers: an IntEnum member costs a look-up and a comparison through its class on the hot path.
UNSCHEDULED, READY, RUNNING, FINISHED, FREED, FATAL, CANCELLING, CANCELLED = (int(state) for state in State)


#: By how much a chunk that frees memory may take more than it frees.
_TOLERANCE = 1.1
#: How many consumers of a chunk are looked at, so that looking costs no more than running them.
_FEW = 8


class Graph:
    """One graph's bookkeeping; lists are indexed by chunk.

    Parameters
    ----------
    number : int
        The graph's number.
    plan : GraphPlan
        What is to be computed.
    """

    __slots__ = (
        "_places",
        "client_ready",
        "consumers",
        "delayed",
        "failures",
        "followers",
        "in_client",
        "in_hand",
        "lent",
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
        "undispatched_consumers",
        "undispatched_inputs",
        "unfinished_outputs",
        "waiting",
    )

    def __init__(self, number: int, plan: GraphPlan) -> None:
        count = len(plan.inputs)
        self.number = number
        self.plan = plan
        #: State of each chunk.
        self.state = bytearray(count)
        #: Inputs that are not FINISHED yet.
        self.waiting = [len(inputs) for inputs in plan.inputs]
        #: Inputs that nobody has in hand or has computed yet.
        self.undispatched_inputs = list(self.waiting)
        #: Successors that nobody has in hand or has computed yet.
        self.undispatched_consumers = [0] * count
        self.successors: list[list[int]] = [[] for _ in range(count)]
        #: Successors that have not FINISHED: when none is left a chunk is FREED, unless it is an output.
        self.consumers = [0] * count
        for chunk, inputs in enumerate(plan.inputs):
            for source in inputs:
                self.successors[source].append(chunk)
                self.consumers[source] += 1
                self.undispatched_consumers[source] += 1
        self.output = bytearray(count)
        for chunk in plan.outputs:
            self.output[chunk] = 1
        self.unfinished_outputs = sum(self.output)
        #: Heaps of the keys of READY chunks, for workers and for the user's process.
        self.ready: list[int] = []
        self.client_ready: list[int] = []
        #: Where chunks come that were brought forward.
        self._places: dict[int, int] = {}
        #: By worker, the heap of the keys of chunks whose missing inputs that worker had all in hand.
        self.followers: dict[int, list[int]] = {}
        self.in_client = bytearray(count)
        for chunk in plan.in_client:
            self.in_client[chunk] = 1
        #: Position of each chunk in the order of priority, and its inverse; None where it is the id itself.
        self.rank = _ranks(plan)
        #: READY chunks that wait for the delay before their retry to pass, and are in no queue.
        self.delayed: set[int] = set()
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
        #: Of kept chunks: the graphs that have borrowed them, and the chunks that they are there.
        self.lent: dict[int, list[tuple[Graph, int]]] = {}
        #: How often in a row others have passed the chunk that is next and has no room.
        self.passes = 0

    def inputs(self, chunk: int) -> tuple[int, ...]:
        """Return the inputs of a chunk."""
        return self.plan.inputs[chunk]

    def loads(self, worker: int, chunks: list[int]) -> list[int]:
        """Return which inputs of chunks a worker is to put back into the store, and note that it will.

        What one chunk alone still needs is read into memory of its worker's own.
        """
        memory = self.memory
        if not memory.spilled:
            return []
        found = []
        for chunk in chunks:
            for source in self.plan.inputs[chunk]:
                if source in memory.spilled and source not in memory.loading and self.consumers[source] > 1:
                    memory.loading[source] = worker
                    found.append(source)
        return found

    def announce(self, count: int) -> list[int]:
        """Return which chunks on disk the next so many READY chunks need, each chunk once."""
        memory = self.memory
        if not memory.spilled:
            return []
        # In a heap the least so many stand among these.
        first = heapq.nsmallest(count, self.ready[: 2**count - 1])
        found = []
        for key in first:
            for source in self.plan.inputs[self.chunk_of(key)]:
                if source in memory.spilled and source not in memory.announced:
                    memory.announced.add(source)
                    found.append(source)
        return found

    @property
    def is_read(self) -> bool:
        """Whether the user has been told that the results are there, and has not taken them yet."""
        return not self.unfinished_outputs and not self.taken

    def next_use(self, chunk: int) -> float:
        """Return the key of the first chunk that will need another's data; infinite if only the user does."""
        waiting = [successor for successor in self.successors[chunk] if self.state[successor] <= READY]
        elsewhere = [user.next_use(its) for user, its in self.lent.get(chunk, ())]
        return min([*map(self.key_of, waiting), *elsewhere], default=math.inf)

    def memory_of(self, chunks: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Return graph and chunk of all that may answer for the memory of chunks.

        For a borrowed chunk that is its keeper, and this graph if it was read back from disk for it.
        """
        for chunk in chunks:
            yield self.number, chunk
            if chunk in self.plan.borrowed:
                yield self.plan.borrowed[chunk]

    # -- queues -----------------------------------------------------------------------------------------------

    def key_of(self, chunk: int) -> int:
        """Return the key under which a chunk is queued: those with small keys are to run first."""
        if self.rank is not None:
            return self.rank[0][chunk]
        place = self._places.get(chunk)
        if place is None:
            # Before what was brought forward to the same place, and that before what begins something new.
            place = chunk - 1 if self.plan.inputs[chunk] else chunk
        return place * len(self.state) + chunk

    def chunk_of(self, key: int) -> int:
        """Return the chunk that a key belongs to."""
        return key % len(self.state) if self.rank is None else self.rank[1][key]

    def place(self, chunk: int, last: int | None = None) -> None:
        """Settle where a chunk comes whose inputs are all given, where the user has set no priorities.

        That is the graph's order, but some come right behind their inputs: chunks that free as much memory as they
        take, and those that take none or are pieces of their input, which would have to be read from disk later.
        """
        places = self._places
        # Right behind its last input it is already, unless that was brought forward.
        if last == chunk - 1 and not places:
            return
        inputs = self.plan.inputs[chunk]
        if self.rank is None and inputs:
            behind = max([places.get(source, source) for source in inputs]) if places else max(inputs)
            # Most come there anyway.
            if behind < chunk - 1 and (self._relieves(chunk) or self._is_piece(chunk)):
                places[chunk] = behind

    def _is_piece(self, chunk: int) -> bool:
        """Say whether a chunk and all others that are made of its input take no more memory than that has."""
        inputs = self.plan.inputs[chunk]
        size = self.memory.bytes_of(inputs[0])
        if len(inputs) > 1 or not size:
            return False
        return self.memory.expected(chunk) * len(self.successors[inputs[0]]) <= _TOLERANCE * size

    def _relieves(self, chunk: int, missing: int | None = None) -> bool:
        """Say whether hardly more memory is needed once a chunk, and an input that it lacks, was computed."""
        undispatched_consumers, output, memory = self.undispatched_consumers, self.output, self.memory
        last = [
            source
            for source in self.plan.inputs[chunk]
            if undispatched_consumers[source] == 1 and not output[source]
        ]
        freed_bytes = sum(map(memory.bytes_of, last))
        if not freed_bytes:
            return False
        need = memory.expected(chunk)
        if missing is not None:
            others = self.successors[missing]
            if (
                len(others) <= _FEW
                and not output[missing]
                and all(self.undispatched_inputs[other] <= 1 for other in others)
            ):
                # They can all follow, and then the input that was missing is gone too.
                need = sum(map(memory.expected, others))
            else:
                need += memory.expected(missing)
        return _TOLERANCE * freed_bytes >= need

    def push(self, chunk: int) -> None:
        """Queue a READY chunk."""
        heapq.heappush(self.client_ready if self.in_client[chunk] else self.ready, self.key_of(chunk))

    def push_all(self, chunks: Iterable[int]) -> None:
        """Queue the first READY chunks."""
        for chunk in chunks:
            (self.client_ready if self.in_client[chunk] else self.ready).append(self.key_of(chunk))
        heapq.heapify(self.ready)
        heapq.heapify(self.client_ready)

    def is_next(self, chunk: int) -> bool:
        """Say whether a chunk that is in the queues may be given to somebody now."""
        return self.state[chunk] == READY and chunk not in self.delayed

    def withdraw(self, chunk: int) -> None:
        """Take a chunk out of its queue out of turn."""
        queue = self.client_ready if self.in_client[chunk] else self.ready
        queue[:] = [key for key in queue if self.chunk_of(key) != chunk]
        heapq.heapify(queue)

    # -- moves ------------------------------------------------------------------------------------------------

    def move(self, chunk: int, target: int) -> None:
        """Change a chunk's state.

        Raises
        ------
        StateError
            There is no such move.
        """
        state = self.state
        if not LEGAL[state[chunk] * _STATES + target]:
            raise StateError(self.number, chunk, State(state[chunk]).name, State(target).name)
        state[chunk] = target

    def give(self, chunk: int) -> Sequence[int]:
        """Put a chunk into somebody's hands; return the successors of which all inputs are given now."""
        self.move(chunk, RUNNING)
        self.in_hand += 1
        return self.mark_given(chunk)

    def is_given(self, chunk: int) -> bool:
        """Whether a chunk is in somebody's hands."""
        return self.state[chunk] in (RUNNING, CANCELLING)

    def mark_given(self, chunk: int) -> Sequence[int]:
        """Count a chunk as given, and return the successors of which all inputs are given now."""
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
                self._hasten([other for other in self.successors[source] if self.state[other] <= READY], chunk)
        return complete

    def _hasten(self, last: list[int], now: int) -> None:
        """Bring the chunk forward that is the last to need an input since another was given.

        If all that it lacks is one input, and that can be computed, that one is brought forward for it. What was
        queued already is queued again; what is left of it is passed over when its turn comes.
        """
        # There is none if the other needs the input twice.
        if not last or self.rank is not None:
            return
        chunk = last[0]
        if self.is_next(chunk):
            before = self.key_of(chunk)
            self.place(chunk)
            if self.key_of(chunk) < before:
                self.push(chunk)
        elif self.undispatched_inputs[chunk] == 1:
            missing = next(source for source in self.plan.inputs[chunk] if self.state[source] <= READY)
            place = self._places.get(now, now)
            if self.is_next(missing) and place < missing - 1 and self._relieves(chunk, missing):
                self._places[missing] = place
                self.push(missing)

    def give_back(self, chunk: int) -> bool:
        """Note that a chunk is to be given once more; return whether it is READY, which includes its inputs."""
        for source in self.plan.inputs[chunk]:
            self.undispatched_consumers[source] += 1
        for successor in self.successors[chunk]:
            self.undispatched_inputs[successor] += 1
        self.move(chunk, UNSCHEDULED if self.waiting[chunk] else READY)
        return not self.waiting[chunk]

    def after_finish(self, chunk: int) -> None:
        """Count a chunk that has just FINISHED, and ready those that waited for it alone."""
        if self.output[chunk]:
            self.unfinished_outputs -= 1
        waiting, state = self.waiting, self.state
        for successor in self.successors[chunk]:
            waiting[successor] -= 1
            if not waiting[successor] and state[successor] == UNSCHEDULED:
                # Legal by what was just asked.
                state[successor] = READY
                self.place(successor, chunk)
                self.push(successor)

    # -- proof ------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Check every invariant; raise AssertionError where one does not hold."""
        state, plan = self.state, self.plan
        done = {FINISHED, FREED}
        ready = {chunk for chunk, current in enumerate(state) if current == READY}
        queued = [self.chunk_of(key) for key in [*self.ready, *self.client_ready]]
        assert ready <= set(queued) | self.delayed, "a READY chunk would never run"
        assert self.stopping or self.delayed <= ready
        assert self.in_hand == state.count(RUNNING) + state.count(CANCELLING)
        unfinished_outputs = 0
        for chunk, inputs in enumerate(plan.inputs):
            current = state[chunk]
            unfinished_outputs += bool(self.output[chunk]) and current not in done
            if current in (UNSCHEDULED, READY):
                missing = sum(state[source] not in done for source in inputs)
                assert self.waiting[chunk] == missing, (chunk, self.waiting[chunk], missing)
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
            consumers = sum(state[successor] not in done for successor in self.successors[chunk])
            if not self.stopping:
                assert self.consumers[chunk] == consumers
                if current == FINISHED:
                    assert consumers or self.output[chunk], "data kept for nobody"
        assert self.unfinished_outputs == unfinished_outputs
        if self.stopping:
            assert not ready, "a stopped graph has work"
            assert all(State(current) in ENDED or current == CANCELLING for current in state)


def _ranks(plan: GraphPlan) -> tuple[list[int], list[int]] | None:
    if not any(plan.priorities.values()):
        return None
    priorities = plan.priorities
    order = sorted(range(len(plan.inputs)), key=lambda chunk: (-priorities.get(chunk, 0.0), chunk))
    rank = [0] * len(order)
    for position, chunk in enumerate(order):
        rank[chunk] = position
    return rank, order


class Worker:
    """What one worker has in hand."""

    __slots__ = ("heard_s", "in_hand", "load_s", "recall_attempts")

    def __init__(self) -> None:
        #: (graph, chunk) to the estimated duration that it adds to `load_s`.
        self.in_hand: dict[tuple[int, int], float] = {}
        #: Estimated seconds of work in hand.
        self.load_s = 0.0
        #: When it last said anything, or had nothing in hand.
        self.heard_s = 0.0
        #: How often it has been asked since to give back what waits in its queue.
        self.recall_attempts = 0
