"""Python's cyclic garbage collector, kept from walking millions of objects again and again that are no garbage.

Both ways are for all threads of the process, because the collector is, and both are undone.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator

#: Of the chunks of a graph: after how many new objects the collector looks at the newest.
_SHARE = 1 / 20
#: Garbage of the user's own has to be found too, whatever the size of the graph.
_MOST_OBJECTS = 50_000


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Keep the collector from running, for work that is short and makes no garbage."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _Patience:
    """The collector's threshold while graphs are computed, which may be several at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._computing = 0
        #: What was there before, and what was put in its place.
        self._before = self._raised = gc.get_threshold()

    def begin(self, objects: int) -> None:
        with self._lock:
            self._computing += 1
            now = gc.get_threshold()
            if self._computing == 1 or now != self._raised:
                self._before = now
            # With 0 the user has switched it off.
            if 0 < now[0] < objects:
                gc.set_threshold(objects, *now[1:])
            self._raised = gc.get_threshold()

    def end(self) -> None:
        with self._lock:
            self._computing -= 1
            # What somebody else has set meanwhile is left to them.
            if not self._computing and gc.get_threshold() == self._raised:
                gc.set_threshold(*self._before)

    def forget(self) -> None:
        """In a forked process: no computation goes on, and a thread of the parent may have held the lock."""
        self._lock = threading.Lock()
        if self._computing:
            self._computing = 1
            self.end()


_patience = _Patience()
os.register_at_fork(after_in_child=_patience.forget)


@contextlib.contextmanager
def patient(chunks: int) -> Iterator[None]:
    """Have the collector run less often while a large graph is computed.

    Parameters
    ----------
    chunks : int
        How many the graph has.
    """
    _patience.begin(min(int(chunks * _SHARE), _MOST_OBJECTS))
    try:
        yield
    finally:
        _patience.end()
