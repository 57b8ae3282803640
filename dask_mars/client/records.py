"""Records of computations, while they run and for a while after, without graphs and values.

Every import of dask_mars loads this module, so it imports little. Each `dask_mars.get` makes a record, and details
are computed on request.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TypedDict

from dask_mars.client.task_output import OutputLine, TaskOutput
from dask_mars.errors import Cancelled
from dask_mars.locking import Lock
from dask_mars.observe.counts import ChunkCounts, LayerCounts, Source

QUEUED, PREPARING, RUNNING = "queued", "preparing", "running"
FINISHED, FAILED, CANCELLED = "finished", "failed", "cancelled"
#: In the order in which a computation may pass through them.
STATES = (QUEUED, PREPARING, RUNNING, FINISHED, FAILED, CANCELLED)
#: The states that a computation never leaves.
OVER = frozenset({FINISHED, FAILED, CANCELLED})

#: Longest error message that a record keeps, in characters.
_MESSAGE_CHARACTERS = 10_000


class ValueDescription(TypedDict):
    """Description of a result: ``kind``, ``dtype``, ``shape``, ``bytes``, and whether the value is gone."""

    kind: str
    dtype: str | None
    shape: list[int | None] | None
    bytes: int | None
    evicted: bool


class FailureText:
    """The error of a computation as text: an exception would keep alive what its frames refer to."""

    def __init__(self, error: BaseException) -> None:
        self.type = type(error).__name__
        try:
            self.message = str(error)[:_MESSAGE_CHARACTERS]
        except Exception:
            self.message = "(it cannot be shown)"
        self._summary: traceback.TracebackException | None = None
        # Exceptions of users may raise on any access.
        try:
            # Neither frames nor lines of source code: `traceback` reads these on request.
            self._summary = traceback.TracebackException.from_exception(error, lookup_lines=False)
        except Exception:
            self._summary = None

    @property
    def traceback(self) -> str:
        """The traceback, as Python prints it."""
        return "" if self._summary is None else "".join(self._summary.format())


class Record:
    """One computation, as threads other than its calling thread see it."""

    # The calling thread enters it as a context while it computes, possibly nested, and changes it. Other threads
    # read it and may call `cancel`. Nothing here waits, and no lock is held across a fork.

    def __init__(self, name: str = "", id: str | None = None, is_submitted: bool = False) -> None:
        #: The user's name for it.
        self.name = name
        self.is_submitted = is_submitted
        #: One of `STATES`.
        self.state = QUEUED
        #: Times of submission, of the first runnable chunk, and of the end, in seconds since 1970.
        self.created_s = time.time()
        self.started_s: float | None = None
        self.ended_s: float | None = None
        #: The engine's id of the graph, if an engine computes it.
        self.graph: int | None = None
        #: The error, if it has failed.
        self.failure: FailureText | None = None
        #: Description of the result, if the computation was submitted.
        self.result: ValueDescription | None = None
        #: The source of its progress; None before there are chunks.
        self.source: Source | None = None
        self._id = id
        self._depth = 0
        self._output: TaskOutput | None = None
        self._reason: Exception | None = None
        #: Whether `cancel` has reported success although the engine was too busy to stop the computation.
        self._is_given_up = False
        self._stop: Callable[[], bool] | None = None
        #: Makes the start of the run, and a cancellation before it, atomic; held for a few assignments only.
        self._lock = Lock()
        self._leave: Callable[[Exception], None] | None = None
        self._on_end: Callable[[Record], None] | None = None

    @property
    def id(self) -> str:
        """The computation's id, a UUID as text."""
        if self._id is None:
            # Few computations need an id. setdefault gives two threads the same one.
            vars(self).setdefault("_made_id", str(uuid.uuid4()))
            self._id = vars(self)["_made_id"]
        return self._id

    @property
    def is_over(self) -> bool:
        """True once it has finished, failed or been cancelled."""
        return self.state in OVER

    # -- in the calling thread --------------------------------------------------------------------------------

    def __enter__(self) -> Record:
        self._depth += 1
        if self._depth == 1:
            with self._lock:
                self.raise_if_cancelled()
                self.state = PREPARING
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth:
            return
        reason = self._reason
        if reason is not None and error is not None and not isinstance(error, (KeyboardInterrupt, type(reason))):
            # An error that the cancellation caused elsewhere, such as cancelled futures, would mislead the user.
            self.end(reason)
            raise reason from None
        if self.end(error) and not self._is_given_up:
            return
        if error is None and self._reason is not None:
            # `cancel` has already reported it as cancelled.
            raise self._reason

    def raise_if_cancelled(self) -> None:
        """Raise if the computation is cancelled."""
        if self._reason is not None:
            raise self._reason

    def run(self, source: Source, stop: Callable[[], bool], graph: int | None = None) -> None:
        """Record that the graph is prepared and chunks run from now on."""
        # `stop` returns False if the computation has finished, and raises `TimeoutError` if it will stop it later.
        with self._lock:
            # A cancellation before this point had no `stop` to call.
            self.raise_if_cancelled()
            self.source, self.graph = source, graph
            # A computation may start again.
            self.started_s = self.started_s or time.time()
            self._stop, self._leave = stop, None
            self.state = RUNNING

    def may_be_left(self, leave: Callable[[Exception], None]) -> None:
        """Register a callback for cancellation before the computation runs."""
        # The callback ends it, and its calling thread stops at the next `raise_if_cancelled`.
        self._leave = leave

    def abandon(self, error: Exception) -> None:
        """Mark the computation as failed in a forked process, whatever other threads were doing to it."""
        self._lock = Lock()
        self.source = self._stop = self._leave = self._on_end = None
        self.state, self.ended_s, self.failure = FAILED, time.time(), FailureText(error)

    def note(self, stream: str, text: str) -> None:
        """Record output or a warning of a task: lines, and perhaps the beginning of one."""
        if self._output is None:
            self._output = TaskOutput()
        self._output.add(stream, text)

    def end(self, error: BaseException | None = None) -> bool:
        """Record the end of the computation. Return False if it had ended before."""
        if self.state in OVER:
            return False
        if self.source is not None:
            self.source = self.source.final(error is None)
        with self._lock:
            return self._end(error)

    def _end(self, error: BaseException | None) -> bool:
        if self.state in OVER:
            return False
        if error is None and self._is_given_up:
            error = self._reason
        self._stop = self._leave = None
        self.ended_s = time.time()
        if error is None:
            self.state = FINISHED
        elif isinstance(error, (Cancelled, KeyboardInterrupt)):
            self.state = CANCELLED
        else:
            self.failure = FailureText(error)
            self.state = FAILED
        if self._on_end is not None:
            self._on_end(self)
            self._on_end = None
        return True

    # -- in any thread ----------------------------------------------------------------------------------------

    def cancel(self, reason: Exception | None = None) -> bool:
        """Cancel it: its calling thread raises the reason, or `Cancelled`. Return False if it is over already."""
        reason = reason or Cancelled(self.id)
        with self._lock:
            if self.state in OVER:
                return False
            before, self._reason = self._reason, reason
            stop, leave = self._stop, self._leave
            if leave is not None:
                self._end(reason)
        if leave is not None:
            leave(reason)
            return True
        try:
            if stop is None or stop():
                return True
        except TimeoutError:
            # The engine stops it later; a result that arrives before that is dropped.
            with self._lock:
                if self.state not in OVER:
                    self._is_given_up = True
                    return True
        self._reason = before
        return False

    def counts(self) -> ChunkCounts:
        """Count its chunks."""
        source = self.source
        return ChunkCounts() if source is None else source.counts()

    def layers(self) -> Sequence[LayerCounts]:
        """Count the chunks of each layer."""
        source = self.source
        return () if source is None else source.layers()

    @property
    def log(self) -> tuple[list[OutputLine], bool]:
        """Output and warnings of its tasks, and whether earlier lines were dropped."""
        return ([], False) if self._output is None else self._output.lines()

    def explain(self, key: object = None, patience_s: float | None = None) -> str:
        """Return what it waits for, or why a key is not computed."""
        source, state = self.source, self.state
        if state == RUNNING and source is not None:
            return source.explain(key, patience_s)
        if key is not None:
            raise KeyError(key)
        if state == QUEUED:
            return "the computation waits for its turn: others have been submitted before"
        if state == PREPARING:
            return f"the graph is being prepared, for {time.time() - self.created_s:.1f} s"
        text = f"the computation is {state}" if state == CANCELLED else f"the computation has {state}"
        return text if self.failure is None else f"{text}: {self.failure.type}: {self.failure.message}"


def _as_uuid(id: object) -> str:
    try:
        return str(uuid.UUID(str(id)))
    except ValueError:
        raise ValueError(f"the id of a computation is a UUID, as uuid.uuid4() makes it, and not {id!r}") from None


class Records:
    """The computations of one runtime: all that have not ended, and the most recent ended ones."""

    def __init__(self, remembered: int = 200) -> None:
        self._remembered = remembered
        self._serials = itertools.count()
        # Threads add and remove without a lock: each step is atomic in the interpreter.
        self._live: dict[int, Record] = {}
        self._over: deque[tuple[int, Record]] = deque()

    def new(self, name: str = "", id: str | None = None, is_submitted: bool = False) -> Record:
        """Create the record of a computation."""
        if id is not None:
            id = _as_uuid(id)
            if any(record.id == id for record in self):
                raise ValueError(f"there is a computation with the id {id} already")
        record = Record(name, id, is_submitted)
        serial = next(self._serials)
        self._live[serial] = record

        def on_end(record: Record) -> None:
            # In both for a moment rather than in none.
            self._over.append((serial, record))
            self._live.pop(serial, None)
            self._forget()

        record._on_end = on_end
        return record

    def _forget(self) -> None:
        while len(self._over) > self._remembered:
            # Another thread may have just taken the last one.
            with contextlib.suppress(IndexError):
                self._over.popleft()

    def __iter__(self) -> Iterator[Record]:
        """Iterate over all records, the newest first."""
        known = dict(self._over.copy())
        known.update(self._live.copy())
        return iter([known[serial] for serial in sorted(known, reverse=True)])

    def live(self) -> list[Record]:
        """Return the records that have not ended, in order of submission."""
        return list(self._live.copy().values())

    def find(self, id: str | int) -> Record:
        """Return the record with an id, or with the graph id that an engine gave it."""
        for record in self:
            if (record.id if isinstance(id, str) else record.graph) == id:
                return record
        raise KeyError(id)

    def counts(self) -> dict[str, int]:
        """Count the records by state."""
        found = dict.fromkeys(STATES, 0)
        for record in self:
            found[record.state] += 1
        return found
