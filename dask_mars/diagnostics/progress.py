"""A display of progress for terminals and notebooks: a Dask callback that hears from the engines themselves."""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dask.callbacks import Callback

from dask_mars.diagnostics.notebook import NotebookDisplay, is_notebook
from dask_mars.diagnostics.shown import Shown
from dask_mars.diagnostics.tally import Tally
from dask_mars.engine.listeners import EngineView, Listener, ListenerEvent, ProcessesMeasured, listeners
from dask_mars.graph.chunks import Key
from dask_mars.scheduler.events import (
    ChunkFailed,
    ChunksFinished,
    FailGraph,
    FinishGraph,
    GraphCancelled,
    GraphSubmitted,
)

if TYPE_CHECKING:
    from rich.console import Console

    from dask_mars.diagnostics.display import Display


class Progress(Callback, Listener):  # type: ignore[misc]
    """Shows how far computations are: a bar for each layer, the memory in use, and how many workers are busy.

    It is a callback of Dask, used as its `ProgressBar` is: as a context manager, or for good by `register`. In a
    terminal the display is renewed up to ten times a second, in a notebook, which needs no widgets for it, up to
    five; in a file there is a line at the end, and now and then for what takes long. Of computations on a cluster,
    and by other schedulers than dask_mars, it shows the bars only.

    Parameters
    ----------
    layers : int, optional
        Most bars for one computation. The largest layers have their own, the others are added up.
    console : rich.console.Console, optional
        Where to draw. Default: below the cell in a notebook, else rich's own.

    Raises
    ------
    ImportError
        rich is not installed, and this is no notebook.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_mars
    >>> from dask_mars.diagnostics import Progress
    >>> with Progress():  # doctest: +SKIP
    ...     da.ones((2000, 2000), chunks=500).sum().compute(scheduler=dask_mars.get)
    """

    def __init__(self, layers: int = 8, console: Console | None = None) -> None:
        super().__init__()
        self._in_notebook = console.is_jupyter if console is not None else is_notebook()
        if not self._in_notebook and importlib.util.find_spec("rich") is None:
            raise ImportError("the progress display needs rich: python -m pip install 'dask-mars[progress]'")
        self._layers = max(layers, 1)
        self._console = console
        self._lock = threading.Lock()
        #: Computations within which others may be started.
        self._depth = 0
        self._display: Display | None = None
        self._tallies: dict[tuple[int, int], Tally] = {}

    # -- what Dask calls --------------------------------------------------------------------------------------

    def _start(self, dsk: Mapping[Key, Any]) -> None:
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                self._tallies = {}
                self._display = self._new_display()
                listeners.add(self)
                self._display.start()

    def _new_display(self) -> Display:
        if self._in_notebook:
            return NotebookDisplay(self._layers)
        # What only draws in notebooks need not wait for rich.
        from dask_mars.diagnostics.display import display_on

        return display_on(self._console, self._layers)

    def _start_state(self, dsk: Mapping[Key, Any], state: Mapping[str, Any]) -> None:
        # Who hears of tasks from an engine of this process is told nothing of them here.
        values = set(state.get("cache", ()))
        keys = [key for key in dsk or state["waiting"] if key not in values]
        running = state["running"]
        self._show((0, id(state)), Tally(time.monotonic(), keys, _itself, lambda: list(running)), None)

    def _posttask(self, key: Key, result: Any, dsk: Any, state: Mapping[str, Any], worker: Any) -> None:
        tally = self._tallies.get((0, id(state)))
        if tally is not None:
            tally.done.append(([key], None))

    def _finish(self, dsk: Any, state: Mapping[str, Any], failed: bool) -> None:
        now_s = time.monotonic()
        if tally := self._tallies.get((0, id(state))):
            tally.end(now_s, "failed" if failed else "finished")
        with self._lock:
            self._depth -= 1
            if self._depth:
                return
            listeners.remove(self)
            for tally in self._tallies.values():
                # The engine may not have come to it yet.
                tally.end(now_s, "cancelled" if failed else "finished")
            display, self._display = self._display, None
            # They refer to graphs.
            self._tallies = {}
            if display is not None:
                display.stop()

    # -- in the engines' threads ------------------------------------------------------------------------------

    def on_event(self, engine: EngineView, event: ListenerEvent) -> None:
        """Note what is to be counted."""
        kind = type(event)
        if engine.is_agent:
            # A cluster that lives in this process: a computation is shown, and not its parts too.
            return
        if kind is GraphSubmitted:
            assert isinstance(event, GraphSubmitted)
            run = engine.runs[event.graph]
            keys, operand_of = run.graph.keys, run.graph.operand_of
            tasks = (key for key, operand in zip(keys, operand_of, strict=True) if operand >= 0)
            tally = Tally(time.monotonic(), tasks, keys.__getitem__, lambda: _running(engine, run.number, keys))
            tally.most_in_use_bytes = engine.memory()["in_use_bytes"]
            tally.spilled_before_bytes = engine.store()["spilled_bytes"]
            self._show((engine.number, run.number), tally, engine)
            return
        if isinstance(event, ProcessesMeasured):
            self._note_in_use(engine.number, event.in_use_bytes)
            return
        tally_of = self._tallies.get((engine.number, getattr(event, "graph", 0)))
        if tally_of is None:
            return
        if isinstance(event, ChunksFinished):
            tally_of.done.append((event.chunks, event.durations_s))
        elif isinstance(event, ChunkFailed):
            tally_of.failed.append(event.chunk)
        elif kind in _OUTCOMES:
            tally_of.end(time.monotonic(), _OUTCOMES[kind])

    def _note_in_use(self, engine: int, in_use_bytes: int) -> None:
        for (number, _), tally in list(self._tallies.items()):
            if number == engine and tally.ended_s is None:
                tally.most_in_use_bytes = max(tally.most_in_use_bytes, in_use_bytes)

    def _show(self, name: tuple[int, int], tally: Tally, engine: EngineView | None) -> None:
        self._tallies[name] = tally
        display = self._display
        if display is not None:
            display.show(Shown(tally, engine))


_OUTCOMES: dict[type, str] = {FinishGraph: "finished", FailGraph: "failed", GraphCancelled: "cancelled"}


def _itself(key: Key) -> Key:
    return key


def _running(engine: EngineView, graph: int, keys: list[Key]) -> Iterator[Key]:
    """Return the keys that workers are computing of a graph, but for what is no chunk's number."""
    for noted in engine.running().values():
        if noted is not None and noted.graph == graph and noted.number < len(keys):
            yield keys[noted.number]
