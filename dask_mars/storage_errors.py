"""Errors of memory and disks, as users import them from `dask_mars.errors`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dask_mars.error_base import MarsError


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
    worker_bytes: int
    """Bytes of its worker process, with interpreter and modules, when it was ended."""
    limit_bytes: int
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
    """Maximum size of a single request, in bytes."""
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


class SpillError(MarsError):
    """Base of errors of values on disk."""

    path: str
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
