"""Measures the time that computing threads lose to the GIL.

A thread with work runs, waits for a processor, or waits for something else: the GIL, a disk or a network. The
system reports the first two times, and the thread reports its idle time. If the process as a whole keeps the
processors busy, the remaining time is counted as lost to the GIL.

Time lost during imports does not count: it is lost once, and a process would lose it too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection
from typing import NamedTuple

from dask_mars.engine.threads import ThreadHandle

#: Interval between measurements, in seconds.
_LOOK_S = 0.05
#: Minimum processor use of the process, as a fraction of the time with work, for lost time to count as the GIL's.
_LEAST_USE = 0.7


class _Times(NamedTuple):
    """Times of a thread since its start, in seconds."""

    idle_s: float
    #: Time ready to run without a processor.
    queued_s: float


class Lost(NamedTuple):
    """Lost time of all threads, in seconds."""

    #: Processor time lost to the GIL, summed over threads.
    lock_s: float = 0.0
    #: Part of the time with work that went to other programs.
    others_s: float = 0.0


class LostTime:
    """Samples the times of threads."""

    def __init__(self) -> None:
        self._looked_s, self._used_s = 0.0, 0.0
        self._modules = 0
        self._times: dict[int, _Times] = {}
        #: Whether the system reports the time that threads waited for a processor.
        self.can_tell = True

    def look(self, threads: Collection[ThreadHandle], now_s: float) -> Lost:
        """Return the time lost since the last sample, nothing within the sampling interval."""
        if now_s - self._looked_s < _LOOK_S:
            return Lost()
        elapsed_s, self._looked_s = now_s - self._looked_s, now_s
        used_before_s, self._used_s = self._used_s, time.process_time()
        modules_before, self._modules = self._modules, len(sys.modules)
        before, self._times = self._times, {}
        spent: list[_Times] = []
        for handle in threads:
            queued_s = handle.queued_s()
            if queued_s is None:
                # This also happens for a thread that has just ended; the next one follows soon.
                self.can_tell = False
                return Lost()
            times = self._times[handle.pid] = _Times(handle.idle_s(now_s), queued_s)
            if (then := before.get(handle.pid)) is not None:
                spent.append(_Times(times.idle_s - then.idle_s, times.queued_s - then.queued_s))
        self.can_tell = True
        used_s = self._used_s - used_before_s
        counts = self._modules == modules_before and has_lock()
        lock_s = lost_s(elapsed_s, used_s, spent) if counts else 0.0
        return Lost(lock_s, others_s(elapsed_s, used_s, spent))


def has_lock() -> bool:
    """Return whether the GIL is enabled now: an extension may enable it at any time."""
    is_enabled = getattr(sys, "_is_gil_enabled", None)
    return is_enabled is None or is_enabled()


def lost_s(elapsed_s: float, used_s: float, spent: Collection[tuple[float, float]]) -> float:
    """Return the processor seconds that threads have lost to each other."""
    # Other programs prolong the time that a thread holds the GIL. Lost clock time is therefore scaled by the
    # share of requested processor time that the threads got.
    if len(spent) < 2:
        # A single thread shares the GIL only with the engine.
        return 0.0
    busy_s = [max(elapsed_s - idle_s, 0.0) for idle_s, _ in spent]
    wanted_s = used_s + sum([queued_s for _, queued_s in spent])
    if not wanted_s or wanted_s < _LEAST_USE * max(busy_s):
        return 0.0
    return max(sum(busy_s) - wanted_s, 0.0) * used_s / wanted_s


def others_s(elapsed_s: float, used_s: float, spent: Collection[tuple[float, float]]) -> float:
    """Return the seconds with work in which other programs kept the threads from running."""
    queued_s = sum([queued_s for _, queued_s in spent])
    if not queued_s:
        return 0.0
    busy_s = max([elapsed_s - idle_s for idle_s, _ in spent])
    return max(busy_s, 0.0) * queued_s / (used_s + queued_s)
