"""Draws progress on terminals, and writes lines elsewhere."""

from __future__ import annotations

import contextlib
import time

from rich import get_console
from rich.console import Console, Group, RenderableType
from rich.errors import LiveError
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dask_mars.labels import label_of
from dask_mars.observe.counts import LayerCounts
from dask_mars.observe.tally import HIGH, Display, MemoryUse

#: Colours of computations by outcome.
_STYLES = {"running": "cyan", "finished": "green", "failed": "red", "cancelled": "yellow"}
#: Redraws of a terminal per second.
_RENEWALS_PER_S = 10
#: Time until the first line about a running computation in a file, doubled each time up to the second, in seconds.
_FIRST_LINE_S, _LONGEST_S = 30.0, 600.0
_BAR_WIDTH = 40


def display_on(console: Console | None, layers: int) -> Display:
    """Return the display for a console that is not a notebook; None for rich's default console."""
    console = console or get_console()
    return TerminalDisplay(console, layers) if console.is_terminal else LinesDisplay(console)


class LinesDisplay(Display):
    """Writes a line for each computation at its end, and lines in growing intervals for long ones."""

    def __init__(self, console: Console, first_s: float = _FIRST_LINE_S) -> None:
        super().__init__()
        self._console = console
        self._wait_s = first_s / 2

    def next_s(self) -> float:
        """Return twice the previous interval, up to a limit."""
        self._wait_s = min(2 * self._wait_s, _LONGEST_S)
        return self._wait_s

    def draw(self, is_last: bool) -> None:
        """Write a line for each running computation, and at the end for each computation."""
        now_s = time.monotonic()
        for tally in list(self.shown):
            if is_last or tally.ended_s is None:
                self._console.print(Text(tally.line(now_s), style=_STYLES[tally.outcome]), soft_wrap=True)


class TerminalDisplay(Display):
    """Bars of several computations in a terminal."""

    def __init__(self, console: Console, layers: int) -> None:
        super().__init__()
        self._console = console
        self._layers = layers
        self._live: Live | None = None

    def start(self) -> None:
        """Begin to draw, unless other code draws on the console."""
        live = Live(console=self._console, get_renderable=self._drawing, refresh_per_second=_RENEWALS_PER_S)
        with contextlib.suppress(LiveError):
            live.start()
            self._live = live

    def stop(self) -> None:
        """Draw the final bars, or write a line for each computation where there are none."""
        if self._live is not None:
            self._live.stop()
            return
        lines = LinesDisplay(self._console)
        lines.shown = self.shown
        lines.stop()

    def _drawing(self) -> RenderableType:
        now_s = time.monotonic()
        parts: list[RenderableType] = []
        for tally in list(self.shown):
            style = _STYLES[tally.outcome]
            bars = Table.grid(padding=(0, 1))
            for layer in tally.rows(self._layers):
                bars.add_row(*_cells(layer, style))
            parts += [bars, Text(tally.headline(now_s), style=style)]
            memory = tally.memory()
            if memory is not None:
                parts.append(_memory(memory))
        return Group(*parts)


def _memory(memory: MemoryUse) -> RenderableType:
    used = "red" if memory.in_use_bytes > HIGH * memory.limit_bytes else "magenta"
    line = Table.grid(padding=(0, 1))
    line.add_row("memory", _bar(memory.in_use_bytes, memory.limit_bytes, _BAR_WIDTH // 2, used), memory.words)
    return line


def _cells(layer: LayerCounts, style: str) -> list[RenderableType]:
    """Return the cells of a layer's bar."""
    bar = _bar(layer.finished, layer.total, _BAR_WIDTH, style)
    running = f"{layer.running:,} running" if layer.running else ""
    failed = Text(f"{layer.failed:,} failed" if layer.failed else "", style="red")
    name = Text(label_of(layer.name), overflow="ellipsis", no_wrap=True)
    return [name, bar, Text(f"{layer.finished:,}/{layer.total:,}", justify="right"), running, failed]


def _bar(done: int, total: int, width: int, style: str) -> ProgressBar:
    return ProgressBar(total, min(done, total), width=width, complete_style=style, finished_style=style)
