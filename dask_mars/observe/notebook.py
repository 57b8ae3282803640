"""Draws progress in notebooks by replacing outputs, which works wherever notebooks are shown or executed."""

from __future__ import annotations

import sys
import time
from importlib import import_module
from typing import Any

from dask_mars import units
from dask_mars.html import render
from dask_mars.labels import label_of
from dask_mars.observe.counts import LayerCounts
from dask_mars.observe.tally import HIGH, Display, Tally
from dask_mars.tables import COLOURS, Bar, Table, named

#: Interval between two updates, in seconds.
_RENEW_S = 0.2
_MEMORY_COLOUR = "#8b5cf6"


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    # IPython in a terminal has no kernel.
    return getattr(shell, "kernel", None) is not None


class NotebookDisplay(Display):
    """Bars of several computations below a cell."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self._layers = layers
        self._handle: Any = None
        self._sent = ""

    def start(self) -> None:
        """Begin to draw."""
        display: Any = import_module("IPython.display").display
        self._handle = display(_message("", ""), raw=True, display_id=True)
        super().start()

    def next_s(self) -> float:
        """Return a constant interval."""
        return _RENEW_S

    def draw(self, is_last: bool) -> None:
        """Replace the output, if it has changed."""
        now_s = time.monotonic()
        shown = list(self.shown)
        drawn = "".join([as_html(tally, self._layers, now_s) for tally in shown])
        if drawn != self._sent and self._handle is not None:
            self._sent = drawn
            self._handle.update(_message(drawn, "\n".join([tally.line(now_s) for tally in shown])), raw=True)


def as_html(tally: Tally, layers: int, now_s: float) -> str:
    """Return a computation as bars, headline and memory."""
    memory, bar = tally.memory(), None
    if memory is not None:
        share = memory.in_use_bytes / max(memory.limit_bytes, 1)
        colour = COLOURS["failed"] if share > HIGH else _MEMORY_COLOUR
        bar = Bar([(share, colour, 1.0)], "10em", units.percent(memory.in_use_bytes, memory.limit_bytes))
    table = Table((), [_row(layer, tally.outcome) for layer in tally.rows(layers)])
    return render("progress.html.j2", table=table, headline=tally.headline(now_s), memory=memory, bar=bar)


def _row(layer: LayerCounts, outcome: str) -> tuple[Any, ...]:
    share, label = layer.finished / max(layer.total, 1), units.percent(layer.finished, layer.total)
    others = [f"{layer.running:,} running"] if layer.running else []
    others += [f"{layer.failed:,} failed"] if layer.failed else []
    return (
        named(label_of(layer.name), layer.name, 40),
        Bar([(share, COLOURS[outcome], 1.0)], "16em", label),
        f"{layer.finished:,}/{layer.total:,}",
        ", ".join(others),
    )


def _message(drawn: str, text: str) -> dict[str, str]:
    return {"text/html": drawn, "text/plain": text}
