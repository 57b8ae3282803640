"""Measures the memory of processes, and derives limits and orders from it, which others execute.

The one equation, which holds for each chunk that is dispatched:

    private + stored + reserved - growth + waiting <= limit

=========  =========================================================================================
limit      Memory that all processes and shared memory may take together.
private    Memory that processes take for themselves; programs and libraries count once.
shared     Pages of shared memory: the stored objects, arrays that tasks work on, free blocks.
stored     Objects in memory.
reserved   Memory counted as taken before a chunk takes it.
growth     Private memory that workers have taken since they started. The equation subtracts the
           part that is reserved, or it would count twice.
waiting    Memory that workers have announced, or may take without a request.
free       What private and shared leave of the limit.
share      Growth allowed to each worker in any case.
margin     Minimum of free memory, for growth between two measurements.
spilling   Objects that are being written to disk, and will be free soon.
on_disk    Files of spilled objects.
=========  =========================================================================================

NumPy and Python's objects request memory before they take it. Allocations of other libraries show only in
measurements, which become more frequent as memory runs short. The policy pauses a worker that grows past its share
when nothing is left, while stored objects go to disk and other workers finish. If nothing else can help, it ends
the worker that has grown most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dask_mars.limits import (
    PROC,
    arena_bytes,
    estimate_memory,
    largest_inheritance,
    library_bytes,
    note_copies,
    note_start,
)

#: Assumed maximum growth of all workers together, in bytes per second.
_GROWTH_BYTES_PER_S = 1 << 33
#: Seconds between two measurements: maximum, minimum, and minimum while no worker grows. Without /proc a
#: measurement takes milliseconds.
_LONGEST_S, _SHORTEST_S, _SHORTEST_CALM_S = (0.1, 0.002, 0.01) if PROC.exists() else (1.0, 1.0, 1.0)
#: Maximum fraction of the engine's time spent on measurements.
_TIME_SHARE = 0.1
#: Number of processes whose libraries are measured at a time: the system takes longer for them than for the rest.
_LIBRARIES_AT_ONCE = 8
#: Number of forked processes whose shared pages are measured at a time, each in 1 to 2 ms.
_COPIES_AT_ONCE = 2
#: These pages are measured while less is free than a multiple of all that could be such pages.
_COPIES_MATTER = 4
#: Part of the limit kept free for growth between two measurements: divisor of the limit, and maximum bytes.
_MARGIN, _MOST_MARGIN_BYTES = 20, 128 << 20
#: Minimum share of a worker, in bytes; imports of a task take as much. It holds even where the user's process
#: fills the limit, or workers could do nothing.
LEAST_SHARE_BYTES = 64 << 20
#: Horizon for extrapolating memory growth, in seconds, as the engine may get a processor late; and divisor of the
#: limit that caps it.
_AHEAD_S, _AHEAD = 0.02, 8
#: Seconds for which a worker is paused before it ends: minimum, for others to free pages; maximum, as others may
#: wait for its locks.
_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0
#: Growth in bytes that is worth recording, and growth that marks a worker as growing.
_NOTED_BYTES, _GROWING_BYTES = 16 << 20, 1 << 20
#: Workers that grow more slowly may finish within the margin: the policy pauses faster ones once this fraction is
#: left. Divisor of the margin, and bytes per second.
_LAST, _SLOW_BYTES_PER_S = 4, 16 << 20

#: Minimum size of the store, however much the workers use: a fraction of its limits, and bytes.
_LEAST_STORE, _LEAST_STORE_BYTES = 0.25, 1 << 25
#: Growth of all workers' memory that needs no request: divisor of the limit, and maximum bytes per worker. The
#: store's limit is lower by it.
_SLACK_SHARE, _MOST_SLACK_BYTES = 32, 1 << 26

Running = tuple[int, int] | None


@dataclass(slots=True)
class WorkerMemory:
    """Memory that one worker process takes for itself."""

    pid: int
    #: Private memory when it had started.
    baseline_bytes: int
    private_bytes: int
    #: Growth of memory taken without asking, between the last two measurements.
    grown_bytes: int = 0
    grown_per_s: float = 0.0
    running: Running = None
    #: Minimum of private memory since the first measurement of this chunk.
    begun_bytes: int = 0
    #: Growth that was last recorded.
    noted_bytes: int = 0
    paused_s: float | None = None
    #: Private memory that it has requested for this chunk.
    asked_bytes: int = 0

    @property
    def growth_bytes(self) -> int:
        """Return the bytes that the worker has taken since it started."""
        return max(self.private_bytes - self.baseline_bytes, 0)

    @property
    def unasked_bytes(self) -> int:
        """Return the bytes that the worker has taken without asking, or before this chunk."""
        return self.private_bytes - self.asked_bytes

    def add_before(self, size_bytes: int) -> None:
        """Count bytes as if the worker had taken them before it started, not as growth."""
        self.baseline_bytes += size_bytes
        self.private_bytes += size_bytes
        self.begun_bytes += size_bytes

    def update(self, private_bytes: int, running: Running, asked_bytes: int) -> None:
        """Record a measurement, the chunk that the worker runs, and its requests for that chunk."""
        before_bytes, before_unasked, before = self.private_bytes, self.unasked_bytes, self.running
        self.private_bytes, self.running = private_bytes, running
        if running != before:
            self.begun_bytes, self.noted_bytes = before_bytes, 0
            # Requests for earlier chunks count as the worker's own memory from now on.
            before_unasked = before_bytes
        self.begun_bytes = min(self.begun_bytes, private_bytes)
        # The worker may not have touched its requested memory yet, and may have kept as much from earlier chunks.
        self.asked_bytes = min(asked_bytes, private_bytes - self.begun_bytes)
        # Freed requests may still be resident; this does not count as growth.
        self.grown_bytes = min(self.unasked_bytes - before_unasked, private_bytes - before_bytes)


class Orders(NamedTuple):
    """Workers to pause, resume and end, by id."""

    pause: tuple[int, ...] = ()
    resume: tuple[int, ...] = ()
    end: tuple[int, ...] = ()


class Limits(NamedTuple):
    """Limits in bytes: of objects in memory, and of these with results that need not fit in the store."""

    store_bytes: int
    hard_bytes: int


def slack_bytes(limit_bytes: int, num_workers: int) -> int:
    """Return by how much each worker's memory may grow without a request."""
    return min(_MOST_SLACK_BYTES, limit_bytes // (_SLACK_SHARE * num_workers))


def idle_above(workers: Mapping[int, WorkerMemory], most_bytes: int) -> list[int]:
    """Return the idle workers that have grown by more than `most_bytes`, largest growth last."""
    idle = [(worker.growth_bytes, worker_id) for worker_id, worker in workers.items() if worker.running is None]
    return [worker_id for growth_bytes, worker_id in sorted(idle) if growth_bytes > most_bytes]


def decide(
    workers: Mapping[int, WorkerMemory],
    free_bytes: int,
    margin_bytes: int,
    share_bytes: int,
    may_shrink: bool,
    now_s: float,
) -> Orders:
    """Decide which workers to pause, resume or end; negative `free_bytes` exceed the limit."""
    paused = sorted(
        (worker.growth_bytes, worker_id) for worker_id, worker in workers.items() if worker.paused_s is not None
    )

    def is_over(worker_id: int) -> bool:
        """Return whether a worker's pause has lasted its maximum."""
        since_s = workers[worker_id].paused_s
        assert since_s is not None
        return now_s - since_s > (_LONGEST_PAUSE_S if may_shrink else _PAUSE_S)

    if free_bytes >= margin_bytes:
        # One at a time: the first may take all free memory, and a small surplus would soon pause it again.
        # After its longest pause a worker resumes in any case, as nothing else may change.
        goes_on = paused and (free_bytes >= 2 * margin_bytes or is_over(paused[0][1]))
        return Orders(resume=(paused[0][1],)) if goes_on else Orders()
    if idle := idle_above(workers, share_bytes):
        # An idle worker has nothing to lose.
        return Orders(end=(idle[-1],))
    is_last = _LAST * free_bytes < margin_bytes
    # Arrays may have taken a worker's share. Past the limit all growing workers wait.
    least_bytes = share_bytes // (2 if free_bytes > 0 else 16)
    growing = [
        worker_id
        for worker_id, worker in workers.items()
        if (worker.grown_bytes > _GROWING_BYTES or (is_last and worker.grown_per_s > _SLOW_BYTES_PER_S))
        # Granted bytes count only far past the limit; until then the worker's next request is refused.
        and worker.growth_bytes - (worker.asked_bytes if 2 * free_bytes > -margin_bytes else 0) > least_bytes
        and worker.running is not None
        and worker.paused_s is None
    ]
    if growing:
        return Orders(pause=tuple(growing))
    if paused and is_over(paused[-1][1]):
        return Orders(end=(paused[-1][1],))
    return Orders()


class MemoryWatch:
    """Measures the processes of an engine."""

    def __init__(
        self,
        limit_bytes: int,
        num_workers: int,
        client_pid: int,
        arenas: Collection[int],
        template_bytes: Callable[[], int] = int,
    ) -> None:
        self._limit_bytes = limit_bytes
        self._num_workers = num_workers
        self._client_pid = client_pid
        self._arenas = arenas
        self._template_bytes = template_bytes
        self._margin_bytes = min(limit_bytes // _MARGIN, _MOST_MARGIN_BYTES)
        #: Memory of workers that are not up yet, in bytes.
        self._starting_bytes = 0
        #: Bytes of programs and libraries of each process, the longest unmeasured first; and their maximum with
        #: the memory that workers are forked with.
        self._libraries: dict[int, int] = {}
        self._library_bytes = 0
        #: Time of the last measurement; and growth of workers expected before they can be paused.
        self._looked_s = 0.0
        self._ahead_bytes = 0
        self.workers: dict[int, WorkerMemory] = {}
        #: The user's process; all processes, plus programs and libraries once; the same plus shared memory.
        self.client_bytes = self.private_bytes = self.used_bytes = 0
        #: Growth allowed to workers and shared memory together; what is left, less the growth that is expected.
        self.room_bytes = self.free_bytes = limit_bytes
        #: Whether processes take all of the limit before they have computed anything.
        self.is_hopeless = False
        #: Latest time of the next measurement, on the monotonic clock.
        self.next_s = 0.0

    def add(self, worker_id: int, pid: int) -> None:
        """Register a worker that has started."""
        note_start(pid)
        taken = estimate_memory([pid])
        self.workers[worker_id] = WorkerMemory(pid, taken, taken, begun_bytes=taken)

    def remove(self, worker_id: int) -> None:
        """Unregister a worker that has ended."""
        self.workers.pop(worker_id, None)

    def measure_copies(self) -> None:
        """Count the pages that workers have copied from their template as if they had had them from the start."""
        # They took them at any time, and no chunk is the cause. While workers grow, looks at these are urgent. A
        # measurement slows workers down, for nothing where much more is free than could be counted wrongly.
        most_bytes = len(self.workers) * largest_inheritance()
        if most_bytes * _COPIES_MATTER < self.free_bytes or any(
            worker.grown_bytes > _GROWING_BYTES for worker in self.workers.values()
        ):
            return
        by_pid = {worker.pid: worker for worker in self.workers.values()}
        for pid in [pid for pid in self._libraries if pid in by_pid][:_COPIES_AT_ONCE]:
            by_pid[pid].add_before(note_copies(pid))

    def look(
        self,
        pids: Iterable[int],
        running: Callable[[int], Running],
        asked_bytes: Callable[[int], int] = lambda worker_id: 0,
        with_libraries: bool = True,
    ) -> None:
        """Measure the memory of processes."""
        # Processor time: waiting for a processor must not lengthen the interval.
        began_s = time.thread_time()
        known = set()
        for worker_id, worker in self.workers.items():
            private_bytes = estimate_memory([worker.pid])
            worker.update(private_bytes, running(worker_id), asked_bytes(worker_id))
            known.add(worker.pid)
        starting = [pid for pid in pids if pid not in known]
        self._starting_bytes = estimate_memory(starting)
        self.client_bytes = estimate_memory([self._client_pid])
        if with_libraries:
            self._measure_libraries([self._client_pid, *known, *starting])
        own = sum([worker.private_bytes for worker in self.workers.values()])
        self.private_bytes = own + self._starting_bytes + self.client_bytes + self._library_bytes
        self.used_bytes = self.private_bytes + arena_bytes(self._arenas)
        now_s = time.monotonic()
        passed_s = max(now_s - self._looked_s, _SHORTEST_S)
        self._looked_s = now_s
        for worker in self.workers.values():
            worker.grown_per_s = worker.grown_bytes / passed_s
        rate = sum([max(worker.grown_per_s, 0.0) for worker in self.workers.values()])
        self._ahead_bytes = min(int(rate * _AHEAD_S), self._limit_bytes // _AHEAD)
        baselines = sum([worker.baseline_bytes for worker in self.workers.values()]) + self._starting_bytes
        fixed = self.client_bytes + self._library_bytes + baselines
        self.is_hopeless = fixed >= self._limit_bytes
        self.room_bytes = max(self._limit_bytes - fixed, self._num_workers * LEAST_SHARE_BYTES)
        self.free_bytes = fixed + self.room_bytes - self.used_bytes - self._ahead_bytes
        left_s = (self.free_bytes - self._margin_bytes) / _GROWTH_BYTES_PER_S
        is_calm = all(worker.grown_bytes < _GROWING_BYTES for worker in self.workers.values())
        cost_s = time.thread_time() - began_s
        shortest_s = max(_SHORTEST_CALM_S if is_calm else _SHORTEST_S, cost_s / _TIME_SHARE)
        self.next_s = now_s + max(min(left_s, _LONGEST_S), shortest_s)

    def _measure_libraries(self, pids: list[int]) -> None:
        """Measure the programs and libraries of some processes, those first that were measured least recently."""
        present = set(pids)
        before = [pid for pid in self._libraries if pid in present]
        new = present.difference(before)
        self._libraries = {pid: self._libraries[pid] for pid in before}
        for pid in [*new, *before[: max(_LIBRARIES_AT_ONCE - len(new), 0)]]:
            self._libraries.pop(pid, None)
            self._libraries[pid] = library_bytes([pid])
        self._library_bytes = max(self._libraries.values()) + self._template_bytes()

    def limits(self, store_bytes: int, waiting_bytes: int, reserved_bytes: Callable[[int], int]) -> Limits:
        """Derive the store's limits from the last measurement."""
        # Reserved growth is not counted a second time when the worker takes it.
        growth = sum(
            [
                min(worker.growth_bytes, worker.asked_bytes + reserved_bytes(worker_id))
                for worker_id, worker in self.workers.items()
            ]
        )
        room = self._limit_bytes - self.private_bytes + growth - waiting_bytes
        # Where the user's process takes most of the limit, the minimum shrinks, too.
        most_least = max(self.room_bytes // 2, _LEAST_STORE_BYTES)
        least = max(int(store_bytes * _LEAST_STORE), _LEAST_STORE_BYTES)
        limit = max(min(store_bytes, room), min(least, most_least, store_bytes))
        # This may exceed the arenas: results that do not fit there are private memory or go to disk.
        least = max(min(int(self._limit_bytes * _LEAST_STORE), most_least), LEAST_SHARE_BYTES)
        return Limits(limit, max(room, limit, least))

    @property
    def is_short(self) -> bool:
        """Return whether less than the margin is left."""
        return self.free_bytes < self._margin_bytes

    @property
    def share_bytes(self) -> int:
        """Return by how much each worker may grow in any case."""
        return self.room_bytes // self._num_workers

    def over_share(self) -> list[int]:
        """Return the workers that have grown past their share."""
        share = self.share_bytes
        return [worker_id for worker_id, worker in self.workers.items() if worker.growth_bytes > share]

    def grown(self, is_strict: bool) -> list[int]:
        """Return the idle workers that exceed their share, or their baseline if `is_strict`."""
        return idle_above(self.workers, _NOTED_BYTES if is_strict else self.share_bytes)

    def may_shrink(self, waiting: Collection[int]) -> bool:
        """Return whether idle workers, and those that wait within a chunk, take much more than their baseline."""
        return any(
            worker.growth_bytes - worker.asked_bytes > _NOTED_BYTES
            for worker_id, worker in self.workers.items()
            if worker.running is None or worker_id in waiting
        )

    def growths(self) -> list[tuple[int, int, int]]:
        """Return graph, chunk and bytes taken without asking, for each worker whose growth is news."""
        found = []
        for worker in self.workers.values():
            growth = worker.unasked_bytes - worker.begun_bytes
            if worker.running is not None and growth > max(worker.noted_bytes * 5 // 4, _NOTED_BYTES):
                worker.noted_bytes = growth
                found.append((*worker.running, growth))
        return found

    def decide(self, may_shrink: bool, now_s: float) -> Orders:
        """Decide which workers to pause, resume or end; see `decide`."""
        if not self.is_short and not any(worker.paused_s is not None for worker in self.workers.values()):
            return Orders()
        return decide(self.workers, self.free_bytes, self._margin_bytes, self.share_bytes, may_shrink, now_s)
