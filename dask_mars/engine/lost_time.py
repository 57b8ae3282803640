"""How much time threads that compute lose to each other, as they wait for the interpreter's lock.

A thread that has work either has a processor, or waits for one, or is kept waiting by something else: the lock, a
disk or a network. The system says how long the first two took, and the thread how long it had no work. Where the
process as a whole computes all the while, the rest goes to the lock: who waits for a network leaves them idle.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import NamedTuple

from dask_mars.engine.threads import ThreadHandle

#: How often is looked.
_LOOK_S = 0.05
#: What the process has of a processor at least, of the time for which some thread has work, where it is the lock
#: that threads wait for.
_LEAST_USE = 0.7


class _Times(NamedTuple):
    """What a thread has spent until now, in seconds."""

    idle_s: float
    #: How long it was ready to run, and others had the processors.
    queued_s: float


class LostTime:
    """Looks at threads from time to time, and adds up what they lose.

    Examples
    --------
    >>> lost = LostTime()
    >>> lost.look([], now_s=10.0)
    0.0
    """

    def __init__(self) -> None:
        self._looked_s, self._used_s = 0.0, 0.0
        self._times: dict[int, _Times] = {}

    def look(self, threads: Collection[ThreadHandle], now_s: float) -> float:
        """Return how many seconds of all workers' were lost since the last look, 0 if that was just now."""
        if now_s - self._looked_s < _LOOK_S:
            return 0.0
        elapsed_s, self._looked_s = now_s - self._looked_s, now_s
        used_before_s, self._used_s = self._used_s, time.process_time()
        before, self._times = self._times, {}
        spent: list[_Times] = []
        for handle in threads:
            queued_s = handle.queued_s()
            if queued_s is None:
                return 0.0
            times = self._times[handle.pid] = _Times(handle.idle_s(now_s), queued_s)
            if (then := before.get(handle.pid)) is not None:
                spent.append(_Times(times.idle_s - then.idle_s, times.queued_s - then.queued_s))
        return lost_s(elapsed_s, self._used_s - used_before_s, spent)


def lost_s(elapsed_s: float, used_s: float, spent: Collection[tuple[float, float]]) -> float:
    """Return how many seconds threads have lost to each other.

    Parameters
    ----------
    elapsed_s : float
        How much time has gone by.
    used_s : float
        Of processors, by the whole process.
    spent : collection of (float, float)
        For how many of these seconds each thread had nothing to do, and for how many it had no processor.

    Examples
    --------
    Two threads of which one at a time can compute lose a second in each:

    >>> lost_s(2.0, 2.0, [(0.0, 0.0), (0.0, 0.0)])
    2.0

    Two that compute side by side lose nothing, be it on one processor; nor do those that wait for a network.

    >>> lost_s(2.0, 2.0, [(0.0, 1.0), (0.0, 1.0)]), lost_s(2.0, 0.1, [(0.0, 0.0), (0.0, 0.0)])
    (0.0, 0.0)
    """
    if len(spent) < 2:
        # It has the lock to itself, but for the engine.
        return 0.0
    busy_s = [max(elapsed_s - idle_s, 0.0) for idle_s, _ in spent]
    wanted_s = used_s + sum([queued_s for _, queued_s in spent])
    return max(sum(busy_s) - wanted_s, 0.0) if wanted_s >= _LEAST_USE * max(busy_s) else 0.0


__all__ = ["LostTime", "lost_s"]
