"""Decides which starting worker processes are stuck, and when all further starts are hopeless. Pure: no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

#: Maximum number of failed starts of one worker in a row while no other has started.
_ATTEMPTS = 3


class StartWatch:
    """Watches worker processes that start."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        #: Due time of each worker, by id, and its progress at the last check.
        self._due: dict[int, tuple[float, int]] = {}
        self._failures: Counter[int] = Counter()

    def begin(self, worker_id: int, progress: int, now_s: float) -> None:
        """Watch a worker from now on."""
        self._due[worker_id] = now_s + self._timeout_s, progress

    def end(self, worker_id: int) -> None:
        """Stop watching a worker."""
        self._due.pop(worker_id, None)

    def next_s(self) -> float | None:
        """Return the next due time, None if no worker is watched."""
        return min([due_s for due_s, _ in self._due.values()], default=None)

    def stuck(self, progress_of: Callable[[int], int], now_s: float) -> list[int]:
        """Return the workers without progress since the last check, and stop watching them."""
        found = []
        for worker_id, (due_s, before) in list(self._due.items()):
            if due_s > now_s:
                continue
            progress = progress_of(worker_id)
            if progress == before:
                self.end(worker_id)
                found.append(worker_id)
            else:
                self.begin(worker_id, progress, now_s)
        return found

    def came_up(self) -> None:
        """Record that a worker process has started."""
        self._failures.clear()

    def failed(self, worker_id: int) -> int:
        """Record that a worker ended before it had started; return its number of failed starts in a row."""
        self._failures[worker_id] += 1
        return self._failures[worker_id]

    def is_hopeless(self, worker_id: int) -> bool:
        """Return whether another start of a worker is likely to fail."""
        return self._failures[worker_id] >= _ATTEMPTS
