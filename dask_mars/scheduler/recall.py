"""Recalls the queues of workers that run a long chunk while others are idle.

A part of the state machine, and pure. Each worker with a queue has one timer; a report only moves its due time.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from dask_mars.scheduler.admission import Admission
from dask_mars.scheduler.bookkeeping import Graph
from dask_mars.scheduler.workforce import Worker, Workforce

#: Maximum number of doublings of the back-off between recalls.
_MOST_DOUBLINGS = 8


class Recalls:
    """The timers of workers with queues."""

    def __init__(
        self, workforce: Workforce, admission: Admission, graphs: Mapping[int, Graph], silence_s: float
    ) -> None:
        self._workforce = workforce
        self._admission = admission
        self._graphs = graphs
        self._silence_s = silence_s
        # Heap of (due, worker); the true due time may be later.
        self._timers: list[tuple[float, int]] = []
        #: Workers whose queues are due, but cannot run elsewhere yet.
        self._overdue: set[int] = set()

    def watch(self, worker: Worker) -> None:
        """Set a worker's timer if it has a queue and no timer."""
        if not worker.is_watched and len(worker.dispatched) > 1:
            worker.is_watched = True
            heapq.heappush(self._timers, (self._due_s(worker), worker.id))

    def take_due(self) -> list[int]:
        """Return the workers whose queues are due and could run elsewhere, and set their next timers."""
        now_s = self._workforce.now_s
        self._update_first()
        is_none_due = not self._overdue and not (self._timers and self._timers[0][0] <= now_s)
        if is_none_due or not self._are_useful():
            return []
        due = self._overdue.copy()
        while self._timers and self._timers[0][0] <= now_s:
            due.add(heapq.heappop(self._timers)[1])
        recalled = []
        for id in sorted(due):
            self._overdue.discard(id)
            worker = self._workforce.by_id.get(id)
            if worker is None:
                continue
            worker.is_watched = False
            if len(worker.dispatched) > 1 and self._due_s(worker) <= now_s:
                if not self._could_run_elsewhere(worker):
                    worker.is_watched = True
                    self._overdue.add(id)
                    continue
                worker.recall_attempts += 1
                recalled.append(id)
            self.watch(worker)
        return recalled

    def next_s(self) -> float | None:
        """Return the time of the next recall, if no worker reports before."""
        # Without a change: this question is no event, and a replayed log does not ask it.
        return self._timers[0][0] if self._timers and self._are_useful() else None

    def _update_first(self) -> None:
        """Drop or postpone first timers until the first one is true."""
        timers = self._timers
        while timers and self._are_useful():
            due_s, id = timers[0]
            worker = self._workforce.by_id.get(id)
            if worker is None or len(worker.dispatched) < 2:
                heapq.heappop(timers)
                if worker is not None:
                    worker.is_watched = False
            elif self._due_s(worker) > due_s:
                heapq.heapreplace(timers, (self._due_s(worker), id))
            else:
                return

    def _are_useful(self) -> bool:
        """Return whether an idle worker could run recalled chunks: it cannot if it is idle for lack of memory."""
        blocked = self._admission.blocked
        return bool(self._workforce.idle) and (blocked is None or blocked.graph is None)

    def _due_s(self, worker: Worker) -> float:
        return worker.last_report_s + self._silence_s * (1 << min(worker.recall_attempts, _MOST_DOUBLINGS))

    def _could_run_elsewhere(self, worker: Worker) -> bool:
        """Return whether a queued chunk depends on no unfinished chunk."""
        waiting = iter(worker.dispatched)
        # The first one is being computed.
        next(waiting)
        return any(not self._graphs[graph].unfinished_inputs[chunk] for graph, chunk in waiting)
