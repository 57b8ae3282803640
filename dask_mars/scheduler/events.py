"""The state machine's events (past tense) and instructions (imperative).

Both carry batches: one message per chunk would cost more than a small chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from dask_mars.light_dataclass import Light, light_dataclass
from dask_mars.scheduler.objects import ObjectId

#: Worker id of the user's own process.
CLIENT = -1
#: Name and amount of each resource of a chunk.
Resources = tuple[tuple[str, float], ...]


@light_dataclass
class GraphPlan(Light):
    """The machine's view of a graph."""

    # Chunk ids are dense, in the order of execution where nothing else decides.

    #: Inputs of each chunk; the same chunk may stand more than once.
    inputs: Sequence[tuple[int, ...]]
    #: Chunks that the user asked for; not freed until the results are taken.
    outputs: Sequence[int]
    #: Operand number of each chunk, negative for chunks whose value is known.
    operand_of: Sequence[int]
    #: Chunks that must run in the user's process.
    in_client: frozenset[int] = frozenset()
    #: Whether some of these wait for no other task, so that threads may find the next one in their queue.
    lends: bool = False
    #: Allowed failures of a chunk, where they differ from `default_retries`.
    retries: dict[int, int] = field(default_factory=dict)
    default_retries: int = 0
    #: User's priority of a chunk, 0 where absent; larger runs first.
    priorities: dict[int, float] = field(default_factory=dict)
    worker_limit: int | None = None
    #: Object id of each chunk whose value is a persisted object.
    objects: Mapping[int, ObjectId] = field(default_factory=dict)
    #: For chunks whose values the user's process has: the bytes that copies for worker processes take in the
    #: store.
    copied_bytes: Mapping[int, int] = field(default_factory=dict)
    #: Whether a chunk may be queued at a worker behind its inputs.
    run_ahead: bool = True
    #: Declared bytes of each chunk's result in the store, None where unknown.
    declared_bytes: Sequence[int | None] | None = None
    #: Temporary memory of operands where it is known, as a multiple of the largest input or result.
    temporaries: Mapping[int, float] = field(default_factory=dict)
    #: Operands whose chunks must not begin a second time.
    unrepeatable: frozenset[int] = frozenset()
    #: Name and amount of each resource that a dispatched chunk takes.
    resources: Mapping[int, Resources] = field(default_factory=dict)
    #: Whether the graph is code of well-known libraries only, which may run in the user's process.
    is_library_code: bool = False
    #: Whether data stay after a failure until the graph is cancelled, so that the user can inspect them.
    keeps_data_on_failure: bool = False

    def is_repeatable(self, chunk: int) -> bool:
        """Return whether a chunk may begin a second time."""
        return self.operand_of[chunk] not in self.unrepeatable


# -- events ---------------------------------------------------------------------------------------------------


@light_dataclass
class Event(Light):
    """Something that has happened."""


@light_dataclass
class GraphSubmitted(Event):
    """A graph was submitted."""

    graph: int
    plan: GraphPlan


@light_dataclass
class ChunksFinished(Event):
    """A worker computed chunks."""

    worker: int
    graph: int
    chunks: Sequence[int]
    durations_s: Sequence[float]
    #: Bytes of chunks that are in the store and may be spilled. Values of the client are there only while workers
    #: read them.
    sizes: Mapping[int, int] = field(default_factory=dict)
    #: New bytes among these: a slice is a view of its input.
    fresh: Mapping[int, int] = field(default_factory=dict)
    #: Bytes of shared memory that operands took while they ran, where these have grown.
    peaks: Mapping[int, int] = field(default_factory=dict)
    #: Times of each chunk's start, loaded inputs and computed value, by `time.perf_counter`; empty unless a
    #: listener asks for them.
    steps_s: Sequence[tuple[float, float, float]] = ()
    #: Chunks that are read in parts, also from disk, and never put back into memory.
    map_outputs: Sequence[int] = ()
    #: Chunks that were sealed on disk, as the worker's arena had no room.
    on_disk: Sequence[int] = ()


@light_dataclass
class ChunkFailed(Event):
    """A chunk's computation raised. `final` rules out a retry."""

    worker: int
    graph: int
    chunk: int
    final: bool = False


@light_dataclass
class ChunksReturned(Event):
    """A worker returned chunks that it did not compute; with `to_client` only the user's process can run them."""

    worker: int
    graph: int
    chunks: Sequence[int]
    to_client: bool = False


@light_dataclass
class WorkerStarted(Event):
    """A worker accepts work; a thread of the user's process (`is_thread`) accepts library code only."""

    worker: int
    is_thread: bool = False


@light_dataclass
class WorkerLost(Event):
    """A worker process died while it ran `running`, if anything."""

    # Unless `was_up`, it had begun none of its chunks. With `over_limit` the engine ended it for its memory; with
    # `crashed` its own code brought it down, as a segmentation fault does.

    worker: int
    running: tuple[int, int] | None
    was_up: bool = True
    over_limit: bool = False
    crashed: bool = False


@light_dataclass
class WorkerRetired(Event):
    """An idle worker ended on request; it has begun none of its chunks."""

    worker: int


@light_dataclass
class GraphCancelled(Event):
    """The user cancelled the graph."""

    graph: int


@light_dataclass
class ResultsTaken(Event):
    """The user has a finished graph's results; all data but the `persisted` chunks can go."""

    graph: int
    persisted: Sequence[int] = ()


@light_dataclass
class ObjectsPut(Event):
    """Objects, of the given bytes, entered the store from outside a graph, and stay until `ObjectsReleased`."""

    sizes: Mapping[ObjectId, int]
    map_outputs: Sequence[ObjectId] = ()


@light_dataclass
class ObjectsReleased(Event):
    """The user dropped persisted objects."""

    objects: Sequence[ObjectId]


@light_dataclass
class ObjectSpilled(Event):
    """An object was written to disk, or, unless `written`, could not be; it is still in memory."""

    # `began_s` and `ended_s` are times on the clock of `time.perf_counter`, both 0 if there was nothing to write.

    object: ObjectId
    size_bytes: int
    written: bool = True
    began_s: float = 0.0
    ended_s: float = 0.0


@light_dataclass
class ChunksRestored(Event):
    """A worker put chunks from disk back into the store, as its `Run` asked."""

    worker: int
    graph: int
    chunks: Sequence[int]


@light_dataclass
class MemoryMeasured(Event):
    """The present size and limits of the store, a negative one unchanged; causes nothing before the next event."""

    stored_bytes: int
    limit_bytes: int
    hard_limit_bytes: int = -1


@light_dataclass
class QuotaRequested(Event):
    """A worker waits in the middle of a chunk for its memory to grow."""

    worker: int
    graph: int
    chunk: int
    growth_bytes: int


@light_dataclass
class PrivateMeasured(Event):
    """Measurements showed workers' memory that they had not asked for."""

    # `growths` has graph, chunk and bytes of news; `over_share` has all workers that exceed their share.

    growths: Sequence[tuple[int, int, int]]
    over_share: Sequence[int]


@light_dataclass
class WorkersRenewed(Event):
    """No worker holds memory left over from earlier chunks."""


@light_dataclass
class ReservationRequested(Event):
    """A caller outside graphs requested bytes of the store."""

    reservation: int
    size_bytes: int


@light_dataclass
class ReservationReleased(Event):
    """A reservation's bytes are in the store, or will not come."""

    reservation: int


@light_dataclass
class TimePassed(Event):
    """Time passed without another event."""


# -- instructions ---------------------------------------------------------------------------------------------


@light_dataclass
class Instruction(Light):
    """Something to do."""


@light_dataclass
class Run(Instruction):
    """Hand chunks of one graph to a worker, in this order."""

    # The worker puts `restores` into the store when it reads them from disk, as others need them too. A chunk for
    # the user's process `is_alone` if nothing else of its graph can run before it ends.

    worker: int
    graph: int
    chunks: list[int]
    restores: list[int] = field(default_factory=list)
    is_alone: bool = False


@light_dataclass
class Free(Instruction):
    """Release the data of chunks that have no more readers."""

    graph: int
    chunks: list[int]


@light_dataclass
class Interrupt(Instruction):
    """Stop a worker's chunks of a graph; with `force`, also the running one."""

    worker: int
    graph: int
    force: bool


@light_dataclass
class Offer(Instruction):
    """Offer a READY chunk to several workers; the first that is free takes it."""

    graph: int
    chunk: int
    workers: Sequence[int]


@light_dataclass
class WithdrawOffer(Instruction):
    """Withdraw a chunk from the workers that it was offered to and that have not taken it."""

    graph: int
    chunk: int
    workers: Sequence[int]


@light_dataclass
class RecallQueued(Instruction):
    """Recall the queue of a worker that runs a long chunk."""

    worker: int


@light_dataclass
class Spill(Instruction):
    """Write objects to disk, unless they are there or are copies, and keep them in memory until the answer."""

    objects: list[ObjectId]


@light_dataclass
class UseSpilled(Instruction):
    """Release an object's memory: readers, as graph and chunk, use the file, or a new copy if it is a copy."""

    object: ObjectId
    read_as: list[tuple[int, int]]


@light_dataclass
class UseRestored(Instruction):
    """Read an object from memory again, for a worker has restored it; `read_as` has the other readers."""

    object: ObjectId
    restored: tuple[int, int]
    read_as: list[tuple[int, int]]


@light_dataclass
class ForgetObjects(Instruction):
    """Release the user's hold on objects; graphs that read them continue to do so."""

    objects: list[ObjectId]


@light_dataclass
class GrantQuota(Instruction):
    """Allow a worker's memory to grow by `growth_bytes` while it runs an operand."""

    worker: int
    growth_bytes: int


@light_dataclass
class RefuseQuota(Instruction):
    """Refuse the growth that a worker waits for; if `is_postponed`, it returns the chunk for a later try."""

    worker: int
    graph: int
    chunk: int
    growth_bytes: int
    is_postponed: bool


@light_dataclass
class RenewWorkers(Instruction):
    """Have workers give back memory left over from earlier chunks, and replace idle ones that do not."""

    # Unless `is_strict`, only workers above their share are replaced. `WorkersRenewed` follows.

    is_strict: bool


@light_dataclass
class GrantReservation(Instruction):
    """Answer a request for bytes of the store: they are reserved."""

    reservation: int


@light_dataclass
class RefuseReservation(Instruction):
    """Answer a request for bytes of the store: they can never be available."""

    reservation: int
    size_bytes: int
    limit_bytes: int


@light_dataclass
class Refuse(Instruction):
    """Record that a chunk, or with `is_result` its result alone, needs too many bytes; `FailGraph` follows."""

    graph: int
    chunk: int
    required_bytes: int
    limit_bytes: int
    is_result: bool = False


@light_dataclass
class FinishGraph(Instruction):
    """Report to the user that all outputs of the graph are available."""

    graph: int


@light_dataclass
class FailGraph(Instruction):
    """Report to the user that the graph failed at `chunk`."""

    graph: int
    chunk: int


@light_dataclass
class ForgetGraph(Instruction):
    """Release everything of the graph: none of its chunks is dispatched."""

    graph: int
