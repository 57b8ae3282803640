"""Every error of dask_mars. Each carries its facts as attributes and survives pickling."""

from __future__ import annotations

import signal
from typing import Any


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


class WorkerStartFailed(MarsError):
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
    """

    def __init__(self, key: str, exit_code: int, attempts: int) -> None:
        super().__init__(key, exit_code, attempts)
        self.key = key
        self.exit_code = exit_code
        self.attempts = attempts

    def _message(self) -> str:
        hint = ""
        if self.exit_code == -signal.SIGKILL:
            hint = " The system kills processes like this when memory runs out."
        return (
            f"the worker process {describe_exit(self.exit_code)} while it computed {self.key}, "
            f"{self.attempts} times in a row.{hint}"
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
            "less at once, or raise dask-mars.memory-limit."
        )


def describe_exit(exit_code: int) -> str:
    """Say in words how a process ended."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was killed by signal {-exit_code} ({signal.Signals(-exit_code).name})"
    except ValueError:
        return f"was killed by signal {-exit_code}"
