"""The web service's interface to its source: a runtime, a Dask scheduler, or a standing service."""

from __future__ import annotations

from typing import Any, Literal, Protocol, get_args, runtime_checkable

#: Data for `json.dumps`: dicts with text as keys.
Json = dict[str, Any]

#: The states of a computation, in the order in which it can pass through them.
State = Literal["queued", "preparing", "running", "finished", "failed", "cancelled"]
STATES: tuple[State, ...] = get_args(State)

#: The states that a computation never leaves.
OVER = frozenset({"finished", "failed", "cancelled"})


@runtime_checkable
class Monitor(Protocol):
    """Computations and workers as JSON.

    All methods are called from several threads at once, return new or unchanging dicts and do not block for
    long: a second is too long. Those that take an id raise `KeyError` where it is unknown. Where there is
    nothing to tell, the lists and texts in an answer are empty. The fields are those of `dask_mars.web.answers`,
    with which the tests compare answers. Times are Unix seconds, durations seconds, sizes bytes.
    """

    def revision(self) -> int:
        """Return a number that grows with each visible change."""

    def state(self) -> Json:
        """Return workers, memory, and the number of computations in each state."""

    def computations(self, state: str | None, before: str | None, limit: int) -> Json:
        """Return summaries, the newest first."""

    def computation(self, id: str) -> Json:
        """Return the summary of one computation, and its layers."""

    def cancel(self, id: str) -> bool:
        """Cancel a computation; return False if it is over."""

    def error(self, id: str) -> Json:
        """Return the error of a computation: ``type``, ``message``, ``traceback``; empty texts without one."""

    def log(self, id: str) -> Json:
        """Return the output lines of a computation's tasks, the oldest first."""

    def timeline(self, id: str) -> Json:
        """Return when each worker ran tasks of which layer, and the memory in use meanwhile."""

    def graph(self, id: str, layer: str | None) -> Json:
        """Return the layers and the edges between them, or the blocks of one layer."""

    def explain(self, id: str | None, key: str | None) -> Json:
        """Return why a computation, all of them, or one chunk waits, as rows of text."""
