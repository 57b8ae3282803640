"""Supervises a runner: starts it, restarts it, and sends it queued computations. Records come before actions."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dask_mars.exit_codes import describe_exit
from dask_mars.web.monitor import OVER, Json
from dask_mars.web.service.process import RunnerProcess
from dask_mars.web.service.store import CannotRecord, ServiceStore

logger = logging.getLogger("dask_mars.web")

#: Maximum number of computations dispatched to the runner; others are queued.
AT_ONCE = 8
#: Number of runner deaths after which a computation dispatched to it fails, unless it progresses between them.
_LOSSES = 3
#: Pause before the restart of a runner that died early, doubled each time up to the second, in seconds.
_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0
#: Maximum number of deaths in a row before the runner is ready; then the installation may be broken.
_MOST_UNREADY = 5
#: Pause between attempts to write records to a failing disk, in seconds.
_RECORD_PAUSE_S = 1.0
#: Longest wait for an answer of the runner, in seconds.
_ANSWER_S = 0.9
#: Time until the runner is ended for a cancelled computation, in seconds: tasks and preparation are interrupted,
#: but unpickling is not.
_CANCEL_S = 20.0

#: Called once when the runner has taken or refused a graph.
OnTaken = Callable[[], None]


@dataclass
class Job:
    """A computation that is queued, or dispatched to the runner."""

    number: int
    #: Whether the runner has died with it before; then it is computed alone.
    is_suspect: bool
    on_taken: OnTaken | None = None
    live: Json = field(default_factory=dict)
    #: Ends the runner if the computation does not end after a cancellation.
    deadline: threading.Timer | None = None

    def taken(self) -> None:
        """Call `on_taken`, once."""
        told, self.on_taken = self.on_taken, None
        if told is not None:
            told()

    def forgive(self) -> None:
        """Cancel the deadline."""
        if self.deadline is not None:
            self.deadline.cancel()


class Supervisor:
    """Starts and supervises the runner of a service."""

    def __init__(
        self,
        store: ServiceStore,
        options: Json,
        on_end: Callable[[], None] = lambda: None,
        on_failure: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self._store = store
        self._options = options
        self._on_end = on_end
        self._on_failure = on_failure
        self._lock = threading.RLock()
        self._queue: deque[Job] = deque()
        self._dispatched: dict[int, Job] = {}
        self._runner: RunnerProcess | None = None
        #: Number of the computation for which the runner was ended: others are not to blame.
        self._blamed: int | None = None
        self._closing = threading.Event()
        #: Unrecorded changes in their order, and the timer for the next attempt.
        self._unrecorded: deque[Callable[[], None]] = deque()
        self._later: threading.Timer | None = None
        self._is_warned = False
        self._thread = threading.Thread(target=self._keep, name="dask-mars-runner")

    def start(self) -> None:
        """Start the runner, and queue the unfinished computations of an earlier service."""
        for row in self._store.unfinished():
            if row["cancelling"]:
                self._store.end(row["number"], "cancelled")
                continue
            if row["state"] != "queued":
                self._store.update(row["number"], state="queued", attempt=row["attempt"] + 1)
            self._queue.append(Job(row["number"], row["losses"] > 0))
        self._thread.start()

    def close(self) -> None:
        """End the runner. The next service restarts its unfinished computations."""
        self._closing.set()
        with self._lock:
            runner = self._runner
            for job in self._dispatched.values():
                job.forgive()
            if self._later is not None:
                self._later.cancel()
        if runner is not None:
            runner.hang_up()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def pid(self) -> int | None:
        """The runner's process id, None while there is none."""
        runner = self._runner
        return None if runner is None else runner.pid

    # -- calls of the front -------------------------------------------------------------------------------------

    def submit(self, number: int, on_taken: OnTaken | None = None) -> bool:
        """Queue a recorded computation."""
        with self._lock:
            job = Job(number, False, on_taken)
            self._queue.append(job)
            self._dispatch()
            begun = number in self._dispatched
            if not begun:
                job.on_taken = None
            return begun

    def cancel(self, number: int) -> bool:
        """Cancel a computation; return False if it was over."""
        with self._lock:
            # The row first: after a crash of the front it must not be computed again.
            if not self._store.update(number, cancelling=1):
                return False
            self._drop(number)
            return True

    def forget(self, number: int) -> None:
        """Cancel a computation whose row was removed."""
        with self._lock:
            self._drop(number)

    def _drop(self, number: int) -> None:
        for queued in self._queue:
            if queued.number == number:
                self._record(partial(self._leave, queued))
                return
        job = self._dispatched.get(number)
        if job is None or self._runner is None or job.deadline is not None:
            return
        job.deadline = threading.Timer(_CANCEL_S, self._end_stubborn, (job, self._runner))
        job.deadline.daemon = True
        job.deadline.start()
        self._runner.send({"do": "cancel", "number": number})

    def _leave(self, job: Job) -> None:
        if job in self._queue:
            self._ended(job.number, "cancelled")
            self._queue.remove(job)

    def _end_stubborn(self, job: Job, runner: RunnerProcess) -> None:
        """End the runner because a cancelled computation does not end."""
        with self._lock:
            if self._dispatched.get(job.number) is not job or self._runner is not runner:
                return
            logger.error("a cancelled computation does not end: the process that computes is ended")
            self._blamed = job.number
            runner.kill()

    def live(self, number: int) -> Json:
        """Return the last progress report of a computation; empty if the runner does not have it."""
        # Without the lock, which is held during writes to disk.
        found = self._dispatched.get(number)
        return {} if found is None else found.live

    def waiting(self) -> int:
        """Return the number of queued computations."""
        return len(self._queue)

    def ask(self, what: str, number: int | None = None, *arguments: Any) -> Json:
        """Return the runner's answer; `TimeoutError` if it has no time, `KeyError` if it knows none."""
        runner = self._runner
        if runner is None:
            raise TimeoutError
        return runner.ask(what, number, arguments, _ANSWER_S)

    # -- the runner's thread ------------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Run one runner after the other."""
        pause_s, unready = _PAUSE_S, 0
        try:
            while not self._closing.is_set():
                begun = time.monotonic()
                exit_code, was_ready = self._serve()
                if self._closing.is_set():
                    break
                unready = 0 if was_ready else unready + 1
                if unready >= _MOST_UNREADY:
                    text = f"{describe_exit(exit_code)} before it was ready, {unready} times"
                    raise RuntimeError(f"the process that computes {text}")
                logger.error("the process that computes %s; it is started again", describe_exit(exit_code))
                with self._lock:
                    self._record(partial(self._died, exit_code))
                lived_s = time.monotonic() - begun
                pause_s = _PAUSE_S if lived_s > _LONGEST_PAUSE_S else min(2 * pause_s, _LONGEST_PAUSE_S)
                self._closing.wait(pause_s)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        # Later submissions would never be computed. The next service finds everything in the records.
        logger.error("nothing can be computed any more", exc_info=not isinstance(error, RuntimeError))
        self._on_failure(error)

    def _serve(self) -> tuple[int, bool]:
        """Start a runner, handle its messages, and return its exit code and whether it was ready."""
        runner = RunnerProcess({**self._options, "directory": os.fspath(self._store.directory)})
        try:
            with self._lock:
                self._runner = runner
                # `close` may just have been called, when there was no runner to disconnect.
                if self._closing.is_set():
                    runner.hang_up()
            for message in runner:
                self._on_message(runner, message)
        except BaseException:
            runner.kill()
            raise
        finally:
            with self._lock:
                self._runner = None
            exit_code = runner.finish()
        return exit_code, runner.is_ready

    def _on_message(self, runner: RunnerProcess, message: Json) -> None:
        with self._lock:
            if message["say"] == "ready":
                runner.is_ready = True
                self._dispatch()
                return
            job = self._dispatched.get(message["number"])
            if job is None:
                return
            if message["say"] == "progress":
                job.live = message["progress"]
                job.live["revision"] = self._store.next_revision()
                return
            if message["say"] == "taken":
                self._record(partial(self._on_taken, job))
            else:
                job.forgive()
                self._record(partial(self._on_over, job, message))

    def _dispatch(self) -> None:
        """Send queued computations, up to the runner's limit."""
        runner = self._runner
        while self._queue and runner is not None and runner.is_ready and len(self._dispatched) < AT_ONCE:
            # A lost computation may still be in `_dispatched` until its loss is recorded.
            if self._unrecorded:
                return
            # A suspect computation runs alone, so that it cannot take others along again.
            if self._dispatched and (
                self._queue[0].is_suspect or any(one.is_suspect for one in self._dispatched.values())
            ):
                return
            job = self._queue[0]
            row = self._store.numbered(job.number)
            if row is None or row["state"] in OVER:
                self._queue.popleft()
                continue
            try:
                self._store.update(job.number, state="preparing", started=row["started"] or time.time())
            except CannotRecord as error:
                self._try_later(error)
                return
            self._queue.popleft()
            self._dispatched[job.number] = job
            runner.send(_order(row, self._store))

    # -- while records cannot be written ------------------------------------------------------------------------

    def _record(self, change: Callable[[], None]) -> None:
        """Make a recorded change, now or when the disk is writable again; running computations go on."""
        self._unrecorded.append(change)
        self._make_changes()

    def _make_changes(self) -> None:
        while self._unrecorded:
            try:
                self._unrecorded[0]()
            except CannotRecord as error:
                self._try_later(error)
                return
            self._unrecorded.popleft()
        self._dispatch()

    def _try_later(self, error: CannotRecord) -> None:
        if self._later is not None or self._closing.is_set():
            return
        if not self._is_warned:
            logger.error("%s; until then nothing is begun", error)
        self._is_warned = True
        self._later = threading.Timer(_RECORD_PAUSE_S, self._try_again)
        self._later.daemon = True
        self._later.start()

    def _try_again(self) -> None:
        with self._lock:
            self._later = None
            if self._closing.is_set():
                return
            try:
                self._make_changes()
            except Exception as error:
                self._give_up(error)
            self._is_warned = self._later is not None

    # -- messages of the runner ---------------------------------------------------------------------------------

    def _on_taken(self, job: Job) -> None:
        self._store.update(job.number, state="running")
        job.taken()

    def _on_over(self, job: Job, message: Json) -> None:
        is_refused = message["say"] == "refused"
        state = "failed" if is_refused else message["say"]
        facts = {name: message.get(name) for name in ("result", "error", "progress")}
        self._ended(job.number, state, message["file_bytes"], int(is_refused), **facts)

    def _ended(self, number: int, state: str, file_bytes: int = 0, refused: int = 0, **facts: Json | None) -> None:
        """Record the end of a computation."""
        told = {name: json.dumps(value) for name, value in facts.items() if value is not None}
        is_known = self._store.end(number, state, file_bytes, refused=refused, **told)
        job = self._dispatched.pop(number, None)
        if not is_known:
            # It was removed meanwhile, and so are its files.
            self._store.remove_files(number)
        if job is not None:
            job.taken()
        self._on_end()

    def _died(self, exit_code: int) -> None:
        """Requeue the runner's computations, and fail those with too many losses."""
        blamed = self._blamed
        # appendleft: the oldest ends up first.
        for number in sorted(self._dispatched, reverse=True):
            row = self._store.numbered(number)
            if row is None or row["cancelling"]:
                self._ended(number, "cancelled")
                continue
            saved_bytes = self._store.saved_bytes(number)
            # A computation with new saved bytes has progressed, and is not the likely cause.
            before = 0 if saved_bytes > row["saved_bytes"] else row["losses"]
            losses = before + (blamed is None)
            if losses >= _LOSSES:
                text = (
                    f"the process that computes {describe_exit(exit_code)}, {losses} times with this "
                    "computation in its hands"
                )
                error = {"type": "RunnerDied", "message": text}
                self._ended(number, "failed", error=error)
                continue
            attempt = row["attempt"] + 1
            self._store.update(number, state="queued", attempt=attempt, losses=losses, saved_bytes=saved_bytes)
            job = self._dispatched.pop(number)
            job.is_suspect, job.live = losses > 0, {}
            self._queue.appendleft(job)
        self._blamed = None


def _order(row: sqlite3.Row, store: ServiceStore) -> Json:
    """Return the runner's command for a computation."""
    return {
        "do": "run",
        "number": row["number"],
        "id": row["id"],
        "name": row["name"],
        "attempt": row["attempt"],
        "graph": os.fspath(store.graph(row["number"])),
        "checkpoint": os.fspath(store.checkpoint(row["number"])),
    }
