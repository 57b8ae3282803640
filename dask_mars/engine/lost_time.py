"""How much time threads that compute lose to each other, as they wait for the interpreter's lock.

A thread that has work either has a processor, or waits for one, or is kept waiting by something else: the lock, a
disk or a network. The system says how long the first two took, and the thread how long it had no work. Where the
process as a whole computes all the while, the rest goes to the lock: who waits for a network leaves them idle.

What is lost while modules are imported does not count: it is lost once, and a process would lose it too.
"""

from __future__ import annotations

import sys
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


class Lost(NamedTuple):
    """What threads have lost, in seconds."""

    #: To each other, all of them together, of processors' time.
    lock_s: float = 0.0
    #: Of the time for which there was work, to programs that have the processors besides.
    others_s: float = 0.0


class LostTime:
    """Looks at threads from time to time.

    Attributes
    ----------
    can_tell : bool
        Whether the system says for how long they had no processor.

    Examples
    --------
    >>> lost = LostTime()
    >>> lost.look([], now_s=10.0)
    Lost(lock_s=0.0, others_s=0.0)
    """

    def __init__(self) -> None:
        self._looked_s, self._used_s = 0.0, 0.0
        self._modules = 0
        self._times: dict[int, _Times] = {}
        self.can_tell = True

    def look(self, threads: Collection[ThreadHandle], now_s: float) -> Lost:
        """Return what was lost since the last look, nothing if that was just now."""
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
                # Of one that has just ended, too, but then there is another soon.
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
    """Return whether threads take turns with the interpreter's lock; an extension may switch it on at any time."""
    is_enabled = getattr(sys, "_is_gil_enabled", None)
    return is_enabled is None or is_enabled()


def lost_s(elapsed_s: float, used_s: float, spent: Collection[tuple[float, float]]) -> float:
    """Return how many seconds of processors' time threads have lost to each other.

    Where others' programs have the processors as well who holds the lock has it for longer, which is not the
    threads' doing: of what is lost by the clock as much counts as they get of the processors that they want.

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
    Two threads of which one at a time can compute lose a second in each, or half of that if they have a processor
    for half of the time:

    >>> lost_s(2.0, 2.0, [(0.0, 0.0), (0.0, 0.0)]), lost_s(2.0, 1.0, [(0.0, 0.5), (0.0, 0.5)])
    (2.0, 1.0)

    Two that compute side by side lose nothing, be it on one processor; nor do those that wait for a network.

    >>> lost_s(2.0, 2.0, [(0.0, 1.0), (0.0, 1.0)]), lost_s(2.0, 0.1, [(0.0, 0.0), (0.0, 0.0)])
    (0.0, 0.0)
    """
    if len(spent) < 2:
        # It has the lock to itself, but for the engine.
        return 0.0
    busy_s = [max(elapsed_s - idle_s, 0.0) for idle_s, _ in spent]
    wanted_s = used_s + sum([queued_s for _, queued_s in spent])
    if not wanted_s or wanted_s < _LEAST_USE * max(busy_s):
        return 0.0
    return max(sum(busy_s) - wanted_s, 0.0) * used_s / wanted_s


def others_s(elapsed_s: float, used_s: float, spent: Collection[tuple[float, float]]) -> float:
    """Return for how many seconds of those with work threads have got no further for others' programs.

    Parameters
    ----------
    elapsed_s, used_s, spent
        As of `lost_s`.

    Examples
    --------
    Whether they compute side by side or one after the other:

    >>> others_s(4.0, 4.0, [(0.0, 2.0), (0.0, 2.0)]), others_s(4.0, 1.0, [(0.0, 3.0), (0.0, 0.0)])
    (2.0, 3.0)
    """
    queued_s = sum([queued_s for _, queued_s in spent])
    if not queued_s:
        return 0.0
    busy_s = max([elapsed_s - idle_s for idle_s, _ in spent])
    return max(busy_s, 0.0) * queued_s / (used_s + queued_s)


__all__ = ["LostTime", "has_lock", "lost_s", "others_s"]
