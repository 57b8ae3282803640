"""Messages from a worker to the engine: batches of results, retained blocks, printed text."""

from __future__ import annotations

import io
import pickle
import socket
import threading
import time
from collections import deque
from typing import Any

from dask_mars.locking import Lock
from dask_mars.protocol import channel
from dask_mars.protocol.messages import Finished, Reason, Retained, Returned, ToEngine, Unretained, as_plain
from dask_mars.protocol.object_ref import Block
from dask_mars.store.arena import Bytes
from dask_mars.store.reader import still_used

#: Message of the error that sends a task to the user's process, which has a standard input.
NO_INPUT = "a worker has no standard input"


class Outbox:
    """Sends messages, and collects results into batches while no reader is likely to wait."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        # Threads that a task has started may print. All fields below the lock belong to the worker's own thread.
        self._lock = Lock()
        #: The thread that holds the lock, 0 for none.
        self._holder = 0
        #: Messages of finalizers that ran in other threads while these were sending.
        self._late: deque[ToEngine] = deque()
        self._thread = threading.get_ident()
        self._flushing = False
        #: Messages that go out with the next flush.
        self.outgoing: list[ToEngine] = []
        #: Computed and unreported chunks, by graph.
        self.finished: dict[int, Finished] = {}
        #: Time of the last flush.
        self.flushed_s = 0.0
        #: Blocks with remaining references after their task.
        self.retained: list[tuple[Block, Bytes]] = []

    def batch(self, graph: int) -> Finished:
        """Return the batch of computed and unreported chunks of a graph, to add to."""
        batch = self.finished.get(graph)
        if batch is None:
            batch = self.finished[graph] = Finished(graph, [], [], [], {}, [])
        return batch

    def return_chunks(self, graph: int, chunks: list[int], reason: Reason) -> None:
        """Return chunks to the engine without computing them."""
        self.outgoing.append(Returned(graph, chunks, reason))

    def close_batches(self) -> None:
        """Send all results computed so far before any later message."""
        self.outgoing += self.finished.values()
        self.finished.clear()

    def flush(self, now_s: float) -> None:
        """Send all pending messages."""
        self.flushed_s = now_s
        if self.retained:
            self.check_retained()
        self.close_batches()
        if self._flushing:
            # A finalizer sends a message during a flush, which sends it next.
            return
        self._flushing = True
        try:
            while self._late:
                self.outgoing.append(self._late.popleft())
            while self.outgoing:
                outgoing, self.outgoing = self.outgoing, []
                self._send(outgoing)
        finally:
            self._flushing = False

    def _send(self, messages: list[ToEngine]) -> None:
        payload = channel.frame(pickle.dumps(list(map(as_plain, messages)), protocol=5))
        with self._lock:
            self._holder = threading.get_ident()
            try:
                self._connection.sendall(payload)
            finally:
                self._holder = 0

    def send(self, message: ToEngine) -> None:
        """Send a message with the next flush, or at once from a task's thread."""
        thread = threading.get_ident()
        if thread == self._thread:
            self.outgoing.append(message)
        elif thread == self._holder:
            self._late.append(message)
        else:
            self._send([message])

    def send_now(self, message: ToEngine) -> None:
        """Send a message, and from the worker's own thread all pending ones."""
        self.send(message)
        if threading.get_ident() == self._thread:
            self.flush(time.perf_counter())

    def retain(self, owners: list[tuple[Block, Bytes]]) -> None:
        """Report blocks with remaining references after their task, such as a cache's."""
        # The engine must know them before the task's end is reported, which may free them.
        used = still_used(owners)
        if used:
            self.retained += used
            self.outgoing.append(Retained([block for block, _ in used]))

    def check_retained(self) -> None:
        """Report retained blocks without references."""
        used = still_used(self.retained)
        if len(used) < len(self.retained):
            kept = {id(base) for _, base in used}
            gone = [block for block, base in self.retained if id(base) not in kept]
            self.retained = used
            self.outgoing.append(Unretained(gone))


class OutputStream:
    """A text stream whose lines go to the user's process."""

    encoding = "utf-8"
    errors = "replace"
    closed = False

    def __init__(self, send: Any, name: str, original: Any) -> None:
        self._send = send
        self._name = name
        self._original = original
        self._parts: list[str] = []

    def write(self, text: str) -> int:
        """Collect a text, and send all collected text at the end of a line."""
        self._parts.append(text)
        if "\n" in text:
            self.flush()
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Collect several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Send the collected text."""
        if self._parts:
            text = "".join(self._parts)
            self._parts.clear()
            self._send(self._name, text)

    def isatty(self) -> bool:
        """Return False."""
        return False

    def writable(self) -> bool:
        """Return True."""
        return True

    def readable(self) -> bool:
        """Return False."""
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


class InputStream(io.TextIOWrapper):
    """Standard input of a worker: a task that reads it runs again in the user's process."""

    def _refuse(self, *_: Any) -> Any:
        raise io.UnsupportedOperation(NO_INPUT)

    read = readline = readlines = __next__ = _refuse

    @property
    def buffer(self) -> Any:
        """Refuse to give the stream of bytes, too."""
        return self._refuse()
