"""Messages between the engine and its workers.

Records in memory, plain tuples on the wire: a pickled NamedTuple costs two and a half times as much.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from dask_mars.errors import EngineStartFailed
from dask_mars.protocol.columns import PackedChunks, PackedNumbers, PackedOperand
from dask_mars.protocol.main_module import MainOrigin
from dask_mars.protocol.object_ref import Block, ObjectRef

#: Why a worker gives chunks back: their graph was dropped, an input was not computed, they could not be unpickled,
#: their result could not be pickled, others need the memory first.
Reason = Literal["dropped", "missing", "unreadable", "client_only", "postponed"]


@dataclass(frozen=True, slots=True)
class Start:
    """The first message to a worker: who it is and what it has inherited.

    Attributes
    ----------
    number : int
        The worker's number, which is also that of its arena.
    arguments : list of str
        ``sys.argv`` of the client.
    main : MainOrigin
        Where the client's ``__main__`` is from.
    arenas : list of int
        Descriptors of all arenas.
    capacity_bytes : int
        Size of each arena.
    memory_limit : int
        The engine's.
    live : list of (int, int)
        Offset and size of the blocks in the own arena that are in use already.
    control, control_bytes : int
        Descriptor and size of the page in which workers note what they run.
    locks : int
        Descriptor of the file whose bytes serve as locks.
    wake : int
        Descriptor by which the engine is woken.
    inline_bytes : int
        Results up to this size travel in messages.
    arena_threshold_bytes : int or None
        Arrays of at least this size are built in the arena; None for none.
    idle_trim_s : float
        Idle seconds before memory is given back.
    """

    number: int
    arguments: list[str]
    main: MainOrigin
    arenas: list[int]
    capacity_bytes: int
    memory_limit: int
    live: list[tuple[int, int]]
    control: int
    control_bytes: int
    locks: int
    wake: int
    inline_bytes: int
    arena_threshold_bytes: int | None
    idle_trim_s: float


# -- engine to worker -----------------------------------------------------------------------------------------


class Run(NamedTuple):
    """Compute chunks.

    With them come the references of inputs, the operands and the paths of op ids that the worker does not know
    yet. Those inputs that `restores` names are to be put back into the store when they are read from disk; `lent`
    are the user's arrays, which a thread of the user's process reads where they are. `timed` says whether somebody
    wants to know when each step of an operand began.
    """

    graph: int
    context: int
    timed: bool
    chunks: PackedNumbers
    records: PackedChunks
    refs: dict[int, ObjectRef]
    restores: list[int]
    lent: list[int]
    operands: dict[int, PackedOperand]
    paths: dict[int, str]


class Free(NamedTuple):
    """Forget values."""

    graph: int
    chunks: list[int]


class Release(NamedTuple):
    """Blocks of your arena are free."""

    offsets: list[int]


class Drop(NamedTuple):
    """Give back what you have not started of a graph."""

    graph: int


class Forget(NamedTuple):
    """Forget a graph and its operands, and say so if the user waits until the files that it had are closed."""

    graph: int
    answers: bool


class Context(NamedTuple):
    """Working directory, environment and settings for tasks."""

    number: int
    payload: bytes


class Exit(NamedTuple):
    """End."""


class Trim(NamedTuple):
    """Give the memory of free blocks back to the system."""


class Moved(NamedTuple):
    """Values are elsewhere now. Where they were will do as well until they are freed."""

    graph: int
    refs: dict[int, ObjectRef]


# -- worker to engine -----------------------------------------------------------------------------------------


class Loaded(NamedTuple):
    """The worker has imported what it needs, and can be told who it is."""


class Ready(NamedTuple):
    """The worker is up."""

    pid: int


class CannotStart(NamedTuple):
    """The worker ends before it is up."""

    error: EngineStartFailed


class Finished(NamedTuple):
    """Chunks were computed.

    `peaks` has the bytes that operands took while they ran, of those of which that is news; `steps_s` is empty
    unless wanted, see `ChunksFinished`.
    """

    graph: int
    chunks: list[int]
    refs: list[ObjectRef]
    durations_s: list[float]
    peaks: dict[int, int]
    steps_s: list[tuple[float, float, float]]


class Failed(NamedTuple):
    """A chunk's computation raised."""

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
    """Tasks have ended, and something of theirs still refers to these blocks."""

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


class Forgotten(NamedTuple):
    """Nothing of a graph is left, and its files are closed."""

    graph: int


class Restored(NamedTuple):
    """Values that were on disk are in the store again."""

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
)

_TO_WORKER: tuple[type[ToWorker], ...] = (Run, Free, Release, Drop, Forget, Context, Exit, Trim, Moved)
_TO_ENGINE: tuple[type[ToEngine], ...] = (
    Loaded,
    Ready,
    CannotStart,
    Finished,
    Failed,
    Returned,
    Retained,
    Unretained,
    Output,
    Warning,
    Restored,
    Forgotten,
)
_CODES: dict[type, int] = {kind: code for kinds in (_TO_WORKER, _TO_ENGINE) for code, kind in enumerate(kinds)}
_Message = TypeVar("_Message")


def as_plain(message: ToWorker | ToEngine) -> tuple[Any, ...]:
    """Return a message as it travels."""
    return (_CODES[type(message)], *message)


def for_worker(plain: tuple[Any, ...]) -> ToWorker:
    """Return a message to a worker that has travelled.

    Raises
    ------
    TypeError, LookupError
        It is none.
    """
    return _made(_TO_WORKER, plain)


def for_engine(plain: tuple[Any, ...]) -> ToEngine:
    """Return a message to the engine that has travelled.

    Raises
    ------
    TypeError, LookupError
        It is none.
    """
    return _made(_TO_ENGINE, plain)


def _made(kinds: tuple[type[_Message], ...], plain: tuple[Any, ...]) -> _Message:
    code, *fields = plain
    if code < 0:
        raise IndexError(code)
    make: Callable[[list[Any]], _Message] = kinds[code]._make
    return make(fields)
