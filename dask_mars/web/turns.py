"""A shorter switch interval of threads while a page shows this process, for quick answers.

A thread that wants to run waits 5 ms by default for a computing one, and an answer passes several threads, each of
which waits several times. The interval is global, and is restored when no page is open.
"""

from __future__ import annotations

import os
import sys
import threading

#: Switch interval while a page is open, in seconds.
_TURN_S = 1e-3


class Turns:
    """The interpreter's switch interval while pages are open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lookers: set[int] = set()
        #: The user's interval, and ours.
        self._before_s = self._ours_s = 0.0

    def begin(self, looker: object) -> None:
        """Register a viewer, once or more."""
        with self._lock:
            now_s = sys.getswitchinterval()
            if not self._lookers and now_s > _TURN_S:
                sys.setswitchinterval(_TURN_S)
                self._before_s, self._ours_s = now_s, sys.getswitchinterval()
            self._lookers.add(id(looker))

    def end(self, looker: object) -> None:
        """Unregister a viewer, once or more."""
        with self._lock:
            self._lookers.discard(id(looker))
            if not self._lookers:
                self._restore()

    def _restore(self) -> None:
        # An interval that other code has set meanwhile stays.
        if self._ours_s and sys.getswitchinterval() == self._ours_s:
            sys.setswitchinterval(self._before_s)
        self._ours_s = 0.0

    def forget(self) -> None:
        """Reset in a forked process: no page is open, and a thread of the parent may have held the lock."""
        self._lock = threading.Lock()
        self._lookers.clear()
        self._restore()


#: The instance of this process.
turns = Turns()
os.register_at_fork(after_in_child=turns.forget)


__all__ = ["Turns", "turns"]
