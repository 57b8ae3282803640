"""Decides who computes first: threads of the user's process, or worker processes, which take long to be up."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Collection

from dask_mars.engine.graph_run import GraphRun
from dask_mars.engine.lost_time import Lost, LostTime, has_lock
from dask_mars.engine.processes import ProcessHandle

#: After so many seconds of work in threads, and so many times what the start of a process takes, processes are
#: started: beside it that takes little. The second counts only where it is seen what threads lose without them,
#: and that it is less than this share of their time.
_PATIENCE_S, _STARTS, _LOST_SHARE = 4.0, 10, 0.2
#: How fast the engine copies the user's arrays for processes, in bytes a second; threads read them where they are.
_COPIED_BYTES_PER_S = 3e9
#: After so many if chunks take less than this on average, so that threads do little but wait for the interpreter's
#: lock. Of longer ones it is seen what they lose.
_LOCKED_PATIENCE_S, _SMALL_S = 0.5, 0.0005
#: What a module takes to import, on the average, and what a process takes at most to start: this one may have
#: modules by thousands that tasks need nothing of.
_MODULE_S, _MOST_START_S = 0.0008, 3.0
#: What has to be left for a process to join in what is being computed, or what its start takes, if that is more:
#: in its first chunk libraries compile what they have compiled in this process already, for which all would wait
#: in the end.
_LEFT_S = 1.0
#: How fast it goes on is seen over so many seconds at least, and twice as many at most.
_WINDOW_S = 0.25
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
        #: How long there was work and a processor for it, and how many chunks were computed.
        self._busy_s, self._finished = 0.0, 0
        self.lost_time = LostTime()
        #: What threads have lost to each other, all of them together, until now and until there was work. Not
        #: forgotten when workers end for want of work: who computes what holds the lock does so again.
        self._lost_s = self._lost_before_s = 0.0
        #: What has not been copied of the user's arrays because threads read them, and what that would have taken.
        self._lent_bytes, self._saved_s = 0, 0.0
        #: Since when there is work, None if there is none, and how many chunks had been computed then.
        self._since_s: float | None = None
        self._finished_before = 0
        #: The same of the last two windows of it.
        self._windows: deque[tuple[float, int]] = deque(maxlen=2)

    def note(self, runs: Collection[GraphRun], now_s: float) -> None:
        """Take note of whether there is work."""
        if runs and self._since_s is None:
            self._since_s, self._finished_before = now_s, self._finished
            self._lost_before_s = self._lost_s
            self._windows.clear()
        elif not runs and self._since_s is not None:
            self._busy_s += now_s - self._since_s
            self._since_s = None
        if runs and (not self._windows or now_s - self._windows[-1][0] >= _WINDOW_S):
            self._windows.append((now_s, self._finished))

    def note_finished(self, run: GraphRun | None, count: int) -> None:
        """Take note of chunks that were computed, of a graph that may have ended."""
        self._finished += count
        if run is not None:
            run.finished += count

    def may_use_threads(self, runs: Collection[GraphRun]) -> bool:
        """Say whether threads are to be started for all that there is to compute."""
        return self.is_wanted and all(run.plan.is_library_code for run in runs)

    def note_lost(self, lost: Lost) -> None:
        """Take note of what threads have lost to each other, and to others' programs, which is no work."""
        self._lost_s += lost.lock_s
        self._busy_s -= lost.others_s

    def note_lent(self, lent_bytes: int) -> None:
        """Take note of how many bytes of the user's arrays threads have read where they are, ever."""
        self._saved_s += (lent_bytes - self._lent_bytes) / _COPIED_BYTES_PER_S
        self._lent_bytes = lent_bytes

    def wanted_processes(self, runs: Collection[GraphRun], is_short: bool, now_s: float) -> int:
        """Return how many of the workers are to be processes.

        Where threads wait for the interpreter's lock all but one become processes: the last one has it to itself,
        and each process that need not start is half a second or more of a processor's time. They are started once
        as much has been lost as that takes, so that nobody pays much more than twice what would have been best.

        Parameters
        ----------
        runs : collection of GraphRun
            What there is to compute.
        is_short : bool
            Whether memory is short.
        now_s : float
            The time.
        """
        due_s = self.due_s(runs, now_s)
        if is_short or (due_s is not None and now_s >= due_s) or not self.may_use_threads(runs):
            return self._num_workers
        return self._num_workers - 1 if self._is_worth_starting(runs, now_s) else 0

    def _is_worth_starting(self, runs: Collection[GraphRun], now_s: float) -> bool:
        """Say whether threads have lost what it takes to start processes for all of them but one."""
        if not self._lost_s:
            return False
        cost_s = _start_s() * (self._num_workers - 1) + self._saved_s
        # Near the end of a computation they come too late for it, and for the next one early enough when it
        # begins, if there is a next one.
        return self._lost_s >= cost_s and (self._lost_before_s >= cost_s or self._is_much_left(runs, now_s))

    def is_worth_joining(self, runs: Collection[GraphRun], now_s: float) -> bool:
        """Say whether enough is left to do for a process that has just come up, or nothing has been done yet."""
        return not self.may_use_threads(runs) or self._is_much_left(runs, now_s)

    def _is_much_left(self, runs: Collection[GraphRun], now_s: float) -> bool:
        """Say whether there is work for a process, if it goes on as it has, or nothing has been done yet.

        It may have been faster before: what chunks are read from is often done first, and in no time.
        """
        done = self._finished - self._finished_before
        if self._since_s is None or done <= 0:
            return True
        each_s = (now_s - self._since_s) / done
        begun_s, finished = self._windows[0]
        if now_s - begun_s >= _WINDOW_S:
            each_s = max(each_s, (now_s - begun_s) / max(self._finished - finished, 1))
        left = sum([len(run.graph) - run.finished for run in runs])
        return left * each_s >= max(_start_s(), _LEFT_S)

    def due_s(self, runs: Collection[GraphRun], now_s: float) -> float | None:
        """Return when there has been enough work for processes, None if there is none, or none for them."""
        if self._since_s is None or not has_lock():
            # Without the lock threads compute as fast as processes.
            return None
        busy_s = max(self._busy_s + now_s - self._since_s, 0.0)
        are_small = busy_s * self._num_workers < self._finished * _SMALL_S
        patience_s = _LOCKED_PATIENCE_S if are_small else _PATIENCE_S
        if not are_small and self.lost_time.can_tell:
            # Libraries' own threads hold the lock besides, also from one thread that is alone.
            loses_much = busy_s > 0 and self._lost_s >= _LOST_SHARE * busy_s * self._num_workers
            if not loses_much and self._saved_s > self._lost_s:
                # Processes would have taken longer for copies than threads have waited for each other.
                return None
            patience_s = patience_s if loses_much else max(patience_s, _STARTS * _start_s())
        if busy_s >= patience_s and not self._is_much_left(runs, now_s):
            # What is computed now ends before they are of use.
            patience_s *= 2
        return now_s + patience_s - busy_s

    def restart(self) -> None:
        """Begin anew: the workers have ended for want of work."""
        self._busy_s, self._finished, self._finished_before = 0.0, 0, 0
        self._saved_s = 0.0


def _start_s() -> float:
    """Return what a process takes to import what this one has imported, in seconds of a processor's time."""
    return min(len(sys.modules) * _MODULE_S, _MOST_START_S)


__all__ = ["Startup"]
