"""Draws progress in notebooks by replacing outputs.

That needs no widgets, and works wherever notebooks are shown or executed. The HTML has inline styles, because
saved notebooks lose style sheets. Text takes the page's colour, light or dark.
"""

from __future__ import annotations

import contextvars
import html
import sys
import threading
import time
from importlib import import_module
from typing import Any

from dask_mars import units
from dask_mars.diagnostics.shown import MemoryUse, Shown
from dask_mars.diagnostics.tally import Row
from dask_mars.labels import label_of
from dask_mars.tables import COLOURS, Table, bar, named

#: Interval between two updates, in seconds.
_RENEW_S = 0.2
_MEMORY_COLOUR, _HIGH = "#8b5cf6", 0.9


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    # IPython in a terminal has no kernel.
    return getattr(shell, "kernel", None) is not None


class NotebookDisplay:
    """Bars of several computations below a cell.

    Parameters
    ----------
    layers : int
        Most bars for one computation.
    """

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._shown: list[Shown] = []
        self._handle: Any = None
        self._sent = ""
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to draw."""
        display: Any = import_module("IPython.display").display
        self._handle = display(_message("", ""), raw=True, display_id=True)
        # Kernels assign output to a cell by context variables of the cell's start.
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._draw_on,), name="dask-mars-progress", daemon=True
        )
        self._thread.start()

    def show(self, shown: Shown) -> None:
        """Add a computation."""
        self._shown.append(shown)

    def stop(self) -> None:
        """Draw the final bars."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        self._draw()

    def _draw_on(self) -> None:
        while not self._stopped.wait(_RENEW_S):
            self._draw()

    def _draw(self) -> None:
        now_s = time.monotonic()
        shown = list(self._shown)
        drawn = "".join([as_html(one, self._layers, now_s) for one in shown])
        if drawn != self._sent and self._handle is not None:
            self._sent = drawn
            text = "\n".join([one.line(now_s) for one in shown])
            self._handle.update(_message(drawn, text), raw=True)


def as_html(shown: Shown, layers: int, now_s: float) -> str:
    """Return a computation as bars and what is said of it."""
    rows = [_row(row, shown.outcome) for row in shown.tally.rows(layers)]
    memory = shown.memory()
    return (
        f'<div style="margin: 0.3em 0; font-size: 13px; line-height: 1.5">{Table((), rows).as_html()}'
        f"<div><b>{html.escape(shown.headline(now_s))}</b></div>"
        f"{'' if memory is None else _memory_line(memory)}</div>"
    )


def _row(row: Row, outcome: str) -> tuple[str, ...]:
    done = bar([(row.done / max(row.total, 1), COLOURS[outcome], 1.0)], "16em", units.percent(row.done, row.total))
    others = [f"{row.running:,} running"] if row.running else []
    others += [f"{row.failed:,} failed"] if row.failed else []
    return named(label_of(row.name), row.name, 40), done, f"{row.done:,}/{row.total:,}", ", ".join(others)


def _memory_line(memory: MemoryUse) -> str:
    share = memory.in_use_bytes / max(memory.limit_bytes, 1)
    colour = COLOURS["failed"] if share > _HIGH else _MEMORY_COLOUR
    label = units.percent(memory.in_use_bytes, memory.limit_bytes)
    return (
        '<div style="display: flex; flex-wrap: wrap; gap: 0.2em 0.8em; align-items: center"><span>memory</span>'
        f"{bar([(share, colour, 1.0)], '10em', label)}<span>{html.escape(memory.words)}</span></div>"
    )


def _message(drawn: str, text: str) -> dict[str, str]:
    return {"text/html": drawn, "text/plain": text}


__all__ = ["NotebookDisplay", "as_html", "is_notebook"]
