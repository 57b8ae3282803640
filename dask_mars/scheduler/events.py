"""The state machine's events (past tense) and instructions (imperative).

Both carry batches: a message a chunk would cost more than the chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dask_mars.scheduler.objects import ObjectId

#: The worker number that stands for the user's own process.
CLIENT = -1
#: Name and amount of each resource that a chunk takes.
Resources = tuple[tuple[str, float], ...]


@dataclass(slots=True)
class GraphPlan:
    """What the machine has to know of a graph.

    Chunk ids are dense and in the order in which they should run where nothing else decides.

    Attributes
    ----------
    inputs : sequence of tuple of int
        Inputs of each chunk; the same chunk may stand more than once.
    outputs : sequence of int
        Chunks that the user asked for; not freed until the results are taken.
    operand_of : sequence of int
        Operand number of each chunk, negative for chunks whose value is known.
    in_client : collection of int
        Chunks that must run in the user's process.
    retries : dict
        Allowed failures of a chunk, where they differ from `default_retries`.
    priorities : dict
        User's priority of a chunk, 0 where absent; larger runs first.
    worker_limit : int or None
        Most workers to use at the same time.
    objects : mapping
        Of chunks whose value is a persisted object: its id.
    copied_bytes : mapping
        Of chunks whose value the user's process has, and which take room in the store when workers are to read
        them: how much.
    run_ahead : bool
        Whether a chunk may be handed to a worker that is still to compute inputs of it.
    declared_bytes : sequence of int or None, optional
        The bytes that each chunk's result is declared to take in the store, None where nothing is said.
    temporaries : mapping
        Of operands that are known to take more while they run: how much, as a multiple of the larger of the
        largest input and the result.
    unrepeatable : collection of int
        Operands of which no chunk may be begun a second time.
    resources : mapping
        Of chunks that take any of the engine's resources while they are in hand: name and amount of each.
    is_library_code : bool
        Whether all of it is code of well-known libraries, which may run in the user's process.
    keeps_data_on_failure : bool
        Whether data stay when a chunk has failed, until the graph is cancelled: somebody wants to look at them.
    """

    inputs: Sequence[tuple[int, ...]]
    outputs: Sequence[int]
    operand_of: Sequence[int]
    in_client: frozenset[int] = frozenset()
    retries: dict[int, int] = field(default_factory=dict)
    default_retries: int = 0
    priorities: dict[int, float] = field(default_factory=dict)
    worker_limit: int | None = None
    objects: Mapping[int, ObjectId] = field(default_factory=dict)
    copied_bytes: Mapping[int, int] = field(default_factory=dict)
    run_ahead: bool = True
    declared_bytes: Sequence[int | None] | None = None
    temporaries: Mapping[int, float] = field(default_factory=dict)
    unrepeatable: frozenset[int] = frozenset()
    resources: Mapping[int, Resources] = field(default_factory=dict)
    is_library_code: bool = False
    keeps_data_on_failure: bool = False

    def is_repeatable(self, chunk: int) -> bool:
        """Say whether a chunk may be begun again if it was begun and is not done."""
        return self.operand_of[chunk] not in self.unrepeatable


# -- events ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class GraphSubmitted:
    """A graph is to be computed."""

    graph: int
    plan: GraphPlan


@dataclass(slots=True)
class ChunksFinished:
    """A worker computed chunks; `durations_s` are in the order of `chunks`.

    `sizes` has the bytes of those that are in the store and may go to disk, and `fresh` how many of these were not
    there before: a slice is a view of what it was cut from. Of them `map_outputs` are read in parts, also from
    disk, and never put back into memory, and those `on_disk` are there already: the worker's arena had no room.
    What the client has computed is in the store only while there are workers that read it.
    `peaks` has the bytes of shared memory that operands took while they ran, of those of which that is news.
    `steps_s` says of each chunk when it was begun, its inputs were loaded and its value was computed, on the clock
    of `time.perf_counter`; empty unless a listener wants it.
    """

    worker: int
    graph: int
    chunks: Sequence[int]
    durations_s: Sequence[float]
    sizes: Mapping[int, int] = field(default_factory=dict)
    fresh: Mapping[int, int] = field(default_factory=dict)
    peaks: Mapping[int, int] = field(default_factory=dict)
    steps_s: Sequence[tuple[float, float, float]] = ()
    map_outputs: Sequence[int] = ()
    on_disk: Sequence[int] = ()


@dataclass(slots=True)
class ChunkFailed:
    """A chunk's computation raised. `final` says that trying again is useless."""

    worker: int
    graph: int
    chunk: int
    final: bool = False


@dataclass(slots=True)
class ChunksReturned:
    """A worker gave chunks back without computing them.

    With `to_client` they can only run in the user's process (they cannot be pickled, say).
    """

    worker: int
    graph: int
    chunks: Sequence[int]
    to_client: bool = False


@dataclass(slots=True)
class WorkerStarted:
    """A worker can be given work; a `is_thread` of the user's process only library code."""

    worker: int
    is_thread: bool = False


@dataclass(slots=True)
class WorkerLost:
    """A worker process died while it ran `running`, if anything.

    Unless it was up it has begun nothing of what it had in hand. With `over_limit` it was ended because it had
    taken too much memory; with `crashed` its own code has brought it down, as a segmentation fault does.
    """

    worker: int
    running: tuple[int, int] | None
    was_up: bool = True
    over_limit: bool = False
    crashed: bool = False


@dataclass(slots=True)
class WorkerRetired:
    """A worker that runs nothing ends as it was told, for want of work or because another takes its place.

    What it has in hand it has not begun. `WorkerStarted` says when there is one again.
    """

    worker: int


@dataclass(slots=True)
class GraphCancelled:
    """The user does not want the graph any more."""

    graph: int


@dataclass(slots=True)
class ResultsTaken:
    """The user has a finished graph's results; its data are not needed any more."""

    graph: int


@dataclass(slots=True)
class ResultsPersisted:
    """The user has a finished graph's results; chunks of it stay as objects until `ObjectsReleased`."""

    graph: int
    chunks: Sequence[int]


@dataclass(slots=True)
class ObjectsPut:
    """Objects of so many bytes have come into the store from elsewhere, and stay until `ObjectsReleased`.

    Of them `map_outputs` are read in parts, also from disk.
    """

    sizes: Mapping[ObjectId, int]
    map_outputs: Sequence[ObjectId] = ()


@dataclass(slots=True)
class ObjectsReleased:
    """The user has no use for persisted objects any more."""

    objects: Sequence[ObjectId]


@dataclass(slots=True)
class ObjectSpilled:
    """An object was written to disk, or, unless `written`, could not be; it is still in memory.

    `began_s` and `ended_s` are the times of writing, on the clock of `time.perf_counter`; both are 0 if there was
    nothing to write.
    """

    object: ObjectId
    size_bytes: int
    written: bool = True
    began_s: float = 0.0
    ended_s: float = 0.0


@dataclass(slots=True)
class ChunksRestored:
    """A worker has put chunks that were on disk back into the store, as a `Run` had told it to."""

    worker: int
    graph: int
    chunks: Sequence[int]


@dataclass(slots=True)
class MemoryMeasured:
    """The store holds so many bytes, and may hold so many.

    Nothing is done about that before the next event, which it comes right before.
    """

    stored_bytes: int
    limit_bytes: int
    #: What it may hold if nothing else helps; negative for no news.
    hard_limit_bytes: int = -1


@dataclass(slots=True)
class QuotaRequested:
    """A worker's memory is to grow by so many bytes while it runs a chunk, and it waits for that."""

    worker: int
    graph: int
    chunk: int
    growth_bytes: int


@dataclass(slots=True)
class PrivateMeasured:
    """Workers were seen to take memory that they had not asked for.

    `growths` has graph, chunk and by how many bytes a worker has grown since it began that chunk, of those of
    which that is news; `over_share` all workers that have more than their share.
    """

    growths: Sequence[tuple[int, int, int]]
    over_share: Sequence[int]


@dataclass(slots=True)
class WorkersRenewed:
    """No worker has memory any more that is left from what it has computed."""


@dataclass(slots=True)
class ReservationRequested:
    """So many bytes of the store are wanted for what is to come from elsewhere."""

    reservation: int
    size_bytes: int


@dataclass(slots=True)
class ReservationReleased:
    """What bytes were wanted for is in the store, or does not come."""

    reservation: int


@dataclass(slots=True)
class TimePassed:
    """Nothing happened but time."""


Event = (
    GraphSubmitted
    | ChunksFinished
    | ChunkFailed
    | ChunksReturned
    | WorkerStarted
    | WorkerLost
    | WorkerRetired
    | GraphCancelled
    | ResultsTaken
    | ResultsPersisted
    | ObjectsPut
    | ObjectsReleased
    | ObjectSpilled
    | ChunksRestored
    | MemoryMeasured
    | QuotaRequested
    | PrivateMeasured
    | WorkersRenewed
    | ReservationRequested
    | ReservationReleased
    | TimePassed
)


# -- instructions ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Run:
    """Hand chunks of one graph to a worker, in this order.

    When it first reads those in `restores` from disk it is to put them into the store: others will need them too.
    A chunk for the user's process `is_alone` if nothing else of its graph can run before it has ended.
    """

    worker: int
    graph: int
    chunks: list[int]
    restores: list[int] = field(default_factory=list)
    is_alone: bool = False


@dataclass(slots=True)
class Free:
    """Release the data of chunks: nothing will read them again."""

    graph: int
    chunks: list[int]


@dataclass(slots=True)
class Interrupt:
    """Stop what a worker has of a graph; with `force`, also what it is running right now."""

    worker: int
    graph: int
    force: bool


@dataclass(slots=True)
class RecallQueued:
    """Ask a worker that runs something for long to give back what waits behind it."""

    worker: int


@dataclass(slots=True)
class Spill:
    """Write objects to disk, and leave them in memory until that is answered.

    What is there already, and copies of what the user's process has, are not written.
    """

    objects: list[ObjectId]


@dataclass(slots=True)
class UseSpilled:
    """Release the memory of an object: from now on it is read from disk, or copied anew if it is a copy.

    `read_as` has the graphs that read it, and the chunk that it is there.
    """

    object: ObjectId
    read_as: list[tuple[int, int]]


@dataclass(slots=True)
class UseRestored:
    """Read an object from memory again: a worker has put it there as graph and chunk `restored`.

    `read_as` has the other graphs that read it, and the chunk that it is there.
    """

    object: ObjectId
    restored: tuple[int, int]
    read_as: list[tuple[int, int]]


@dataclass(slots=True)
class ForgetObjects:
    """Release what is kept of objects for the user; graphs that read them go on doing so."""

    objects: list[ObjectId]


@dataclass(slots=True)
class ReadAhead:
    """Have the system read objects from disk: what needs them is to run next."""

    objects: list[ObjectId]


@dataclass(slots=True)
class GrantQuota:
    """Let a worker's memory grow by so many bytes while it runs an operand."""

    worker: int
    growth_bytes: int


@dataclass(slots=True)
class RefuseQuota:
    """Tell a worker that waits for it that its memory cannot grow.

    With `is_postponed` what it runs is to be given back, and is tried again when there is more room.
    """

    worker: int
    graph: int
    chunk: int
    growth_bytes: int
    is_postponed: bool


@dataclass(slots=True)
class RenewWorkers:
    """Have workers give back what they have kept of what they have computed, and replace idle ones that do not.

    Unless `is_strict` these are only those that have kept more than their share. `WorkersRenewed` is to follow.
    """

    is_strict: bool


@dataclass(slots=True)
class GrantReservation:
    """Tell who wants bytes that they are there."""

    reservation: int


@dataclass(slots=True)
class RefuseReservation:
    """Tell who wants bytes that there never can be so many."""

    reservation: int
    size_bytes: int
    limit_bytes: int


@dataclass(slots=True)
class Refuse:
    """Note that a chunk cannot be computed, because it needs more bytes than there can be; `FailGraph` follows.

    `is_result` says whether its result alone does.
    """

    graph: int
    chunk: int
    required_bytes: int
    limit_bytes: int
    is_result: bool = False


@dataclass(slots=True)
class FinishGraph:
    """Tell the user that all outputs of the graph are there."""

    graph: int


@dataclass(slots=True)
class FailGraph:
    """Tell the user that the graph failed at `chunk`; `worker_lost` if by the death of workers."""

    graph: int
    chunk: int
    worker_lost: bool


@dataclass(slots=True)
class ForgetGraph:
    """Release everything that is kept for the graph: no worker has any of it in hand."""

    graph: int


Instruction = (
    Run
    | Free
    | Interrupt
    | RecallQueued
    | Spill
    | UseSpilled
    | UseRestored
    | ForgetObjects
    | ReadAhead
    | GrantQuota
    | RefuseQuota
    | RenewWorkers
    | GrantReservation
    | RefuseReservation
    | Refuse
    | FinishGraph
    | FailGraph
    | ForgetGraph
)
