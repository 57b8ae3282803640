"""Messages between the engine and its workers.

Records in memory, plain tuples on the wire: a pickled NamedTuple costs two and a half times as much.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from dask_mars.errors import EngineStartFailed
from dask_mars.protocol.columns import PackedChunks, PackedNumbers, PackedOperand
from dask_mars.protocol.main_module import MainOrigin
from dask_mars.protocol.object_ref import Block, ObjectRef

#: Reasons for returned chunks: their graph was dropped, an input is missing, they could not be unpickled, their
#: result could not be pickled, others need the memory first.
Reason = Literal["dropped", "missing", "unreadable", "client_only", "postponed"]


@dataclass(frozen=True, slots=True)
class Start:
    """The first message to a worker: its identity and its inherited descriptors."""

    #: The worker's id, which is also that of its arena.
    worker: int
    #: ``sys.argv`` of the client.
    arguments: list[str]
    #: Origin of the client's ``__main__``.
    main: MainOrigin
    #: Descriptors of all arenas, which it closes once they are mapped.
    arenas: list[int]
    #: Size of each arena.
    capacity_bytes: int
    #: The engine's memory limit, in bytes.
    memory_limit: int
    #: Offset and size of blocks of the own arena in use.
    live: list[tuple[int, int]]
    #: Descriptor and size of the control page.
    control: int
    control_bytes: int
    #: Descriptor of the file whose bytes serve as locks.
    locks: int
    #: Descriptor that wakes the engine.
    wake: int
    #: Largest result that travels in a message, in bytes.
    inline_bytes: int
    #: Smallest array that is built in the arena, in bytes; None for none.
    arena_threshold_bytes: int | None
    #: Idle time before memory is returned to the system, in seconds.
    idle_trim_s: float


# -- engine to worker -----------------------------------------------------------------------------------------


class Run(NamedTuple):
    """Compute chunks."""

    # The message has references of inputs, and operands and paths of functions that are new to the worker.
    # `restores` names spilled inputs to put back into the store; `borrowed` names the user's arrays that a thread
    # reads as they are. With `timed` the worker reports the steps of each operand.

    graph: int
    context: int
    timed: bool
    chunks: PackedNumbers
    records: PackedChunks
    refs: dict[int, ObjectRef]
    restores: list[int]
    borrowed: list[int]
    operands: dict[int, PackedOperand]
    paths: dict[int, str]


class Free(NamedTuple):
    """Forget values."""

    graph: int
    chunks: list[int]


class Release(NamedTuple):
    """Blocks of the worker's arena are free."""

    offsets: list[int]


class Drop(NamedTuple):
    """Return the queued chunks of a graph."""

    graph: int


class Forget(NamedTuple):
    """Forget a graph and its operands; `answers` requests a reply once its files are closed."""

    graph: int
    answers: bool


class Context(NamedTuple):
    """Working directory, environment and settings for tasks."""

    id: int
    payload: bytes


class Exit(NamedTuple):
    """End."""


class Trim(NamedTuple):
    """Return the memory of free blocks to the system."""


class Moved(NamedTuple):
    """Values have moved. The old references stay valid until they are freed."""

    graph: int
    refs: dict[int, ObjectRef]


# -- worker to engine -----------------------------------------------------------------------------------------


class Loaded(NamedTuple):
    """The worker has completed its imports, and is ready for `Start`."""


class Ready(NamedTuple):
    """The worker has started, and can compute."""

    pid: int


class CannotStart(NamedTuple):
    """The worker ends because it could not start."""

    error: EngineStartFailed


class Finished(NamedTuple):
    """Chunks were computed."""

    graph: int
    chunks: list[int]
    refs: list[ObjectRef]
    durations_s: list[float]
    peaks: dict[int, int]
    steps_s: list[tuple[float, float, float]]


class Failed(NamedTuple):
    """The computation of a chunk failed."""

    graph: int
    chunk: int
    record: Any
    final: bool


class Returned(NamedTuple):
    """Chunks were not computed."""

    graph: int
    chunks: list[int]
    reason: Reason


class Retained(NamedTuple):
    """Tasks have ended, but something still refers to these blocks."""

    blocks: list[Block]


class Unretained(NamedTuple):
    """Nothing refers to these blocks any more."""

    blocks: list[Block]


class Output(NamedTuple):
    """A task printed."""

    graph: int
    stream: str
    text: str


class Warning(NamedTuple):
    """A task warned."""

    graph: int
    payload: bytes


class Tracked(NamedTuple):
    """A task has opened shared memory by name, or has removed the name."""

    name: str
    is_open: bool


class Forgotten(NamedTuple):
    """A graph is forgotten, and its files are closed."""

    graph: int


class Restored(NamedTuple):
    """Spilled values are in the store again."""

    graph: int
    refs: dict[int, ObjectRef]


ToWorker = Run | Free | Release | Drop | Forget | Context | Exit | Trim | Moved
ToEngine = (
    Loaded
    | Ready
    | CannotStart
    | Finished
    | Failed
    | Returned
    | Retained
    | Unretained
    | Output
    | Warning
    | Restored
    | Forgotten
    | Tracked
)

_TO_WORKER: tuple[type[ToWorker], ...] = get_args(ToWorker)
_TO_ENGINE: tuple[type[ToEngine], ...] = get_args(ToEngine)
_CODES: dict[type, int] = {kind: code for kinds in (_TO_WORKER, _TO_ENGINE) for code, kind in enumerate(kinds)}
#: Types of the columns of a report of computed chunks.
_COLUMNS = [list, list, list, dict, list]
_Message = TypeVar("_Message")


def as_plain(message: ToWorker | ToEngine) -> tuple[Any, ...]:
    """Return a message in its form on the wire."""
    return (_CODES[type(message)], *message)


def for_worker(plain: tuple[Any, ...]) -> ToWorker:
    """Return a message to a worker from its form on the wire."""
    return _made(_TO_WORKER, plain)


def for_engine(plain: tuple[Any, ...]) -> ToEngine:
    """Return a message to the engine from its form on the wire."""
    return _made(_TO_ENGINE, plain)


def joined(plains: list[Any]) -> list[Any]:
    """Return messages as on the wire, in which reports of one graph that follow each other are one."""
    # An engine with many workers is late, and each report costs it as much as many chunks.
    out = plains[:1]
    for plain in plains[1:]:
        last = out[-1]
        if _is_report(plain) and _is_report(last) and plain[1] == last[1] and bool(plain[6]) == bool(last[6]):
            code, graph, chunks, refs, durations_s, peaks, steps_s = last
            peaks = {operand: max(peaks.get(operand, 0), plain[5].get(operand, 0)) for operand in peaks | plain[5]}
            columns = chunks + plain[2], refs + plain[3], durations_s + plain[4]
            out[-1] = (code, graph, *columns, peaks, steps_s + plain[6])
        else:
            out.append(plain)
    return out


def _is_report(plain: Any) -> bool:
    """Return whether a message is a report of computed chunks; tasks may have written anything."""
    return (
        type(plain) is tuple
        and len(plain) == 7
        and plain[0] == _CODES[Finished]
        and [type(column) for column in plain[2:]] == _COLUMNS
    )


def _made(kinds: tuple[type[_Message], ...], plain: tuple[Any, ...]) -> _Message:
    code, *fields = plain
    if code < 0:
        raise IndexError(code)
    make: Callable[[list[Any]], _Message] = kinds[code]._make
    return make(fields)
