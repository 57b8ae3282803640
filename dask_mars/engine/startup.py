"""Decides whether threads of the user's process compute until worker processes have started."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection

from dask.utils import format_bytes

from dask_mars.engine.graph_run import GraphRun
from dask_mars.engine.lost_time import Lost, LostTime, has_lock
from dask_mars.engine.processes import ProcessHandle

#: Work in threads before processes start: seconds, and a multiple of the start time of a process. The multiple
#: applies only while lost time is measured and below this fraction of the work.
_PATIENCE_S, _STARTS, _LOST_SHARE = 4.0, 10, 0.2
#: Speed of copying the user's arrays for processes, in bytes per second; threads read them in place.
_COPIED_BYTES_PER_S = 3e9
#: Work before processes start, in seconds, if chunks are shorter than this mean: they mostly wait for the GIL.
#: Lost time is measured for longer chunks.
_LOCKED_PATIENCE_S, _SMALL_S = 0.5, 0.0005
#: Mean import time of a module, and the maximum estimate of a process's start time, in seconds: the user's process
#: may have imported thousands of modules that tasks do not need.
_MODULE_S, _MOST_START_S = 0.0008, 3.0
#: Minimum remaining work for a process to join a computation, in seconds, or its start time if that is longer:
#: libraries may compile in a process's first chunk.
_LEFT_S = 1.0
#: Start time and remaining work if a template forks processes with all libraries, none of which compiles.
_FORK_S, _LEFT_FOR_FORKS_S = 0.1, 0.25
#: Window for measuring progress, in seconds; at most two windows are used.
_WINDOW_S = 0.25
#: Divisor of the memory limit: chunks that threads compute must be small beside it, as threads have no quotas.
_CHUNK_SHARE = 64
_LEAST_LIMIT = 1 << 31


class Startup:
    """Decides whether threads compute until processes have started."""

    def __init__(
        self, unwanted: str, memory_limit: int, num_workers: int, can_fork: Callable[[], bool] = bool
    ) -> None:
        if memory_limit < _LEAST_LIMIT and not unwanted:
            unwanted = f"threads compute from a memory limit of {format_bytes(_LEAST_LIMIT)} on"
        self.is_wanted = not unwanted
        #: Why there are worker processes, in words.
        self.why_processes = unwanted
        self._num_workers = num_workers
        #: Whether a template can fork processes that have all libraries of the program; as found at the last loss.
        self._can_fork, self._starts_quickly = can_fork, False
        #: Workers that have started: only as many threads do as there are chunks for.
        self.started = num_workers
        #: Processes that still import while a thread computes in their place, by id.
        self.loading: dict[int, ProcessHandle] = {}
        #: Time with work and a processor for it, and the number of computed chunks.
        self._busy_s, self._finished = 0.0, 0
        self.lost_time = LostTime()
        #: Time that threads have lost to each other, until now and until the current work began. It is kept when
        #: idle workers end: code that held the GIL once is likely to run again.
        self._lost_s = self._lost_before_s = 0.0
        #: Bytes of the user's arrays that threads read in place, and the time that copies would have taken.
        self._borrowed_bytes, self._saved_s = 0, 0.0
        #: Start of the current work, None without work, and the number of chunks computed before.
        self._since_s: float | None = None
        self._finished_before = 0
        #: Start and number of computed chunks of the last two windows.
        self._windows: deque[tuple[float, int]] = deque(maxlen=2)

    def give_up_threads(self) -> None:
        """Use no threads any more, as one has failed."""
        self.is_wanted, self.why_processes = False, "a thread has failed"

    def note(self, runs: Collection[GraphRun], now_s: float) -> None:
        """Record whether there is work."""
        if runs and self._since_s is None:
            self._since_s, self._finished_before = now_s, self._finished
            self._lost_before_s = self._lost_s
            self._windows.clear()
        elif not runs and self._since_s is not None:
            self._busy_s += now_s - self._since_s
            self._since_s = None
        # Only those say why that were prepared while threads might have computed them.
        self.why_processes = next((run.why_processes for run in runs if run.why_processes), self.why_processes)
        if runs and (not self._windows or now_s - self._windows[-1][0] >= _WINDOW_S):
            self._windows.append((now_s, self._finished))

    def note_finished(self, run: GraphRun | None, count: int) -> None:
        """Count computed chunks; their graph may have ended."""
        self._finished += count
        if run is not None:
            run.finished += count

    def may_use_threads(self, runs: Collection[GraphRun]) -> bool:
        """Return whether threads may compute all of the given graphs."""
        return self.is_wanted and all(run.plan.is_library_code for run in runs)

    def note_lost(self, lost: Lost) -> None:
        """Record the time that threads lost to each other and to other programs."""
        self._lost_s += lost.lock_s
        self._busy_s -= lost.others_s
        if lost.lock_s:
            # What numba has compiled is compiled again in each process.
            self._starts_quickly = "numba" not in sys.modules and self._can_fork()

    def note_borrowed(self, borrowed_bytes: int) -> None:
        """Record the total bytes of the user's arrays that threads have read in place."""
        self._saved_s += (borrowed_bytes - self._borrowed_bytes) / _COPIED_BYTES_PER_S
        self._borrowed_bytes = borrowed_bytes

    def wanted_processes(self, runs: Collection[GraphRun], is_short: bool, now_s: float) -> int:
        """Return how many workers should be processes."""
        # If threads wait for the GIL, all but one become processes: the last thread has the GIL to itself, and a
        # start takes half a second or more of a processor. Processes start once the lost time equals the time for
        # starting them, so that the total is at most about twice the best possible.
        if not self.may_use_threads(runs):
            return self._num_workers
        due_s = self.due_s(runs, now_s)
        if is_short:
            self.why_processes = "memory is short, and threads have no quotas"
        elif due_s is not None and now_s >= due_s:
            self.why_processes = f"threads have computed for {self._busy_until(now_s):.1f} s"
        elif self._is_worth_starting(runs, now_s):
            self.why_processes = f"threads have lost {self._lost_s:.1f} s to the GIL"
            return self.started - 1
        else:
            return 0
        return self._num_workers

    def _is_worth_starting(self, runs: Collection[GraphRun], now_s: float) -> bool:
        """Return whether the lost time exceeds the time for starting processes in place of all threads but one."""
        if not self._lost_s:
            return False
        start_s = _FORK_S if self._starts_quickly else _start_s()
        cost_s = start_s * (self.started - 1) + self._saved_s
        # Near the end of a computation they come too late. The next computation can start them.
        return self._lost_s >= cost_s and (self._lost_before_s >= cost_s or self._is_much_left(runs, now_s))

    def is_worth_joining(self, runs: Collection[GraphRun], now_s: float) -> bool:
        """Return whether enough work is left for a process that has just started."""
        return not self.may_use_threads(runs) or self._is_much_left(runs, now_s)

    def _is_much_left(self, runs: Collection[GraphRun], now_s: float) -> bool:
        """Return whether the remaining work is worth a process, at the slower of the recent and the mean rate."""
        # Source chunks often come first and take little time, so the mean rate alone is too optimistic.
        done = self._finished - self._finished_before
        if self._since_s is None or done <= 0:
            return True
        each_s = (now_s - self._since_s) / done
        begun_s, finished = self._windows[0]
        if now_s - begun_s >= _WINDOW_S:
            each_s = max(each_s, (now_s - begun_s) / max(self._finished - finished, 1))
        left = sum([len(run.graph) - run.finished for run in runs])
        return left * each_s >= (_LEFT_FOR_FORKS_S if self._starts_quickly else max(_start_s(), _LEFT_S))

    def due_s(self, runs: Collection[GraphRun], now_s: float) -> float | None:
        """Return when there has been enough work for processes; None without work, or without the GIL."""
        if self._since_s is None or not has_lock():
            # Without the GIL threads compute as fast as processes.
            return None
        busy_s = self._busy_until(now_s)
        are_small = busy_s * self.started < self._finished * _SMALL_S
        patience_s = _LOCKED_PATIENCE_S if are_small else _PATIENCE_S
        if not are_small and self.lost_time.can_tell:
            # Libraries' own threads take the GIL too, even from a single worker thread.
            loses_much = busy_s > 0 and self._lost_s >= _LOST_SHARE * busy_s * self.started
            if not loses_much and self._saved_s > self._lost_s:
                # Processes would have taken longer for copies than threads have waited for each other.
                return None
            patience_s = patience_s if loses_much else max(patience_s, _STARTS * _start_s())
        if busy_s >= patience_s and not self._is_much_left(runs, now_s):
            # The present work ends before processes would be useful.
            patience_s *= 2
        return now_s + patience_s - busy_s

    def _busy_until(self, now_s: float) -> float:
        return max(self._busy_s + (0.0 if self._since_s is None else now_s - self._since_s), 0.0)

    def restart(self) -> None:
        """Start again with threads: the workers have ended because there was no work."""
        self._busy_s, self._finished, self._finished_before = 0.0, 0, 0
        self._saved_s = 0.0
        if self.is_wanted:
            self.why_processes = ""


def _start_s() -> float:
    """Return the processor time in seconds that a process needs to import the modules of this one."""
    return min(len(sys.modules) * _MODULE_S, _MOST_START_S)
