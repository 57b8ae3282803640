"""Framed messages over a local socket pair: eight bytes of length, then a pickle; see `messages`.

Messages are small; arrays stay in shared memory.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Iterator

from dask_mars.protocol.messages import Start

_LENGTH = struct.Struct("<Q")
_CHUNK_BYTES = 1 << 18
#: Longest valid frame, in bytes.
_LONGEST = 1 << 40


def receive_start(connection: socket.socket) -> Start:
    """Wait for the first message."""
    (length,) = _LENGTH.unpack(_receive_exactly(connection, _LENGTH.size))
    start = pickle.loads(_receive_exactly(connection, length))
    assert isinstance(start, Start)
    return start


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise SystemExit(1)
        data += part
    return bytes(data)


def frame(payload: bytes) -> bytes:
    """Return a payload behind its length."""
    return _LENGTH.pack(len(payload)) + payload


class UnreadableStream(Exception):
    """A stream contains something else than framed messages."""


class FrameReader:
    """Cuts a stream of bytes into payloads."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Append bytes and yield the complete payloads."""
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= 8:
            (length,) = _LENGTH.unpack_from(buffer, start)
            if length > _LONGEST:
                raise UnreadableStream(f"a message of {length} bytes")
            end = start + 8 + length
            if len(buffer) < end:
                break
            yield bytes(memoryview(buffer)[start + 8 : end])
            start = end
        if start:
            del buffer[:start]


def receive(connection: socket.socket, wait: bool) -> bytes | None:
    """Return received bytes; b"" at the end of the stream; None if there are none and `wait` is false."""
    flags = 0 if wait else socket.MSG_DONTWAIT
    try:
        return connection.recv(_CHUNK_BYTES, flags)
    except BlockingIOError:
        return None
    except ConnectionError:
        return b""
