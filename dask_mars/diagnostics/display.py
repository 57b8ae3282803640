"""Draws progress on terminals, and writes lines elsewhere."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Protocol

from rich import get_console
from rich.console import Console, Group, RenderableType
from rich.errors import LiveError
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dask_mars.diagnostics.shown import Shown
from dask_mars.diagnostics.tally import Row
from dask_mars.labels import label_of

#: Redraws of a terminal per second.
_RENEWALS_PER_S = 10
#: Time until the first line about a running computation in a file, doubled each time up to the second, in seconds.
_FIRST_LINE_S, _LONGEST_S = 30.0, 600.0
_BAR_WIDTH = 40
_STYLES = {"running": "cyan", "finished": "green", "failed": "red", "cancelled": "yellow"}
#: Fraction of the memory limit from which memory is highlighted.
_HIGH = 0.9


class Display(Protocol):
    """Shows computations between start and stop."""

    def start(self) -> None:
        """Begin to draw."""

    def show(self, shown: Shown) -> None:
        """Add a computation."""

    def stop(self) -> None:
        """Draw the final state, and stop."""


def display_on(console: Console | None, layers: int) -> Display:
    """Return the display for a console that is no notebook; None for rich's default console."""
    console = console or get_console()
    return TerminalDisplay(console, layers) if console.is_terminal else LinesDisplay(console)


class LinesDisplay:
    """Writes a line for each computation at its end, and lines in growing intervals for long ones.

    Parameters
    ----------
    console : rich.console.Console
        Where to write.
    first_s : float, optional
        Time until the first line about a running computation, in seconds.
    """

    def __init__(self, console: Console, first_s: float = _FIRST_LINE_S) -> None:
        self._console = console
        self._first_s = first_s
        self._shown: list[Shown] = []
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread for long computations."""
        self._thread = threading.Thread(target=self._write_on, name="dask-mars-progress", daemon=True)
        self._thread.start()

    def show(self, shown: Shown) -> None:
        """Add a computation."""
        self._shown.append(shown)

    def stop(self) -> None:
        """Write the outcome of each computation."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        self._write(list(self._shown))

    def _write_on(self) -> None:
        wait_s = self._first_s
        while not self._stopped.wait(wait_s):
            wait_s = min(2 * wait_s, _LONGEST_S)
            self._write([shown for shown in self._shown if shown.tally.ended_s is None])

    def _write(self, shown: list[Shown]) -> None:
        now_s = time.monotonic()
        for one in shown:
            self._console.print(Text(one.line(now_s), style=_STYLES[one.outcome]), soft_wrap=True)


class TerminalDisplay:
    """Bars of several computations in a terminal.

    Parameters
    ----------
    console : rich.console.Console
        Where to draw.
    layers : int
        Most bars for one computation.
    """

    def __init__(self, console: Console, layers: int) -> None:
        self._console = console
        self._layers = layers
        self._shown: list[Shown] = []
        self._live: Live | None = None
        self._lines = LinesDisplay(console)

    def start(self) -> None:
        """Begin to draw, unless other code draws on the console."""
        live = Live(console=self._console, get_renderable=self._draw, refresh_per_second=_RENEWALS_PER_S)
        with contextlib.suppress(LiveError):
            live.start()
            self._live = live

    def show(self, shown: Shown) -> None:
        """Add a computation."""
        self._shown.append(shown)
        self._lines.show(shown)

    def stop(self) -> None:
        """Draw the final bars, or write a line for each computation where there are none."""
        if self._live is None:
            self._lines.stop()
        else:
            self._live.stop()

    def _draw(self) -> RenderableType:
        now_s = time.monotonic()
        parts: list[RenderableType] = []
        for shown in list(self._shown):
            style = _STYLES[shown.outcome]
            bars = Table.grid(padding=(0, 1))
            for row in shown.tally.rows(self._layers):
                bars.add_row(*_cells(row, style))
            memory = shown.memory()
            parts += [bars, Text(shown.headline(now_s), style=style)]
            if memory is not None:
                used = "red" if memory.in_use_bytes > _HIGH * memory.limit_bytes else "magenta"
                line = Table.grid(padding=(0, 1))
                bar = ProgressBar(
                    memory.limit_bytes,
                    min(memory.in_use_bytes, memory.limit_bytes),
                    width=_BAR_WIDTH // 2,
                    complete_style=used,
                    finished_style=used,
                )
                line.add_row("memory", bar, memory.words)
                parts.append(line)
        return Group(*parts)


def _cells(row: Row, style: str) -> list[RenderableType]:
    """Return the cells of a bar's row."""
    bar = ProgressBar(row.total, row.done, width=_BAR_WIDTH, complete_style=style, finished_style=style)
    running = f"{row.running:,} running" if row.running else ""
    failed = Text(f"{row.failed:,} failed" if row.failed else "", style="red")
    name = Text(label_of(row.name), overflow="ellipsis", no_wrap=True)
    return [name, bar, Text(f"{row.done:,}/{row.total:,}", justify="right"), running, failed]


__all__ = ["Display", "LinesDisplay", "TerminalDisplay", "display_on"]
