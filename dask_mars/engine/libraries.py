"""Requests the libraries that the program imports from a template, which then forks workers that have them."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from dask_mars.protocol.forking import MOST_BYTES
from dask_mars.protocol.libraries import imported, installed_at, is_library


class OwnSocket(socket.socket):
    """A socket that forgets its number when the program has closed that, perhaps to open a file of its own."""

    # A service closes all descriptors that it finds at its start, and dask_mars may have been imported before.

    def __init__(self, fileno: int) -> None:
        super().__init__(fileno=fileno)
        self._inode = os.fstat(fileno).st_ino

    def fileno(self) -> int:
        """Return the number, -1 if it is closed or another file's."""
        number = super().fileno()
        try:
            if number >= 0 and os.fstat(number).st_ino == self._inode:
                return number
        except OSError:
            pass
        self.detach()
        return -1

    def close(self) -> None:
        """Close it, but no other file."""
        self.fileno()
        super().close()


def connected() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection to a template."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MOST_BYTES)
    return OwnSocket(ours.detach()), theirs


class Libraries:
    """The connection to a template's fork that imports libraries, and forks workers then."""

    def __init__(self) -> None:
        self.ours, self.theirs = connected()
        #: The search path of modules in the template.
        self._path = list(sys.path)
        #: Files of libraries that the program has imported, and the number of its modules then.
        self._imported: tuple[int, dict[str, str]] = 0, {}
        self._requested: set[str] = set()
        #: Libraries in the requests that it has not carried out.
        self._open: deque[Collection[str]] = deque()
        #: The id of the process, which it reports first.
        self._pid: int | None = None

    def unrequested(self) -> dict[str, str]:
        """Return the files of libraries that the program has imported and not requested."""
        if self._imported[0] != (count := len(sys.modules)):
            self._imported = count, imported()
        return {name: file for name, file in self._imported[1].items() if name not in self._requested}

    def request(self, files: Mapping[str, str]) -> None:
        """Let it import libraries, given their files."""
        self._requested.update(files)
        self._compare_paths()
        if files and not self.has_ended:
            try:
                self.ours.send(pickle.dumps(dict(files)), socket.MSG_DONTWAIT)
            except OSError:
                self.close()
            else:
                self._open.append(tuple(files))

    def are_requested(self) -> bool:
        """Return whether any libraries have been requested."""
        return bool(self._requested)

    def pending(self) -> set[str]:
        """Return the libraries that it is importing, or has yet to import."""
        while self._open and not self.has_ended:
            try:
                done = int(self.ours.recv(32, socket.MSG_DONTWAIT) or b"-1")
            except BlockingIOError:
                break
            except OSError:
                done = -1
            if done < 0:
                # It has ended, perhaps because it could not fork.
                self.close()
            elif self._pid is None:
                self._pid = done
            else:
                for _ in range(done):
                    self._open.popleft()
        return {name for names in self._open for name in names}

    def pid(self) -> int | None:
        """Return the id of the process, None until it is known."""
        self.pending()
        return self._pid

    def is_up(self) -> bool:
        """Return whether it has imported all in its requests, and can fork."""
        self._compare_paths()
        return self.are_requested() and not self.pending() and not self.has_ended

    def _compare_paths(self) -> None:
        """End it if the program would find other modules by now, on which libraries depend."""
        if sys.path[: len(self._path)] != self._path:
            self.close()

    @property
    def has_ended(self) -> bool:
        """Return whether the connection is closed, as the process has ended or cannot be used."""
        return self.ours.fileno() < 0

    def close(self) -> None:
        """Close the connection, and end the process."""
        self.forget()
        if self._pid is not None:
            with contextlib.suppress(OSError):
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
            self._pid = None

    def forget(self) -> None:
        """Close the connection, at which the process ends."""
        self._open.clear()
        self.ours.close()


class LibraryWatch(MetaPathFinder):
    """Requests each library from a template as soon as the program begins to import it."""

    def __init__(self, libraries: Libraries) -> None:
        self._libraries = libraries
        #: Those that may be imported next: others only look whether they are installed.
        self._next: list[str] = []
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find nothing; request the libraries whose import has begun."""
        if self._next:
            begun, self._next = self._next, []
            self._libraries.request({name: origin for name in begun if (origin := installed_at(name)) is not None})
        if is_library(fullname):
            self._next.append(fullname)
        return None

    def end(self) -> None:
        """Stop watching."""
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
