"""Every error of dask_mars. Each carries its facts as attributes and survives pickling."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from concurrent.futures import CancelledError
from typing import Any

from dask_mars.version import __version__

#: Signals that the system sends for what a process has done.
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT}


class MarsError(Exception):
    """Base of all errors that dask_mars raises on its own account.

    An exception raised by a task is never wrapped: it reaches the user as it is.
    """

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)

    def __str__(self) -> str:
        return self._message()

    def _message(self) -> str:
        return ", ".join(map(str, self.args))


#: The newest release of Dask that the whole test suite has run with.
TESTED_DASK = "2026.8.0"


class UnknownDask(MarsError, ImportError):
    """The installed Dask lacks a name without which dask_mars cannot work.

    Attributes
    ----------
    dask_version : str
        The version that is installed.
    reason : str
        What could not be imported.
    """

    def __init__(self, dask_version: str, reason: str) -> None:
        super().__init__(dask_version, reason)
        self.dask_version = dask_version
        self.reason = reason

    def _message(self) -> str:
        return (
            f"dask_mars {__version__} cannot work with Dask {self.dask_version}: {self.reason}. It is tested "
            f"with Dask {TESTED_DASK}; install that, or a newer dask_mars"
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
    """An operand was to make a move that its state does not allow: a bug of dask_mars, please report it."""

    def __init__(self, graph: int, chunk: int, state: str, target: str) -> None:
        super().__init__(graph, chunk, state, target)
        self.graph = graph
        self.chunk = chunk
        self.state = state
        self.target = target

    def _message(self) -> str:
        return (
            f"chunk {self.chunk} of graph {self.graph} cannot go from {self.state} to {self.target}; "
            "this is a bug in dask_mars, please report it"
        )


class Cancelled(MarsError):
    """The computation was cancelled by `Runtime.cancel` or `Computation.cancel`.

    Attributes
    ----------
    graph : int or str
        Its number in the engine, or its id if it has none yet.
    """

    def __init__(self, graph: int | str) -> None:
        super().__init__(graph)
        self.graph = graph

    def _message(self) -> str:
        graph = (
            f"the computation {self.graph}"
            if isinstance(self.graph, str)
            else f"the computation of graph {self.graph}"
        )
        return f"{graph} was cancelled"


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
    """A computation waits for nothing: a bug of dask_mars, please report it.

    Attributes
    ----------
    explanation : str
        What `Runtime.explain` said.
    """

    def __init__(self, explanation: str) -> None:
        super().__init__(explanation)
        self.explanation = explanation

    def _message(self) -> str:
        return (
            "the computation waits although nothing is under way that it could wait for; this is a bug in "
            f"dask_mars, please report it\n{self.explanation}"
        )


# MemoryError comes first because it makes its instances itself, and pickles ask for that.
class QuotaExceeded(MemoryError, MarsError):
    """A task needs more memory than there can be for it, besides what others have.

    Attributes
    ----------
    growth_bytes : int
        What the task would have taken.
    granted_bytes : int
        What it had been granted.
    limit_bytes : int
        The memory limit.
    stored_bytes : int
        Results that were in the store.
    reserved_bytes : int
        What other tasks had been granted.
    private_bytes : int
        What processes had for themselves: interpreters, modules, and memory that is not NumPy's.
    """

    def __init__(
        self,
        growth_bytes: int,
        granted_bytes: int,
        limit_bytes: int,
        stored_bytes: int,
        reserved_bytes: int,
        private_bytes: int,
    ) -> None:
        super().__init__(growth_bytes, granted_bytes, limit_bytes, stored_bytes, reserved_bytes, private_bytes)
        self.growth_bytes = growth_bytes
        self.granted_bytes = granted_bytes
        self.limit_bytes = limit_bytes
        self.stored_bytes = stored_bytes
        self.reserved_bytes = reserved_bytes
        self.private_bytes = private_bytes

    __str__ = MarsError.__str__

    def _message(self) -> str:
        return (
            f"a task asked for {self.growth_bytes:,} bytes of memory and had been granted {self.granted_bytes:,}. "
            f"Of the limit of {self.limit_bytes:,} bytes, results take {self.stored_bytes:,}, other tasks "
            f"{self.reserved_bytes:,}, and processes themselves {self.private_bytes:,}. Smaller chunks need less; "
            "dask-mars.memory-limit allows more"
        )


class WorkerOverLimit(MemoryError, MarsError):
    """A task took more memory than the limit allows, without asking for it: alone, or before it could be tried so.

    NumPy asks for memory before it takes any, and gets `QuotaExceeded`. Python's own objects, and other libraries,
    do not ask: what they have taken is measured, and the worker process that is past its share is ended.

    Attributes
    ----------
    key : str
        Dask's key of the task.
    worker_bytes : int
        What its worker process had taken when it was ended, its interpreter and modules included.
    limit_bytes : int
        The memory limit.
    others_bytes : int
        What other processes had taken for themselves: the user's, and other workers.
    store_bytes : int
        What shared memory took.
    repeatable : bool
        False if the task was not tried again alone, because it appends to files or tables.
    """

    def __init__(
        self,
        key: str,
        worker_bytes: int,
        limit_bytes: int,
        others_bytes: int,
        store_bytes: int,
        repeatable: bool = True,
    ) -> None:
        super().__init__(key, worker_bytes, limit_bytes, others_bytes, store_bytes, repeatable)
        self.key = key
        self.worker_bytes = worker_bytes
        self.limit_bytes = limit_bytes
        self.others_bytes = others_bytes
        self.store_bytes = store_bytes
        self.repeatable = repeatable

    __str__ = MarsError.__str__

    def _message(self) -> str:
        tried = (
            "also when nothing else was being computed"
            if self.repeatable
            else "and is not tried again alone, because it appends to files or tables"
        )
        return (
            f"{self.key} took its worker process to {self.worker_bytes:,} bytes of memory, {tried}. Of the limit "
            f"of {self.limit_bytes:,} bytes, other processes take {self.others_bytes:,} for themselves, and "
            f"shared memory takes {self.store_bytes:,}. Smaller chunks need less; dask-mars.memory-limit allows "
            "more"
        )


class UnsupportedPlatform(MarsError, ImportError):
    """The operating system cannot run dask_mars."""

    def __init__(self, platform: str) -> None:
        super().__init__(platform)
        self.platform = platform

    def _message(self) -> str:
        return (
            f"dask_mars needs Linux or macOS and this is {self.platform}: its workers share memory over "
            "inherited file descriptors. Use Dask's own schedulers here, or WSL."
        )


class EngineStopped(MarsError):
    """The engine is not running (any more)."""

    def __init__(self, reason: str = "the Runtime is closed") -> None:
        super().__init__(reason)
        self.reason = reason


class NoAgents(MarsError):
    """A cluster has no worker that could compute for dask_mars.

    Attributes
    ----------
    address : str
        Of the cluster's scheduler.
    """

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address

    def _message(self) -> str:
        return (
            f"no worker of the cluster at {self.address} is one of dask_mars. Start some: "
            f"dask-mars-worker {self.address}"
        )


class NoHostAllowed(MarsError):
    """No host of a cluster is one that the user has annotated a task for.

    Attributes
    ----------
    workers : tuple of str
        Addresses, names or hosts that the user allows; empty if any.
    resources : dict
        Amount of each resource that a task takes.
    hosts : list of str
        Names of the hosts that there are.
    """

    def __init__(self, workers: tuple[str, ...], resources: dict[str, float], hosts: list[str]) -> None:
        super().__init__(workers, resources, hosts)
        self.workers = workers
        self.resources = resources
        self.hosts = hosts

    def _message(self) -> str:
        wanted = [f"{amount:g} {name}" for name, amount in self.resources.items()]
        where = f" of {', '.join(self.workers)}" if self.workers else ""
        needed = f" with {', '.join(wanted)}" if wanted else ""
        return f"a task is annotated for a host{where}{needed}, but there are only {', '.join(self.hosts)}"


class ResourcesMissing(MarsError):
    """A task takes more of a resource than the runtime has.

    Attributes
    ----------
    key : object
        Of the task.
    resources : dict
        What it takes.
    available : dict
        What there is.
    """

    def __init__(self, key: object, resources: dict[str, float], available: dict[str, float]) -> None:
        super().__init__(key, resources, available)
        self.key = key
        self.resources = resources
        self.available = available

    def _message(self) -> str:
        wanted = ", ".join([f"{amount:g} {name}" for name, amount in self.resources.items()])
        there = ", ".join([f"{amount:g} {name}" for name, amount in self.available.items()])
        return f"{self.key!r} takes {wanted}, and the runtime has {there}"


class PersistedLost(MarsError):
    """Persisted data are gone, because the engine that kept them is.

    Attributes
    ----------
    key : str
        Dask's key of the chunk that was asked for.
    reason : str
        What has become of it.
    """

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(key, reason)
        self.key = key
        self.reason = reason

    def _message(self) -> str:
        return (
            f"the persisted data of {self.key} are gone: {self.reason}. They live no longer than the Runtime that "
            "computed them; persist the original collection again."
        )


class FuturesLost(PersistedLost, CancelledError):
    """Persisted data of a cluster are gone, because its scheduler is."""

    def _message(self) -> str:
        return (
            f"the persisted data of {self.key} are gone: {self.reason}. Only Dask's scheduler knows where data "
            "are; persist the original collection again."
        )


class SchedulerLost(MarsError, CancelledError):
    """The scheduler of a cluster was lost during a computation, and the computation could not go on.

    Attributes
    ----------
    address : str
        Of the scheduler.
    reason : str
        Why it could not.
    losses : int
        How often the computation has lost its scheduler.
    """

    def __init__(self, address: str, reason: str, losses: int) -> None:
        super().__init__(address, reason, losses)
        self.address = address
        self.reason = reason
        self.losses = losses

    def _message(self) -> str:
        how_often = "" if self.losses == 1 else f" {self.losses} times"
        return f"the connection to the scheduler at {self.address} was lost{how_often}, and {self.reason}"


class EngineStartFailed(MarsError):
    """Base of the reasons for which an engine does not come to work."""


class AddressSpaceTooSmall(EngineStartFailed):
    """The shared memory of all processes does not fit into the addresses that one process has.

    Attributes
    ----------
    memory_limit : int
        The engine's.
    num_workers : int
        Its worker processes.
    needed_bytes : int
        Addresses that each process needs for shared memory.
    free_bytes : int
        Addresses that a process has for it.
    limit_bytes : int or None
        What ``ulimit -v`` says, None if that is unlimited.
    """

    def __init__(
        self, memory_limit: int, num_workers: int, needed_bytes: int, free_bytes: int, limit_bytes: int | None
    ) -> None:
        super().__init__(memory_limit, num_workers, needed_bytes, free_bytes, limit_bytes)
        self.memory_limit = memory_limit
        self.num_workers = num_workers
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes
        self.limit_bytes = limit_bytes

    def _message(self) -> str:
        limit = "unlimited" if self.limit_bytes is None else f"{self.limit_bytes:,} bytes"
        return (
            "there are too few addresses for shared memory, all of which each process maps: with "
            f"memory_limit={self.memory_limit:,} and num_workers={self.num_workers} it takes at least "
            f"{self.needed_bytes:,} bytes of them, and {self.free_bytes:,} are free (`ulimit -v` is {limit}). "
            "Raise `ulimit -v`, or lower num_workers or memory_limit."
        )


class SharedMemoryDenied(EngineStartFailed):
    """The system does not let processes share memory.

    Attributes
    ----------
    reason : str
        What the system said.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def _message(self) -> str:
        return (
            f"the system refuses shared memory: {self.reason}. Workers share memory by memfd_create or an unnamed "
            "file, and mmap, which a container or a sandbox (seccomp) may deny. Allow these, or compute with "
            'scheduler="threads".'
        )


class MemoryLimitTooLow(EngineStartFailed):
    """The memory limit is less than what processes take before anything has been computed.

    Attributes
    ----------
    memory_limit : int
        The engine's.
    num_workers : int
        Its worker processes.
    worker_bytes : int
        What one of them was seen to take for itself. The user's process takes at least as much.
    library_bytes : int
        What programs and libraries take besides, which all share.
    """

    def __init__(self, memory_limit: int, num_workers: int, worker_bytes: int, library_bytes: int) -> None:
        super().__init__(memory_limit, num_workers, worker_bytes, library_bytes)
        self.memory_limit = memory_limit
        self.num_workers = num_workers
        self.worker_bytes = worker_bytes
        self.library_bytes = library_bytes

    @property
    def least_bytes(self) -> int:
        """What all processes take at least."""
        return (self.num_workers + 1) * self.worker_bytes + self.library_bytes

    def _message(self) -> str:
        return (
            f"a memory limit of {self.memory_limit:,} bytes is not enough for num_workers={self.num_workers}: "
            f"before anything is computed, processes take {self.least_bytes:,} bytes: {self.worker_bytes:,} each "
            f"worker and at least as much the user's own, and {self.library_bytes:,} libraries, once. "
            "Raise memory_limit (dask-mars.memory-limit), or lower num_workers."
        )


class WorkerStartFailed(EngineStartFailed):
    """Worker processes end before they can work."""

    def __init__(self, attempts: int, ending: str) -> None:
        super().__init__(attempts, ending)
        self.attempts = attempts
        self.ending = ending

    def _message(self) -> str:
        return (
            f"worker processes cannot be started: {self.attempts} in a row {self.ending} before they were "
            "ready. Their own messages are on standard error."
        )


class WorkerStartTimeout(WorkerStartFailed):
    """Worker processes make no progress while they start.

    Attributes
    ----------
    attempts : int
        How many in a row were ended for it.
    timeout_s : float
        Seconds for which each made none.
    doing : str
        What the last one was doing.
    """

    def __init__(self, attempts: int, timeout_s: float, doing: str) -> None:
        super().__init__(attempts, f"made no progress for {timeout_s:g} s")
        self.args = (attempts, timeout_s, doing)
        self.timeout_s = timeout_s
        self.doing = doing

    def _message(self) -> str:
        return (
            f"worker processes do not come up: {self.attempts} in a row were ended by dask_mars because they made "
            f"no progress for {self.timeout_s:g} s (dask-mars.start-timeout), the last one while {self.doing}. "
            "Raise dask-mars.start-timeout if the machine is busy or its files are slow to read, or find out "
            "what that waits for."
        )


class WorkerDied(MarsError):
    """A worker process died again and again while it ran the same task.

    Attributes
    ----------
    key : str
        Dask's key of the task.
    exit_code : int
        As `subprocess.Popen.returncode`: negative for a signal.
    attempts : int
        How many worker processes the task took with it.
    repeatable : bool
        False if it was not tried again because it appends to files or tables: what it had written would be there
        twice.
    """

    def __init__(self, key: str, exit_code: int, attempts: int, repeatable: bool = True) -> None:
        super().__init__(key, exit_code, attempts, repeatable)
        self.key = key
        self.exit_code = exit_code
        self.attempts = attempts
        self.repeatable = repeatable

    def _message(self) -> str:
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
        return (
            f"the worker process {describe_exit(self.exit_code)} while it computed {self.key}, {how_often}{hint}"
        )


class BegunBefore(MarsError):
    """A task that appends to files or tables was to be begun a second time: a host or a process was lost.

    Attributes
    ----------
    key : str
        Dask's key of the task.
    """

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def _message(self) -> str:
        return (
            f"{self.key}, which appends to files or tables, was begun before, on a host or by a process that has "
            "been lost, or in a computation that was cancelled. It is not tried again because what it had written "
            "would be there twice. Remove what is there, and the checkpoint if there is one, and compute anew."
        )


class CheckpointError(MarsError):
    """Base of what is wrong with checkpoints."""


class CheckpointInUse(CheckpointError):
    """Another process computes the same in the same directory.

    Attributes
    ----------
    directory : str
        The directory of the computation.
    holder : str
        Who uses it.
    """

    def __init__(self, directory: str, holder: str) -> None:
        super().__init__(directory, holder)
        self.directory = directory
        self.holder = holder

    def _message(self) -> str:
        return (
            f"{self.holder} computes the same at this moment, under the checkpoint {self.directory}. Wait until "
            "it has ended, or give this one another directory; dask-mars.checkpoint.wait is the longest wait."
        )


class CheckpointFailed(CheckpointError):
    """A directory cannot be used for checkpoints.

    Attributes
    ----------
    directory : str
        Which.
    reason : str
        Why.
    """

    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(directory, reason)
        self.directory = directory
        self.reason = reason

    def _message(self) -> str:
        return f"{self.directory} cannot be used for checkpoints: {self.reason}"


class SavedChunkLost(CheckpointError):
    """What was saved of a chunk is gone, or is not what was written. The chunk is computed again.

    Attributes
    ----------
    key : str
        Dask's key of the chunk.
    path : str
        The file.
    reason : str
        What is wrong with it.
    """

    def __init__(self, key: str, path: str, reason: str) -> None:
        super().__init__(key, path, reason)
        self.key = key
        self.path = path
        self.reason = reason

    def _message(self) -> str:
        return f"{self.path}, to which {self.key} was saved, cannot be read: {self.reason}"


class FilesLost(MarsError):
    """The files of a shuffle are on a host that is not there any more.

    Attributes
    ----------
    key : str
        Dask's key of the task that needs them.
    """

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def _message(self) -> str:
        return (
            f"{self.key} needs the files of a shuffle, which are on a host that is not there any more. Compute "
            'anew; with dask.config.set({"dataframe.shuffle.method": "tasks"}), or shuffle="tasks" for bags, '
            "shuffles do without files and use all hosts."
        )


class LockLost(MarsError):
    """A lock was given to another host although it was still held here.

    Attributes
    ----------
    token : str
        Of the lock.
    """

    def __init__(self, token: str) -> None:
        super().__init__(token)
        self.token = token

    def _message(self) -> str:
        return (
            f"the lock {self.token} was held, and the scheduler of the cluster heard nothing of that for longer "
            "than distributed.scheduler.locks.lease-timeout: another host may have had it at the same time, so "
            "what it guards may be spoilt. Write it anew, with a longer timeout if hosts are that busy."
        )


class StoreFull(MarsError):
    """The shared store has no room for a chunk."""

    def __init__(self, requested_bytes: int, free_bytes: int, capacity_bytes: int) -> None:
        super().__init__(requested_bytes, free_bytes, capacity_bytes)
        self.requested_bytes = requested_bytes
        self.free_bytes = free_bytes
        self.capacity_bytes = capacity_bytes

    def _message(self) -> str:
        return (
            f"a chunk of {self.requested_bytes:,} bytes does not fit into the worker's shared memory: "
            f"{self.free_bytes:,} of {self.capacity_bytes:,} bytes are free. Use smaller chunks, compute "
            "less at once, or raise dask-mars.memory-limit, and `ulimit -v` where that is what leaves so little."
        )


class RequestTooLarge(MarsError):
    """A task needs more memory than it could be given if it ran alone.

    Attributes
    ----------
    holder : str
        Whose request it is.
    requested_bytes : int
        What it needs for its inputs, its result and its temporaries.
    limit_bytes : int
        The most that a single request may be.
    """

    def __init__(self, holder: str, requested_bytes: int, limit_bytes: int) -> None:
        super().__init__(holder, requested_bytes, limit_bytes)
        self.holder = holder
        self.requested_bytes = requested_bytes
        self.limit_bytes = limit_bytes

    def _message(self) -> str:
        return (
            f"{self.holder} needs {self.requested_bytes:,} bytes of memory for its inputs, its result and its "
            f"temporaries, and even alone it can have no more than {self.limit_bytes:,}. Use smaller chunks, or "
            "raise dask-mars.memory-limit."
        )


class ResultTooLarge(RequestTooLarge):
    """The result of a task does not fit into any arena, because `ulimit -v` has left these less than the limit."""

    def _message(self) -> str:
        return (
            f"the result of {self.holder} takes {self.requested_bytes:,} bytes, and with the addresses that "
            f"`ulimit -v` leaves a result can have no more than {self.limit_bytes:,}. Use smaller chunks, raise "
            "`ulimit -v`, or lower num_workers."
        )


class ServiceError(MarsError):
    """A service did not do what it was asked for.

    Attributes
    ----------
    status : int
        The HTTP status of its answer.
    detail : str
        What it said.
    problem : dict
        All of its answer.
    """

    def __init__(self, status: int, detail: str, problem: dict[str, Any] | None = None) -> None:
        super().__init__(status, detail, problem or {})
        self.status = status
        self.detail = detail
        self.problem = problem or {}

    def _message(self) -> str:
        return f"{self.detail} (HTTP {self.status})"


class ServiceUnreachable(MarsError, ConnectionError):
    """There is no service where one was looked for, or it did not come back.

    Attributes
    ----------
    address : str
        Where.
    reason : str
        What the system says.
    """

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    __str__ = MarsError.__str__

    def _message(self) -> str:
        return f"no service answers at {self.address}: {self.reason}; is dask-mars-web running there?"


class ComputationFailed(MarsError):
    """A computation of a service failed with an exception that cannot be raised here.

    Attributes
    ----------
    id : str
        The computation's.
    kind : str
        The type of the exception.
    message : str
        What it said.
    traceback : str
        Where it was raised.
    """

    def __init__(self, id: str, kind: str, message: str, traceback: str = "") -> None:
        super().__init__(id, kind, message, traceback)
        self.id = id
        self.kind = kind
        self.message = message
        self.traceback = traceback

    def _message(self) -> str:
        return f"computation {self.id} failed: {self.kind}: {self.message}\n{self.traceback}".rstrip()


class GraphRefused(MarsError):
    """A service does not compute a graph, because the user would not get what it is for.

    Attributes
    ----------
    reason : str
        Why.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def _message(self) -> str:
        return self.reason


class SpillError(MarsError):
    """Base of what goes wrong with values on disk.

    Attributes
    ----------
    path : str
        The file.
    requested_bytes : int
        Size of what was to be written or read.
    free_bytes : int
        What the file system has left for this user, or -1 where it does not say.
    reason : str
        What the system says, or what was found.
    """

    def __init__(self, path: str, requested_bytes: int, free_bytes: int, reason: str) -> None:
        super().__init__(path, requested_bytes, free_bytes, reason)
        self.path = path
        self.requested_bytes = requested_bytes
        self.free_bytes = free_bytes
        self.reason = reason

    def _free(self) -> str:
        return f"{self.free_bytes:,} bytes are free" if self.free_bytes >= 0 else "free space is not known"


class SpillDiskFull(SpillError):
    """The disk has no room for a value that is to leave memory, or the user's share of it is used up."""

    def _message(self) -> str:
        return (
            f"a value of {self.requested_bytes:,} bytes cannot be written to {self.path}: {self.reason} "
            f"({self._free()}). Free some space, name a directory on a larger disk in "
            "dask-mars.spill-directory, or raise dask-mars.memory-limit."
        )


class SpillDiskFailed(SpillError):
    """The disk, or the directory on it, cannot be written to or read from."""

    def _message(self) -> str:
        return (
            f"the disk fails at {self.path}, for a value of {self.requested_bytes:,} bytes: {self.reason} "
            f"({self._free()}). Name a directory on another disk in dask-mars.spill-directory."
        )


class SpilledValueLost(SpillError):
    """The file of a spilled value is gone, or is not what was written."""

    def _message(self) -> str:
        return (
            f"a spilled value of {self.requested_bytes:,} bytes cannot be read back from {self.path}: "
            f"{self.reason} ({self._free()}). Something else has changed the directory, or the disk is failing."
        )


def refuse_unhashable(key: Any) -> None:
    """Raise TypeError with the name of something that cannot be a key of a graph."""
    try:
        hash(key)
    except TypeError as error:
        raise TypeError(f"Key {key!r} cannot be a key: {error}") from None


def has_crashed(exit_code: int) -> bool:
    """Return whether a process was ended by what its own code did, and not from outside."""
    return -exit_code in _CRASHES


def describe_exit(exit_code: int) -> str:
    """Say in words how a process ended."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was killed by signal {-exit_code} ({signal.Signals(-exit_code).name})"
    except ValueError:
        return f"was killed by signal {-exit_code}"
