"""Every error of dask_mars. Each declares its facts as attributes, and its message as a template of them."""

from __future__ import annotations

import inspect
import signal
from collections.abc import Iterable
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform

from dask_mars.version import __version__

#: Signals of crashes: the system sends them for a fault of the process.
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT}
#: The newest release of Dask that the whole test suite has run with.
TESTED_DASK = "2026.8.0"


def _signature(kind: type[MarsError]) -> inspect.Signature:
    """Return the parameters of a class of errors: its annotated attributes, as those of a dataclass."""
    either, none = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
    parameters = [
        inspect.Parameter(name, either, default=getattr(kind, name, none), annotation=annotation)
        for base in reversed(kind.__mro__)
        for name, annotation in inspect.get_annotations(base).items()
        if not name.startswith("_")
    ]
    facts = inspect.Parameter("facts", inspect.Parameter.VAR_POSITIONAL, annotation="Any")
    return inspect.Signature(parameters or [facts], return_annotation=None)


class _Signature:
    """The signature of a class for `inspect.signature` and `help`."""

    def __get__(self, error: MarsError | None, kind: type[MarsError]) -> inspect.Signature:
        if kind.__init__ is not MarsError.__init__:
            raise AttributeError
        return _signature(kind)


@dataclass_transform(eq_default=False)
class MarsError(Exception):
    """Base of all errors that dask_mars raises on its own account.

    An exception raised by a task is never wrapped: it reaches the user as it is.
    """

    #: The message, with names of attributes and `_words` in braces; None for one that lists all `args`.
    _template: ClassVar[str | None] = None
    __signature__ = _Signature()

    def __init__(self, *facts: Any, **named: Any) -> None:
        bound = _signature(type(self)).bind(*facts, **named)
        bound.apply_defaults()
        if "facts" not in bound.arguments:
            vars(self).update(bound.arguments)
            facts = tuple(bound.arguments.values())
        # Pickles and copies are made of `args`.
        super().__init__(*facts)

    def __str__(self) -> str:
        if self._template is None:
            return ", ".join(map(str, self.args))
        return self._template.format_map(vars(self) | self._words())

    def _words(self) -> dict[str, str]:
        """Return parts of the message that depend on attributes."""
        return {}


class UnknownDask(MarsError, ImportError):
    """The installed Dask lacks a name without which dask_mars cannot work."""

    dask_version: str
    """The version that is installed."""
    reason: str
    """The import that failed."""
    _template = (
        f"dask_mars {__version__} cannot work with Dask {{dask_version}}: {{reason}}. It is tested with Dask "
        f"{TESTED_DASK}; install that, or a newer dask_mars"
    )


class DaskDiffers(UserWarning):
    """Dask lacks a private name, or does not behave as dask_mars expects; computations may be slower.

    Attributes
    ----------
    dask_version : str
        The version that is installed.
    missing : tuple of str
        Names that it lacks.
    error : BaseException or None
        Raised while an expression of Dask's was read.
    """

    def __init__(self, dask_version: str, missing: Iterable[str] = (), error: BaseException | None = None) -> None:
        self.dask_version, self.missing, self.error = dask_version, tuple(missing), error
        super().__init__(dask_version, self.missing, error)

    def __str__(self) -> str:
        reasons = [f"it has no {', '.join(self.missing)}"] if self.missing else []
        if self.error is not None:
            reasons.append(f"reading an expression raised {type(self.error).__name__}: {self.error}")
        return (
            f"dask_mars {__version__} is tested with Dask {TESTED_DASK}, and this is Dask "
            f"{self.dask_version}: {'; '.join(reasons)}. Results are right, but computations may be slower. "
            "A newer dask_mars may know this Dask"
        )


class MissingExtensionWarning(RuntimeWarning):
    """dask_mars was installed without a C compiler: it works, and is slower. Each process warns of it once."""


class StateError(MarsError):
    """The state of an operand does not allow its next move: a bug of dask_mars, please report it."""

    graph: int
    chunk: int
    state: str
    target: str
    _template = (
        "chunk {chunk} of graph {graph} cannot go from {state} to {target}; "
        "this is a bug in dask_mars, please report it"
    )


class Cancelled(MarsError):
    """The computation was cancelled by `Runtime.cancel` or `Computation.cancel`."""

    graph: int | str
    """Its number in the engine, or its id if it has none yet."""
    _template = "the computation {of}{graph} was cancelled"

    def _words(self) -> dict[str, str]:
        return {"of": "" if isinstance(self.graph, str) else "of graph "}


class ExecutionInterrupted(KeyboardInterrupt):
    """Raised inside a running task whose computation is cancelled.

    It is to a task what Ctrl-C is to a program, and derives from the same class: ``except Exception`` lets it
    pass, ``finally`` and ``with`` are carried out, and libraries that clean up after Ctrl-C do so. So it is no
    `MarsError`. A task has ``dask-mars.cancel-grace`` for all of that; then its process is ended. Only the task
    ever sees it.

    Attributes
    ----------
    graph : int
        Number of the computation.
    """

    def __init__(self, graph: int) -> None:
        super().__init__(graph)
        self.graph = graph

    def __str__(self) -> str:
        return f"the computation of graph {self.graph} was cancelled"


class Stalled(MarsError):
    """A computation waits for nothing: a bug of dask_mars, please report it."""

    explanation: str
    """The text of `Runtime.explain`."""
    _template = (
        "the computation waits although nothing is under way that it could wait for; this is a bug in "
        "dask_mars, please report it\n{explanation}"
    )


# MemoryError comes first because pickles make an instance by it; it would set no attributes.
class QuotaExceeded(MemoryError, MarsError):
    """A task asked for more memory than results, other tasks and processes leave of the limit."""

    if not TYPE_CHECKING:
        __init__ = MarsError.__init__

    growth_bytes: int
    """Bytes that the task asked for."""
    granted_bytes: int
    """Bytes that it had been granted."""
    limit_bytes: int
    """The memory limit."""
    stored_bytes: int
    """Bytes of results."""
    reserved_bytes: int
    """Bytes of other tasks' grants."""
    private_bytes: int
    """Bytes of processes: interpreters, modules, and memory not NumPy's."""
    _template = (
        "a task asked for {growth_bytes:,} bytes of memory and had been granted {granted_bytes:,}. Of the limit "
        "of {limit_bytes:,} bytes, results take {stored_bytes:,}, other tasks {reserved_bytes:,}, and processes "
        "themselves {private_bytes:,}. Smaller chunks need less; dask-mars.memory-limit allows more"
    )


class WorkerOverLimit(MemoryError, MarsError):
    """A task took its worker past the memory limit: when it ran alone, or where it cannot be tried alone.

    NumPy asks for memory before it takes any, and gets `QuotaExceeded`. Python's own objects and other libraries
    do not ask: the engine measures their memory, and ends the worker process that is past its share.
    """

    if not TYPE_CHECKING:
        __init__ = MarsError.__init__

    key: str
    """Dask's key of the task."""
    worker_bytes: int
    """Bytes of its worker process, with interpreter and modules, when it was ended."""
    limit_bytes: int
    """The memory limit."""
    others_bytes: int
    """Bytes of other processes, the user's included."""
    store_bytes: int
    """Bytes of shared memory."""
    repeatable: bool = True
    """False if the task was not tried again alone, because it appends to files or tables."""
    _template = (
        "{key} took its worker process to {worker_bytes:,} bytes of memory, {tried}. Of the limit of "
        "{limit_bytes:,} bytes, other processes take {others_bytes:,} for themselves, and shared memory takes "
        "{store_bytes:,}. Smaller chunks need less; dask-mars.memory-limit allows more"
    )

    def _words(self) -> dict[str, str]:
        alone = "also when nothing else was being computed"
        once = "and is not tried again alone, because it appends to files or tables"
        return {"tried": alone if self.repeatable else once}


class UnsupportedPlatform(MarsError, ImportError):
    """The operating system cannot run dask_mars."""

    platform: str
    _template = (
        "dask_mars needs Linux or macOS and this is {platform}: its workers share memory over inherited file "
        "descriptors. Use Dask's own schedulers here, or WSL."
    )


class EngineStopped(MarsError):
    """The engine is not running (any more)."""

    reason: str = "the Runtime is closed"
    _template = "{reason}"


class NoAgents(MarsError):
    """A cluster has no worker that can compute for dask_mars."""

    address: str
    """Of the cluster's scheduler."""
    _template = "no worker of the cluster at {address} is one of dask_mars. Start some: dask-mars-worker {address}"


class NoHostAllowed(MarsError):
    """No host of a cluster matches the annotations of a task."""

    workers: tuple[str, ...]
    """Addresses, names or hosts that the user allows; empty if any."""
    resources: dict[str, float]
    """Amount of each resource that a task takes."""
    hosts: list[str]
    """Names of the cluster's hosts."""
    _template = "a task is annotated for a host{where}{needed}, but there are only {there}"

    def _words(self) -> dict[str, str]:
        return {
            "where": f" of {', '.join(self.workers)}" if self.workers else "",
            "needed": f" with {_amounts(self.resources)}" if self.resources else "",
            "there": ", ".join(self.hosts),
        }


class ResourcesMissing(MarsError):
    """A task takes more of a resource than the runtime has."""

    key: object
    """Of the task."""
    resources: dict[str, float]
    """Amounts that it takes."""
    available: dict[str, float]
    """Amounts that there are."""
    _template = "{key!r} takes {wanted}, and the runtime has {there}"

    def _words(self) -> dict[str, str]:
        return {"wanted": _amounts(self.resources), "there": _amounts(self.available)}


class PersistedLost(MarsError):
    """Persisted data are gone because their engine is."""

    key: str
    """Dask's key of the chunk that was asked for."""
    reason: str
    """Reason of the loss."""
    _template = (
        "the persisted data of {key} are gone: {reason}. They live no longer than the Runtime that computed them; "
        "persist the original collection again."
    )


class FuturesLost(PersistedLost, CancelledError):
    """Persisted data of a cluster are gone because its scheduler is."""

    _template = (
        "the persisted data of {key} are gone: {reason}. Only Dask's scheduler knows where data are; persist the "
        "original collection again."
    )


class SchedulerLost(MarsError, CancelledError):
    """The scheduler of a cluster was lost during a computation, and the computation could not go on."""

    address: str
    """Address of the scheduler."""
    reason: str
    """Reason for which the computation could not go on."""
    losses: int
    """Number of times that the computation has lost its scheduler."""
    _template = "the connection to the scheduler at {address} was lost{how_often}, and {reason}"

    def _words(self) -> dict[str, str]:
        return {"how_often": "" if self.losses == 1 else f" {self.losses} times"}


class EngineStartFailed(MarsError):
    """Base of errors when an engine starts."""


class AddressSpaceTooSmall(EngineStartFailed):
    """The shared memory of all processes does not fit into the addresses that one process has."""

    memory_limit: int
    """The engine's, in bytes."""
    num_workers: int
    """The engine's."""
    needed_bytes: int
    """Bytes of addresses that each process needs for shared memory."""
    free_bytes: int
    """Bytes of addresses that it has."""
    limit_bytes: int | None
    """The limit of ``ulimit -v``; None if unlimited."""
    _template = (
        "there are too few addresses for shared memory, all of which each process maps: with "
        "memory_limit={memory_limit:,} and num_workers={num_workers} it takes at least {needed_bytes:,} bytes of "
        "them, and {free_bytes:,} are free (`ulimit -v` is {limit}). Raise `ulimit -v`, or lower num_workers or "
        "memory_limit."
    )

    def _words(self) -> dict[str, str]:
        return {"limit": "unlimited" if self.limit_bytes is None else f"{self.limit_bytes:,} bytes"}


class SharedMemoryDenied(EngineStartFailed):
    """The system does not let processes share memory."""

    reason: str
    """The system's message."""
    _template = (
        "the system refuses shared memory: {reason}. Workers share memory by memfd_create or an unnamed file, and "
        "mmap, which a container or a sandbox (seccomp) may deny. Allow these, or compute with "
        'scheduler="threads".'
    )


class MemoryLimitTooLow(EngineStartFailed):
    """The memory limit is below the memory that processes take before any computation."""

    memory_limit: int
    """The engine's, in bytes."""
    num_workers: int
    """The engine's."""
    worker_bytes: int
    """Bytes of one worker process, which the user's takes at least."""
    library_bytes: int
    """Bytes of programs and libraries, which all share."""
    _template = (
        "a memory limit of {memory_limit:,} bytes is not enough for num_workers={num_workers}: before anything is "
        "computed, processes take {least} bytes: {worker_bytes:,} each worker and at least as much the user's "
        "own, and {library_bytes:,} libraries, once. Raise memory_limit (dask-mars.memory-limit), or lower "
        "num_workers."
    )

    @property
    def least_bytes(self) -> int:
        """Bytes that all processes take at least."""
        return (self.num_workers + 1) * self.worker_bytes + self.library_bytes

    def _words(self) -> dict[str, str]:
        return {"least": f"{self.least_bytes:,}"}


class WorkerStartFailed(EngineStartFailed):
    """Worker processes end before they can work."""

    attempts: int
    ending: str
    _template = (
        "worker processes cannot be started: {attempts} in a row {ending} before they were ready. Their own "
        "messages are on standard error."
    )


class WorkerStartTimeout(WorkerStartFailed):
    """Worker processes make no progress while they start.

    Attributes
    ----------
    attempts : int
        Number of processes in a row that were ended for it.
    timeout_s : float
        Seconds for which each made none.
    doing : str
        The last one's activity.
    """

    _template = (
        "worker processes do not come up: {attempts} in a row were ended by dask_mars because they made no "
        "progress for {timeout_s:g} s (dask-mars.start-timeout), the last one while {doing}. Raise "
        "dask-mars.start-timeout if the machine is busy or its files are slow to read, or find out what that "
        "waits for."
    )

    def __init__(self, attempts: int, timeout_s: float, doing: str) -> None:
        super().__init__(attempts, f"made no progress for {timeout_s:g} s")
        self.args = (attempts, timeout_s, doing)
        self.timeout_s = timeout_s
        self.doing = doing


class WorkerDied(MarsError):
    """A worker process died again and again while it ran the same task."""

    key: str
    """Dask's key of the task."""
    exit_code: int
    """As `subprocess.Popen.returncode`: negative for a signal."""
    attempts: int
    """Number of worker processes that the task took with it."""
    repeatable: bool = True
    """False if it was not tried again because it appends to files or tables."""
    _template = "the worker process {ending} while it computed {key}, {how_often}{hint}"

    def _words(self) -> dict[str, str]:
        hint = ""
        if self.exit_code == -signal.SIGKILL:
            hint = " The system kills processes like this when memory runs out."
        elif has_crashed(self.exit_code):
            hint = (
                " Compiled code has crashed; standard error says where Python was. To find the place, compute the "
                'task with scheduler="sync" under `python -X faulthandler` or a debugger.'
            )
        how_often = "once." if self.attempts == 1 else f"{self.attempts} times in a row."
        if not self.repeatable:
            how_often = (
                "which appends to files or tables, and is not tried again because what it had written would be "
                "there twice."
            )
        return {"ending": describe_exit(self.exit_code), "how_often": how_often, "hint": hint}


class BegunBefore(MarsError):
    """A task that appends to files or tables would begin a second time, as a host or a process was lost."""

    key: str
    """Dask's key of the task."""
    _template = (
        "{key}, which appends to files or tables, was begun before, on a host or by a process that has been lost, "
        "or in a computation that was cancelled. It is not tried again because what it had written would be there "
        "twice. Remove what is there, and the checkpoint if there is one, and compute anew."
    )


class CheckpointError(MarsError):
    """Base of errors of checkpoints."""


class CheckpointInUse(CheckpointError):
    """Another process computes the same in the same directory."""

    directory: str
    """Directory of the computation."""
    holder: str
    """The process that uses it."""
    _template = (
        "{holder} computes the same at this moment, under the checkpoint {directory}. Wait until it has ended, or "
        "give this one another directory."
    )


class CheckpointFailed(CheckpointError):
    """A directory cannot be used for checkpoints."""

    directory: str
    """The directory."""
    reason: str
    """Reason of the failure."""
    _template = "{directory} cannot be used for checkpoints: {reason}"


class SavedChunkLost(CheckpointError):
    """The saved value of a chunk is gone or damaged. The chunk is computed again."""

    key: str
    """Dask's key of the chunk."""
    path: str
    """The file."""
    reason: str
    """The fault that was found."""
    _template = "{path}, to which {key} was saved, cannot be read: {reason}"


class FilesLost(MarsError):
    """The files of a shuffle are on a host that is not there any more."""

    key: str
    """Dask's key of the task that needs them."""
    _template = (
        "{key} needs the files of a shuffle, which are on a host that is not there any more. Compute anew; with "
        'dask.config.set({{"dataframe.shuffle.method": "tasks"}}), or shuffle="tasks" for bags, shuffles do '
        "without files and use all hosts."
    )


class LockLost(MarsError):
    """A lock was given to another host although it was still held here."""

    token: str
    """Of the lock."""
    _template = (
        "the lock {token} was held, and the scheduler of the cluster heard nothing of that for longer than "
        "distributed.scheduler.locks.lease-timeout: another host may have had it at the same time, so what it "
        "guards may be spoilt. Write it anew, with a longer timeout if hosts are that busy."
    )


class StoreFull(MarsError):
    """The shared store has no room for a chunk."""

    requested_bytes: int
    free_bytes: int
    capacity_bytes: int
    _template = (
        "a chunk of {requested_bytes:,} bytes does not fit into the worker's shared memory: {free_bytes:,} of "
        "{capacity_bytes:,} bytes are free. Use smaller chunks, compute less at once, or raise "
        "dask-mars.memory-limit, and `ulimit -v` where that is what leaves so little."
    )


class RequestTooLarge(MarsError):
    """A task needs more memory than it could be given if it ran alone."""

    holder: str
    """The task, by Dask's key."""
    requested_bytes: int
    """Bytes of its inputs, its result and its temporaries."""
    limit_bytes: int
    """The most that a single request may be."""
    _template = (
        "{holder} needs {requested_bytes:,} bytes of memory for its inputs, its result and its temporaries, and "
        "even alone it can have no more than {limit_bytes:,}. Use smaller chunks, or raise dask-mars.memory-limit."
    )


class ResultTooLarge(RequestTooLarge):
    """The result of a task does not fit into any arena, because `ulimit -v` has left these less than the limit."""

    _template = (
        "the result of {holder} takes {requested_bytes:,} bytes, and with the addresses that `ulimit -v` leaves a "
        "result can have no more than {limit_bytes:,}. Use smaller chunks, raise `ulimit -v`, or lower "
        "num_workers."
    )


class ServiceError(MarsError):
    """A service refused a request, or failed."""

    status: int
    """The HTTP status of its answer."""
    detail: str
    """The text of its answer."""
    problem: dict[str, Any]
    """All of its answer."""
    _template = "{detail} (HTTP {status})"

    def __init__(self, status: int, detail: str, problem: dict[str, Any] | None = None) -> None:
        super().__init__(status, detail, problem or {})


class ServiceUnreachable(MarsError, ConnectionError):
    """No service answers at an address, or it did not come back."""

    address: str
    """Address of the service."""
    reason: str
    """The system's reason."""
    _template = "no service answers at {address}: {reason}; is dask-mars-web running there?"


class ComputationFailed(MarsError):
    """A computation of a service failed with an exception that cannot be raised here."""

    id: str
    """The computation's."""
    kind: str
    """The exception's type."""
    message: str
    """The exception's text."""
    traceback: str = ""
    """The exception's traceback, as text."""
    _template = "computation {id} failed: {kind}: {message}\n{traceback}"

    def __str__(self) -> str:
        return super().__str__().rstrip()


class GraphRefused(MarsError):
    """A service refuses a graph, because the user would not get its results or effects."""

    reason: str
    """Reason of the refusal."""
    _template = "{reason}"


class SpillError(MarsError):
    """Base of errors of values on disk."""

    path: str
    """The file."""
    requested_bytes: int
    """Bytes to write or read."""
    free_bytes: int
    """Bytes that the file system has left for this user; -1 if it does not say."""
    reason: str
    """The system's reason, or what was found."""

    def _words(self) -> dict[str, str]:
        known = self.free_bytes >= 0
        return {"free": f"{self.free_bytes:,} bytes are free" if known else "free space is not known"}


class SpillDiskFull(SpillError):
    """The disk has no room for a value that is to leave memory, or the user's share of it is used up."""

    _template = (
        "a value of {requested_bytes:,} bytes cannot be written to {path}: {reason} ({free}). Free some space, "
        "name a directory on a larger disk in dask-mars.spill-directory, or raise dask-mars.memory-limit."
    )


class SpillDiskFailed(SpillError):
    """The disk, or the directory on it, cannot be written to or read from."""

    _template = (
        "the disk fails at {path}, for a value of {requested_bytes:,} bytes: {reason} ({free}). Name a directory "
        "on another disk in dask-mars.spill-directory."
    )


class SpilledValueLost(SpillError):
    """The file of a spilled value is gone or damaged."""

    _template = (
        "a spilled value of {requested_bytes:,} bytes cannot be read back from {path}: {reason} ({free}). "
        "Something else has changed the directory, or the disk is failing."
    )


def refuse_unhashable(key: Any) -> None:
    """Raise TypeError with the name of something that cannot be a key of a graph."""
    try:
        hash(key)
    except TypeError as error:
        raise TypeError(f"Key {key!r} cannot be a key: {error}") from None


def has_crashed(exit_code: int) -> bool:
    """Return whether a process was ended by a fault of its own code, and not from outside."""
    return -exit_code in _CRASHES


def describe_exit(exit_code: int) -> str:
    """Return in words how a process ended."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was killed by signal {-exit_code} ({signal.Signals(-exit_code).name})"
    except ValueError:
        return f"was killed by signal {-exit_code}"


def _amounts(resources: dict[str, float]) -> str:
    return ", ".join([f"{amount:g} {name}" for name, amount in resources.items()])
