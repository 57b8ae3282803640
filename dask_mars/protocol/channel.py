"""Framed messages over a local socket pair: eight bytes of length, then a pickle.

Only small things travel here; arrays stay in shared memory.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_LENGTH = struct.Struct("<Q")
_CHUNK_BYTES = 1 << 18
#: A longer frame has no message in it.
_LONGEST = 1 << 40

# -- engine to worker -----------------------------------------------------------------------------------------
#: (RUN, graph, context, timed, chunks, records, locations, loads, operands, paths): compute these chunks. With
#: them come the locations of inputs, the operands and the paths of op ids that the worker does not know yet; see
#: `transport`. Those inputs that `loads` names are to be put back into the store when they are read from disk.
#: `timed` says whether somebody wants to know when each step of an operand began.
RUN = 1
#: (FREE, graph, chunks): forget these values.
FREE = 2
#: (RELEASE, offsets): these blocks of your arena are free.
RELEASE = 3
#: (DROP, graph): give back what you have not started of a graph.
DROP = 4
#: (FORGET, graph): forget a graph and its operands.
FORGET = 5
#: (CONTEXT, number, payload): working directory, environment and settings for tasks.
CONTEXT = 6
#: (EXIT,)
EXIT = 7
#: (TRIM,): give the memory of free blocks back to the system.
TRIM = 8
#: (MOVED, graph, locations): these values are elsewhere now. Where they were will do as well until they are freed.
MOVED = 9

# -- worker to engine -----------------------------------------------------------------------------------------
#: (READY, pid)
READY = 20
#: (FINISHED, graph, chunks, locations, durations_s, peaks, steps_s): `peaks` has the bytes that operands took
#: while they ran, of those of which that is news; `steps_s` is empty unless wanted, see `ChunksFinished`.
FINISHED = 21
#: (FAILED, graph, chunk, record, final)
FAILED = 22
#: (RETURNED, graph, chunks, reason): not computed, because of `reason`.
RETURNED = 23
#: (HELD, blocks): tasks have ended and something of theirs still refers to these blocks.
HELD = 24
#: (UNHELD, blocks): nothing does any more.
UNHELD = 25
#: (OUTPUT, graph, stream, text): a task printed.
OUTPUT = 26
#: (WARNING, graph, payload): a task warned.
WARNING = 27
#: (LOADED, graph, locations): values that were on disk are in the store again, by chunk.
LOADED = 28

#: Reasons of `RETURNED`: its graph was dropped, an input was not computed, it could not be unpickled, its result
#: could not be pickled.
DROPPED, MISSING, UNREADABLE, UNSENDABLE = "dropped", "missing", "unreadable", "unsendable"


@dataclass(frozen=True, slots=True)
class Start:
    """The first message to a worker: who it is and what it has inherited.

    Attributes
    ----------
    parent : int
        Process id of the engine.
    number : int
        The worker's number, which is also that of its arena.
    arguments : list of str
        ``sys.argv`` of the client.
    arenas : list of int
        Descriptors of all arenas.
    capacity_bytes : int
        Size of each arena.
    live : list of (int, int)
        Offset and size of the blocks in the own arena that are in use already.
    control, control_bytes : int
        Descriptor and size of the page in which workers note what they run.
    locks : int
        Descriptor of the file whose bytes serve as locks.
    inline_bytes : int
        Results up to this size travel in messages.
    arena_threshold : int or None
        Arrays of at least this size are built in the arena; None for none.
    idle_trim_s : float
        Idle seconds before memory is given back.
    """

    parent: int
    number: int
    arguments: list[str]
    arenas: list[int]
    capacity_bytes: int
    live: list[tuple[int, int]]
    control: int
    control_bytes: int
    locks: int
    inline_bytes: int
    arena_threshold: int | None
    idle_trim_s: float


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
    """Return a payload with its length before it."""
    return _LENGTH.pack(len(payload)) + payload


class UnreadableStream(Exception):
    """There is something else in a stream than framed messages."""


class FrameReader:
    """Cuts a stream of bytes into payloads."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take in bytes and yield the payloads that are complete.

        Raises
        ------
        UnreadableStream
            No message can be as long as is said.
        """
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
    """Return bytes that have arrived; b"" at the end of the stream; None if there are none and `wait` is false."""
    flags = 0 if wait else socket.MSG_DONTWAIT
    try:
        return connection.recv(_CHUNK_BYTES, flags)
    except BlockingIOError:
        return None
    except ConnectionError:
        return b""
