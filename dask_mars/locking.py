"""A lock that Ctrl-C does not leave taken.

In CPython 3.14 an interrupt may come just after ``with`` has taken a lock, and before it would release the lock.
Other versions have no such moment.
"""

from __future__ import annotations

import sys
import threading

if sys.version_info[:2] == (3, 14):
    import _thread

    class Lock(_thread.RLock):
        """A reentrant lock: the thread that holds it may take it again."""

        def __enter__(self) -> bool:
            try:
                return self.acquire()
            except BaseException:
                if self._is_owned():
                    self.release()
                raise
else:
    Lock = threading.Lock
