"""Watches what processes take, and decides which workers wait, and which end, so that the memory limit holds.

NumPy and Python's own objects ask for memory before they take any. What else takes memory in a worker (other
libraries) is known only once it is there, so that processes are looked at, the more often the less is left. A
worker that grows past its share when nothing is left is paused: what can go to disk goes there, others come to
their end and leave room. If nothing can help any more, the worker that has grown most is ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dask_mars.limits import PROC, arena_bytes, estimate_memory, library_bytes

#: How fast the memory of all workers together is thought to grow at most.
_GROWTH_BYTES_PER_S = 1 << 33
#: Seconds between two looks: at most, at least, and at least while no worker grows. Without /proc one look takes
#: milliseconds.
_LONGEST_S, _SHORTEST_S, _SHORTEST_CALM_S = (0.1, 0.002, 0.01) if PROC.exists() else (1.0, 1.0, 1.0)
#: Looks take this part of the engine's time at most.
_TIME_SHARE = 0.1
#: What is kept free of the limit, for what workers take between two looks: this part of it, and at most so much.
_MARGIN, _MOST_MARGIN_BYTES = 20, 128 << 20
#: No worker is held to a share of less: modules that a task imports take as much. Where the user's process takes
#: most of the limit, or all of it, workers could otherwise do nothing.
LEAST_SHARE_BYTES = 64 << 20
#: How far ahead is looked while workers grow, since the engine may get a processor late, and by which part of the
#: limit at most.
_AHEAD_S, _AHEAD = 0.02, 8
#: How long a worker is paused at least before it is ended, which is time for others to give free pages back, and
#: at most: one of the others may wait for something that it has.
_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0
#: Growth that is worth remembering, and that makes a worker one that grows.
_NOTED_BYTES, _GROWING_BYTES = 16 << 20, 1 << 20
#: Workers that grow more slowly may come to their end within the margin. Once this part of it is all that is left,
#: those that grow faster than this are paused, too.
_LAST, _SLOW_BYTES_PER_S = 4, 16 << 20

Running = tuple[int, int] | None


@dataclass(slots=True)
class WorkerMemory:
    """What one worker process takes for itself.

    Attributes
    ----------
    pid : int
        Of the process.
    baseline_bytes : int
        What it took when it had come up.
    private_bytes : int
        What it took when it was last looked at.
    grown_bytes : int
        By how much what it had taken without asking was more than at the look before.
    grown_per_s : float
        The same, for each second between the two.
    running : tuple of int or None
        Graph and chunk that it was running then.
    begun_bytes : int
        What it took when that was seen for the first time, or before, or the least that it has taken since.
    noted_bytes : int
        By how much it had grown when that was noted last.
    paused_s : float or None
        Since when it is paused.
    asked_bytes : int
        What of its private memory it has taken for what it runs after it had asked for it.
    """

    pid: int
    baseline_bytes: int
    private_bytes: int
    grown_bytes: int = 0
    grown_per_s: float = 0.0
    running: Running = None
    begun_bytes: int = 0
    noted_bytes: int = 0
    paused_s: float | None = None
    asked_bytes: int = 0

    @property
    def growth_bytes(self) -> int:
        """What it has taken since it came up."""
        return max(self.private_bytes - self.baseline_bytes, 0)

    @property
    def unasked_bytes(self) -> int:
        """What it has taken without asking, or before what it runs."""
        return self.private_bytes - self.asked_bytes


class Orders(NamedTuple):
    """What is to become of workers, by number."""

    pause: tuple[int, ...] = ()
    resume: tuple[int, ...] = ()
    end: tuple[int, ...] = ()


def idle_above(workers: Mapping[int, WorkerMemory], most_bytes: int) -> list[int]:
    """Return the workers that run nothing and have grown by more than that, the one that has grown most last."""
    idle = [(worker.growth_bytes, number) for number, worker in workers.items() if worker.running is None]
    return [number for growth_bytes, number in sorted(idle) if growth_bytes > most_bytes]


def decide(
    workers: Mapping[int, WorkerMemory],
    free_bytes: int,
    margin_bytes: int,
    share_bytes: int,
    may_shrink: bool,
    now_s: float,
) -> Orders:
    """Decide which workers wait, go on, or end.

    Parameters
    ----------
    workers : mapping
        Those that are up, by number.
    free_bytes : int
        What is left of the limit; negative if it is exceeded.
    margin_bytes : int
        What is to be left at least.
    share_bytes : int
        By how much each worker may grow in any case.
    may_shrink : bool
        Whether something is under way that will give memory back: a file is being written, or a worker runs that
        is not paused.
    now_s : float
        The time, on the clock of `WorkerMemory.paused_s`.
    """
    paused = sorted(
        (worker.growth_bytes, number) for number, worker in workers.items() if worker.paused_s is not None
    )

    def is_over(number: int) -> bool:
        """Say whether a worker has been paused for as long as it is to be."""
        since_s = workers[number].paused_s
        assert since_s is not None
        return now_s - since_s > (_LONGEST_PAUSE_S if may_shrink else _PAUSE_S)

    if free_bytes >= margin_bytes:
        # One after the other: the first may take all that there is. It would soon be paused again, were there only
        # little more than the margin; but it must not wait for what does not come.
        goes_on = paused and (free_bytes >= 2 * margin_bytes or is_over(paused[0][1]))
        return Orders(resume=(paused[0][1],)) if goes_on else Orders()
    if idle := idle_above(workers, share_bytes):
        # It has nothing to lose.
        return Orders(end=(idle[-1],))
    is_last = _LAST * free_bytes < margin_bytes
    # Arrays may have taken what was to be a worker's share. Past the limit all wait that grow.
    least_bytes = share_bytes // (2 if free_bytes > 0 else 16)
    growing = [
        number
        for number, worker in workers.items()
        if (worker.grown_bytes > _GROWING_BYTES or (is_last and worker.grown_per_s > _SLOW_BYTES_PER_S))
        # What it has asked for it may take, and is refused the next time. If that comes too late it is paused too.
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
    """Measures the processes of an engine.

    Parameters
    ----------
    limit_bytes : int
        What all processes and shared memory may take.
    num_workers : int
        Worker processes.
    client_pid : int
        The user's process.
    arenas : collection of int
        Descriptors of shared memory.
    proc : Path, optional
        Where this file system is mounted.

    Attributes
    ----------
    workers : dict
        What workers take that are up, by number.
    client_bytes : int
        What the user's process takes.
    private_bytes : int
        What all processes take for themselves, and programs and libraries once.
    used_bytes : int
        The same, and shared memory.
    room_bytes : int
        By how much workers and shared memory together may grow.
    free_bytes : int
        What is left of the limit, or of what workers may take in any case, less what they are about to take as
        fast as they have grown; negative if that is exceeded.
    is_hopeless : bool
        Whether processes take all of the limit before they have computed anything.
    next_s : float
        When to look again at the latest, on the monotonic clock.
    """

    def __init__(
        self, limit_bytes: int, num_workers: int, client_pid: int, arenas: Collection[int], proc: Path = PROC
    ) -> None:
        self._limit_bytes = limit_bytes
        self._num_workers = num_workers
        self._client_pid = client_pid
        self._arenas = arenas
        self._proc = proc
        self._margin_bytes = min(limit_bytes // _MARGIN, _MOST_MARGIN_BYTES)
        #: Of workers that are not up yet, what they were seen to take.
        self._starting_bytes = 0
        self._library_bytes = 0
        #: When it was looked last, and what workers take until they can be paused.
        self._looked_s = 0.0
        self._ahead_bytes = 0
        self.workers: dict[int, WorkerMemory] = {}
        self.client_bytes = self.private_bytes = self.used_bytes = 0
        self.room_bytes = self.free_bytes = limit_bytes
        self.is_hopeless = False
        self.next_s = 0.0

    def add(self, number: int, pid: int) -> None:
        """Note that a worker has come up."""
        taken = estimate_memory([pid], proc=self._proc)
        self.workers[number] = WorkerMemory(pid, taken, taken, begun_bytes=taken)

    def remove(self, number: int) -> None:
        """Note that a worker has ended."""
        self.workers.pop(number, None)

    def look(
        self,
        pids: Iterable[int],
        running: Callable[[int], Running],
        asked_bytes: Callable[[int], int] = lambda number: 0,
        with_libraries: bool = True,
    ) -> None:
        """Measure what processes take.

        Parameters
        ----------
        pids : iterable of int
            All worker processes, also those that are not up yet.
        running : callable
            Returns graph and chunk that a worker runs.
        asked_bytes : callable, optional
            Returns what of its own memory a worker has asked for, for what it runs.
        with_libraries : bool, optional
            Whether to measure programs and libraries, too, which change little.
        """
        # Not by the clock: who waits for a processor must not wait the longer for it.
        began_s = time.thread_time()
        proc = self._proc
        known = set()
        for number, worker in self.workers.items():
            before_bytes, before_unasked, before = worker.private_bytes, worker.unasked_bytes, worker.running
            worker.private_bytes = estimate_memory([worker.pid], proc=proc)
            worker.running = running(number)
            if worker.running != before:
                worker.begun_bytes, worker.noted_bytes = before_bytes, 0
                # What it had asked for before is its own now, as long as it is there.
                before_unasked = before_bytes
            worker.begun_bytes = min(worker.begun_bytes, worker.private_bytes)
            # It may not have touched yet what it has asked for, and may have kept of what came before as much.
            worker.asked_bytes = min(asked_bytes(number), worker.private_bytes - worker.begun_bytes)
            # What it has freed of what it had asked for may be there still, and nothing grows.
            worker.grown_bytes = min(worker.unasked_bytes - before_unasked, worker.private_bytes - before_bytes)
            known.add(worker.pid)
        starting = [pid for pid in pids if pid not in known]
        self._starting_bytes = estimate_memory(starting, proc=proc)
        self.client_bytes = estimate_memory([self._client_pid], proc=proc)
        if with_libraries:
            self._library_bytes = library_bytes([self._client_pid, *known, *starting], proc)
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

    @property
    def is_short(self) -> bool:
        """Whether less is left than there should be."""
        return self.free_bytes < self._margin_bytes

    @property
    def share_bytes(self) -> int:
        """By how much each worker may grow in any case."""
        return self.room_bytes // self._num_workers

    def over_share(self) -> list[int]:
        """Return the workers that have grown past their share."""
        share = self.share_bytes
        return [number for number, worker in self.workers.items() if worker.growth_bytes > share]

    def grown(self, is_strict: bool) -> list[int]:
        """Return the workers that run nothing and take more than when they had come up, or than their share."""
        return idle_above(self.workers, _NOTED_BYTES if is_strict else self.share_bytes)

    def may_shrink(self, waiting: Collection[int]) -> bool:
        """Say whether workers that run nothing, or wait, take much more than when they had come up.

        Parameters
        ----------
        waiting : collection of int
            Those that wait in the middle of what they run. What they have asked for they need.
        """
        return any(
            worker.growth_bytes - worker.asked_bytes > _NOTED_BYTES
            for number, worker in self.workers.items()
            if worker.running is None or number in waiting
        )

    def growths(self) -> list[tuple[int, int, int]]:
        """Return graph, chunk and what workers have taken for it without asking, if that is news."""
        found = []
        for worker in self.workers.values():
            growth = worker.unasked_bytes - worker.begun_bytes
            if worker.running is not None and growth > max(worker.noted_bytes * 5 // 4, _NOTED_BYTES):
                worker.noted_bytes = growth
                found.append((*worker.running, growth))
        return found

    def decide(self, may_shrink: bool, now_s: float) -> Orders:
        """Decide which workers wait, go on, or end; see `decide`."""
        if not self.is_short and not any(worker.paused_s is not None for worker in self.workers.values()):
            return Orders()
        return decide(self.workers, self.free_bytes, self._margin_bytes, self.share_bytes, may_shrink, now_s)


__all__ = ["LEAST_SHARE_BYTES", "MemoryWatch", "Orders", "Running", "WorkerMemory", "decide"]
