"""tornado's server, which closes idle connections, and refuses other users on unix sockets."""

from __future__ import annotations

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

#: Maximum number of connections. Each takes a file descriptor, of which many systems allow a process 1,024.
MOST_CONNECTIONS = 256
#: Time without any transfer after which a connection is closed, in seconds.
IDLE_S = 60.0
_SWEEP_S = 5.0
#: Size of a connection's send buffer, in bytes.
_SEND_BYTES = 1 << 19
#: Longest headers that tornado reads before it closes a connection, in bytes.
_HEADERS_READ = 256 << 10
#: ``struct ucred`` of Linux: process, user and group.
_UCRED = struct.Struct("iII")
_ROOT = 0


class BoundedServer(HTTPServer):  # type: ignore[misc]
    """A server that closes the connection that is idle for the longest time when there are too many."""

    def initialize(self, application: Any, **options: Any) -> None:
        """Initialize, as tornado requires."""
        options.setdefault("max_header_size", _HEADERS_READ)
        super().initialize(application, **options)
        self.most_connections = MOST_CONNECTIONS
        self.idle_s = IDLE_S
        #: Time of each connection's last transfer, the oldest first.
        self._used: OrderedDict[IOStream, float] = OrderedDict()
        self._listening: list[socket.socket] = []
        self._sweeping = PeriodicCallback(self._sweep, _SWEEP_S * 1000)

    def add_sockets(self, sockets: Iterable[socket.socket]) -> None:
        """Listen on sockets."""
        new = list(sockets)
        self._listening += new
        super().add_sockets(new)
        self._sweeping.start()

    def handle_stream(self, stream: IOStream, address: Any) -> None:
        """Accept a connection."""
        if stream.socket.family == socket.AF_UNIX and not is_own_user(stream.socket):
            stream.close()
            return
        while len(self._used) >= self.most_connections:
            # A scan of all connections would take long when many come at once.
            unused, _ = self._used.popitem(last=False)
            unused.close()
        # With the small default buffers of unix sockets both sides mostly wait for each other.
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
        self._watch(stream)
        super().handle_stream(stream, address)

    def descriptors(self) -> list[int]:
        """Return the file descriptors of all sockets, for a forked process to close."""
        sockets = [*self._listening, *[stream.socket for stream in list(self._used)]]
        return [one.fileno() for one in sockets if one is not None and one.fileno() >= 0]

    def end(self) -> None:
        """Close all connections and sockets now."""
        self._sweeping.stop()
        self.stop()
        for stream in list(self._used):
            stream.close()
        self._used.clear()
        self._listening.clear()

    def _watch(self, stream: IOStream) -> None:
        """Record the time of each transfer of a stream."""
        used = self._used
        used[stream] = time.monotonic()
        # tornado defines these methods as the points of all transfers.
        read, write = stream.read_from_fd, stream.write_to_fd

        def note(count: int | None) -> int | None:
            if count and stream in used:
                used[stream] = time.monotonic()
                used.move_to_end(stream)
            return count

        def read_and_note(buffer: bytearray | memoryview) -> int | None:
            count = read(buffer)
            if count == 0:
                # The other end has closed the connection, and tornado closes the stream.
                used.pop(stream, None)
            return note(count)

        stream.read_from_fd = read_and_note
        stream.write_to_fd = lambda data: note(write(data))

    def _sweep(self) -> None:
        """Close idle connections."""
        now = time.monotonic()
        for stream, used in list(self._used.items()):
            if not stream.closed() and now - used > self.idle_s:
                stream.close()
            if stream.closed():
                self._used.pop(stream, None)


def is_own_user(connected: socket.socket) -> bool:
    """Return whether the other end of a unix socket belongs to our own user, or to root."""
    if not hasattr(socket, "SO_PEERCRED"):
        # On other systems than Linux the private directory of the socket must suffice.
        return True
    try:
        told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    except OSError:
        return False
    return _UCRED.unpack(told)[1] in (os.geteuid(), _ROOT)
