"""The workers: what is dispatched to each, and in which order they take chunks.

A part of the state machine, and pure. An event touches the workers that it names; the others keep their places.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection
from itertools import islice

from dask_mars.scheduler.events import GraphPlan

#: Duration of a chunk beside which the time for handing it over is short, in seconds.
_LONG_S = 0.001
#: Maximum number of workers among which the last chunks are balanced: to look at all would take too long.
_MOST_BALANCED = 16
#: Load in seconds, number of dispatched chunks and id of a worker that may take chunks.
Place = tuple[float, int, int]


class Worker:
    """One worker's dispatched chunks."""

    def __init__(self, id: int, is_thread: bool = False) -> None:
        self.id = id
        self.is_thread = is_thread
        #: (graph, chunk) to the estimated duration that it adds to `load_s`, in the order of dispatch.
        self.dispatched: dict[tuple[int, int], float] = {}
        #: Estimated seconds of dispatched work.
        self.load_s = 0.0
        #: Last granted quota in bytes, -1 before the first.
        self.granted_bytes = -1
        #: Time of its last report, or when it last had nothing to do.
        self.last_report_s = 0.0
        #: Number of recalls since then.
        self.recall_attempts = 0
        #: Whether `Recalls` has a timer for it.
        self.is_watched = False
        #: Its place among the workers that may take chunks, if it may.
        self.place: Place | None = None

    def add(self, graph: int, chunk: int, cost_s: float, now_s: float) -> None:
        """Add a dispatched chunk."""
        if not self.dispatched:
            self.last_report_s, self.recall_attempts = now_s, 0
        self.dispatched[graph, chunk] = cost_s
        self.load_s += cost_s

    def remove(self, graph: int, chunks: Collection[int]) -> None:
        """Remove chunks that it has no longer."""
        for chunk in chunks:
            self.load_s -= self.dispatched.pop((graph, chunk))
        if not self.dispatched:
            self.load_s = 0.0


class Workforce:
    """All workers by id, and the places of those that may take chunks, least loaded first."""

    def __init__(self, window_s: float, silence_s: float) -> None:
        self._window_s, self._half_window_s = window_s, window_s / 2
        self._silence_s = silence_s
        #: Time of the present event.
        self.now_s = 0.0
        self.by_id: dict[int, Worker] = {}
        self.idle: set[int] = set()
        #: Workers that exceed their share of memory. They take no chunks while they are busy.
        self.over_share: Collection[int] = ()
        self._places: list[Place] = []
        self._has_threads = False
        # Time and worker of reports, in the order of time.
        self._reports: deque[tuple[float, int]] = deque()

    def start(self, id: int, is_thread: bool) -> None:
        """Add a worker."""
        self.remove(id)
        worker = self.by_id[id] = Worker(id, is_thread)
        self._has_threads = self._has_threads or is_thread
        self.place(worker)

    def remove(self, id: int) -> Worker | None:
        """Remove a worker, if it is known, and return it."""
        worker = self.by_id.pop(id, None)
        if worker is not None:
            self._displace(worker)
            self.idle.discard(id)
            if worker.is_thread:
                self._has_threads = any(other.is_thread for other in self.by_id.values())
        return worker

    def record_report(self, id: int) -> None:
        """Record that a worker has reported a chunk, which is removed next."""
        worker = self.by_id[id]
        worker.last_report_s, worker.recall_attempts = self.now_s, 0

    def set_over_share(self, workers: Collection[int]) -> None:
        """Replace the workers that exceed their share of memory."""
        changed = {*self.over_share, *workers} & self.by_id.keys()
        self.over_share = workers
        for id in changed:
            self.place(self.by_id[id])

    def place(self, worker: Worker) -> None:
        """Update a worker's place in the order of dispatch."""
        count = len(worker.dispatched)
        place: Place | None = None
        if not count:
            place = 0.0, 0, worker.id
            self.idle.add(worker.id)
        else:
            self.idle.discard(worker.id)
            # Top workers up at half a window, so that they do not run dry. A silent worker's chunk may run for as
            # long again.
            if (
                worker.load_s < self._half_window_s
                and worker.last_report_s + self._silence_s > self.now_s
                and worker.id not in self.over_share
            ):
                place = worker.load_s, count, worker.id
            if worker.last_report_s == self.now_s:
                self._reports.append((self.now_s, worker.id))
        if place != worker.place:
            self._displace(worker)
            if place is not None:
                insort(self._places, place)
                worker.place = place

    def _displace(self, worker: Worker) -> None:
        if worker.place is not None:
            del self._places[bisect_left(self._places, worker.place)]
            worker.place = None

    def drop_silent(self) -> None:
        """Take the places of workers that have become silent."""
        reports, last_s = self._reports, self.now_s
        while reports and reports[0][0] + self._silence_s <= last_s:
            worker = self.by_id.get(reports.popleft()[1])
            if worker is not None and worker.dispatched and worker.place is not None:
                self.place(worker)

    def open_to(self, plan: GraphPlan) -> list[Place]:
        """Return the places of workers that may take chunks of a graph; not to be changed."""
        if plan.worker_limit is None and (plan.is_library_code or not self._has_threads):
            return self._places
        return [place for place in self._places if self._accepts(self.by_id[place[2]], plan)]

    def has_enough(self, worker: Worker, plan: GraphPlan, cost_s: float, left: int) -> bool:
        """Return whether a busy worker takes no further chunk, given how many READY ones are left, 0 for many."""
        if worker.load_s + cost_s > self._window_s:
            return True
        if cost_s < _LONG_S or not 0 < left < min(len(self.by_id), _MOST_BALANCED):
            return False
        # The last ones go to the workers that are free first, but for silent ones, which may have a long chunk.
        end_s = worker.last_report_s + worker.load_s
        for other in islice(self.by_id.values(), _MOST_BALANCED):
            if (
                other is not worker
                and other.dispatched
                # Loads from before an operand was measured are guesses.
                and other.last_report_s + min(other.load_s, len(other.dispatched) * cost_s) < end_s
                and other.last_report_s + self._silence_s > self.now_s
                and self._accepts(other, plan)
            ):
                left -= 1
                if not left:
                    return True
        return False

    def next_position(self, places: list[Place], position: int, ids: Collection[int]) -> int:
        """Return the first position of one of the given workers, from a position on; the end if there is none."""
        end = len(places)
        if len(ids) >= end - position:
            return next((later for later in range(position, end) if places[later][2] in ids), end)
        found = [self.by_id[id].place for id in ids]
        positions = [bisect_left(places, place) for place in found if place is not None]
        return min([later for later in positions if later >= position], default=end)

    def first_for(self, plan: GraphPlan) -> Worker | None:
        """Return the worker that started first of those that may compute chunks of a graph."""
        return next((worker for worker in self.by_id.values() if self._accepts(worker, plan)), None)

    @staticmethod
    def _accepts(worker: Worker, plan: GraphPlan) -> bool:
        is_allowed = plan.worker_limit is None or worker.id < plan.worker_limit
        return is_allowed and (plan.is_library_code or not worker.is_thread)

    @property
    def busy_count(self) -> int:
        """Return the number of workers with dispatched chunks."""
        return len(self.by_id) - len(self.idle)

    def validate(self) -> None:
        """Check every invariant; raise AssertionError where one does not hold."""
        assert self._places == sorted(worker.place for worker in self.by_id.values() if worker.place is not None)
        assert self.idle == {id for id, worker in self.by_id.items() if not worker.dispatched}
        for worker in self.by_id.values():
            assert abs(worker.load_s - sum(worker.dispatched.values())) < 1e-6
            if not worker.dispatched:
                assert worker.place == (0.0, 0, worker.id)
            elif worker.place is not None:
                assert worker.place == (worker.load_s, len(worker.dispatched), worker.id)
