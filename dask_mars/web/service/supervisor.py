"""Keeps a runner: starts it, again when it dies, and hands it what waits. Records come before actions."""

from __future__ import annotations

import itertools
import json
import logging
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from dask_mars.errors import describe_exit
from dask_mars.web.monitor import OVER, Json
from dask_mars.web.service.lines import Lines
from dask_mars.web.service.store import Store

logger = logging.getLogger("dask_mars.web")

#: Computations that the runner has at once; more wait.
AT_ONCE = 8
#: How often the runner may die with a computation in its hands before that fails.
_LOSSES = 3
#: Pause before the runner is started again that has died at once, doubled each time.
_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0
#: How long the runner gets to answer a question.
_ANSWER_S = 0.9
#: How long it may take to end when it is not needed any more.
_END_S = 10.0

#: Told once whether the runner has taken a graph: None, or the error for which it is refused.
OnTaken = Callable[[Json | None], None]


@dataclass
class InHand:
    """A computation that the runner has.

    Attributes
    ----------
    number : int
        Of its row.
    is_suspect : bool
        Whether the runner has died with it before; then it is computed alone.
    on_taken : callable or None
        As `Supervisor.submit` takes it.
    live : dict
        What the runner has told last of its progress.
    """

    number: int
    is_suspect: bool
    on_taken: OnTaken | None = None
    live: Json = field(default_factory=dict)

    def taken(self, error: Json | None) -> None:
        """Tell whoever waits for it, once."""
        told, self.on_taken = self.on_taken, None
        if told is not None:
            told(error)


class Supervisor:
    """Starts and keeps the runner of a service.

    Parameters
    ----------
    store : Store
        The records.
    options : dict
        ``num_workers``, ``memory_limit`` and ``scheduler`` for the runner.
    on_end : callable, optional
        Called, in a thread of this object, when a computation is over.
    """

    def __init__(self, store: Store, options: Json, on_end: Callable[[], None] = lambda: None) -> None:
        self._store = store
        self._options = options
        self._on_end = on_end
        self._lock = threading.RLock()
        self._queue: deque[InHand] = deque()
        self._in_hand: dict[int, InHand] = {}
        self._lines: Lines | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._closing = threading.Event()
        self._questions: dict[int, Future[Json]] = {}
        self._question_numbers = itertools.count()
        self._thread = threading.Thread(target=self._keep, name="dask-mars-runner")

    def start(self) -> None:
        """Start the runner, and hand it what another service has not finished."""
        for row in self._store.unfinished():
            if row["cancelling"]:
                self._store.end(row["number"], "cancelled")
                continue
            if row["state"] != "queued":
                self._store.update(row["number"], state="queued", attempt=row["attempt"] + 1)
            self._queue.append(InHand(row["number"], row["losses"] > 0))
        self._thread.start()

    def close(self) -> None:
        """End the runner. What it has not finished is begun again by the next service."""
        self._closing.set()
        with self._lock:
            lines = self._lines
        if lines is not None:
            lines.end()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def pid(self) -> int | None:
        """The runner's process id, None while there is none."""
        process = self._process
        return None if process is None else process.pid

    # -- what the front asks ------------------------------------------------------------------------------------

    def submit(self, number: int, on_taken: OnTaken | None = None) -> bool:
        """Have a computation computed that has been recorded.

        Parameters
        ----------
        number : int
            Of its row.
        on_taken : callable, optional
            Told in a thread of this object when the runner has taken it, or refuses it.

        Returns
        -------
        bool
            Whether it begins at once, so that `on_taken` is going to be called.
        """
        with self._lock:
            waiting = InHand(number, False, on_taken)
            self._queue.append(waiting)
            self._dispatch()
            begun = number in self._in_hand
            if not begun:
                waiting.on_taken = None
            return begun

    def cancel(self, number: int) -> bool:
        """Cancel a computation; return whether it was not over."""
        with self._lock:
            # The row first: a front that dies now must not compute it again.
            if not self._store.update(number, cancelling=1):
                return False
            self._drop(number)
            return True

    def forget(self, number: int) -> None:
        """Cancel a computation whose row has been removed."""
        with self._lock:
            self._drop(number)

    def _drop(self, number: int) -> None:
        for waiting in self._queue:
            if waiting.number == number:
                self._queue.remove(waiting)
                self._ended(number, "cancelled")
                return
        if number in self._in_hand and self._lines is not None:
            self._lines.send({"do": "cancel", "number": number})

    def live(self, number: int) -> Json:
        """Return what the runner has told last of a computation; empty if it does not have it."""
        with self._lock:
            found = self._in_hand.get(number)
            return {} if found is None else found.live

    def waiting(self) -> int:
        """Return how many computations wait for others."""
        return len(self._queue)

    def ask(self, what: str, number: int | None = None, *arguments: Any, timeout_s: float = _ANSWER_S) -> Json:
        """Ask the runner something.

        Parameters
        ----------
        what : str
            A method of a `Monitor`, or ``"arrow"``.
        number : int, optional
            Of the row of the computation that is asked for.
        *arguments
            Of the method.
        timeout_s : float, optional
            How long to wait.

        Raises
        ------
        KeyError
            It does not know.
        TimeoutError
            There is no runner, or it is too busy to answer.
        """
        answer: Future[Json] = Future()
        with self._lock:
            lines = self._lines
            if lines is None:
                raise TimeoutError
            question = next(self._question_numbers)
            self._questions[question] = answer
        message = {"do": "ask", "question": question, "what": what, "number": number, "arguments": arguments}
        try:
            if not lines.send(message):
                raise TimeoutError
            told = answer.result(timeout_s)
        finally:
            self._questions.pop(question, None)
        if "answer" not in told:
            raise KeyError(told.get("missing", what))
        answered: Json = told["answer"]
        return answered

    # -- the runner's thread ------------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Start a runner, and another when it dies."""
        pause_s = _PAUSE_S
        while not self._closing.is_set():
            begun = time.monotonic()
            process = self._start_process()
            assert self._lines is not None
            for message in self._lines:
                self._on_message(message)
            exit_code = self._end_process(process)
            if self._closing.is_set():
                break
            logger.error("the process that computes %s; it is started again", describe_exit(exit_code))
            self._died(exit_code)
            lived_s = time.monotonic() - begun
            pause_s = _PAUSE_S if lived_s > _LONGEST_PAUSE_S else min(2 * pause_s, _LONGEST_PAUSE_S)
            self._closing.wait(pause_s)

    def _start_process(self) -> subprocess.Popen[bytes]:
        ours, theirs = socket.socketpair()
        settings = {**self._options, "socket": theirs.fileno(), "directory": str(self._store.directory)}
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "dask_mars.web.service.runner", json.dumps(settings)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        with self._lock:
            self._process, self._lines = process, Lines(ours)
            # `close` may just have been called, and have found nobody to tell.
            if self._closing.is_set():
                self._lines.end()
        return process

    def _end_process(self, process: subprocess.Popen[bytes]) -> int:
        with self._lock:
            lines, self._lines = self._lines, None
        try:
            exit_code = process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            exit_code = process.wait()
        self._process = None
        if lines is not None:
            lines.close()
        for answer in list(self._questions.values()):
            answer.set_exception(TimeoutError())
        return exit_code

    def _on_message(self, message: Json) -> None:
        if message["say"] == "answer":
            answer = self._questions.pop(message["question"], None)
            if answer is not None:
                answer.set_result(message)
            return
        with self._lock:
            if message["say"] == "ready":
                self._is_ready = True
                self._dispatch()
                return
            has = self._in_hand.get(message["number"])
            if has is not None:
                getattr(self, f"_on_{message['say']}")(has, message)

    def _dispatch(self) -> None:
        """Hand over what waits, as long as the runner may have more."""
        while self._queue and self._lines is not None and self._is_ready and len(self._in_hand) < AT_ONCE:
            # Who may have killed the runner is not to take others along once more.
            if self._in_hand and (
                self._queue[0].is_suspect or any(one.is_suspect for one in self._in_hand.values())
            ):
                return
            has = self._queue.popleft()
            row = self._store.numbered(has.number)
            if row is None or row["state"] in OVER:
                continue
            self._store.update(has.number, state="preparing", started=row["started"] or time.time())
            self._in_hand[has.number] = has
            self._lines.send(_order(row, self._store))

    def _on_taken(self, has: InHand, message: Json) -> None:
        self._store.update(has.number, state="running")
        has.taken(None)

    def _on_progress(self, has: InHand, message: Json) -> None:
        has.live = message["progress"]
        has.live["revision"] = self._store.next_revision()

    def _on_finished(self, has: InHand, message: Json) -> None:
        self._ended(
            has.number,
            "finished",
            message["file_bytes"],
            result=message["result"],
            progress=message.get("progress"),
        )

    def _on_cancelled(self, has: InHand, message: Json) -> None:
        self._ended(has.number, "cancelled", message["file_bytes"], progress=message.get("progress"))

    def _on_failed(self, has: InHand, message: Json) -> None:
        self._ended(
            has.number, "failed", message["file_bytes"], error=message["error"], progress=message.get("progress")
        )

    def _on_refused(self, has: InHand, message: Json) -> None:
        self._ended(has.number, "failed", error=message["error"], refused=1)

    def _ended(self, number: int, state: str, file_bytes: int = 0, refused: int = 0, **facts: Json | None) -> None:
        """Record that a computation is over, and go on with others."""
        has = self._in_hand.pop(number, None)
        told = {name: json.dumps(value) for name, value in facts.items() if value is not None}
        if not self._store.end(number, state, file_bytes, refused=refused, **told):
            # It has been removed meanwhile, and nobody is going to ask for what it has left.
            self._store.remove_files(number)
        if has is not None:
            has.taken(facts.get("error") if refused else None)
        self._dispatch()
        self._on_end()

    def _died(self, exit_code: int) -> None:
        """Put what the runner had back, and give up what it has died of too often."""
        with self._lock:
            self._is_ready = False
            lost = sorted(self._in_hand)
            again = []
            for number in lost:
                row = self._store.numbered(number)
                if row is None or row["cancelling"]:
                    self._ended(number, "cancelled")
                    continue
                losses = row["losses"] + 1
                if losses >= _LOSSES:
                    text = (
                        f"the process that computes {describe_exit(exit_code)}, {losses} times with this "
                        "computation in its hands"
                    )
                    error = {"type": "RunnerDied", "message": text, "traceback": ""}
                    self._ended(number, "failed", error=error)
                    continue
                self._store.update(number, state="queued", attempt=row["attempt"] + 1, losses=losses)
                has = self._in_hand.pop(number)
                has.is_suspect, has.live = True, {}
                again.append(has)
            self._queue.extendleft(reversed(again))

    _is_ready = False


def _order(row: sqlite3.Row, store: Store) -> Json:
    """Return what the runner is told of a computation."""
    return {
        "do": "run",
        "number": row["number"],
        "id": row["id"],
        "name": row["name"],
        "attempt": row["attempt"],
        "graph": os.fspath(store.graph(row["number"])),
    }


__all__ = ["AT_ONCE", "InHand", "Supervisor"]
