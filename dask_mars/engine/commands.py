"""Commands of other threads to an engine's thread, and whether that thread still takes any."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from dask_mars.descriptors import hold_streams
from dask_mars.errors import EngineStopped
from dask_mars.locking import Lock

Answer = TypeVar("Answer")

#: Interval at which a waiting thread checks that the engine lives, in seconds.
_ANSWER_S = 0.5

#: The commands that this thread runs, if it is an engine's.
_served = threading.local()


class Commands:
    """A queue of functions for the engine's thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.is_closing = False
        #: Set once the thread has released everything. `Thread.is_alive` is unreliable: once Ctrl-C interrupts it
        #: (CPython 3.11 and 3.12), the thread counts as ended.
        self.ended = threading.Event()
        self.reason: BaseException | None = None
        self._queue: deque[Callable[[], None]] = deque()
        #: Guards `_released`: the system may reuse the numbers of closed descriptors.
        self._lock = Lock()
        self._released = False
        #: The last answer that a caller gave up on: until it arrives, the thread is busy.
        self._late: Future[Any] | None = None
        # The pipe must not take the place of a standard stream that is closed.
        hold_streams()
        #: Ends of the pipe that wakes the engine's thread.
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self.writer, False)

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def alive(self) -> bool:
        """Return whether the engine accepts work."""
        return not self.ended.is_set() and not self.is_closing and self.pid == os.getpid()

    def why_stopped(self) -> BaseException:
        """Return the reason why the engine accepts no work."""
        return self.reason or EngineStopped()

    def call(self, function: Callable[[], Answer], patience_s: float | None = None) -> Answer:
        """Run a function in the engine's thread and return its result; raise `TimeoutError` after `patience_s`."""
        served = getattr(_served, "commands", None)
        if served is self:
            return function()
        if served is not None:
            raise RuntimeError("engines do not wait for each other")
        if patience_s is not None and self._late is not None and not self._late.done():
            # While an earlier question is unanswered, another one would wait as long.
            raise TimeoutError("the engine has no time")
        return self.result(self.ask(function), patience_s)

    def ask(self, function: Callable[[], Answer]) -> Future[Answer]:
        """Queue a function for the engine's thread, and return the future of its result."""
        answer: Future[Answer] = Future()

        def command() -> None:
            try:
                answer.set_result(function())
            except BaseException as error:
                # The function changes nothing before it is sure to succeed, so the error concerns the caller only.
                answer.set_exception(error)

        self.call_soon(command)
        return answer

    def result(self, answer: Future[Answer], patience_s: float | None) -> Answer:
        """Wait for an answer; raise `TimeoutError` after `patience_s`, and the reason if the engine has ended."""
        while True:
            try:
                return answer.result(timeout=_ANSWER_S if patience_s is None else patience_s)
            except TimeoutError:
                if not self.alive:
                    raise self.why_stopped() from None
                if patience_s is not None:
                    # An observer has an earlier answer, and need not wait while the engine receives a large graph.
                    self._late = answer
                    raise

    def call_soon(self, command: Callable[[], None]) -> None:
        """Have the engine's thread run a function; raise the reason if the engine has ended."""
        if self.ended.is_set():
            raise self.why_stopped()
        with self._lock:
            if self._released:
                raise self.why_stopped()
            self._queue.append(command)
            with contextlib.suppress(BlockingIOError, OSError):
                # A full pipe wakes the thread as well.
                os.write(self.writer, b"\0")

    # -- engine thread ----------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Make this thread the one that runs the commands."""
        _served.commands = self

    def empty_pipe(self) -> None:
        """Take what has woken the thread out of the pipe."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.reader, 4096):
                pass

    def run(self) -> None:
        """Run the queued commands."""
        while self._queue:
            self._queue.popleft()()

    def close(self) -> bool:
        """Close the pipe; return False if it was closed before."""
        with self._lock:
            if self._released:
                return False
            self._released = True
        for descriptor in (self.reader, self.writer):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        return True

    def forget_after_fork(self) -> None:
        """In a process forked from the engine's, replace the lock, which a lost thread may hold."""
        self.is_closing = True
        self._lock = Lock()
