"""A display of computations that a thread draws in intervals."""

from __future__ import annotations

import contextvars
import threading

from dask_mars.observe.tally import Tally

#: Colours in terminals.
STYLES = {"running": "cyan", "finished": "green", "failed": "red", "cancelled": "yellow"}
#: Fraction of the memory limit from which memory is highlighted.
HIGH = 0.9


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
