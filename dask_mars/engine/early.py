"""Begins a template of worker processes: for an engine, or when a program imports dask_mars.

The second has half a second's head start. A program that computes nothing pays for what is imported here.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from dask_mars import greenlets
from dask_mars.descriptors import hold_streams
from dask_mars.engine.early_imports import EarlyImports
from dask_mars.engine.launching import launch
from dask_mars.engine.libraries import Libraries, LibraryWatch, connected
from dask_mars.protocol.forking import is_supported
from dask_mars.protocol.worker_environment import read_at_start, worker_environment

#: Time after which a template that no engine has used ends, in seconds.
_IDLE_S = 600.0
#: Programs of Dask's and of dask_mars that compute nothing themselves.
_COMMANDS = frozenset(
    {"dask", "dask-mars-web", "dask-mars-worker", "dask-scheduler", "dask-ssh", "dask-worker", "dask_mars"}
)
#: Parts of the command lines of processes that other processes of the user's program start.
_HELPERS = ("multiprocessing", "loky")

_Launch = Callable[[], "subprocess.Popen[bytes]"]


class TemplateProcess(NamedTuple):
    """A template that has been started."""

    process: subprocess.Popen[bytes]
    connection: socket.socket
    #: Its fork that imports libraries.
    libraries: Libraries
    #: Everything that it has read or inherited at its start.
    surroundings: dict[str, str]
    begun_s: float
    #: Whether this was at the import of dask_mars.
    is_early: bool

    def signal(self, number: int) -> None:
        """Send a signal to it and to its fork that imports libraries; workers are in groups of their own."""
        # The program may have given up its privileges since.
        with contextlib.suppress(ChildProcessError, ProcessLookupError, PermissionError):
            # This raises an error if neither is left, and their group's number may belong to others.
            os.waitid(os.P_PGID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            os.killpg(self.process.pid, number)

    def end(self) -> None:
        """End both; their workers stay."""
        self.connection.close()
        self.libraries.close()
        self.signal(signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-self.process.pid, 0)
        self.process.wait()

    def forget(self) -> None:
        """In a process forked from the user's, close the connections."""
        self.connection.close()
        self.libraries.forget()
        self.process.returncode = 0


def begin(
    environment: Mapping[str, str],
    call: Callable[[_Launch], subprocess.Popen[bytes]] = lambda function: function(),
    is_early: bool = False,
) -> TemplateProcess:
    """Start a template; `call` runs the launch, in a thread that outlives the template."""
    hold_streams()
    ours, theirs = connected()
    libraries = Libraries()
    options = {"path": sys.path, "socket": theirs.fileno(), "parent": os.getpid()}
    options["libraries"] = libraries.theirs.fileno()
    options["idle_s"] = _IDLE_S if is_early else None
    # Forks get the program's output; what is printed by imports here would surprise it.
    output = subprocess.DEVNULL if is_early else None
    surroundings = read_at_start(environment)
    if is_early:
        libraries.request(libraries.unrequested())
    descriptors = theirs.fileno(), libraries.theirs.fileno()
    try:
        process = call(lambda: launch(options, environment, descriptors, output))
    except OSError:
        ours.close()
        libraries.close()
        raise
    finally:
        theirs.close()
        libraries.theirs.close()
    return TemplateProcess(process, ours, libraries, surroundings, time.monotonic(), is_early)


# At most one; `pop` is atomic.
_early: list[TemplateProcess] = []
_watches: list[LibraryWatch] = []
_imports: list[EarlyImports] = []


def begin_at_import() -> None:
    """Begin a template, and imports, if this is a program that may compute and has a processor to spare."""
    if not is_supported() or greenlets.has_gevent() or greenlets.has_eventlet() or not _is_main_program():
        return
    try:
        begun = begin(worker_environment(os.environ), is_early=True)
    except (OSError, TypeError, ValueError):
        # The first engine tries again, and reports errors.
        return
    _early.append(begun)
    _watches.append(LibraryWatch(begun.libraries))
    atexit.register(end)
    # A program that forks may wait for all of its children.
    os.register_at_fork(before=end)
    _imports.append(EarlyImports())


def _is_main_program() -> bool:
    """Return whether this is the main thread of a program that Python runs, and no other program's helper."""
    main = sys.modules.get("__main__")
    if getattr(main, "is_dask_mars_worker", False) or any(Path(word).name in _COMMANDS for word in sys.orig_argv):
        return False
    if any(name in word for name in _HELPERS for word in sys.orig_argv[1:]):
        return False
    helpers = sys.modules.get("multiprocessing.process")
    if helpers is not None and helpers.parent_process() is not None:
        return False
    # The system ends the template with the thread that has started it.
    return (
        threading.get_native_id() == os.getpid()
        and len(os.sched_getaffinity(0)) > 1
        and _is_same_file(sys.executable, "/proc/self/exe")
    )


def _is_same_file(first: str, second: str) -> bool:
    """Return whether both are there and the same: a program may have Python inside."""
    try:
        return Path(first).samefile(second)
    except OSError:
        return False


def take() -> TemplateProcess | None:
    """Return the template that was begun at the import, once, if it is alive."""
    try:
        begun = _early.pop()
        _watches.pop().end()
    except IndexError:
        return None
    if begun.process.poll() is None and begun.connection.fileno() >= 0:
        return begun
    begun.end()
    return None


def end_watch() -> None:
    """Stop watching the program's imports, and importing while it waits: its first computation begins."""
    for watch in _watches:
        watch.end()
    for imports in _imports:
        imports.end()


def end() -> None:
    """End the template that was begun at the import if no engine has taken it."""
    begun = take()
    if begun is not None:
        begun.end()
