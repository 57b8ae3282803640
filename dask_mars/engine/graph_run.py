"""One computation, as the engine and the calling thread share it."""

from __future__ import annotations

import contextvars
import queue
from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from dask_mars.engine.worker_handle import WorkerHandle
from dask_mars.graph.chunks import ChunkGraph, Key, Operand
from dask_mars.graph.ids import SubtaskIds
from dask_mars.light_dataclass import Light, light_dataclass
from dask_mars.protocol.columns import PackedOperand
from dask_mars.protocol.failures import FailureRecord
from dask_mars.protocol.object_ref import Block, ObjectRef
from dask_mars.scheduler.events import GraphPlan
from dask_mars.store.store import Store

# -- messages of the engine to the calling thread ---------------------------------------------------------------


@light_dataclass
class RunInClient(Light):
    """Compute these chunks in the user's process; a chunk `is_alone` if no other can run before it has ended."""

    chunks: list[int]
    is_alone: bool


@light_dataclass
class Started(Light):
    """Chunks were handed to a worker (reported to observers only)."""

    chunks: list[int]


@light_dataclass
class Done(Light):
    """Chunks were computed (reported to observers only); `values` by chunk if observers ask for them."""

    chunks: list[int]
    worker: int
    values: dict[int, Any]


@light_dataclass
class Printed(Light):
    """A task printed."""

    stream: str
    text: str


@light_dataclass
class Warned(Light):
    """A task warned; the payload is a pickle of message, category, file name and line."""

    payload: bytes


@light_dataclass
class Finished(Light):
    """All outputs are available."""


@light_dataclass
class Released(Light):
    """Workers hold nothing of the graph any more; reported only if it may have held files open."""


@light_dataclass
class Failed(Light):
    """The computation failed at a chunk."""

    chunk: int
    error: BaseException | FailureRecord


@light_dataclass
class Stopped(Light):
    """The engine has ended."""

    error: BaseException


class Saver(Protocol):
    """Saves the chunks of a computation. The engine's thread calls it."""

    def begin(
        self,
        store: Store,
        store_bytes: int,
        incref: Callable[[ObjectRef], None],
        decref: Callable[[ObjectRef], None],
        call_soon: Callable[[Callable[[], None]], None],
        warn: Callable[[str], None],
    ) -> None:
        """Receive the engine's store, and functions to pin and unpin values and to run code in its thread."""

    def starting(self, chunks: Sequence[int]) -> Exception | None:
        """React to chunks that are about to begin; return an error to prevent that."""

    def computed(self, chunks: Sequence[int], refs: Sequence[ObjectRef], durations_s: Sequence[float]) -> None:
        """Receive chunks that workers have computed."""

    def computed_in_client(self, chunk: int) -> None:
        """Receive a chunk that the user's process has computed."""


Message = RunInClient | Started | Done | Printed | Warned | Finished | Released | Failed | Stopped


class ChunkMeasurements(NamedTuple):
    """Measurements of a computation's chunks."""

    graph: int
    keys: Sequence[Key]
    #: Duration of each chunk, negative if it is not computed.
    durations_s: array[float]
    #: Size of each chunk in the store when it was computed there, 0 for small values.
    stored_bytes: array[int]


@dataclass(slots=True, eq=False)
class GraphRun:
    """A graph that the engine computes."""

    id: int
    graph: ChunkGraph
    plan: GraphPlan
    context: int
    #: Whether the calling thread asks for `Started` and `Done`, and for the values in them.
    observed: bool = False
    values_wanted: bool = False
    #: Context of the submitting thread; threads run tasks in copies of it.
    variables: contextvars.Context = field(default_factory=contextvars.Context)
    inbox: queue.SimpleQueue[Message] = field(default_factory=queue.SimpleQueue)
    #: Location of each chunk's value in the shared store, or None.
    refs: list[ObjectRef | None] = field(default_factory=list)
    #: Workers that have received any of it, and which of these know the location of each chunk: a bit for each.
    workers: list[WorkerHandle] = field(default_factory=list)
    known_by: list[int] = field(default_factory=list)
    #: Values in the user's process: given, or computed by tasks that ran here.
    values: dict[int, Any] = field(default_factory=dict)
    #: Store size of each large entry of `values`, in bytes.
    copied_bytes: dict[int, int] = field(default_factory=dict)
    #: Operands as they travel; None for those that cannot.
    packed: dict[int, PackedOperand | None] = field(default_factory=dict)
    #: Operands as threads of this process run them.
    fast: dict[int, Operand] = field(default_factory=dict)
    #: Blocks of the client's arena that live as long as the graph.
    literal_blocks: list[Block] = field(default_factory=list)
    #: The last failure of each chunk that has failed.
    errors: dict[int, BaseException | FailureRecord] = field(default_factory=dict)
    #: Chunks whose results workers could not send.
    client_only: set[int] = field(default_factory=set)
    #: Whether workers have received or made objects that may hold files open.
    may_hold_files: bool = False
    #: Whether to send one chunk per message, because a worker could not read some chunk of a message.
    one_by_one: bool = False
    #: Modules of libraries that its tasks are known to import.
    modules: Collection[str] = ()
    #: Why threads may not compute it, in words.
    why_processes: str = ""
    finished: int = 0
    saver: Saver | None = None
    measurements: ChunkMeasurements = field(init=False)
    subtask_ids: SubtaskIds = field(init=False)

    def __post_init__(self) -> None:
        self.refs = [None] * len(self.graph)
        self.known_by = [0] * len(self.graph)
        self.values = dict(self.graph.values)
        count = len(self.graph)
        durations_s, stored_bytes = array("f", [-1.0]) * count, array("q", [0]) * count
        self.measurements = ChunkMeasurements(self.id, self.graph.keys, durations_s, stored_bytes)
        self.subtask_ids = SubtaskIds(self.id, self.graph.inputs)

    def name_of(self, chunk: int) -> str:
        """Return a chunk's name in messages: its key, and its id in brackets."""
        return f"{self.graph.keys[chunk]!r} [{self.subtask_ids[chunk].hex()}]"
