"""Limits Python's cyclic garbage collector, which would repeatedly traverse millions of live objects.

The functions affect all threads of the process, as the collector does, and are undone.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager

from dask_mars.locking import Lock

#: New objects between collections, as a share of a graph's chunks.
_SHARE = 1 / 20
#: Maximum number of new objects between collections: the user's own garbage must be found too.
_MOST_OBJECTS = 50_000
#: New objects between collections while a graph is prepared, which takes no longer than a few seconds.
_RARELY_OBJECTS = 1_000_000


class _RaisedThreshold:
    """The collector's threshold during computations, which may be concurrent."""

    def __init__(self) -> None:
        self._lock = Lock()
        #: The running computations.
        self._computing: set[object] = set()
        #: The user's threshold, and ours.
        self._before = self._raised = gc.get_threshold()

    def begin(self, computation: object, objects: int) -> None:
        with self._lock:
            self._computing.add(computation)
            now = gc.get_threshold()
            if len(self._computing) == 1 or now != self._raised:
                self._before = now
            # With 0 the user has disabled it.
            self._raised = (objects, *now[1:]) if 0 < now[0] < objects else now
            gc.set_threshold(*self._raised)

    def end(self, computation: object) -> None:
        """Record the end of a computation, once or twice."""
        with self._lock:
            self._computing.discard(computation)
            # A threshold that other code has set meanwhile stays.
            if not self._computing and gc.get_threshold() == self._raised:
                gc.set_threshold(*self._before)
                self._raised = self._before

    def forget(self) -> None:
        """Reset in a forked process: no computation goes on, and a thread of the parent may have held the lock."""
        self._lock = Lock()
        self._computing.clear()
        self.end(None)


_raised_threshold = _RaisedThreshold()
os.register_at_fork(after_in_child=_raised_threshold.forget)


@contextlib.contextmanager
def collect_every(objects: int) -> Iterator[None]:
    """Raise the collector's threshold, in new objects between two collections."""
    # A higher threshold of the user's stays.
    computation = object()
    # Twice, because Ctrl-C may come in a `finally`, too. If it comes where neither runs, the threshold stays until
    # the collector finds the generator, which is why the collector is never disabled.
    try:
        try:
            _raised_threshold.begin(computation, objects)
            yield
        finally:
            _raised_threshold.end(computation)
    finally:
        _raised_threshold.end(computation)


def collect_rarely() -> AbstractContextManager[None]:
    """Return a context in which the collector hardly runs, for short work without garbage."""
    return collect_every(_RARELY_OBJECTS)


def collect_less_often(chunks: int) -> AbstractContextManager[None]:
    """Return a context in which the collector runs less often, for the computation of a graph with many chunks."""
    return collect_every(min(int(chunks * _SHARE), _MOST_OBJECTS))
