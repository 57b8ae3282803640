"""The template of worker processes as the engines of this process see it: its start, its forks and its end."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from dask_mars import greenlets
from dask_mars.engine.early import TemplateProcess, begin, take
from dask_mars.limits import estimate_memory, largest_inheritance
from dask_mars.locking import Lock
from dask_mars.protocol.forking import MOST_BYTES, MOST_DESCRIPTORS, is_supported
from dask_mars.protocol.worker_environment import read_at_start, worker_environment
from dask_mars.worker.template import Fork, Inherited

#: Maximum seconds for a fork, which takes milliseconds.
_FORK_S = 10.0
#: Minimum number of workers of an engine whose workers wait for libraries: fewer import them as fast themselves.
FEWEST_WAITING = 4
#: Maximum seconds for which they wait.
_LIBRARIES_S = 5.0
#: Poll interval for a template that imports, in seconds.
_POLL_S = 0.005

#: Returns which of some libraries the functions of graphs refer to.
Needed = Callable[[Collection[str]], Collection[str]]


class Template:
    """One template process, and its fork that imports libraries."""

    def __init__(self, begun: TemplateProcess) -> None:
        self._begun, self._ours, self._libraries = begun, begun.connection, begun.libraries
        #: Everything that it has read or inherited at its start.
        self.surroundings = begun.surroundings
        self.is_early = begun.is_early
        self.pid = begun.process.pid
        self._begun_s = begun.begun_s
        self._is_loading = True
        #: Since when workers wait for the libraries alone, if they do.
        self._awaited_s: float | None = None
        self._is_paused = False

    def give_way(self, others_compute: bool) -> None:
        """Pause it while it imports and workers compute, which would share the processors with it."""
        is_loading = self._is_loading_itself() or bool(self._libraries.pending())
        if others_compute != self._is_paused and (is_loading or self._is_paused):
            self._is_paused = others_compute
            self._begun_s = time.monotonic()
            self._begun.signal(signal.SIGSTOP if others_compute else signal.SIGCONT)

    def is_loading(self, timeout_s: float, needed: Needed) -> bool:
        """Return whether it still imports what is needed; end it if that takes longer than `timeout_s`."""
        self.give_way(False)
        files = self._libraries.unrequested()
        self._libraries.request({name: files[name] for name in needed(files)})
        if self._is_loading_itself() and time.monotonic() >= self._begun_s + timeout_s:
            self.end()
        return self._is_loading or self._is_loading_libraries(needed)

    def _is_loading_itself(self) -> bool:
        """Return whether it still imports what workers import; end it if it has failed."""
        if self._is_loading and select.select([self._ours], [], [], 0)[0]:
            self._is_loading = False
            if _answer(self._ours) != 0:
                self.end()
        return self._is_loading

    def is_ready(self) -> bool:
        """Return whether workers that it forks have all libraries of the program at once."""
        libraries = self._libraries
        if self._is_loading_itself() or self.has_ended or libraries.unrequested():
            return False
        return libraries.is_up() or not libraries.are_requested()

    def _is_loading_libraries(self, needed: Needed) -> bool:
        """Return whether its fork still imports what is needed; workers do without it if that takes long."""
        libraries = self._libraries
        if not needed(libraries.pending()):
            self._awaited_s = None
            return False
        now_s = time.monotonic()
        self._awaited_s = self._awaited_s or now_s
        if now_s >= self._awaited_s + _LIBRARIES_S:
            libraries.close()
        return not libraries.has_ended

    @property
    def has_ended(self) -> bool:
        """Return whether it has been ended."""
        return self._ours.fileno() < 0

    def pids(self) -> set[int]:
        """Return the ids of both processes."""
        return {self.pid} | ({pid} if (pid := self._libraries.pid()) is not None else set())

    def connections(self) -> int:
        """Return the number of open connections to both."""
        return 2 - self._libraries.has_ended

    def is_up(self) -> bool:
        """Return whether it can fork."""
        return not self._is_loading and not self.has_ended

    def fork(self, options: Mapping[str, Any], descriptors: Collection[int]) -> int | None:
        """Fork a worker process with the given options and descriptors; return its id, None if it cannot."""
        # Another engine may have paused it since this one has asked.
        self.give_way(False)
        try:
            directory = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            request = pickle.dumps(Fork(dict(options), list(descriptors), Inherited.read()))
            sent = [1, 2, directory, *descriptors]
            if len(request) > MOST_BYTES:
                return None
            pid = None
            if self._libraries.is_up() and (pid := _forked(self._libraries.ours, request, sent)) is None:
                self._libraries.close()
            if pid is None and (pid := _forked(self._ours, request, sent)) is None:
                self.end()
        finally:
            os.close(directory)
        return pid

    def end(self) -> None:
        """End it; its workers stay."""
        self._is_loading = False
        self._begun.end()

    def forget(self) -> None:
        """In a process forked from the user's, close the connections."""
        self._is_loading = False
        self._begun.forget()


def _forked(connection: socket.socket, request: bytes, descriptors: list[int]) -> int | None:
    """Let a template fork; return the id of the process, None if it cannot."""
    try:
        for start in range(0, len(descriptors), MOST_DESCRIPTORS):
            socket.send_fds(connection, [b"+" if start else request], descriptors[start:][:MOST_DESCRIPTORS])
        pid = _answer(connection) if select.select([connection], [], [], _FORK_S)[0] else None
    except OSError:
        return None
    if pid is None or pid < 0:
        return None
    # The process does so too, but perhaps after its template has been ended with all of its group.
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    return pid


def _answer(connection: socket.socket) -> int | None:
    try:
        return int(connection.recv(32) or b"-1")
    except OSError:
        return None


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
        self._users: set[int] = set()
        #: Whether the present template has forked a process, and environment in which templates fail to start.
        self._has_forked = False
        self._hopeless: dict[str, str] | None = None

    def is_loading(self, user: int, environment: Mapping[str, str], timeout_s: float, needed: Needed) -> bool:
        """Return whether a template will soon be up for an engine; start it if there is none."""
        read = read_at_start(environment)
        if read == self._hopeless or not is_supported() or greenlets.has_gevent():
            return False
        with self._lock:
            self._users.add(user)
            template = self._adopted()
            if template is not None and read == template.surroundings:
                if template.is_loading(timeout_s, needed):
                    return True
                if template.is_up():
                    return False
                self._template = None
                if not self._has_forked and not template.is_early:
                    # The next one would end as well.
                    self._hopeless = read
                    return False
            elif template is not None:
                template.end()
            self._keeper = self._keeper or Keeper()
            self._has_forked = False
            try:
                self._template = Template(begin(environment, self._keeper.call))
            except OSError:
                self._template, self._hopeless = None, read
                return False
            return self._template.is_loading(timeout_s, needed)

    def _adopted(self) -> Template | None:
        """Return the present template, which may be the one that was begun at the import."""
        if self._template is None and (early := take()) is not None:
            self._template, self._has_forked = Template(early), False
        return self._template

    def give_way(self, others_compute: bool) -> None:
        """Let a template that imports pause while workers compute."""
        with self._lock:
            template = self._adopted()
            if template is not None:
                template.give_way(others_compute)

    def is_ready(self) -> bool:
        """Return whether workers that the template forks have all libraries of the program at once."""
        with self._lock:
            template = self._adopted()
            if template is None or not template.is_ready():
                return False
            return template.surroundings == read_at_start(worker_environment(os.environ))

    def fork(
        self, options: Mapping[str, Any], environment: Mapping[str, str], descriptors: Collection[int]
    ) -> int | None:
        """Fork a worker process; return its id, or None if a new interpreter must be started instead."""
        with self._lock:
            if self._template is None or not self._template.is_up() or not is_supported():
                return None
            if read_at_start(environment) != self._template.surroundings:
                return None
            pid = self._template.fork(options, descriptors)
            self._has_forked |= pid is not None
            return pid

    def pid(self) -> int | None:
        """Return the id of the template process."""
        template = self._template
        return None if template is None or template.has_ended else template.pid

    def pids(self) -> set[int]:
        """Return the ids of the template process and of its fork that imports libraries."""
        with self._lock:
            template = self._template
            return set() if template is None or template.has_ended else template.pids()

    def memory_bytes(self) -> int:
        """Return the memory that these and the workers have in common: what the larger one takes."""
        # The pages stay when a template ends.
        return max([largest_inheritance(), *[estimate_memory([pid]) for pid in self.pids()]])

    def connections(self) -> int:
        """Return the number of connections to them."""
        template = self._template
        return 0 if template is None or template.has_ended else template.connections()

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


templates = Templates()


class TemplateUser:
    """The template as one engine uses it."""

    def __init__(self, timeout_s: float, workers: int, needed: Needed) -> None:
        self._timeout_s, self._find_needed = timeout_s, needed
        self._waits_for_libraries = workers >= FEWEST_WAITING
        #: Whether libraries are needed, as found while processes wait.
        self._needed: dict[str, bool] = {}
        #: Whether processes will start as soon as the template is ready.
        self.is_awaiting = self.is_unused = False
        self._gives_way = False
        #: Ids of those in whose place no thread computes.
        self.awaited: set[int] = set()

    @property
    def has_begun(self) -> bool:
        """Return whether there is one, so that further processes take milliseconds."""
        return templates.pid() is not None

    def is_awaited(self) -> bool:
        """Return whether processes had better wait for the template, which is started if there is none."""
        self.is_unused = False
        environment = worker_environment(os.environ)
        self.is_awaiting = templates.is_loading(id(self), environment, self._timeout_s, self._are_needed)
        self._gives_way = False
        if not self.is_awaiting:
            self._needed.clear()
        return self.is_awaiting

    def _are_needed(self, names: Collection[str]) -> list[str]:
        if not self._waits_for_libraries:
            return []
        if new := [name for name in names if name not in self._needed]:
            found = self._find_needed(new)
            self._needed.update({name: name in found for name in new})
        return [name for name in names if self._needed[name]]

    def give_way(self, workers_compute: bool) -> None:
        """Let a template that no process waits for pause while workers compute."""
        if not self.is_awaiting and workers_compute != self._gives_way:
            self._gives_way = workers_compute
            templates.give_way(workers_compute)

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
