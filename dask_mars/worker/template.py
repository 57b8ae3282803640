"""A process that has imported what workers need. Worker processes are forked from it, as children of its parent.

It has one thread, no open files of its own, and no work. A fork takes milliseconds, imports take half a second.
A fork of it imports the libraries that the program has imported, and forks workers that have them. If a library
harms that process, the first one is still there.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import io
import os
import pickle
import platform
import resource
import select
import signal
import socket
import sys
from typing import Any, NamedTuple

from dask_mars import process_role
from dask_mars.descriptors import hold_streams
from dask_mars.lazy_numpy import np
from dask_mars.protocol.ambient import SETTINGS
from dask_mars.protocol.forking import CLONE, MOST_BYTES, MOST_DESCRIPTORS
from dask_mars.worker.libraries import has_shared_state, load, silence
from dask_mars.worker.preload import load_what_arrays_need

#: The child's parent is the caller's parent; the system writes the child's id where the C library keeps it.
_CLONE_PARENT, _CLONE_CHILD_CLEARTID, _CLONE_CHILD_SETTID = 0x8000, 0x200000, 0x1000000
#: Integers at the beginning of glibc's structure of a thread, which is larger. One of them is the thread's id.
_THREAD_WORDS = 256
#: Number of descriptors of a request besides those in its `numbers`.
_OWN_DESCRIPTORS = 3
(_ENVIRONMENT,) = [setting for setting in SETTINGS if setting.name == "os.environ"]
_LIMITS = [number for name, number in vars(resource).items() if name.startswith("RLIMIT_")]


class Inherited(NamedTuple):
    """Everything that a worker process inherits from the user's process at its start, besides descriptors."""

    environment: dict[bytes, bytes]
    limits: dict[int, tuple[int, int]]
    processors: set[int]
    nice: int

    @classmethod
    def read(cls) -> Inherited:
        """Return that of this process."""
        return cls(
            dict(_ENVIRONMENT.read(None)),
            {number: resource.getrlimit(number) for number in _LIMITS},
            os.sched_getaffinity(0),
            os.getpriority(os.PRIO_PROCESS, 0),
        )

    def apply(self, before: Inherited) -> None:
        """Give this process the same, as far as the system lets it."""
        _ENVIRONMENT.apply(None, self.environment)
        with contextlib.suppress(OSError):
            if self.processors != before.processors:
                os.sched_setaffinity(0, self.processors)
        with contextlib.suppress(OSError):
            if self.nice != before.nice:
                os.setpriority(os.PRIO_PROCESS, 0, self.nice)
        for number, limit in self.limits.items():
            if limit != before.limits.get(number):
                with contextlib.suppress(OSError, ValueError):
                    resource.setrlimit(number, limit)


class Fork(NamedTuple):
    """A request for a worker process. The first three descriptors are those of its output and its directory."""

    # One message has the request and its first descriptors; further descriptors follow in messages of their own.

    #: Options of the process, as for one that is not forked.
    options: dict[str, Any]
    #: Numbers of the other descriptors in the user's process.
    numbers: list[int]
    inherited: Inherited


def serve(options: dict[str, Any]) -> dict[str, Any]:
    """Fork a worker process for each request, and end with the parent; return its options in each worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hold_streams()
    load_what_arrays_need()
    importlib.import_module("dask_mars.worker.main")
    return _Server(options).serve()


class _Server:
    """Forks worker processes, and at first the process that imports libraries and forks workers as well."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._parent, self._idle_s = options["parent"], options["idle_s"]
        self._connection = socket.socket(fileno=options["socket"])
        #: The connection of the process that imports libraries, until that has been forked.
        self._libraries: socket.socket | None = socket.socket(fileno=options["libraries"])
        self._forks = _Forks()
        self._inherited = Inherited.read()

    def serve(self) -> dict[str, Any]:
        """Serve until a fork is a worker; return its options."""
        # Without a collection first: imports leave hardly any garbage, and all workers wait for this.
        gc.freeze()
        self._answer(0)
        idle_s = self._idle_s
        while True:
            awaited = [self._connection] if self._libraries is None else [self._connection, self._libraries]
            readable = select.select(awaited, [], [], idle_s)[0]
            if not readable:
                # No engine has needed it.
                os._exit(0)
            if self._connection in readable:
                idle_s = None
                request, descriptors = self._receive()
                if not isinstance(request, Fork):
                    self._load(request)
                elif self._fork(descriptors) == 0:
                    return _become_worker(request, descriptors, self._inherited)
            elif self._libraries is not None:
                self._fork_for_libraries(self._libraries)

    def _receive(self) -> tuple[Any, list[int]]:
        data, descriptors, _, _ = socket.recv_fds(self._connection, MOST_BYTES, MOST_DESCRIPTORS)
        if not data:
            os._exit(0)
        request = pickle.loads(data)
        while isinstance(request, Fork) and len(descriptors) < _OWN_DESCRIPTORS + len(request.numbers):
            _, more, _, _ = socket.recv_fds(self._connection, 1, MOST_DESCRIPTORS)
            if not more:
                os._exit(1)
            descriptors += more
        return request, descriptors

    def _answer(self, number: int) -> None:
        try:
            self._connection.sendall(b"%d" % number)
        except OSError:
            os._exit(0)

    def _fork(self, descriptors: list[int]) -> int:
        """Fork a worker; return its id, 0 in the worker."""
        pid = self._forks.fork() if _threads() == 1 else -1
        if pid == 0:
            self._connection.close()
            if self._libraries is not None:
                self._libraries.close()
        else:
            for descriptor in descriptors:
                os.close(descriptor)
            self._answer(pid)
        return pid

    def _fork_for_libraries(self, connection: socket.socket) -> None:
        """Fork the process that imports libraries."""
        self._libraries = None
        if _threads() > 1 or self._forks.fork() != 0:
            connection.close()
            return
        self._connection.close()
        self._connection = connection
        process_role.die_with_parent(self._parent)
        silence()
        self._answer(os.getpid())

    def _load(self, libraries: dict[str, str]) -> None:
        """Import libraries, also those of further requests that have arrived; end if forks would be harmed."""
        count = 1
        while select.select([self._connection], [], [], 0)[0]:
            libraries |= self._receive()[0]
            count += 1
        load(libraries)
        if _threads() > 1 or has_shared_state():
            os._exit(1)
        self._answer(count)


def _threads() -> int:
    return sum(1 for _ in os.scandir("/proc/self/task"))


def _become_worker(request: Fork, descriptors: list[int], before: Inherited) -> dict[str, Any]:
    """Turn a forked process into what a new interpreter would be; return its options."""
    out, error, directory, *rest = descriptors
    os.setpgid(0, 0)
    os.dup2(out, 1)
    os.dup2(error, 2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=stream.line_buffering or stream.isatty())
    with contextlib.suppress(OSError):
        os.fchdir(directory)
    for descriptor in (out, error, directory):
        os.close(descriptor)
    request.inherited.apply(before)
    # All forks have the template's state of this, which a new interpreter seeds from the system.
    np.random.seed()
    numbers = dict(zip(request.numbers, rest, strict=True))
    options = request.options
    sys.path[:] = options["path"]
    return {**options, "control": numbers[options["control"]], "numbers": numbers}


class _Forks:
    """Forks children of this process's parent, which so sees their end, and whose end they see."""

    def __init__(self) -> None:
        # `os.fork` does the same before and after, with the GIL held in between.
        self._libc = ctypes.PyDLL(None)
        self._address = ctypes.c_void_p(self._find_thread_id())
        flags = _CLONE_PARENT | _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID | signal.SIGCHLD
        # Machines differ in which of the last two is the address.
        self._call = (CLONE[platform.machine()], flags, None, None, self._address, self._address)

    def _find_thread_id(self) -> int:
        """Return where glibc keeps the id of this thread; from 2.43 on the system does not know the place."""
        self._libc.pthread_self.restype = ctypes.c_void_p
        thread = self._libc.pthread_self()
        words = (ctypes.c_int * _THREAD_WORDS).from_address(thread)
        places = [place for place, word in enumerate(words) if word == os.getpid()]
        if len(places) != 1:
            # Workers are new interpreters then.
            os._exit(1)
        return int(thread) + places[0] * ctypes.sizeof(ctypes.c_int)

    def fork(self) -> int:
        """Fork this process; return 0 in the new one, and its id or -1 in this one."""
        api = ctypes.pythonapi
        api.PyOS_BeforeFork()
        pid = int(self._libc.syscall(*self._call))
        if pid == 0:
            api.PyOS_AfterFork_Child()
        else:
            api.PyOS_AfterFork_Parent()
        return pid
