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
        #: Chunks of each graph whose references this worker knows.
        self.known: dict[int, set[int]] = {}
        #: Operands of each graph that it has received.
        self.operands: dict[int, set[int]] = {}
        #: Function ids whose paths it has learnt.
        self.function_ids: set[int] = set()
        self.contexts: set[int] = set()
        #: Blocks that it reported as still referred to.
        self.retained: list[Block] = []
        #: Freed values and blocks to report with the next message.
        self.to_free: dict[int, list[int]] = {}
        self.to_release: list[int] = []
        #: Growth in bytes of its present request, 0 for none.
        self.asked_bytes = 0
        self._reader = channel.FrameReader()
        self._outgoing: deque[memoryview] = deque()

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
        self.flush_frees()
        self._send(pickle.dumps(as_plain(message), protocol=5))

    def flush_due_frees(self) -> None:
        """Report freed values and blocks to the worker if the news is of use."""
        # The worker reuses blocks of its arena. Of values it holds only references, and a message for each chunk
        # would cost more than it frees.
        if self.to_release or (self.to_free and sum(map(len, self.to_free.values())) >= _MOST_FREES):
            self.flush_frees()

    def flush_frees(self) -> None:
        """Report freed values and blocks to the worker."""
        if self.to_free:
            for graph, chunks in self.to_free.items():
                self._send(pickle.dumps(as_plain(Free(graph, chunks)), protocol=5))
            self.to_free.clear()
        if self.to_release:
            self._send(pickle.dumps(as_plain(Release(self.to_release)), protocol=5))
            self.to_release = []

    def _send(self, payload: bytes) -> None:
        self._outgoing.append(memoryview(channel.frame(payload)))

    def write(self) -> bool:
        """Write what the socket takes; return whether something is left."""
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
