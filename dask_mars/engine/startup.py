"""Decides who computes first: threads of the user's process, or worker processes, which take long to be up."""

from __future__ import annotations

from collections.abc import Collection

from dask_mars.engine.graph_run import GraphRun
from dask_mars.engine.lost_time import LostTime
from dask_mars.engine.processes import ProcessHandle

#: After so many seconds of work in threads processes are started: beside it their start takes little.
_PATIENCE_S = 4.0
#: After so many if chunks take less than this on average, so that threads wait for the interpreter's lock.
_LOCKED_PATIENCE_S, _SMALL_S = 0.5, 0.002
#: After so many that threads have lost to each other, of each worker's time. While they do so a processor is free
#: that starts a process, so that this costs less than it seems; and a script that ends soon is not to pay for it.
_LOST_PATIENCE_S = 0.25
#: What has to be left for a process to join in what is being computed: in its first chunk libraries compile what
#: they have compiled in this process already, for which all would wait in the end.
_LEFT_S = 1.0
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
    lost_time : LostTime
        Looks at threads that compute.

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
        self.lost_time = LostTime()
        #: What threads have lost to each other, of each worker's time. Not forgotten when workers end for want of
        #: work: who computes what holds the lock does so again.
        self._lost_s = 0.0
        #: Since when there is work, None if there is none, and how many chunks had been computed then.
        self._since_s: float | None = None
        self._finished_before = 0

    def note(self, runs: Collection[GraphRun], now_s: float) -> None:
        """Take note of whether there is work."""
        if runs and self._since_s is None:
            self._since_s, self._finished_before = now_s, self._finished
        elif not runs and self._since_s is not None:
            self._busy_s += now_s - self._since_s
            self._since_s = None

    def note_finished(self, count: int) -> None:
        """Take note of chunks that were computed."""
        self._finished += count

    def may_use_threads(self, runs: Collection[GraphRun]) -> bool:
        """Say whether threads are to be started for all that there is to compute."""
        return self.is_wanted and all(run.plan.is_library_code for run in runs)

    def note_lost(self, lost_s: float) -> None:
        """Take note of seconds that threads have lost to each other, all of them together."""
        self._lost_s += lost_s / self._num_workers

    def wanted_processes(self, runs: Collection[GraphRun], is_short: bool, now_s: float) -> int:
        """Return how many of the workers are to be processes.

        Where threads wait for the interpreter's lock all but one become processes: the last one has it to itself,
        and each process that need not start is half a second or more of a processor's time.

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
        if is_short or (due_s is not None and now_s >= due_s) or not self.may_use_threads(runs):
            return self._num_workers
        return self._num_workers - 1 if self._lost_s >= _LOST_PATIENCE_S else 0

    def is_worth_joining(self, runs: Collection[GraphRun], now_s: float) -> bool:
        """Say whether enough is left to do for a process that has just come up, or nothing has been done yet."""
        done = self._finished - self._finished_before
        if self._since_s is None or done <= 0 or not self.may_use_threads(runs):
            return True
        left = sum([len(run.graph) for run in runs]) - done
        return left * (now_s - self._since_s) >= _LEFT_S * done

    def due_s(self, now_s: float) -> float | None:
        """Return when there has been enough work for processes, None while there is none."""
        if self._since_s is None:
            return None
        busy_s = self._busy_s + now_s - self._since_s
        are_small = busy_s * self._num_workers < self._finished * _SMALL_S
        return now_s + (_LOCKED_PATIENCE_S if are_small else _PATIENCE_S) - busy_s

    def restart(self) -> None:
        """Begin anew: the workers have ended for want of work."""
        self._busy_s, self._finished, self._finished_before = 0.0, 0, 0


__all__ = ["Startup"]
