"""What is known of computations while they run and for a while after: records without graphs and values.

Whoever imports dask_mars loads this, so that it loads next to nothing. Each `dask_mars.get` makes a record: what
can be found out later is found out by those who ask.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import NamedTuple, Protocol, TypedDict

from dask_mars.errors import Cancelled

QUEUED, PREPARING, RUNNING = "queued", "preparing", "running"
FINISHED, FAILED, CANCELLED = "finished", "failed", "cancelled"
#: In the order in which a computation may pass through them.
STATES = (QUEUED, PREPARING, RUNNING, FINISHED, FAILED, CANCELLED)
#: The states that a computation never leaves.
OVER = frozenset({FINISHED, FAILED, CANCELLED})

#: What is kept of what the tasks of one computation print and warn: characters of a line, and of all together.
_LINE_CHARACTERS, _LOG_CHARACTERS = 4_000, 200_000
#: What is kept of a message of an error, in characters.
_MESSAGE_CHARACTERS = 10_000


class ChunkCounts(NamedTuple):
    """How far a computation is, in chunks.

    Attributes
    ----------
    total : int
        All that are to be computed; 0 before that is known.
    waiting, running, finished, failed : int
        How many of them wait for something, are in the hands of workers, are computed, and have failed.
    """

    total: int = 0
    waiting: int = 0
    running: int = 0
    finished: int = 0
    failed: int = 0

    @property
    def fraction(self) -> float:
        """What share of the chunks is computed."""
        return self.finished / self.total if self.total else 0.0


class LayerCounts(NamedTuple):
    """How far one layer of a computation is, and what it has taken.

    Attributes
    ----------
    name, label : str
        Dask's name of the layer, and the same for people: without what tells layers of one kind from each other.
    total, finished, running, failed : int
        Chunks.
    seconds : float
        How long workers have spent on it.
    bytes : int
        What its results took in the store when they were computed; small values are none of it.
    """

    name: str
    label: str
    total: int = 0
    finished: int = 0
    running: int = 0
    failed: int = 0
    seconds: float = 0.0
    bytes: int = 0


class Blocks(NamedTuple):
    """The blocks of a layer.

    Attributes
    ----------
    numblocks : list of int
        How many there are along each dimension.
    states : str
        Of each block a letter, the last dimension first: ``w`` waits, ``r`` runs, ``f`` is finished, ``x`` has
        failed, ``.`` is not computed.
    truncated : bool
        Whether there are more.
    """

    numblocks: list[int]
    states: str
    truncated: bool


class Source(Protocol):
    """Knows of a running computation how far it is."""

    def counts(self) -> ChunkCounts:
        """Count its chunks."""

    def layers(self, seconds: float | None = None) -> Sequence[LayerCounts]:
        """Count the chunks of each layer, as far as they can be looked at in some time."""

    def edges(self) -> list[tuple[int, int]]:
        """Return which layers read which, by their places in `layers`."""

    def blocks(self, layer: str) -> Blocks:
        """Return the blocks of a layer, `KeyError` if there is no such."""

    def explain(self, key: object = None, patience_s: float | None = None) -> str:
        """Say what it waits for, or why a key of it is not being computed; `TimeoutError` if nobody has time."""

    def final(self, is_finished: bool) -> Source:
        """Return what is to be remembered when it is over, perhaps as it should: no values and no graph."""


class LogLine(NamedTuple):
    """Something that a task has printed or warned.

    Attributes
    ----------
    time_s : float
        When it came, in seconds since 1970.
    stream : str
        ``"stdout"``, ``"stderr"`` or ``"warning"``.
    text : str
        What.
    """

    time_s: float
    stream: str
    text: str


class ValueDescription(TypedDict):
    """What a result is like: ``kind``, ``dtype``, ``shape``, ``bytes``, and whether it is gone."""

    kind: str
    dtype: str | None
    shape: list[int | None] | None
    bytes: int | None
    evicted: bool


class Failure:
    """Why a computation has failed, in words: an exception itself would keep what its frames refer to.

    Attributes
    ----------
    type, message : str
        Of the exception.
    """

    def __init__(self, error: BaseException) -> None:
        self.type = type(error).__name__
        try:
            self.message = str(error)[:_MESSAGE_CHARACTERS]
        except Exception:
            self.message = "(it cannot be shown)"
        self._summary: traceback.TracebackException | None = None
        # What users have made may raise whatever is asked of it.
        try:
            # Neither frames nor lines of source code: these are read if somebody asks.
            self._summary = traceback.TracebackException.from_exception(error, lookup_lines=False)
        except Exception:
            self._summary = None

    @property
    def traceback(self) -> str:
        """The traceback, as Python prints it."""
        return "" if self._summary is None else "".join(self._summary.format())


class Record:
    """One computation, as far as others than its calling thread may know it.

    Its calling thread enters it as a context for as long as it lasts, more than once if need be, and changes it.
    Other threads read it and may call `cancel`; nothing here waits, and no lock is held across a fork.

    Attributes
    ----------
    name : str
        What the user calls it.
    state : str
        One of `STATES`.
    created_s, started_s, ended_s : float or None
        When it was asked for, when its first chunk could run, and when it was over, in seconds since 1970.
    graph : int or None
        The engine's number of it, if an engine computes it.
    failure : Failure or None
        Why it has failed.
    result : ValueDescription or None
        What came out, where somebody may still ask for it.
    """

    def __init__(self, name: str = "", id: str | None = None, is_submitted: bool = False) -> None:
        self.name = name
        self.is_submitted = is_submitted
        self.state = QUEUED
        self.created_s = time.time()
        self.started_s: float | None = None
        self.ended_s: float | None = None
        self.graph: int | None = None
        self.failure: Failure | None = None
        self.result: ValueDescription | None = None
        self._id = id
        self._depth = 0
        self._source: Source | None = None
        self._log: deque[LogLine] | None = None
        self._begun_lines: dict[str, str] = {}
        self._log_characters = 0
        self._is_log_cut = False
        self._reason: Exception | None = None
        #: Whether somebody has been told that it is cancelled who could not wait for it.
        self._is_given_up = False
        self._stop: Callable[[], bool] | None = None
        #: Makes beginning to run and being cancelled before that one thing each; held for a few assignments alone.
        self._lock = threading.Lock()
        self._leave: Callable[[Exception], None] | None = None
        self._on_end: Callable[[Record], None] | None = None

    @property
    def id(self) -> str:
        """The computation's id, a UUID as text."""
        if self._id is None:
            # Few are ever asked for theirs. Two threads get the same.
            vars(self).setdefault("_made_id", str(uuid.uuid4()))
            self._id = vars(self)["_made_id"]
        return self._id

    @property
    def is_over(self) -> bool:
        """Whether it has finished, failed or been cancelled."""
        return self.state in OVER

    # -- in the calling thread --------------------------------------------------------------------------------

    def __enter__(self) -> Record:
        self._depth += 1
        if self._depth == 1:
            with self._lock:
                self.checkpoint()
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
            # What came of it elsewhere, that futures were cancelled, say, is nothing to the user.
            self.end(reason)
            raise reason from None
        if self.end(error) and not self._is_given_up:
            return
        if error is None and self._reason is not None:
            # Others have been told so already.
            raise self._reason

    def checkpoint(self) -> None:
        """Raise if the computation is to end here."""
        if self._reason is not None:
            raise self._reason

    def run(self, source: Source, stop: Callable[[], bool], graph: int | None = None) -> None:
        """Note that it is prepared, and chunks run from now on.

        Parameters
        ----------
        source : Source
            Knows how far it is.
        stop : callable
            Ends it, so that its calling thread raises; returns False if it is done anyway, and raises
            `TimeoutError` where that will be seen later.
        graph : int, optional
            The engine's number of it.
        """
        with self._lock:
            # Whoever has cancelled it before has found nothing to stop.
            self.checkpoint()
            self._source, self.graph = source, graph
            # It may be begun anew.
            self.started_s = self.started_s or time.time()
            self._stop, self._leave = stop, None
            self.state = RUNNING

    def may_be_left(self, leave: Callable[[Exception], None]) -> None:
        """Note what is to be told if it is cancelled before it runs, and so that it is over then.

        Its calling thread, if there is one by then, goes on to its next checkpoint, and nobody waits for it.
        """
        self._leave = leave

    def abandon(self, error: Exception) -> None:
        """In a forked process: note that nobody goes on with it here, whatever other threads were doing to it."""
        self._lock = threading.Lock()
        self._source = self._stop = self._leave = self._on_end = None
        self.state, self.ended_s, self.failure = FAILED, time.time(), Failure(error)

    def note(self, stream: str, text: str) -> None:
        """Note what a task has printed or warned: lines, and perhaps a part of one that goes on later."""
        if self._log is None:
            self._log = deque()
        now_s = time.time()
        *lines, rest = (self._begun_lines.pop(stream, "") + text).split("\n")
        for line in lines:
            self._log.append(LogLine(now_s, stream, line[:_LINE_CHARACTERS]))
            # Empty lines take room too.
            self._log_characters += min(len(line), _LINE_CHARACTERS) + 1
        while self._log_characters > _LOG_CHARACTERS:
            self._log_characters -= len(self._log.popleft().text) + 1
            self._is_log_cut = True
        if rest:
            self._begun_lines[stream] = rest[:_LINE_CHARACTERS]

    def end(self, error: BaseException | None = None) -> bool:
        """Note that it is over. Return False if it was before."""
        if self.state in OVER:
            return False
        if self._source is not None:
            self._source = self._source.final(error is None)
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
            self.failure = Failure(error)
            self.state = FAILED
        if self._on_end is not None:
            self._on_end(self)
            self._on_end = None
        return True

    # -- in any thread ----------------------------------------------------------------------------------------

    def cancel(self, reason: Exception | None = None) -> bool:
        """End it: its calling thread raises the reason, or `Cancelled`. Return False if it is over already."""
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
            # It is stopped later, or done by then, which nobody is to see any more.
            with self._lock:
                if self.state not in OVER:
                    self._is_given_up = True
                    return True
        self._reason = before
        return False

    def counts(self) -> ChunkCounts:
        """Count its chunks."""
        source = self._source
        return ChunkCounts() if source is None else source.counts()

    def layers(self, seconds: float | None = None) -> Sequence[LayerCounts]:
        """Count the chunks of each layer, as far as they can be looked at in some time."""
        source = self._source
        return () if source is None else source.layers(seconds)

    @property
    def source(self) -> Source | None:
        """What knows how far it is; None before there are chunks."""
        return self._source

    @property
    def log(self) -> tuple[list[LogLine], bool]:
        """What its tasks have printed and warned, and whether there was more before."""
        if self._log is None:
            return [], False
        now_s = time.time()
        begun = [LogLine(now_s, stream, text) for stream, text in self._begun_lines.copy().items()]
        return [*self._log.copy(), *begun], self._is_log_cut

    def explain(self, key: object = None, patience_s: float | None = None) -> str:
        """Say what it waits for, or why a key of it is not being computed.

        Raises
        ------
        KeyError
            It has no such key, or is over.
        TimeoutError
            Whoever knows has no time for so long.
        """
        source, state = self._source, self.state
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
    """The computations of one runtime: all that are not over, and the last of the others.

    Parameters
    ----------
    remembered : int, optional
        How many of the others.
    """

    def __init__(self, remembered: int = 200) -> None:
        self._remembered = remembered
        self._serials = itertools.count()
        # Threads come and go without a lock: each step is one of the interpreter's.
        self._live: dict[int, Record] = {}
        self._over: deque[tuple[int, Record]] = deque()

    def new(self, name: str = "", id: str | None = None, is_submitted: bool = False) -> Record:
        """Make the record of one more computation.

        Raises
        ------
        ValueError
            The id is no UUID, or that of another computation.
        """
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
        """Go through all of them, the newest first."""
        known = dict(self._over.copy())
        known.update(self._live.copy())
        return iter([known[serial] for serial in sorted(known, reverse=True)])

    def live(self) -> list[Record]:
        """Return those that are not over, in the order in which they came."""
        return list(self._live.copy().values())

    def find(self, id: str | int) -> Record:
        """Return the record with an id, or with the number that an engine gave it.

        Raises
        ------
        KeyError
            There is none, or none any more.
        """
        for record in self:
            if (record.id if isinstance(id, str) else record.graph) == id:
                return record
        raise KeyError(id)

    def counts(self) -> dict[str, int]:
        """Count them by state."""
        found = dict.fromkeys(STATES, 0)
        for record in self:
            found[record.state] += 1
        return found


__all__ = [
    "CANCELLED",
    "FAILED",
    "FINISHED",
    "OVER",
    "PREPARING",
    "QUEUED",
    "RUNNING",
    "STATES",
    "Blocks",
    "ChunkCounts",
    "Failure",
    "LayerCounts",
    "LogLine",
    "Record",
    "Records",
    "Source",
    "ValueDescription",
]
