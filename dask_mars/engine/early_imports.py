"""Imports the modules of a first computation while the program waits, or computes without the GIL."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
from importlib import import_module
from time import monotonic

from dask_mars.import_locks import is_loaded, others_import

#: The GIL is free if this thread has had it within this time after each of some intervals, in seconds.
_SOON_S, _INTERVAL_S, _INTERVALS = 0.001, 0.1, 2
#: Time after which a program that has always had the GIL is not watched any more, in seconds.
_WATCHED_S = 600.0
#: Maximum seconds for which a fork, a computation or the program's end waits for an import.
_LONGEST_S = 10.0
#: Pause after each of these, in which the program may go on.
_PAUSE_S = 0.001
#: Each imports a part of what is needed, so that the program goes on after milliseconds.
_MODULES = (
    "dask_mars.protocol.context",
    "dask_mars.scheduler.machine",
    "dask_mars.store.arena",
    "dask_mars.optimize.prepare",
    "dask_mars.engine.engine",
    "dask_mars.client.backend",
)
#: Those for graphs of arrays, which need NumPy and `dask.array`.
_FOR_ARRAYS = ("dask_mars.worker.thread", "dask_mars.expressions.rewrite")


class EarlyImports:
    """A thread that imports these modules once, while the GIL is free and after the libraries that they need."""

    # It imports no library: programs set variables that NumPy reads at import, and NumPy cannot be loaded twice.
    # Neither it nor its locks are those of `threading`, which gevent may replace meanwhile.

    def __init__(self) -> None:
        #: Each is held: until no more imports may begin, and until the thread has ended.
        self._may_go_on, self._is_running = _thread.allocate_lock(), _thread.allocate_lock()
        self._may_go_on.acquire()
        self._is_running.acquire()
        _thread.start_new_thread(self._run, ())
        atexit.register(self.end)
        # The fork would have the locks of modules that the thread imports, and not the thread.
        os.register_at_fork(before=self.end)

    def end(self) -> None:
        """Begin no more imports, and wait for the current one."""
        with contextlib.suppress(RuntimeError):
            self._may_go_on.release()
        if self._is_running.acquire(timeout=_LONGEST_S):
            self._is_running.release()

    def _run(self) -> None:
        # The first computation reports what goes wrong.
        with contextlib.suppress(Exception):
            self._watch()
        self._is_running.release()

    def _watch(self) -> None:
        parts = [("dask", _MODULES), ("dask.array", _FOR_ARRAYS)]
        free, asked_s = 0, monotonic()
        watched_s = asked_s + _WATCHED_S
        while not self._ends_within(_INTERVAL_S) and asked_s < watched_s:
            before_s, asked_s = asked_s, monotonic()
            free = free + 1 if asked_s - before_s <= _INTERVAL_S + _SOON_S and not others_import() else 0
            if free >= _INTERVALS and is_loaded(parts[0][0]):
                self._import(parts.pop(0)[1])
                if not parts:
                    return
                asked_s = monotonic()

    def _ends_within(self, seconds: float) -> bool:
        is_ended = self._may_go_on.acquire(timeout=seconds)
        if is_ended:
            self._may_go_on.release()
        return is_ended

    def _import(self, modules: tuple[str, ...]) -> None:
        for name in modules:
            import_module(name)
            # An import gives the GIL away for moments only, after which others are too late.
            if self._ends_within(_PAUSE_S):
                return
        # This looks at all modules and distributions, and remembers what it finds.
        import_module("dask_mars.protocol.context").Context()
