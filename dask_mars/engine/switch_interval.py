"""Lowers Python's switch interval while worker processes compute."""

from __future__ import annotations

import os
import sys

from dask_mars.locking import Lock

#: Seconds after which a Python loop of the user's gives the GIL to the engine's thread, which needs it several
#: times for each message. With Python's 5 ms, chunks of 10 ms took three times as long beside such a loop. With
#: less than this, eight threads that compute in Python lose more than a tenth to each other.
_SHORT_S = 0.0002

_lock = Lock()
#: The number of engines that need the short interval, and the interval before the first of them.
_needed = 0
_before_s = 0.0


class SwitchInterval:
    """One engine's need of a short switch interval, which belongs to the whole process."""

    def __init__(self) -> None:
        self._is_short = False

    def shorten(self, is_needed: bool) -> None:
        """Record whether the engine needs the short interval."""
        if is_needed is self._is_short:
            return
        self._is_short = is_needed
        _count(1 if is_needed else -1)


def _count(change: int) -> None:
    global _needed, _before_s
    with _lock:
        before, _needed = _needed, _needed + change
        interval_s = sys.getswitchinterval()
        if not before and interval_s > _SHORT_S:
            _before_s = interval_s
            sys.setswitchinterval(_SHORT_S)
        elif not _needed:
            _restore()


def _restore() -> None:
    global _before_s
    # Unless the program has set it meanwhile.
    if _before_s and abs(sys.getswitchinterval() - _SHORT_S) < 1e-6:
        sys.setswitchinterval(_before_s)
    _before_s = 0.0


def _forget_after_fork() -> None:
    global _lock, _needed
    _lock, _needed = Lock(), 0
    _restore()


os.register_at_fork(after_in_child=_forget_after_fork)
