"""Errors of dask_mars; those of memory and disks are defined in `dask_mars.storage_errors`."""

from __future__ import annotations

import signal
from concurrent.futures import CancelledError
from typing import Any

from dask_mars.error_base import DeclaredError
from dask_mars.error_base import MarsError as MarsError
from dask_mars.exit_codes import describe_exit, has_crashed
from dask_mars.storage_errors import QuotaExceeded as QuotaExceeded
from dask_mars.storage_errors import RequestTooLarge as RequestTooLarge
from dask_mars.storage_errors import ResultTooLarge as ResultTooLarge
from dask_mars.storage_errors import SpillDiskFailed as SpillDiskFailed
from dask_mars.storage_errors import SpillDiskFull as SpillDiskFull
from dask_mars.storage_errors import SpilledValueLost as SpilledValueLost
from dask_mars.storage_errors import SpillError as SpillError
from dask_mars.storage_errors import StoreFull as StoreFull
from dask_mars.storage_errors import WorkerOverLimit as WorkerOverLimit
from dask_mars.version import __version__

#: The newest release of Dask that the whole test suite has run with.
TESTED_DASK = "2026.8.0"


class UnknownDask(MarsError, ImportError):
    """The installed Dask lacks a name without which dask_mars cannot work."""

    dask_version: str
    reason: str
    """The import that failed."""
    _template = (
        f"dask_mars {__version__} cannot work with Dask {{dask_version}}: {{reason}}. It is tested with Dask "
        f"{TESTED_DASK}; install that, or a newer dask_mars"
    )


class DaskDiffers(DeclaredError, UserWarning):
    """Dask lacks a private name, or does not behave as dask_mars expects; computations may be slower.

    `missing` are names that it lacks, and `error` was raised while a Dask expression was read.
    """

    dask_version: str
    missing: tuple[str, ...] = ()
    error: BaseException | None = None
    _template = (
        f"dask_mars {__version__} is tested with Dask {TESTED_DASK}, and this is Dask {{dask_version}}: "
        "{reasons}. Results are right, but computations may be slower. A newer dask_mars may know this Dask"
    )

    def _words(self) -> dict[str, str]:
        reasons = [f"it has no {', '.join(self.missing)}"] if self.missing else []
        if self.error is not None:
            reasons.append(f"reading an expression raised {type(self.error).__name__}: {self.error}")
        return {"reasons": "; ".join(reasons)}


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
    """Its graph id in the engine, or its id if it has none yet."""
    _template = "the computation {of}{graph} was cancelled"

    def _words(self) -> dict[str, str]:
        return {"of": "" if isinstance(self.graph, str) else "of graph "}


class ExecutionInterrupted(DeclaredError, KeyboardInterrupt):
    """Raised inside a running task whose computation is cancelled.

    It is to a task what Ctrl-C is to a program, and derives from the same class: ``except Exception`` lets it
    pass, ``finally`` and ``with`` are carried out, and libraries that clean up after Ctrl-C do so. So it is not a
    `MarsError`. A task has ``dask-mars.cancel-grace`` for all of that; then its process is ended. Only the task
    ever sees it.
    """

    graph: int
    _template = "the computation of graph {graph} was cancelled"


class Stalled(MarsError):
    """A computation waits for nothing: a bug of dask_mars, please report it."""

    explanation: str
    """The text of `Runtime.explain`."""
    _template = (
        "the computation waits although nothing is under way that it could wait for; this is a bug in "
        "dask_mars, please report it\n{explanation}"
    )


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
    _template = (
        "no worker of the cluster at {address} is one of dask_mars. Start some: dask-mars-worker {address}; or "
        "turn its workers into such: dask_mars.take_over(client)"
    )


class CannotTakeOver(MarsError):
    """The workers of a cluster cannot become agents."""

    address: str
    """Of the cluster's scheduler."""
    reason: str
    _template = "the workers of the cluster at {address} cannot compute for dask_mars: {reason}"


class NoHostAllowed(MarsError):
    """No host of a cluster matches the annotations of a task."""

    workers: tuple[str, ...]
    """Addresses, names or hosts that the user allows; empty if any."""
    resources: dict[str, float]
    """Amount of each resource that a task takes."""
    hosts: list[str]
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
    resources: dict[str, float]
    available: dict[str, float]
    _template = "{key!r} takes {wanted}, and the runtime has {there}"

    def _words(self) -> dict[str, str]:
        return {"wanted": _amounts(self.resources), "there": _amounts(self.available)}


class PersistedLost(MarsError):
    """Persisted data are gone because their engine is."""

    key: str
    reason: str
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
    reason: str
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
    num_workers: int
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


class DescriptorsTooFew(EngineStartFailed):
    """The process may not open as many files as its workers need."""

    num_workers: int
    needed: int
    """Number of file descriptors that the workers need at least."""
    opened: int
    """Number of file descriptors that are open."""
    limit: int
    """The limit of ``ulimit -n``."""
    _template = (
        "there are too few file descriptors: num_workers={num_workers} takes at least {needed:,}, {opened:,} are "
        "open, and `ulimit -n` is {limit:,}. Raise `ulimit -n`, or lower num_workers."
    )


class SharedMemoryDenied(EngineStartFailed):
    """The system does not let processes share memory."""

    reason: str
    """The system's message."""
    _template = (
        "the system refuses shared memory: {reason}. Workers share memory by memfd_create or an unnamed file, and "
        "mmap, which a container, a sandbox (seccomp) or a limit of file sizes (`ulimit -f`) may deny. Allow "
        'these, or compute with scheduler="threads".'
    )


class MemoryLimitTooLow(EngineStartFailed):
    """The memory limit is below the memory that processes take before any computation."""

    memory_limit: int
    num_workers: int
    worker_bytes: int
    """Bytes of one worker process."""
    client_bytes: int
    """Minimum bytes of the user's process: those of a worker that shares nothing."""
    library_bytes: int
    """Bytes of programs, libraries and the process that workers are forked from, which all share."""
    _template = (
        "a memory limit of {memory_limit:,} bytes is not enough for num_workers={num_workers}: before anything is "
        "computed, processes take {least} bytes: {worker_bytes:,} each worker, {client_bytes:,} or more the "
        "user's own, and {library_bytes:,} libraries, once. Raise memory_limit (dask-mars.memory-limit), or lower "
        "num_workers."
    )

    @property
    def least_bytes(self) -> int:
        """Bytes that all processes take at least."""
        return self.num_workers * self.worker_bytes + self.client_bytes + self.library_bytes

    def _words(self) -> dict[str, str]:
        return {"least": f"{self.least_bytes:,}"}


class WorkerStartFailed(EngineStartFailed):
    """Worker processes end before they can work."""

    attempts: int
    """Number of processes in a row."""
    ending: str
    """Their end, in words."""
    _template = (
        "worker processes cannot be started: {attempts} in a row {ending} before they were ready. Their own "
        "messages are on standard error."
    )


class WorkerStartTimeout(WorkerStartFailed):
    """Worker processes make no progress while they start."""

    timeout_s: float
    """Seconds for which each made none."""
    doing: str
    """The last one's activity."""
    _template = (
        "worker processes do not come up: {attempts} in a row were ended by dask_mars because they made no "
        "progress for {timeout_s:g} s (dask-mars.start-timeout), the last one while {doing}. Raise "
        "dask-mars.start-timeout if the machine is busy or its files are slow to read, or find out what that "
        "waits for."
    )


class WorkerDied(MarsError):
    """A worker process died again and again while it ran the same task."""

    key: str
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
    holder: str
    _template = (
        "{holder} computes the same at this moment, under the checkpoint {directory}. Wait until it has ended, or "
        "give this one another directory."
    )


class CheckpointFailed(CheckpointError):
    """A directory cannot be used for checkpoints."""

    directory: str
    reason: str
    _template = "{directory} cannot be used for checkpoints: {reason}"


class SavedChunkLost(CheckpointError):
    """The saved value of a chunk is gone or damaged. The chunk is computed again."""

    key: str
    path: str
    reason: str
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
    _template = (
        "the lock {token} was held, and the scheduler of the cluster heard nothing of that for longer than "
        "distributed.scheduler.locks.lease-timeout: another host may have had it at the same time, so what it "
        "guards may be spoilt. Write it anew, with a longer timeout if hosts are that busy."
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


class ServiceUnreachable(MarsError, ConnectionError):
    """No service answers at an address, or it did not come back."""

    address: str
    reason: str
    _template = "no service answers at {address}: {reason}; is dask-mars-web running there?"


class ComputationFailed(MarsError):
    """A computation of a service failed with an exception that cannot be raised here."""

    id: str
    kind: str
    message: str
    traceback: str = ""
    _template = "computation {id} failed: {kind}: {message}\n{traceback}"

    def __str__(self) -> str:
        return super().__str__().rstrip()


class GraphRefused(MarsError):
    """A service refuses a graph, because the user would not get its results or effects."""

    reason: str
    _template = "{reason}"


def _amounts(resources: dict[str, float]) -> str:
    return ", ".join([f"{amount:g} {name}" for name, amount in resources.items()])
