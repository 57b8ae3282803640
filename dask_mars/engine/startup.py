"""Decides who computes first: threads of the user's process, or worker processes, which take long to be up."""

from __future__ import annotations

from collections.abc import Collection

from dask_mars.engine.graph_run import GraphRun
from dask_mars.engine.processes import ProcessHandle

#: After so many seconds of work in threads processes are started: beside it their start takes little.
_PATIENCE_S = 4.0
#: After so many if chunks take less than this on average, so that threads wait for the interpreter's lock.
_LOCKED_PATIENCE_S, _SMALL_S = 0.5, 0.002
#: Threads have no quotas. What they compute must be small beside this share of the memory limit.
_CHUNK_SHARE = 64
_LEAST_LIMIT = 1 << 31


class Startup:
    """Decides whether threads compute until processes are up.

    Parameters
    ----------
    is_wanted : bool
        Whether threads may compute at all.
    memory_limit : int
        The engine's, in bytes.
    num_workers : int
        How many workers it has.

    Attributes
    ----------
    is_wanted : bool
        Whether threads may compute at all.
    loading : dict of int to ProcessHandle
        Processes that import what they need while a thread computes in their place, by number.

    Examples
    --------
    >>> startup = Startup(is_wanted=True, memory_limit=1 << 33, num_workers=2)
    >>> startup.note([], now_s=3.0)
    >>> startup.may_use_threads([])
    True
    >>> Startup(is_wanted=True, memory_limit=1 << 29, num_workers=2).may_use_threads([])
    False
    """

    def __init__(self, is_wanted: bool, memory_limit: int, num_workers: int) -> None:
        self.is_wanted = is_wanted and memory_limit >= _LEAST_LIMIT
        self._num_workers = num_workers
        self.loading: dict[int, ProcessHandle] = {}
        #: How long there was work, and how many chunks were computed.
        self._busy_s, self._finished = 0.0, 0
        #: Since when there is work, None if there is none.
        self._since_s: float | None = None

    def note(self, runs: Collection[GraphRun], now_s: float) -> None:
        """Take note of whether there is work."""
        if runs and self._since_s is None:
            self._since_s = now_s
        elif not runs and self._since_s is not None:
            self._busy_s += now_s - self._since_s
            self._since_s = None

    def note_finished(self, count: int) -> None:
        """Take note of chunks that were computed."""
        self._finished += count

    def may_use_threads(self, runs: Collection[GraphRun]) -> bool:
        """Say whether threads are to be started for all that there is to compute."""
        return self.is_wanted and all(run.plan.is_library_code for run in runs)

    def needs_processes(self, runs: Collection[GraphRun], is_short: bool, now_s: float) -> bool:
        """Say whether processes are to take the threads' places.

        Parameters
        ----------
        runs : collection of GraphRun
            What there is to compute.
        is_short : bool
            Whether memory is short.
        now_s : float
            The time.
        """
        due_s = self.due_s(now_s)
        return is_short or (due_s is not None and now_s >= due_s) or not self.may_use_threads(runs)

    def due_s(self, now_s: float) -> float | None:
        """Return when there has been enough work for processes, None while there is none."""
        if self._since_s is None:
            return None
        busy_s = self._busy_s + now_s - self._since_s
        are_small = busy_s * self._num_workers < self._finished * _SMALL_S
        return now_s + (_LOCKED_PATIENCE_S if are_small else _PATIENCE_S) - busy_s

    def restart(self) -> None:
        """Begin anew: the workers have ended for want of work."""
        self._busy_s, self._finished = 0.0, 0


__all__ = ["Startup"]
