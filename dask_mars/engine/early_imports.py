"""Imports what a first computation needs while the program waits: for a person, a file or another program."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

#: A program waits if it has used at most this share of a processor for this time, in seconds.
_IDLE_SHARE, _IDLE_S = 0.1, 0.2
#: Time after which a program that has never waited is not watched any more, in seconds.
_WATCHED_S = 600.0
#: Pause before each module, in seconds.
_PAUSE_S = 0.0001
#: Maximum seconds for which a fork, a computation or the program's end waits for an import.
_LONGEST_S = 1.0
#: These import all the others.
_MODULES = (
    "dask_mars.client.backend",
    "dask_mars.worker.thread",
    "dask_mars.expressions.rewrite",
    "dask_mars.expressions._native",
    "dask_mars.expressions._pcg64",
    "dask_mars.store._arena",
)


class EarlyImports(MetaPathFinder):
    """A thread that imports these modules, once, as soon as the program waits."""

    def __init__(self) -> None:
        self._is_ended = threading.Event()
        self._is_exiting = False
        self._thread = threading.Thread(target=self._run, name="dask-mars-imports", daemon=True)
        self._thread.start()
        atexit.register(self._exit)
        # The fork would have the locks of modules that the thread imports, and not the thread.
        os.register_at_fork(before=self.end)

    def end(self) -> None:
        """Begin no more imports, and wait for the present one."""
        self._is_ended.set()
        self._thread.join(_LONGEST_S)

    def _exit(self) -> None:
        self._is_exiting = True
        self.end()

    def _run(self) -> None:
        used_s, watched_s = time.process_time(), time.monotonic() + _WATCHED_S
        while not self._is_ended.wait(_IDLE_S) and time.monotonic() < watched_s:
            before_s, used_s = used_s, time.process_time()
            if used_s - before_s <= _IDLE_SHARE * _IDLE_S:
                sys.meta_path.insert(0, self)
                # The first computation reports what goes wrong.
                with contextlib.suppress(Exception, SystemExit):
                    self._import()
                with contextlib.suppress(ValueError):
                    sys.meta_path.remove(self)
                return

    def _import(self) -> None:
        from dask_mars.worker.preload import load_dask_array

        load_dask_array()
        for name in _MODULES:
            if self._is_ended.is_set():
                return
            import_module(name)
        # This looks at all modules and distributions, and remembers what it finds.
        import_module("dask_mars.protocol.context").Context()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find nothing; let the program go on before each module, and end the import if the program ends."""
        if threading.current_thread() is self._thread:
            # An import releases the GIL for a moment for each file, and has it again before others wake up.
            time.sleep(_PAUSE_S)
            if self._is_exiting:
                raise SystemExit
        return None
