"""Reports the progress of chunks from agents to the client's callbacks.

Reports travel as events of Dask's scheduler, which any scheduler passes on. The scheduler keeps the last
``distributed.admin.low-level-log-length`` events of each topic forever, so that there are few topics, and short
events: ranges of chunks for each subtask.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distributed import Client, Worker

from dask_mars.client.callbacks import Observer
from dask_mars.cluster.partition.subtasks import Subtask
from dask_mars.graph.chunks import DATA, ChunkGraph
from dask_mars.locking import Lock

#: Interval for collecting reports before they are sent, in seconds.
_COLLECT_S = 0.1
#: Interval at which a waiting thread checks that the client is open, in seconds.
_LIVENESS_S = 2.0
#: Number of topics; clients share them, as Dask never removes topics.
_TOPICS = 16
#: Name of an unknown worker process.
_SOMEWHERE = "unknown"

#: Ranges of chunks, flat: first id and count of each range.
Ranges = list[int]


def ranges_of(numbers: Sequence[int]) -> Ranges:
    """Return numbers as ranges."""
    ranges: Ranges = []
    for number in sorted(numbers):
        if ranges and ranges[-2] + ranges[-1] == number:
            ranges[-1] += 1
        else:
            ranges += [number, 1]
    return ranges


def numbers_in(ranges: Ranges) -> list[int]:
    """Return the numbers in ranges."""
    starts = zip(ranges[::2], ranges[1::2], strict=True)
    return [number for first, count in starts for number in range(first, first + count)]


def _by_place(took: Mapping[int, float]) -> list[float]:
    """Return the durations of chunks in the order of their positions; none if the client needs none."""
    return [round(took[place], 6) for place in sorted(took)] if any(took.values()) else []


# -- where chunks are computed --------------------------------------------------------------------------------


@dataclass(slots=True)
class _News:
    """Progress of a subtask since the last report, by positions of chunks in it."""

    begun: set[int] = field(default_factory=set)
    #: Ended chunks by worker process, each with its duration in seconds.
    ended: dict[int, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))


class ProgressSender:
    """Reports progress of a worker's subtasks, about ten times a second, while there is any."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._lock = Lock()
        #: Unsent progress by topic, then by computation and subtask.
        self._news: dict[str, dict[tuple[str, int], _News]] = {}

    def note(
        self,
        topic: str,
        subtask: tuple[str, int],
        begun: Sequence[int] = (),
        ended: Mapping[int, float] | None = None,
        pid: int = 0,
    ) -> None:
        """Record progress of chunks, from any thread."""
        with self._lock:
            first = not self._news
            news = self._news.setdefault(topic, {}).setdefault(subtask, _News())
            news.begun.update(begun)
            if ended:
                # The receiver infers the start from the end.
                news.begun.difference_update(ended)
                news.ended[pid].update(ended)
        if first:
            self._worker.loop.add_callback(self._worker.loop.call_later, _COLLECT_S, self._send)

    def _send(self) -> None:
        with self._lock:
            news, self._news = self._news, {}
        for topic, of_subtasks in news.items():
            subtasks = []
            for subtask, told in of_subtasks.items():
                ended = [(pid, ranges_of([*took]), _by_place(took)) for pid, took in told.ended.items()]
                subtasks.append((*subtask, ranges_of([*told.begun]), ended))
            self._worker.log_event(topic, {"worker": self._worker.address, "subtasks": subtasks})


class SubtaskObserver:
    """Reports the progress of a subtask's chunks."""

    wants_tasks = True
    values_wanted = False

    def __init__(self, messenger: ProgressSender, mark: Mapping[str, Any], known: int) -> None:
        self._messenger = messenger
        self._topic: str = mark["topic"]
        self._subtask = mark["computation"], mark["subtask"]
        self.in_order = mark["in_order"]
        self.wants_seconds = bool(mark["seconds"])
        self._known = known
        #: Returns the durations of chunks, by id, once the engine has started.
        self.durations_s: Callable[[], Sequence[float]] = tuple

    def begun(self, graph: ChunkGraph, chunks: Sequence[int]) -> None:
        """Report that chunks were dispatched."""
        self._messenger.note(self._topic, self._subtask, begun=self._places(chunks))

    def ended(self, graph: ChunkGraph, chunks: Sequence[int], values: Mapping[int, Any], worker: int) -> None:
        """Report that chunks were computed."""
        durations_s = self.durations_s()
        # Chunks that this process computes itself have no measurement yet.
        seconds = [max(durations_s[chunk], 0.0) if durations_s else 0.0 for chunk in chunks]
        ended = dict(zip(self._places(chunks), seconds, strict=True))
        self._messenger.note(self._topic, self._subtask, ended=ended, pid=worker)

    def _places(self, chunks: Sequence[int]) -> list[int]:
        return [chunk - self._known for chunk in chunks]


# -- the user's process ---------------------------------------------------------------------------------------

_lock = Lock()
#: Queues for reports, by computation.
_inboxes: dict[str, queue.SimpleQueue[Any]] = {}
#: Number of observed computations, by client id.
_watched: Counter[str] = Counter()
#: Connection of each client's last subscription; another scheduler does not know of it.
_asked: dict[str, Any] = {}


def _on_topic_event(event: tuple[float, Mapping[str, Any]]) -> None:
    """Queue a report, in the client's event loop."""
    worker, subtasks = event[1]["worker"], event[1]["subtasks"]
    for computation, *news in subtasks:
        inbox = _inboxes.get(computation)
        if inbox is not None:
            inbox.put((worker, *news))


class ProgressReceiver:
    """Reports each chunk of a computation to an observer once, its inputs first."""

    # Reports of different hosts may overtake each other, lost chunks are computed again, and other workers than
    # agents send no reports. So the end of a chunk implies the end of its inputs.

    def __init__(
        self,
        client: Client,
        name: str,
        graph: ChunkGraph,
        subtasks: Sequence[Subtask],
        observer: Observer,
        took: Callable[[int, float], None] | None = None,
    ) -> None:
        self._client = client
        self._name = name
        self._graph = graph
        self._subtasks = subtasks
        self._observer = observer
        self._took = took
        self._topic = f"dask-mars-progress-{zlib.crc32(client.id.encode()) % _TOPICS}"
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._begun = bytearray(operand == DATA for operand in graph.operand_of)
        self._ended = bytearray(self._begun)

    def open(self) -> None:
        """Subscribe to reports."""
        with _lock:
            _inboxes[self._name] = self._inbox
            _watched[self._client.id] += 1
            if _watched[self._client.id] == 1 or _asked[self._client.id] is not self._client.scheduler_comm:
                _asked[self._client.id] = self._client.scheduler_comm
                self._client.subscribe_topic(self._topic, _on_topic_event)

    def close(self) -> None:
        """Unsubscribe."""
        with _lock:
            del _inboxes[self._name]
            _watched[self._client.id] -= 1
            if not _watched[self._client.id]:
                del _watched[self._client.id], _asked[self._client.id]
                # A closed client has no subscription.
                with contextlib.suppress(Exception):
                    self._client.unsubscribe_topic(self._topic)

    @property
    def mark(self) -> dict[str, Any]:
        """Annotation from which workers know where to report."""
        return {"topic": self._topic, "in_order": self._observer.in_order, "seconds": self._took is not None}

    def gather(self, futures: list[Any]) -> Any:
        """Return the values of futures, and handle reports meanwhile."""
        outcome = _outcome(self._client.gather(futures, asynchronous=True))
        gathering = asyncio.run_coroutine_threadsafe(outcome, self._client.loop.asyncio_loop)
        gathering.add_done_callback(lambda _: self._inbox.put(None))
        try:
            while (message := self._next()) is not None:
                self._take(*message)
            values, error = gathering.result(_LIVENESS_S)
        finally:
            gathering.cancel()
        if error is not None:
            raise error
        return values

    def _next(self) -> Any:
        """Return the next report, None once the values are there or the client is closed."""
        while True:
            try:
                return self._inbox.get(timeout=_LIVENESS_S)
            except queue.Empty:
                if self._client.status == "closed":
                    return None

    def catch_up(self) -> None:
        """Handle all queued reports."""
        with contextlib.suppress(queue.Empty):
            while message := self._inbox.get_nowait():
                self._take(*message)

    def finish(self) -> None:
        """Report all remaining chunks as computed."""
        self.catch_up()
        for chunk in range(len(self._graph)):
            self.end(chunk)

    def _take(self, host: str, index: int, begun: Ranges, ended: list[tuple[int, Ranges, list[float]]]) -> None:
        chunks = self._subtasks[index].chunks
        for pid, ranges, seconds in ended:
            places = numbers_in(ranges)
            if self._took is not None and seconds:
                for place, took_s in zip(places, seconds, strict=True):
                    self._took(chunks[place], took_s)
            for place in places:
                self.end(chunks[place], worker=f"{host} process {pid}")
        for place in numbers_in(begun):
            self.begin(chunks[place])

    def begin(self, chunk: int) -> None:
        """Report that a chunk was dispatched."""
        if not self._begun[chunk]:
            if self._observer.in_order:
                for source in self._graph.inputs[chunk]:
                    self.end(source)
            self._begun[chunk] = 1
            self._observer.begun(self._graph, [chunk])

    def end(self, chunk: int, value: Any = None, worker: str = _SOMEWHERE) -> None:
        """Report that a chunk was computed, after its inputs."""
        graph, ended = self._graph, self._ended
        waiting = [chunk]
        while waiting:
            last = waiting[-1]
            if not ended[last]:
                missing = [source for source in graph.inputs[last] if not ended[source]]
                if missing:
                    waiting += missing
                    continue
                self.begin(last)
                ended[last] = 1
                of_this = (value, worker) if last == chunk else (None, _SOMEWHERE)
                self._observer.ended(graph, [last], {last: of_this[0]}, of_this[1])
            waiting.pop()


async def _outcome(gathering: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """Return the result or the error: some errors lose their arguments between event loops and threads."""
    try:
        return await gathering, None
    except BaseException as error:
        return None, error
