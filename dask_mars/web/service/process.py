"""The runner as the front sees it: a process, a line to it, and questions that are not answered yet."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from dask_mars.web.monitor import Json
from dask_mars.web.service.lines import Lines

#: How long the runner may take to end when it is not needed any more.
_END_S = 10.0
#: Questions that a runner may have before it; one that answers none is asked no more, as its line would be full.
_MOST_QUESTIONS = 20


class RunnerProcess:
    """One runner, from its start to its end.

    One thread starts it, reads what it says and sees to its end; any may send and ask.

    Parameters
    ----------
    settings : dict
        For `dask_mars.web.service.runner.main`.

    Raises
    ------
    OSError
        There is no room for another process.

    Attributes
    ----------
    pid : int
        Its process id.
    is_ready : bool
        Whether it has said that it can compute.
    """

    def __init__(self, settings: Json) -> None:
        ours, theirs = socket.socketpair()
        try:
            settings = {**settings, "socket": theirs.fileno(), "parent": os.getpid()}
            self._process = subprocess.Popen(
                # Modules are not looked for in the directory that this was started in, which may be anybody's.
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
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._questions: dict[int, Future[Json]] = {}
        #: Answers that are still to come, whether or not anybody waits for them.
        self._unanswered = 0

    def send(self, message: Json) -> bool:
        """Tell it something; return whether it is still there to hear it."""
        return self._lines.send(message)

    def ask(self, what: str, number: int | None, arguments: tuple[Any, ...], timeout_s: float) -> Json:
        """Ask it something; see `Supervisor.ask`."""
        answer: Future[Json] = Future()
        with self._lock:
            if self._unanswered >= _MOST_QUESTIONS:
                raise TimeoutError
            self._unanswered += 1
            question = next(self._numbers)
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
        """Yield what it says of computations, until it has gone."""
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
        """Have it end itself."""
        self._lines.end()

    def kill(self) -> None:
        """End it now."""
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


__all__ = ["RunnerProcess"]
