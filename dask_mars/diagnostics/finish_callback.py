"""Finish callbacks: a function that is called once for each computed chunk."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from dask_mars.engine.listeners import EngineView, Listener, ListenerEvent, listeners
from dask_mars.graph.chunks import Key
from dask_mars.scheduler.events import ChunksFinished, ForgetGraph

logger = logging.getLogger(__name__)

#: Topic under which a cluster's scheduler reports computed subtasks.
FINISHED_TOPIC = "dask-mars-finished"

#: Called with a key and the place of its computation.
OnFinish = Callable[[Key, str], Any]


class FinishCallback(Listener):
    """Calls a function once for each computed chunk, during the context.

    Retries and the number of workers do not matter. Any number of callbacks may be active, in the user's process,
    in that of an agent (by ``client.run``), and, with a client, on any host that reaches a cluster's scheduler.

    Parameters
    ----------
    function : callable
        Called with Dask's key of the chunk and the label of the worker, such as ``"worker 0 (process 4711)"``,
        ``"thread 0 of your process"`` or ``"your process"``. With `client` it is called with the key of a subtask,
        whose second part `decode_subtask_id` reads as ``bytes.fromhex(key[1])``, and the agent's address. It is
        called in the thread of the engine or client, which waits for it. After an exception it is not called
        again.
    client : distributed.Client, optional
        Report all computations on its cluster, of all users. The scheduler needs the plugin (``dask scheduler
        --preload dask_mars.scheduler``). Default: report computations by the engines of this process.

    Examples
    --------
    >>> import dask_mars
    >>> from operator import add
    >>> heard = []
    >>> with FinishCallback(lambda key, worker: heard.append(key)):
    ...     dask_mars.get({"x": (add, 1, 2), "y": (add, "x", 10)}, ["x", "y"])
    (3, 13)
    >>> sorted(heard)
    ['x', 'y']
    """

    def __init__(self, function: OnFinish, client: Any = None) -> None:
        self._function = function
        self._client = client
        #: Reported chunks of each graph of an engine.
        self._told: dict[tuple[int, int], bytearray] = {}

    def __enter__(self) -> FinishCallback:
        if self._client is None:
            listeners.add(self)
        else:
            _of_clusters.add(self._client, self._function)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._client is None:
            listeners.remove(self)
        else:
            _of_clusters.remove(self._client, self._function)

    def on_event(self, engine: EngineView, event: ListenerEvent) -> None:
        """Report computed chunks."""
        if isinstance(event, ForgetGraph):
            self._told.pop((engine.number, event.graph), None)
        elif isinstance(event, ChunksFinished):
            run = engine.runs.get(event.graph)
            if run is None:
                return
            told = self._told.setdefault((engine.number, event.graph), bytearray(len(run.graph)))
            label = engine.labels[event.worker]
            for chunk in event.chunks:
                if not told[chunk]:
                    told[chunk] = 1
                    self._function(run.graph.keys[chunk], label)


class _OfClusters:
    """The callbacks for clusters; a client takes one for each topic."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._functions: dict[str, tuple[OnFinish, ...]] = {}

    def add(self, client: Any, function: OnFinish) -> None:
        with self._lock:
            functions = self._functions[client.id] = (*self._functions.get(client.id, ()), function)
            if len(functions) == 1:
                client.subscribe_topic(FINISHED_TOPIC, lambda event: self._tell(client, event[1]))

    def remove(self, client: Any, function: OnFinish) -> None:
        with self._lock:
            functions = list(self._functions.get(client.id, ()))
            if function not in functions:
                return
            functions.remove(function)
            self._functions[client.id] = tuple(functions)
            if not functions:
                del self._functions[client.id]
                if client.status == "running":
                    client.unsubscribe_topic(FINISHED_TOPIC)

    def _tell(self, client: Any, message: Mapping[str, Any]) -> None:
        for function in self._functions.get(client.id, ()):
            try:
                function(tuple(message["key"]), message["worker"])
            except Exception:
                logger.exception("%r raised, and is told nothing more", function)
                self.remove(client, function)


_of_clusters = _OfClusters()

__all__ = ["FINISHED_TOPIC", "FinishCallback"]
