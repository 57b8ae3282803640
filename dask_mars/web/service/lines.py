"""Messages between front and runner: JSON objects, one per line, over a socket pair."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

from dask_mars.web.monitor import Json


class Lines:
    """One end of the pair. Any thread may send, one reads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._is_mute = False

    def send(self, message: Json) -> bool:
        """Send a message; return whether the other side is still connected."""
        line = json.dumps(message).encode() + b"\n"
        try:
            with self._lock:
                if self._is_mute:
                    return False
                self._connection.sendall(line)
        except OSError:
            return False
        return True

    def __iter__(self) -> Iterator[Json]:
        """Yield messages until the other side has closed the connection."""
        with self._connection.makefile("rb") as file:
            try:
                for line in file:
                    # A killed process may leave half a line.
                    if line.endswith(b"\n"):
                        yield json.loads(line)
            except (OSError, ValueError):
                # Invalid messages mean a broken process.
                return

    def mute(self) -> None:
        """Ignore all later messages to send."""
        with self._lock:
            self._is_mute = True

    def end(self) -> None:
        """Shut down both directions, from any thread."""
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        """Close the socket."""
        self._connection.close()
