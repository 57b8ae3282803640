"""A lock that Ctrl-C does not leave taken.

In CPython 3.14 an interrupt may come when ``with`` has taken a lock and would not release it yet. Other versions
have no such moment.
"""

from __future__ import annotations

import sys
import threading

if sys.version_info[:2] == (3, 14):
    import _thread

    class Lock(_thread.RLock):
        """A lock, which takes the thread that has it for one more time."""

        def __enter__(self) -> bool:
            try:
                return self.acquire()
            except BaseException:
                if self._is_owned():
                    self.release()
                raise
else:
    Lock = threading.Lock
