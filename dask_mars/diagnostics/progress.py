"""A progress display for terminals and notebooks: a Dask callback that listens to the engines."""

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
    """Shows the progress of computations: a bar for each layer, the memory in use, and the busy workers.

    It is a callback of Dask, used as its `ProgressBar`: as a context manager, or permanently by `register`. A
    terminal is redrawn up to ten times a second, a notebook, without widgets, up to five times; a file gets a line
    at the end, and lines in growing intervals for long computations. For computations on a cluster, and by other
    schedulers than dask_mars, it shows only the bars.

    Parameters
    ----------
    layers : int, optional
        Most bars for one computation. The largest layers have their own, the others share one.
    console : rich.console.Console, optional
        Where to draw. Default: below the cell in a notebook, else rich's default console.

    Raises
    ------
    ImportError
        rich is not installed, and this is not a notebook.

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
        #: Number of computations in progress, which may be nested.
        self._depth = 0
        self._display: Display | None = None
        self._tallies: dict[tuple[int, int], Tally] = {}

    # -- calls of Dask ----------------------------------------------------------------------------------------

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
        # Drawing in notebooks does not need rich.
        from dask_mars.diagnostics.display import display_on

        return display_on(self._console, self._layers)

    def _start_state(self, dsk: Mapping[Key, Any], state: Mapping[str, Any]) -> None:
        # Computations by an engine of this process have no tasks here: the listener counts them.
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
                # The engine may not have reported the end yet.
                tally.end(now_s, "cancelled" if failed else "finished")
            display, self._display = self._display, None
            # Tallies refer to graphs.
            self._tallies = {}
            if display is not None:
                display.stop()

    # -- in the engines' threads ------------------------------------------------------------------------------

    def on_event(self, engine: EngineView, event: ListenerEvent) -> None:
        """Count an event."""
        kind = type(event)
        if engine.is_agent:
            # A local cluster: show the whole computation, not its subtasks.
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
    """Return the keys of a graph's chunks that workers compute; skip notes that are no chunk's number."""
    for noted in engine.running().values():
        if noted is not None and noted.graph == graph and noted.number < len(keys):
            yield keys[noted.number]
