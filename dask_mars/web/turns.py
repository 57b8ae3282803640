"""Shorter turns of threads while somebody looks at this process, so that answers come soon.

A thread that wants to run waits for one that computes, 5 ms as Python is set, and an answer goes through several
threads, each of which waits several times. The interval is the process's: it is put back when nobody looks.
"""

from __future__ import annotations

import os
import sys
import threading

#: For how long a thread runs that others wait for, in seconds.
_TURN_S = 1e-3


class Turns:
    """The interpreter's switch interval while anybody looks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lookers: set[int] = set()
        #: What was there before, and what was put in its place.
        self._before_s = self._ours_s = 0.0

    def begin(self, looker: object) -> None:
        """Note that somebody looks; it may be noted before."""
        with self._lock:
            now_s = sys.getswitchinterval()
            if not self._lookers and now_s > _TURN_S:
                sys.setswitchinterval(_TURN_S)
                self._before_s, self._ours_s = now_s, sys.getswitchinterval()
            self._lookers.add(id(looker))

    def end(self, looker: object) -> None:
        """Note that somebody looks no more; it may be noted before."""
        with self._lock:
            self._lookers.discard(id(looker))
            if not self._lookers:
                self._restore()

    def _restore(self) -> None:
        # What somebody else has set meanwhile is left to them.
        if self._ours_s and sys.getswitchinterval() == self._ours_s:
            sys.setswitchinterval(self._before_s)
        self._ours_s = 0.0

    def forget(self) -> None:
        """In a forked process: nobody looks, and a thread of the parent may have held the lock."""
        self._lock = threading.Lock()
        self._lookers.clear()
        self._restore()


#: Those of this process.
turns = Turns()
os.register_at_fork(after_in_child=turns.forget)


__all__ = ["Turns", "turns"]
