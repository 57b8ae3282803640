"""The template of worker processes as the engines of this process see it: its start, its forks and its end."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from dask_mars import greenlets
from dask_mars.descriptors import hold_streams
from dask_mars.engine.launching import launch
from dask_mars.locking import Lock
from dask_mars.protocol.ambient import worker_environment
from dask_mars.worker.template import MOST_BYTES, MOST_DESCRIPTORS, Fork, Inherited, is_supported

#: Prefixes of environment variables that libraries read while a template imports them.
_READ_AT_IMPORT = (
    "ARROW", "BLIS", "BLOSC", "GOTO", "KMP", "LANG", "LC_", "LD_", "MALLOC", "MKL", "NPY", "NUMBA", "NUMEXPR",
    "NUMPY", "OMP", "OPENBLAS", "PANDAS", "PYTHON", "TZ", "VECLIB",
)  # fmt: skip
#: Maximum seconds for a fork, which takes milliseconds.
_FORK_S = 10.0
#: Poll interval for a template that imports, in seconds.
_POLL_S = 0.005


class Template:
    """One template process."""

    def __init__(self, environment: Mapping[str, str], keeper: Keeper) -> None:
        hold_streams()
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MOST_BYTES)
        options = {"path": sys.path, "socket": theirs.fileno(), "parent": os.getpid()}
        try:
            self._process: subprocess.Popen[bytes] = keeper.call(
                lambda: launch(options, environment, (theirs.fileno(),))
            )
        except OSError:
            self._ours.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        self._begun_s = time.monotonic()
        self._is_loading = True

    def is_loading(self, timeout_s: float) -> bool:
        """Return whether it still imports; end it if that takes longer than `timeout_s`."""
        if self._is_loading:
            if select.select([self._ours], [], [], 0)[0]:
                self._is_loading = False
                if self._answer() != 0:
                    self.end()
            elif time.monotonic() >= self._begun_s + timeout_s:
                self.end()
        return self._is_loading

    @property
    def has_ended(self) -> bool:
        """Return whether it has been ended."""
        return self._ours.fileno() < 0

    def is_up(self) -> bool:
        """Return whether it can fork."""
        return not self._is_loading and not self.has_ended

    def fork(self, options: Mapping[str, Any], descriptors: Collection[int]) -> int | None:
        """Fork a worker process with the given options and descriptors; return its id, None if it cannot."""
        try:
            directory = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            request = pickle.dumps(Fork(dict(options), list(descriptors), Inherited.read()))
            sent = [1, 2, directory, *descriptors]
            if len(request) > MOST_BYTES or len(sent) > MOST_DESCRIPTORS:
                return None
            socket.send_fds(self._ours, [request], sent)
            pid = self._answer() if select.select([self._ours], [], [], _FORK_S)[0] else None
        except OSError:
            pid = None
        finally:
            os.close(directory)
        if pid is None or pid < 0:
            self.end()
            return None
        return pid

    def _answer(self) -> int | None:
        try:
            return int(self._ours.recv(32) or b"-1")
        except OSError:
            return None

    def end(self) -> None:
        """End it; its workers stay."""
        self._is_loading = False
        self._ours.close()
        self._process.kill()
        self._process.wait()

    def forget(self) -> None:
        """In a process forked from the user's, close the connection."""
        self._is_loading = False
        self._ours.close()
        self._process.returncode = 0


class Keeper:
    """A thread that starts templates, and so is the parent of all workers that are forked from them."""

    # The system ends these when their parent does.

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="dask-mars-template", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], Any]) -> Any:
        """Return a function's result, or raise its error."""
        answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                answers.put((function(), None))
            except OSError as error:
                answers.put((None, error))

        self._calls.put(run)
        value, error = answers.get()
        if error is not None:
            raise error
        return value

    def end(self) -> None:
        """End the thread."""
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (run := self._calls.get()) is not None:
            run()


class Templates:
    """The template of this process's engines, which share one; it ends when none of them has workers."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._lock = Lock()
        self._template: Template | None = None
        self._keeper: Keeper | None = None
        #: Environment variables that the present template has read at its start.
        self._surroundings: dict[str, str] = {}
        self._users: set[int] = set()
        #: Whether the present template has forked a process, and environment in which templates fail to start.
        self._has_forked = False
        self._hopeless: dict[str, str] | None = None

    def is_loading(self, user: int, environment: Mapping[str, str], timeout_s: float) -> bool:
        """Return whether a template will soon be up for an engine; start it if there is none."""
        read = _read_at_import(environment)
        if read == self._hopeless or not is_supported() or greenlets.has_gevent():
            return False
        with self._lock:
            self._users.add(user)
            template = self._template
            if template is not None and read == self._surroundings:
                if template.is_loading(timeout_s) or template.is_up():
                    return not template.is_up()
                self._template = None
                if not self._has_forked:
                    # The next one would end as well.
                    self._hopeless = read
                    return False
            elif template is not None:
                template.end()
            self._keeper = self._keeper or Keeper()
            self._surroundings, self._has_forked = read, False
            try:
                self._template = Template(environment, self._keeper)
            except OSError:
                self._template, self._hopeless = None, read
            return self._template is not None

    def fork(
        self, options: Mapping[str, Any], environment: Mapping[str, str], descriptors: Collection[int]
    ) -> int | None:
        """Fork a worker process; return its id, or None if a new interpreter must be started instead."""
        with self._lock:
            if self._template is None or not self._template.is_up() or not is_supported():
                return None
            if _read_at_import(environment) != self._surroundings:
                return None
            pid = self._template.fork(options, descriptors)
            self._has_forked |= pid is not None
            return pid

    def pid(self) -> int | None:
        """Return the id of the template process."""
        template = self._template
        return None if template is None or template.has_ended else template.pid

    def leave(self, user: int) -> None:
        """Record that an engine has no processes; end the template if none has."""
        with self._lock:
            self._users.discard(user)
            if self._users:
                return
            if self._template is not None:
                self._template.end()
                self._template = None
            if self._keeper is not None:
                self._keeper.end()
                self._keeper = None

    def forget_after_fork(self) -> None:
        """In a process forked from the user's, forget the template, which is not a child of this process."""
        if self._template is not None:
            with contextlib.suppress(OSError):
                self._template.forget()
        self._begin()


def _read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a template reads once, so that another one is needed when it has changed."""
    read = {name: value for name, value in environment.items() if name.startswith(_READ_AT_IMPORT)}
    return {**read, "sys.executable": sys.executable}


templates = Templates()


class TemplateUser:
    """The template as one engine uses it."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        #: Whether processes will start as soon as the template is ready.
        self.is_awaiting = self.is_unused = False
        #: Ids of those in whose place no thread computes.
        self.awaited: set[int] = set()

    def is_awaited(self) -> bool:
        """Return whether processes had better wait for the template, which is started if there is none."""
        self.is_unused = False
        self.is_awaiting = templates.is_loading(id(self), worker_environment(os.environ), self._timeout_s)
        return self.is_awaiting

    def next_s(self, now_s: float) -> float | None:
        """Return when to check again whether it is ready, None if no process waits."""
        return now_s + _POLL_S if self.is_awaiting else None

    def take_due(self) -> set[int]:
        """Return the ids of processes that have waited long enough."""
        if not self.is_awaiting or self.is_awaited():
            return set()
        due, self.awaited = self.awaited, set()
        return due

    def leave(self) -> None:
        """Leave the template, which ends when no engine uses it."""
        self.is_unused = False
        templates.leave(id(self))
