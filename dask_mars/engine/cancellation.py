"""Deadlines for workers to leave a cancelled graph."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Collection, Mapping

from dask_mars.engine.worker_handle import WorkerHandle
from dask_mars.protocol.control import ControlPage

#: Interval between interruptions of a task, in seconds: a signal just before a system call does not end the call.
_AGAIN_S = 0.02


class Cancellation:
    """Interrupts tasks, and ends processes whose task goes on."""

    def __init__(
        self,
        workers: Mapping[int, WorkerHandle],
        control: ControlPage,
        dispatched_to: Callable[[int], Collection[tuple[int, int]]],
        grace_s: float,
    ) -> None:
        self._workers = workers
        self._control = control
        self._dispatched_to = dispatched_to
        self._grace_s = grace_s
        self._numbers = itertools.count()
        #: (next due time, tie-breaker, worker, graph, time at which to end its process).
        self._heap: list[tuple[float, int, WorkerHandle, int, float]] = []

    def add_stop_deadline(self, handle: WorkerHandle, graph: int) -> None:
        """Ensure that no chunk of a graph is dispatched to a worker once the grace period is over."""
        now_s = time.monotonic()
        self._push(now_s, handle, graph, now_s + self._grace_s)

    def next_s(self) -> float | None:
        """Return the next due time."""
        # Workers that are gone need no check, which would wake an idle engine.
        while self._heap and self._is_gone(self._heap[0][2]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _is_gone(self, handle: WorkerHandle) -> bool:
        return self._workers.get(handle.id) is not handle

    def enforce(self, now_s: float) -> None:
        """Interrupt or end the workers that are due."""
        while self._heap and self._heap[0][0] <= now_s:
            _, _, handle, graph, end_s = heapq.heappop(self._heap)
            if not self._is_gone(handle) and any(id == graph for id, _ in self._dispatched_to(handle.id)):
                self._stop(handle, graph, now_s, end_s)

    def _stop(self, handle: WorkerHandle, graph: int, now_s: float, end_s: float) -> None:
        noted = self._control.running(handle.id)
        if not handle.ready or (noted is not None and noted.graph != graph):
            # The worker will return the graph's chunks from its queue, and its present task is another graph's.
            again_s = now_s + max(self._grace_s, _AGAIN_S)
            self._push(again_s, handle, graph, again_s + self._grace_s)
        elif not handle.is_process:
            # Nothing can end a thread from outside, and library code ends by itself.
            self._push(now_s + max(self._grace_s, _AGAIN_S), handle, graph, end_s)
        elif now_s >= end_s:
            handle.kill()
        else:
            if noted is not None:
                self._control.stop(handle.id, graph)
                handle.interrupt()
            self._push(min(now_s + _AGAIN_S, end_s), handle, graph, end_s)

    def _push(self, due_s: float, handle: WorkerHandle, graph: int, end_s: float) -> None:
        heapq.heappush(self._heap, (due_s, next(self._numbers), handle, graph, end_s))
