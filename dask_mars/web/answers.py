"""The JSON of the API as typed dicts, from which its description is made: fields, units and limits."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from dask_mars.web.monitor import State

Count = Annotated[int, ("minimum", 0)]
#: The row of a worker in a timeline.
Row = Annotated[int, ("minimum", -1), "-1 is the process that has asked for the computation."]
Uuid = Annotated[str, ("format", "uuid")]


class ProblemAnswer(TypedDict):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str


class Chunks(TypedDict):
    """Numbers of chunks."""

    total: Count
    waiting: Count
    running: Count
    finished: Count
    failed: Count


class FailureAnswer(TypedDict):
    """The exception of a computation."""

    type: str
    message: str


class Result(TypedDict):
    """Type and size of a result."""

    kind: str
    dtype: str | None
    shape: list[Count] | None
    bytes: int | None
    evicted: bool


class Summary(TypedDict):
    """A computation in a list."""

    id: Uuid
    name: Annotated[str, "The user's name for it; may be empty."]
    state: State
    created: Annotated[float, "Unix seconds."]
    started: float | None
    ended: float | None
    attempt: Annotated[int, ("minimum", 1), "More than 1 if a runner died and it was started again."]
    revision: Annotated[Count, "Changes with each change that an answer shows."]
    chunks: Chunks
    remaining: Annotated[float | None, "Estimated seconds."]
    error: FailureAnswer | None
    result: Result | None


class Layer(TypedDict):
    """A layer of a computation."""

    name: Annotated[str, "Dask's name of the layer."]
    label: Annotated[str, "The same for people."]
    total: Count
    finished: Count
    running: Count
    failed: Count
    seconds: float
    bytes: Count


class ComputationAnswer(Summary):
    """A computation and its layers."""

    layers: list[Layer]


class Computations(TypedDict):
    """A part of the list of computations, the newest first."""

    computations: list[Summary]
    next: Annotated[str | None, "For `before`: continues the list; null at the end."]


class WorkerAnswer(TypedDict):
    """A worker."""

    worker: Count
    label: Annotated[str, "Its name for people: a thread of the user's process, or a worker with its process."]
    pid: Count
    running: Annotated[str | None, "Dask's key of the running task."]
    step: str | None
    dispatched: Count


class MemoryAnswer(TypedDict):
    """Memory of an engine, in bytes."""

    limit_bytes: Count
    in_use_bytes: Count
    peak_bytes: Count
    store_bytes: Count
    store_limit_bytes: Count
    promised_bytes: Count
    on_disk_bytes: Count
    spilled_bytes: Count


class Counts(TypedDict):
    """Numbers of computations by state."""

    queued: Count
    preparing: Count
    running: Count
    finished: Count
    failed: Count
    cancelled: Count


class Overview(TypedDict):
    """Workers, memory and numbers of computations."""

    revision: Count
    version: str
    can: Annotated[list[Literal["cancel", "submit"]], "What the token permits besides looking."]
    missing_extensions: NotRequired[
        Annotated[list[str], "C extensions that are not installed; absent if none is."]
    ]
    workers: list[WorkerAnswer]
    memory: MemoryAnswer
    counts: Counts


class Error(TypedDict):
    """Empty texts if nothing failed."""

    type: str
    message: str
    traceback: str


class LogLineAnswer(TypedDict):
    """A line that tasks wrote."""

    time: float
    stream: Literal["stdout", "stderr", "warning", "engine"]
    text: str


class Log(TypedDict):
    """The output of tasks, the oldest line first."""

    lines: list[LogLineAnswer]
    truncated: bool


class Timeline(TypedDict):
    """The tasks of each worker, and memory meanwhile."""

    start: Annotated[float, "Unix seconds; all other times are seconds since then."]
    workers: list[Row]
    labels: Annotated[list[str], "Name of the worker of each row."]
    layers: list[str]
    tasks: Annotated[
        list[tuple[Row, float, float, Count, Count]],
        ("maxItems", 20_000),
        "Worker, start, end, place in `layers`, chunks. Neighbours are one row where there are too many.",
    ]
    memory: Annotated[list[tuple[float, Count, Count, Count]], "Time, bytes in use, in the store, on disk."]
    events: list[tuple[float, Literal["spill", "death", "retry", "cancel"], str]]


class LayerNode(Chunks):
    """A layer and its numbers of chunks."""

    name: str
    label: str


class LayerGraph(TypedDict):
    """Layers and the edges between them."""

    layers: list[LayerNode]
    edges: Annotated[list[tuple[Count, Count]], "Places in `layers`."]


class BlocksAnswer(TypedDict):
    """The blocks of one layer."""

    name: str
    label: str
    numblocks: list[Count]
    states: Annotated[
        str,
        ("pattern", "^[wrfx.]*$"),
        ("maxLength", 100_000),
        "A letter for each block, the last dimension fastest: w waiting, r running, f finished, x failed, . none.",
    ]
    truncated: bool


class ExplanationAnswer(TypedDict):
    """Why a computation, or a chunk, waits."""

    rows: list[str]


class Id(TypedDict):
    """The id of a computation."""

    id: str


# -- of a service ---------------------------------------------------------------------------------------------


class SubmissionOptions(TypedDict, total=False):
    """Options of a computation."""

    num_workers: Count
    retries: Count


class Submission(TypedDict):
    """The header of a submission."""

    kind: Annotated[
        Literal["collection", "graph"],
        "Contents of the pickle: a Dask collection, or a graph and keys as Dask calls schedulers.",
    ]
    frames: Annotated[
        list[Count], ("minItems", 1), "Sizes of the pickle and of the buffers that were taken out of it."
    ]
    versions: Annotated[dict[str, str], "Of dask_mars, dask and python: the service's own."]
    name: NotRequired[Annotated[str, ("maxLength", 500)]]
    options: NotRequired[SubmissionOptions]


class SmallResult(Result):
    """A result in JSON."""

    value: Annotated[Any, "Numbers, texts, and lists of these."]


class ResultError(TypedDict):
    """Why there is no result."""

    state: State
    type: NotRequired[str]
    message: NotRequired[str]
    traceback: NotRequired[str]
    pickle: NotRequired[Annotated[str, ("contentEncoding", "base64")]]


class NoResult(ProblemAnswer):
    """A problem with the computation's end."""

    error: NotRequired[ResultError]
