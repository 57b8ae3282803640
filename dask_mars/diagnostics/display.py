"""Draws progress bars with rich."""

from __future__ import annotations

import contextlib
import importlib.util
import time

from dask.utils import format_bytes, key_split
from rich import get_console
from rich.console import Console, Group, RenderableType
from rich.errors import LiveError
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dask_mars.diagnostics.tally import Row, Tally
from dask_mars.engine.listeners import EngineView

#: How often it is renewed.
_RENEWALS_PER_S = 10
_BAR_WIDTH = 40
_STYLES = {"": "cyan", "finished": "green", "failed": "red", "cancelled": "yellow"}


class Display:
    """Bars of several computations, renewed until it is stopped.

    Parameters
    ----------
    console : rich.console.Console or None
        Where to draw; None for rich's own.
    layers : int
        Most bars for one computation.
    """

    def __init__(self, console: Console | None, layers: int) -> None:
        self._console = console or get_console()
        self._layers = layers
        self._shown: list[tuple[Tally, EngineView | None]] = []
        self._live: Live | None = None

    def start(self) -> None:
        """Begin to draw, if this is a place to draw in and nobody else is drawing."""
        if _can_be_redrawn(self._console):
            live = Live(console=self._console, get_renderable=self._draw, refresh_per_second=_RENEWALS_PER_S)
            with contextlib.suppress(LiveError):
                live.start()
                self._live = live

    def show(self, tally: Tally, engine: EngineView | None) -> None:
        """Draw one more computation."""
        self._shown.append((tally, engine))

    def stop(self) -> None:
        """Leave the bars as they are in the end, or print a line for each computation where there are none."""
        if self._live is not None:
            self._live.stop()
            return
        for tally, engine in self._shown:
            self._console.print(self._line(tally, engine), soft_wrap=True)

    def _draw(self) -> RenderableType:
        parts: list[RenderableType] = []
        for tally, engine in list(self._shown):
            bars = Table.grid(padding=(0, 1))
            for row in tally.rows(self._layers):
                bars.add_row(*_cells(row, _STYLES[tally.outcome]))
            parts += [bars, self._line(tally, engine)]
        return Group(*parts)

    def _line(self, tally: Tally, engine: EngineView | None) -> Text:
        """Return what there is to say of a computation as a whole."""
        whole = tally.whole()
        until_s = time.monotonic() if tally.ended_s is None else tally.ended_s
        parts = [f"{whole.done:,} of {whole.total:,} tasks in {until_s - tally.began_s:.1f} s"]
        if whole.failed:
            parts.append(f"{whole.failed:,} failed")
        if engine is not None:
            parts += _engine_parts(tally, engine)
        text = " · ".join(parts)
        return Text(f"{tally.outcome or 'running'}: {text}", style=_STYLES[tally.outcome])


def _engine_parts(tally: Tally, engine: EngineView) -> list[str]:
    """Return what there is to say of workers and memory, from figures that the engine has."""
    memory = engine.memory()
    limit = format_bytes(memory["limit_bytes"])
    if tally.ended_s is not None:
        spilled = format_bytes(engine.store()["spilled_bytes"])
        return [f"at most {format_bytes(tally.most_in_use_bytes)} of {limit} in use", f"{spilled} spilled"]
    running = engine.running()
    busy = sum(noted is not None for noted in running.values())
    in_use, on_disk = format_bytes(memory["in_use_bytes"]), format_bytes(memory["on_disk_bytes"])
    return [f"{busy} of {len(running)} workers busy", f"{in_use} of {limit} in use, {on_disk} on disk"]


def _can_be_redrawn(console: Console) -> bool:
    if console.is_jupyter:
        # Without widgets rich would warn at each renewal and draw nothing.
        return importlib.util.find_spec("ipywidgets") is not None
    return console.is_terminal


def _cells(row: Row, style: str) -> list[RenderableType]:
    """Return a row of the table of bars."""
    bar = ProgressBar(row.total, row.done, width=_BAR_WIDTH, complete_style=style, finished_style=style)
    running = f"{row.running:,} running" if row.running else ""
    failed = Text(f"{row.failed:,} failed" if row.failed else "", style="red")
    # Without what tells layers of the same kind from each other, which is of no use to readers.
    name = Text(str(key_split(row.name)), overflow="ellipsis", no_wrap=True)
    return [name, bar, Text(f"{row.done:,}/{row.total:,}", justify="right"), running, failed]
