"""Counts progress by layer from listeners' events, on request."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dask_mars.diagnostics.remaining import LayerTime, remaining_s
from dask_mars.graph.chunks import Key, layer_of


class Row(NamedTuple):
    """Progress of one or several layers."""

    name: str
    done: int
    running: int
    failed: int
    total: int


@dataclass
class Tally:
    """Counts the tasks of one computation.

    Listeners only append to its deques; readers count.

    Attributes
    ----------
    began_s : float
        Start of the computation.
    keys : iterable of key
        Keys of all tasks.
    key_of : callable
        Returns the key of an item in `done` or `failed`.
    running : callable
        Returns the keys of running tasks.
    done, failed : deque
        Uncounted batches of finished tasks, with durations if known, and uncounted failed tasks.
    ended_s, outcome
        Time and kind of the end; None and "" before.
    most_in_use_bytes : int
        Highest observed memory in use.
    spilled_before_bytes : int
        Bytes written to disk before its start.
    """

    began_s: float
    keys: Iterable[Key]
    key_of: Callable[[Any], Key]
    running: Callable[[], Iterable[Key]]
    done: deque[tuple[Iterable[Any], Sequence[float] | None]] = field(default_factory=deque)
    failed: deque[Any] = field(default_factory=deque)
    ended_s: float | None = None
    outcome: str = ""
    most_in_use_bytes: int = 0
    spilled_before_bytes: int = 0

    def __post_init__(self) -> None:
        #: Only one thread at a time counts.
        self._lock = threading.Lock()
        self._totals: Counter[str] = Counter()
        self._done: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._failed: set[Key] = set()

    def end(self, now_s: float, outcome: str) -> None:
        """Record the end, unless it has ended already."""
        if self.ended_s is None:
            self.ended_s, self.outcome = now_s, outcome

    def rows(self, most: int) -> list[Row]:
        """Return the progress of the largest layers, in the order of the graph, and of all others together."""
        with self._lock:
            self._take()
            running = Counter(map(layer_of, self.running() if self.ended_s is None else ()))
            failed = Counter(map(layer_of, self._failed))
            shown = list(self._totals)
            if len(shown) > most:
                largest = {name for name, _ in self._totals.most_common(most - 1)}
                shown = [name for name in shown if name in largest]
            rows = [self._row(name, [name], running, failed) for name in shown]
            others = self._totals.keys() - set(shown)
            if others:
                rows.append(self._row(f"{len(others)} other layers", others, running, failed))
            return rows

    def whole(self) -> Row:
        """Return the progress of the whole computation."""
        return next(iter(self.rows(1)), Row("", 0, 0, 0, 0))

    def remaining_s(self, now_s: float) -> float | None:
        """Return an estimate of the remaining time, None without one."""
        if self.ended_s is not None:
            return None
        with self._lock:
            self._take()
            layers = [
                LayerTime(total, self._done[name], self._seconds[name]) for name, total in self._totals.items()
            ]
        return remaining_s(now_s - self.began_s, layers)

    def _row(self, name: str, layers: Iterable[str], running: Counter[str], failed: Counter[str]) -> Row:
        columns = (self._done, running, failed, self._totals)
        return Row(name, *[sum([counts[layer] for layer in layers]) for counts in columns])

    def _take(self) -> None:
        """Count the new events."""
        if not self._totals:
            self._totals.update(map(layer_of, self.keys))
            self.keys = ()
        # A failed task may finish in a later attempt, but a finished task does not fail.
        while self.failed:
            self._failed.add(self.key_of(self.failed.popleft()))
        while self.done:
            tasks, durations_s = self.done.popleft()
            keys = [self.key_of(task) for task in tasks]
            layers = [layer_of(key) for key in keys]
            self._done.update(layers)
            for layer, duration_s in zip(layers, () if durations_s is None else durations_s, strict=False):
                self._seconds[layer] += duration_s
            if self._failed:
                self._failed.difference_update(keys)
