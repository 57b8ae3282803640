"""tornado's server with an end to connections that nobody uses, and to those of other users."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

try:
    from tornado.httpserver import HTTPServer
except ModuleNotFoundError as error:
    if error.name != "tornado":
        raise
    raise ModuleNotFoundError(
        "dask_mars needs tornado to listen for browsers and clients; \"pip install 'dask-mars[web]'\" installs it",
        name="tornado",
    ) from None
from tornado.ioloop import PeriodicCallback
from tornado.iostream import IOStream

#: Connections at once. Each takes a file descriptor, of which the user's process has 1,024 on many systems.
MOST_CONNECTIONS = 256
#: How long a connection may send nothing, or take nothing of an answer, in seconds.
IDLE_S = 60.0
_SWEEP_S = 5.0
#: What a connection may hold that is sent and not taken yet.
_SEND_BYTES = 1 << 19
#: What tornado reads of the headers of a request before it hangs up.
_HEADERS_READ = 256 << 10
#: ``struct ucred`` of Linux: process, user and group.
_UCRED = struct.Struct("iII")
_ROOT = 0


class BoundedServer(HTTPServer):  # type: ignore[misc]
    """A server that closes the connection unused for the longest time when there are too many.

    It has to be made in the thread of its event loop.

    Parameters
    ----------
    application : Application
        Who answers.
    **options
        As for `tornado.httpserver.HTTPServer`.
    """

    def initialize(self, application: Any, **options: Any) -> None:
        """Begin, as tornado wants it."""
        options.setdefault("max_header_size", _HEADERS_READ)
        super().initialize(application, **options)
        self.most_connections = MOST_CONNECTIONS
        self.idle_s = IDLE_S
        #: When each connection has last moved bytes; the one that has not for the longest time comes first.
        self._used: OrderedDict[IOStream, float] = OrderedDict()
        self._listening: list[socket.socket] = []
        self._sweeping = PeriodicCallback(self._sweep, _SWEEP_S * 1000)

    def add_sockets(self, sockets: Iterable[socket.socket]) -> None:
        """Listen."""
        new = list(sockets)
        self._listening += new
        super().add_sockets(new)
        self._sweeping.start()

    def handle_stream(self, stream: IOStream, address: Any) -> None:
        """Take a connection."""
        if stream.socket.family == socket.AF_UNIX and not is_own_user(stream.socket):
            stream.close()
            return
        while len(self._used) >= self.most_connections:
            # Looking through all of them each time would take long when many come at once.
            unused, _ = self._used.popitem(last=False)
            unused.close()
        # With the little that unix sockets have by default both sides mostly wait for each other.
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
        self._watch(stream)
        super().handle_stream(stream, address)

    def descriptors(self) -> list[int]:
        """Return the file descriptors of all sockets, for a forked process to close."""
        sockets = [*self._listening, *[stream.socket for stream in list(self._used)]]
        return [one.fileno() for one in sockets if one is not None and one.fileno() >= 0]

    def end(self) -> None:
        """Close everything now."""
        self._sweeping.stop()
        self.stop()
        for stream in list(self._used):
            stream.close()
        self._used.clear()
        self._listening.clear()

    def _watch(self, stream: IOStream) -> None:
        """Take note whenever a stream moves bytes."""
        used = self._used
        used[stream] = time.monotonic()
        # tornado says of these what each stream has to do in them.
        read, write = stream.read_from_fd, stream.write_to_fd

        def note(count: int | None) -> int | None:
            if count and stream in used:
                used[stream] = time.monotonic()
                used.move_to_end(stream)
            return count

        def read_and_note(buffer: bytearray | memoryview) -> int | None:
            count = read(buffer)
            if count == 0:
                # The other end has hung up, of which tornado closes it.
                used.pop(stream, None)
            return note(count)

        stream.read_from_fd = read_and_note
        stream.write_to_fd = lambda data: note(write(data))

    def _sweep(self) -> None:
        """Close what nobody has used for long."""
        now = time.monotonic()
        for stream, used in list(self._used.items()):
            if not stream.closed() and now - used > self.idle_s:
                stream.close()
            if stream.closed():
                self._used.pop(stream, None)


def is_own_user(connected: socket.socket) -> bool:
    """Say whether the other end of a unix socket belongs to our own user, or to root."""
    if not hasattr(socket, "SO_PEERCRED"):
        # Elsewhere than on Linux the directory, which nobody else may enter, has to do.
        return True
    try:
        told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    except OSError:
        return False
    return _UCRED.unpack(told)[1] in (os.geteuid(), _ROOT)


def close_quietly(descriptor: int) -> None:
    """Close a file descriptor, if it is one."""
    with contextlib.suppress(OSError):
        os.close(descriptor)
