"""The runner as a process, and its messages with the front: JSON objects, one per line, over a socket pair."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from dask_mars.locking import Lock
from dask_mars.web.monitor import Json

#: Longest wait for the runner's end, in seconds.
_END_S = 10.0
#: Maximum number of unanswered requests to a runner; more would fill up its socket buffer.
_MOST_QUESTIONS = 20


class Lines:
    """One end of the pair. Any thread may send, one reads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = Lock()
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


class RunnerProcess:
    """One runner. One thread starts it, reads its messages and waits for its end; any may send and ask."""

    def __init__(self, settings: Json) -> None:
        ours, theirs = socket.socketpair()
        try:
            settings = {**settings, "socket": theirs.fileno(), "parent": os.getpid()}
            self._process = subprocess.Popen(
                # -P: no imports from the current directory, which other users may control.
                [sys.executable, "-P", "-m", "dask_mars.web.service.runner", json.dumps(settings)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        self.is_ready = False
        self._lines = Lines(ours)
        self._lock = Lock()
        self._question_ids = itertools.count()
        self._questions: dict[int, Future[Json]] = {}
        #: Number of missing answers, also of those that nothing waits for.
        self._unanswered = 0

    def send(self, message: Json) -> bool:
        """Send a command; return whether the runner is still connected."""
        return self._lines.send(message)

    def ask(self, what: str, number: int | None, arguments: tuple[Any, ...], timeout_s: float) -> Json:
        """Ask a question; see `Supervisor.ask`."""
        answer: Future[Json] = Future()
        with self._lock:
            if self._unanswered >= _MOST_QUESTIONS:
                raise TimeoutError
            self._unanswered += 1
            question = next(self._question_ids)
            self._questions[question] = answer
        message = {"do": "ask", "question": question, "what": what, "number": number, "arguments": arguments}
        try:
            if not self.send(message):
                raise TimeoutError
            told = answer.result(timeout_s)
        finally:
            self._questions.pop(question, None)
        if "answer" not in told:
            raise KeyError(told.get("missing", what))
        answered: Json = told["answer"]
        return answered

    def __iter__(self) -> Iterator[Json]:
        """Yield its messages about computations, until it has ended."""
        for message in self._lines:
            if message["say"] == "answer":
                self._answered(message)
            else:
                yield message

    def _answered(self, message: Json) -> None:
        with self._lock:
            self._unanswered -= 1
        answer = self._questions.pop(message["question"], None)
        if answer is not None:
            answer.set_result(message)

    def hang_up(self) -> None:
        """Close the connection, so that it ends itself."""
        self._lines.end()

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()

    def finish(self) -> int:
        """Wait for its end, and return its exit code."""
        try:
            exit_code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            exit_code = self._process.wait()
        self._lines.close()
        for answer in list(self._questions.values()):
            answer.set_exception(TimeoutError())
        return exit_code
