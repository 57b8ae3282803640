"""A progress display for terminals and notebooks: a Dask callback that listens to the engines."""

from __future__ import annotations

import importlib.util
from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dask.callbacks import Callback

from dask_mars.engine.listeners import EngineView, Listener, ListenerEvent, ProcessesMeasured, listeners
from dask_mars.graph.chunks import Key
from dask_mars.locking import Lock
from dask_mars.observe.layers import LayerIndex
from dask_mars.observe.notebook import NotebookDisplay, is_notebook
from dask_mars.observe.recording import OUTCOMES
from dask_mars.observe.tally import Display, Tally
from dask_mars.scheduler.events import FailGraph, FinishGraph, GraphCancelled, GraphSubmitted

if TYPE_CHECKING:
    from rich.console import Console

    from dask_mars.engine.graph_run import GraphRun


class Progress(Callback, Listener):  # type: ignore[misc]
    """Shows the progress of computations: a bar for each layer, the memory in use, and the busy workers.

    It is a callback of Dask, used as its `ProgressBar`: as a context manager, or permanently by `register`. A
    terminal is redrawn up to ten times a second, a notebook, without widgets, up to five times; a file gets a line
    at the end, and lines in growing intervals for long computations. For computations on a cluster, and by other
    schedulers than dask_mars, it shows only the bars.

    Parameters
    ----------
    layers : int, optional
        Maximum number of bars for one computation. The largest layers have their own, the others share one.
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
        self._lock = Lock()
        #: Number of computations in progress, which may be nested.
        self._depth = 0
        self._display: Display | None = None
        #: Computations by engine and graph; of other schedulers by 0 and the id of Dask's state.
        self._tallies: dict[tuple[int, int], Tally] = {}
        #: Numbers of keys, and times of computed ones, by the id of Dask's state.
        self._finished: dict[int, tuple[dict[Key, int], array[float]]] = {}

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
        from dask_mars.observe.terminal import display_on

        return display_on(self._console, self._layers)

    def _start_state(self, dsk: Mapping[Key, Any], state: Mapping[str, Any]) -> None:
        # Computations by an engine of this process have no tasks here: the listener shows them.
        values = set(state.get("cache", ()))
        ids = {key: id for id, key in enumerate([key for key in dsk or state["waiting"] if key not in values])}
        durations_s, running = array("f", [-1.0]) * len(ids), state["running"]
        self._finished[id(state)] = ids, durations_s
        index = LayerIndex(list(ids), range(len(ids)))
        self._show((0, id(state)), Tally(index, durations_s, lambda: [ids[key] for key in list(running)]))

    def _posttask(self, key: Key, result: Any, dsk: Any, state: Mapping[str, Any], worker: Any) -> None:
        if id(state) in self._finished:
            ids, durations_s = self._finished[id(state)]
            if key in ids:
                durations_s[ids[key]] = 0.0

    def _finish(self, dsk: Any, state: Mapping[str, Any], failed: bool) -> None:
        self._finished.pop(id(state), None)
        if tally := self._tallies.get((0, id(state))):
            tally.end("failed" if failed else "finished")
        with self._lock:
            self._depth -= 1
            if self._depth:
                return
            listeners.remove(self)
            for tally in self._tallies.values():
                # The engine may not have reported the end yet.
                tally.end("cancelled" if failed else "finished")
            display, self._display = self._display, None
            # Tallies refer to the keys of graphs.
            self._tallies = {}
            if display is not None:
                display.stop()

    # -- in the engines' threads ------------------------------------------------------------------------------

    def on_event(self, engine: EngineView, event: ListenerEvent) -> None:
        """Show a computation, or record its end."""
        if engine.is_agent:
            # A local cluster: show the whole computation, not its subtasks.
            return
        if isinstance(event, GraphSubmitted):
            run = engine.runs[event.graph]
            self._show((engine.id, run.id), _tally_of(engine, run))
        elif isinstance(event, ProcessesMeasured):
            for tally in list(self._tallies.values()):
                if tally.engine is engine and tally.ended_s is None:
                    tally.peak_bytes = max(tally.peak_bytes, event.in_use_bytes)
        elif isinstance(event, FinishGraph | FailGraph | GraphCancelled):
            ended = self._tallies.get((engine.id, event.graph))
            if ended is not None:
                ended.end(OUTCOMES[type(event)])

    def _show(self, name: tuple[int, int], tally: Tally) -> None:
        self._tallies[name] = tally
        display = self._display
        if display is not None:
            display.shown.append(tally)


def _tally_of(engine: EngineView, run: GraphRun) -> Tally:
    # The run would keep values alive.
    graph_id, count, errors = run.id, len(run.graph), run.errors

    def running() -> list[int]:
        # A worker's note may be of an earlier moment.
        noted = [note for note in engine.running().values() if note is not None]
        return [note.number for note in noted if note.graph == graph_id and note.number < count]

    index = LayerIndex(run.graph.keys, run.graph.operand_of)
    return Tally(index, run.measurements.durations_s, running, lambda: list(errors.copy()), engine)
