"""Worker processes as the engine sees them: starting them, talking to them, knowing how they ended."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections import deque
from typing import Any

from dask_mars.errors import EngineStartFailed
from dask_mars.protocol import channel
from dask_mars.protocol.context import worker_environment
from dask_mars.protocol.messages import Free, Release, Start, ToWorker, as_plain
from dask_mars.protocol.object_ref import Block
from dask_mars.worker.interrupts import SIGNAL

# The import path comes first, so that a worker finds what the client finds, dask_mars included.
_BOOT = """
import json, sys

options = json.loads(sys.argv[1])
sys.path[:] = options["path"]
from dask_mars.worker.main import main

main(options["socket"])
"""


class WorkerHandle:
    """One worker process.

    Parameters
    ----------
    start : Start
        What to tell it first.
    """

    def __init__(self, start: Start) -> None:
        self.number = start.number
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        options = json.dumps({"path": sys.path, "socket": theirs.fileno()})
        # Not multiprocessing: its spawn imports the user's script again, and needs a guard in it.
        try:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                    "-c",
                    _BOOT,
                    options,
                ],
                stdin=subprocess.DEVNULL,
                env=worker_environment(os.environ),
                pass_fds=(theirs.fileno(), start.control, start.locks, start.wake, *start.arenas),
                # Ctrl-C in a terminal is for the client alone.
                process_group=0,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self.socket = ours
        self.exit_descriptor = _watch_exit(self.process.pid)
        self.ready = False
        #: What it has said of why it does not come up.
        self.start_error: EngineStartFailed | None = None
        #: Chunks of each graph whose references this worker knows.
        self.known: dict[int, set[int]] = {}
        #: Operands of each graph that it has been sent.
        self.operands: dict[int, set[int]] = {}
        #: Op ids whose paths it has learnt.
        self.function_ids: set[int] = set()
        self.contexts: set[int] = set()
        #: Blocks that it reported as still referred to.
        self.retained: list[Block] = []
        #: What it is to be told with the next message.
        self.to_free: dict[int, list[int]] = {}
        self.to_release: list[int] = []
        #: The growth that it waits for, as it was last seen to ask for it; 0 for none.
        self.asked_bytes = 0
        self._reader = channel.FrameReader()
        self._outgoing: deque[memoryview] = deque()
        self._send(pickle.dumps(start, protocol=5))

    def send(self, message: ToWorker) -> None:
        """Queue a message after whatever it is to be told of freed values."""
        self.flush_frees()
        self._send(pickle.dumps(as_plain(message), protocol=5))

    def flush_frees(self) -> None:
        """Tell the worker which values and blocks are free."""
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
                # The process is gone; reading will say so.
                self._outgoing.clear()
                return False
            if sent == len(data):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = data[sent:]
        return False

    def read(self) -> tuple[list[Any], bool]:
        """Return the messages that have arrived, and whether the stream goes on.

        Raises
        ------
        UnreadableStream
            Something else than a worker has written into it.
        """
        messages: list[Any] = []
        while True:
            data = channel.receive(self.socket, wait=False)
            if data is None:
                return messages, True
            if not data:
                return messages, False
            for payload in self._reader.feed(data):
                messages += _unpickled(payload)

    def interrupt(self) -> None:
        """Have the process look whether it is to leave the task that it runs."""
        self.process.send_signal(SIGNAL)

    def pause(self) -> None:
        """Stop the process until it is told to go on."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a process go on that was stopped."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()

    def close(self) -> int:
        """Collect the process, ending it if it has not ended, and return its exit code."""
        if self.process.poll() is None:
            self.process.kill()
        code = self.process.wait()
        self.close_descriptors()
        return code

    def close_descriptors(self) -> None:
        """Close this process's ends of everything."""
        self.socket.close()
        if self.exit_descriptor is not None:
            os.close(self.exit_descriptor)
            self.exit_descriptor = None


def _unpickled(payload: bytes) -> list[Any]:
    try:
        messages = pickle.loads(payload)
    except Exception as error:
        raise channel.UnreadableStream(f"{payload[:100]!r}: {error!r}") from error
    if type(messages) is not list:
        raise channel.UnreadableStream(f"{payload[:100]!r}")
    return messages


def _watch_exit(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends, where the system has such a thing.

    The end of the socket's stream says it too, unless a task has left a process behind that inherited the socket.
    """
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
