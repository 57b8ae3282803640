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
    # Twice, because Ctrl-C may come in a `finally`, too.
    try:
        try:
            gc.disable()
            yield
        finally:
            gc.enable()
    finally:
        gc.enable()


class _RaisedThreshold:
    """The collector's threshold while graphs are computed, which may be several at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Those that are computed.
        self._computing: set[object] = set()
        #: What was there before, and what was put in its place.
        self._before = self._raised = gc.get_threshold()

    def begin(self, computation: object, objects: int) -> None:
        with self._lock:
            self._computing.add(computation)
            now = gc.get_threshold()
            if len(self._computing) == 1 or now != self._raised:
                self._before = now
            # With 0 the user has switched it off.
            self._raised = (objects, *now[1:]) if 0 < now[0] < objects else now
            gc.set_threshold(*self._raised)

    def end(self, computation: object) -> None:
        """Note the end of a computation; it may be noted before."""
        with self._lock:
            self._computing.discard(computation)
            # What somebody else has set meanwhile is left to them.
            if not self._computing and gc.get_threshold() == self._raised:
                gc.set_threshold(*self._before)
                self._raised = self._before

    def forget(self) -> None:
        """In a forked process: no computation goes on, and a thread of the parent may have held the lock."""
        self._lock = threading.Lock()
        self._computing.clear()
        self.end(None)


_raised_threshold = _RaisedThreshold()
os.register_at_fork(after_in_child=_raised_threshold.forget)


@contextlib.contextmanager
def collect_less_often(chunks: int) -> Iterator[None]:
    """Have the collector run less often while a large graph is computed.

    Parameters
    ----------
    chunks : int
        How many the graph has.
    """
    computation = object()
    # Twice, as above.
    try:
        try:
            _raised_threshold.begin(computation, min(int(chunks * _SHARE), _MOST_OBJECTS))
            yield
        finally:
            _raised_threshold.end(computation)
    finally:
        _raised_threshold.end(computation)
