"""Workers as the engine sees them: what each knows, and the messages to it and from it."""

from __future__ import annotations

import pickle
import socket
from abc import ABC, abstractmethod
from collections import deque
from typing import Any, ClassVar

from dask_mars.descriptors import hold_streams
from dask_mars.errors import EngineStartFailed
from dask_mars.labels import worker_label
from dask_mars.protocol import channel
from dask_mars.protocol.messages import Free, Release, Start, ToWorker, as_plain
from dask_mars.protocol.object_ref import Block

#: Maximum number of freed values that a worker may not know of yet.
_MOST_FREES = 64


def connected() -> tuple[socket.socket, socket.socket]:
    """Return the engine's end of a new connection, non-blocking, and the worker's."""
    hold_streams()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    return ours, theirs


class WorkerHandle(ABC):
    """One worker."""

    #: Whether it is a process of its own, not a thread of the user's.
    is_process: ClassVar[bool]
    #: The system's id of the process or the thread.
    pid: int
    #: Becomes readable when the worker has ended, where the system supports that.
    exit_descriptor: int | None = None

    def __init__(self, id: int, connection: socket.socket) -> None:
        self.id = id
        self.socket = connection
        #: Whether it has imported its modules, and whether it can compute.
        self.is_loaded = self.ready = False
        #: Whether it has its start message.
        self.is_started = False
        self.is_closed = False
        #: The reason that it has reported for its failed start.
        self.start_error: EngineStartFailed | None = None
        #: Its bit in the masks of each graph of which it has received anything.
        self._bits: dict[int, int] = {}
        #: Operands of each graph that it has received.
        self.operands: dict[int, set[int]] = {}
        #: Function ids whose paths it has learnt.
        self.function_ids: set[int] = set()
        self.contexts: set[int] = set()
        #: Blocks that it reported as still referred to.
        self.retained: list[Block] = []
        #: Freed values and blocks to report with the next message, and the number of these values.
        self.to_free: dict[int, list[int]] = {}
        self.to_release: list[int] = []
        self._free_count = 0
        #: Workers with something to send: all of an engine share one dict, whose keys are in order.
        self.pending: dict[WorkerHandle, None] = {}
        #: Growth in bytes of its present request, 0 for none.
        self.asked_bytes = 0
        self._reader = channel.FrameReader()
        self._outgoing: deque[memoryview] = deque()
        #: Whether the socket has not taken all of it.
        self.is_full = False

    @property
    def label(self) -> str:
        """Return its display name."""
        return worker_label(self.id, self.pid, is_thread=not self.is_process)

    def start(self, start: Start) -> None:
        """Send it its start message."""
        self.is_started = True
        self._send(pickle.dumps(start, protocol=5))

    def send(self, message: ToWorker) -> None:
        """Queue a message after the pending news of freed values."""
        self._flush_frees()
        self._send(pickle.dumps(as_plain(message), protocol=5))

    def free(self, graph: int, chunk: int) -> None:
        """Report a freed value to the worker, soon."""
        # The worker holds only its reference, and a message for each chunk would cost more than it frees.
        self.to_free.setdefault(graph, []).append(chunk)
        self._free_count += 1
        if self._free_count >= _MOST_FREES:
            self.pending[self] = None

    def release(self, offset: int) -> None:
        """Report a free block of its arena to the worker, which reuses it."""
        self.to_release.append(offset)
        self.pending[self] = None

    def bit_in(self, graph: int, workers: list[WorkerHandle]) -> int:
        """Return its bit in a graph's masks: the power of its position in the list, which it joins."""
        bit = self._bits.get(graph)
        if bit is None:
            bit = self._bits[graph] = 1 << len(workers)
            workers.append(self)
        return bit

    def forget(self, graph: int) -> bool:
        """Forget what the worker knows of a graph; return whether it has received any of it."""
        self._free_count -= len(self.to_free.pop(graph, ()))
        self.operands.pop(graph, None)
        return self._bits.pop(graph, None) is not None

    def _flush_frees(self) -> None:
        if self.to_free:
            for graph, chunks in self.to_free.items():
                self._send(pickle.dumps(as_plain(Free(graph, chunks)), protocol=5))
            self.to_free.clear()
            self._free_count = 0
        if self.to_release:
            self._send(pickle.dumps(as_plain(Release(self.to_release)), protocol=5))
            self.to_release = []

    def _send(self, payload: bytes) -> None:
        self._outgoing.append(memoryview(channel.frame(payload)))
        self.pending[self] = None

    def write(self) -> bool:
        """Write what the socket takes; return whether something is left."""
        if self.to_release or self._free_count >= _MOST_FREES:
            self._flush_frees()
        while self._outgoing:
            data = self._outgoing[0]
            try:
                sent = self.socket.send(data)
            except BlockingIOError:
                return True
            except OSError:
                # The process is gone; reading will find out.
                self._outgoing.clear()
                return False
            if sent == len(data):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = data[sent:]
        return False

    def read(self) -> tuple[list[Any], bool]:
        """Return the messages that have arrived, and whether the stream goes on; may raise `UnreadableStream`."""
        messages: list[Any] = []
        while True:
            data = channel.receive(self.socket, wait=False)
            if data is None:
                return messages, True
            if not data:
                return messages, False
            for payload in self._reader.feed(data):
                messages += _unpickled(payload)

    @abstractmethod
    def interrupt(self) -> None:
        """Make it check whether to interrupt its task, if that is possible."""

    @abstractmethod
    def kill(self) -> None:
        """End it at once, if that is possible."""

    @abstractmethod
    def has_ended(self) -> bool:
        """Return whether it has ended, so that nothing takes blocks of its arena any more."""

    @abstractmethod
    def close(self) -> int:
        """Close everything of it, ending it if necessary, and return its exit code."""

    def close_descriptors(self) -> None:
        """Close this process's ends of everything."""
        self.is_closed = True
        self.socket.close()


def _unpickled(payload: bytes) -> list[Any]:
    try:
        messages = pickle.loads(payload)
    except Exception as error:
        raise channel.UnreadableStream(f"{payload[:100]!r}: {error!r}") from error
    if type(messages) is not list:
        raise channel.UnreadableStream(f"{payload[:100]!r}")
    return messages
