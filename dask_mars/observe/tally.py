"""Progress of displayed computations, counted on request, texts about it, and a display that a thread draws."""

from __future__ import annotations

import contextvars
import threading
import time
from array import array
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np

from dask_mars import units
from dask_mars.engine.listeners import EngineView
from dask_mars.locking import Lock
from dask_mars.observe.counts import LayerCounts, remaining_s
from dask_mars.observe.layers import LayerIndex

#: Fraction of the memory limit from which memory is highlighted.
HIGH = 0.9
#: Elapsed time before which no remaining time is estimated, in seconds.
_SOON_S = 0.5
#: Lifetime of a count, as a multiple of the time that counting took.
_COSTS = 20.0


class MemoryUse(NamedTuple):
    """The current or peak memory in use, with a text about it."""

    in_use_bytes: int
    limit_bytes: int
    words: str


class Tally:
    """Progress of one computation."""

    def __init__(
        self,
        index: LayerIndex,
        durations_s: array[float],
        running: Callable[[], Collection[int]],
        failed: Callable[[], Collection[int]] = tuple,
        engine: EngineView | None = None,
    ) -> None:
        self.began_s = time.monotonic()
        self.ended_s: float | None = None
        self.outcome = "running"
        self.engine = engine
        self._index = index
        self._durations_s = durations_s
        self._running, self._failed = running, failed
        self._lock = Lock()
        self._layers: list[LayerCounts] = []
        self._good_until_s = 0.0
        self.peak_bytes = 0 if engine is None else engine.memory()["in_use_bytes"]
        self._spilled_before_bytes = 0 if engine is None else engine.store()["spilled_bytes"]

    def end(self, outcome: str) -> None:
        """Record the end, unless it has ended already."""
        if self.ended_s is None:
            self.ended_s, self.outcome, self._good_until_s = time.monotonic(), outcome, 0.0

    def layers(self) -> list[LayerCounts]:
        """Return the progress of each layer."""
        with self._lock:
            begun_s = time.monotonic()
            if begun_s >= self._good_until_s:
                self._index.look(roughly=True)
                durations_s = self._durations_s
                failed = [chunk for chunk in self._failed() if durations_s[chunk] < 0]
                running = self._running() if self.ended_s is None else ()
                self._layers = self._index.count(durations_s, None, running, failed)
                now_s = time.monotonic()
                self._good_until_s = now_s + _COSTS * (now_s - begun_s)
            return self._layers

    def rows(self, most: int) -> list[LayerCounts]:
        """Return the progress of the largest layers, in the order of the graph, and of all others together."""
        layers = self.layers()
        if len(layers) <= most:
            return layers
        largest = sorted(range(len(layers)), key=lambda place: -layers[place].total)[: most - 1]
        others = [layer for place, layer in enumerate(layers) if place not in largest]
        return [layers[place] for place in sorted(largest)] + [_whole(f"{len(others)} other layers", others)]

    def remaining_s(self, now_s: float) -> float | None:
        """Return an estimate of the remaining time, None without one."""
        return remaining_s(now_s - self.began_s, self.layers()) if self.ended_s is None else None

    def headline(self, now_s: float) -> str:
        """Return its state, progress and elapsed time."""
        whole = _whole("", self.layers())
        elapsed_s = (now_s if self.ended_s is None else self.ended_s) - self.began_s
        text = f"{self.outcome}: {whole.finished:,} of {whole.total:,} tasks in {units.duration(elapsed_s)}"
        left_s = self.remaining_s(now_s) if elapsed_s > _SOON_S else None
        parts = [text if left_s is None else f"{text}, about {units.remaining(left_s)} left"]
        if whole.failed:
            parts.append(f"{whole.failed:,} failed")
        if self.engine is not None and self.ended_s is None:
            running = self.engine.running()
            busy = sum([noted is not None for noted in running.values()])
            parts.append(f"{busy} of {len(running)} workers busy")
        return " · ".join(parts)

    def memory(self) -> MemoryUse | None:
        """Return the current memory in use, or the peak after the end; None without an engine."""
        if self.engine is None:
            return None
        memory = self.engine.memory()
        limit = memory["limit_bytes"]
        spilled = units.size(max(self.engine.store()["spilled_bytes"] - self._spilled_before_bytes, 0))
        if self.ended_s is not None:
            most = self.peak_bytes
            words = f"at most {units.size(most)} of {units.size(limit)} in use · {spilled} spilled"
            return MemoryUse(most, limit, words)
        in_use = memory["in_use_bytes"]
        on_disk = units.size(memory["on_disk_bytes"])
        words = f"{units.size(in_use)} of {units.size(limit)} in use · {on_disk} on disk · {spilled} spilled"
        return MemoryUse(in_use, limit, words)

    def line(self, now_s: float) -> str:
        """Return headline and memory in one line, without layers."""
        memory = self.memory()
        headline = self.headline(now_s)
        return headline if memory is None else f"{headline} · {memory.words}"


def _whole(name: str, layers: Sequence[LayerCounts]) -> LayerCounts:
    """Return the sums over layers."""
    columns = np.array([layer[2:] for layer in layers] or [LayerCounts("", "")[2:]]).sum(axis=0)
    total, finished, running, failed, seconds, stored = columns.tolist()
    return LayerCounts(name, name, int(total), int(finished), int(running), int(failed), seconds, int(stored))


class Display:
    """Shows computations between start and stop."""

    def __init__(self) -> None:
        self.shown: list[Tally] = []
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the drawing thread."""
        # Kernels of notebooks assign output to a cell by context variables of the cell's start.
        run = contextvars.copy_context().run
        name = "dask-mars-progress"
        self._thread = threading.Thread(target=run, args=(self._draw_on,), name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Draw the final state."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        self.draw(is_last=True)

    def draw(self, is_last: bool) -> None:
        """Draw the present state."""
        raise NotImplementedError

    def next_s(self) -> float:
        """Return the time to the next drawing, in seconds."""
        raise NotImplementedError

    def _draw_on(self) -> None:
        while not self._stopped.wait(self.next_s()):
            self.draw(is_last=False)
