"""Dask's callbacks for computations by an engine: progress bars, profilers, caches."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

from dask_mars.dask_api.core import convert_legacy_graph, start_state_from_dask, unpack_callbacks
from dask_mars.graph.chunks import DATA, ChunkGraph, Key
from dask_mars.optimize.fronts.tasks import alias_targets
from dask_mars.store.persisted import as_data

Callbacks = tuple[Callable[..., None] | None, ...]

# Callbacks that listen to the engine itself.
_LISTENING = {"dask_mars.observe.progress"}

# Callbacks that only count the tasks in each state.
_COUNTING = _LISTENING | {"dask.diagnostics.progress", "tqdm.dask"}

# Callbacks whose posttask is known to ignore the value, so that it need not be copied for them.
_IGNORE_VALUES = _COUNTING | {"dask.diagnostics.profile"}

# Callbacks that would be wrong without values.
_NEED_VALUES = {("dask.cache", "Cache"), ("dask.diagnostics.profile", "CacheProfiler")}


class Observer(Protocol):
    """Receives the start and the end of chunks."""

    #: Whether `begun` must not report a chunk before its inputs are computed.
    in_order: bool
    #: Whether it wants any reports.
    wants_tasks: bool
    #: Whether it reads the values of finished chunks.
    values_wanted: bool

    def begun(self, graph: ChunkGraph, chunks: Sequence[int]) -> None:
        """Report that chunks were dispatched, some perhaps again."""

    def ended(self, graph: ChunkGraph, chunks: Sequence[int], values: Mapping[int, Any], worker: Any) -> None:
        """Report that chunks were computed; `values` has their values, if `values_wanted`."""


class CallbackObserver:
    """Calls Dask's callbacks in the order and with the arguments that Dask's own schedulers use."""

    in_order = True

    def __init__(self, callbacks: Any, dsk: MutableMapping[Key, Any], remote: bool = False) -> None:
        self._callbacks: list[Callbacks] = [
            callback if remote else _without_tasks(callback) for callback in callbacks
        ]
        self._dsk = dsk
        self._started: list[Callbacks] = []
        _, _, self._pretask, self._posttask, _ = unpack_callbacks(self._callbacks)
        #: State as Dask's schedulers show it to callbacks; sets where theirs has lists.
        self.state: dict[str, Any] = {}
        self._aliases: dict[Key, list[Key]] = {}
        self.wants_tasks = any(hook for callback in self._callbacks for hook in callback[1:4])
        self.values_wanted = any(_looks_at_values(callback) for callback in self._posttask)

    def start(self) -> None:
        """Call `start` of each callback."""
        for callback in self._callbacks:
            if callback[0]:
                callback[0](self._dsk)
            self._started.append(callback)

    def start_state(self, requested: set[Key]) -> None:
        """Compute the state and call `start_state` of each callback."""
        state = start_state_from_dask(dict(self._dsk), keys=requested, cache={}, sortkey=lambda _: 0)
        state["ready"] = set(state["ready"])
        self.state.update(state)
        for alias, target in alias_targets(self._dsk).items():
            self._aliases.setdefault(target, []).append(alias)
        for callback in self._callbacks:
            if callback[1]:
                callback[1](self._dsk, self.state)

    def begun(self, graph: ChunkGraph, chunks: Sequence[int]) -> None:
        """Report that chunks were dispatched."""
        for chunk in chunks:
            self.running(graph.keys[chunk])

    def ended(self, graph: ChunkGraph, chunks: Sequence[int], values: Mapping[int, Any], worker: Any) -> None:
        """Report that chunks were computed."""
        for chunk in chunks:
            self.done(graph.keys[chunk], values.get(chunk), worker)

    def running(self, key: Key) -> None:
        """Report that a task was dispatched."""
        # Tasks that are not in Dask's graph are skipped, and repeated dispatches: after the death of a worker,
        # after a recall, or after a failure.
        if key not in self._dsk or key in self.state["running"]:
            return
        self.state["ready"].discard(key)
        self.state["running"].add(key)
        for callback in self._pretask:
            callback(key, self._dsk, self.state)

    def done(self, key: Key, value: Any, worker: Any) -> None:
        """Report that a task has finished, and the aliases of its key."""
        if key not in self._dsk:
            return
        state = self.state
        state["running"].discard(key)
        state["finished"].add(key)
        for successor in state["dependents"].get(key, ()):
            waiting = state["waiting"].get(successor)
            if waiting is not None:
                waiting.discard(key)
                if not waiting:
                    del state["waiting"][successor]
                    state["ready"].add(successor)
        for source in state["dependencies"].get(key, ()):
            users = state["waiting_data"].get(source)
            if users is not None:
                users.discard(key)
                if not users:
                    del state["waiting_data"][source]
                    state["released"].add(source)
        for callback in self._posttask:
            callback(key, value, self._dsk, state, worker)
        for alias in self._aliases.get(key, ()):
            if alias in state["dependencies"]:
                self.running(alias)
                self.done(alias, value, worker)

    def finish(self, failed: bool) -> None:
        """Call `finish` of each callback that was started."""
        for callback in self._started:
            if callback[4]:
                callback[4](self._dsk, self.state, failed)


class CountingObserver(CallbackObserver):
    """Calls callbacks that only count. They need neither Dask's tasks nor the ready state."""

    in_order = False

    def __init__(self, callbacks: Any, remote: bool = False) -> None:
        super().__init__(callbacks, {}, remote)

    def start_counting(self, graph: ChunkGraph) -> None:
        """Call `start_state` of each callback with all tasks of a graph waiting."""
        keys = zip(graph.keys, graph.operand_of, strict=True)
        # In the graph's order, which displays show.
        waiting = dict.fromkeys([key for key, operand in keys if operand != DATA])
        self.state.update(ready=set(), waiting=waiting, running=set(), finished=set())
        for callback in self._callbacks:
            if callback[1]:
                callback[1](self._dsk, self.state)

    def running(self, key: Key) -> None:
        """Report the first dispatch of a task."""
        if key in self.state["waiting"]:
            del self.state["waiting"][key]
            self.state["running"].add(key)
            for callback in self._pretask:
                callback(key, self._dsk, self.state)

    def done(self, key: Key, value: Any, worker: Any) -> None:
        """Report that a task has finished, for the first time."""
        if key in self.state["running"]:
            self.state["running"].remove(key)
            self.state["finished"].add(key)
            for callback in self._posttask:
                callback(key, value, self._dsk, self.state, worker)


class TellOnce:
    """Reports each chunk to an observer once, however often its graph is computed."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._begun: set[Key] = set()
        self._ended: set[Key] = set()
        self.in_order = observer.in_order
        self.wants_tasks = observer.wants_tasks
        self.values_wanted = observer.values_wanted

    def begun(self, graph: ChunkGraph, chunks: Sequence[int]) -> None:
        """Report that chunks were dispatched."""
        self._observer.begun(graph, _new(graph, chunks, self._begun))

    def ended(self, graph: ChunkGraph, chunks: Sequence[int], values: Mapping[int, Any], worker: Any) -> None:
        """Report that chunks were computed."""
        self._observer.ended(graph, _new(graph, chunks, self._ended), values, worker)


def _new(graph: ChunkGraph, chunks: Sequence[int], known: set[Key]) -> list[int]:
    """Return the chunks with unknown keys, and add their keys to `known`."""
    found = [chunk for chunk in chunks if graph.keys[chunk] not in known]
    known.update([graph.keys[chunk] for chunk in found])
    return found


def only_count(callbacks: Iterable[Callbacks]) -> bool:
    """Return whether callbacks are known to read only the number of tasks in each state."""
    return all(_counts(hook) for callback in callbacks for hook in callback if hook)


def without_values(callbacks: Iterable[Callbacks]) -> list[Callbacks]:
    """Return the callbacks that work without values of tasks; warn about the others."""
    usable = []
    for callback in callbacks:
        if needing := next(filter(_needs_values, callback), None):
            name = type(needing.__self__).__name__  # type: ignore[attr-defined]
            warnings.warn(
                f"{name} is left out: it looks at the values of tasks, which stay on the cluster", stacklevel=2
            )
        else:
            usable.append(callback)
    return usable


def _needs_values(hook: Any) -> bool:
    classes = type(getattr(hook, "__self__", None)).__mro__
    return not _NEED_VALUES.isdisjoint([(base.__module__, base.__qualname__) for base in classes])


def _without_tasks(callback: Callbacks) -> Callbacks:
    """Return a callback without the hooks that its engine listener replaces; hooks of subclasses stay."""
    start, *of_tasks, finish = callback
    return start, *[None if getattr(hook, "__module__", None) in _LISTENING else hook for hook in of_tasks], finish


def _counts(hook: Any) -> bool:
    # A subclass may look at more, in methods that are not hooks.
    modules = (getattr(hook, "__module__", None), type(getattr(hook, "__self__", None)).__module__)
    return _COUNTING.issuperset(modules)


def _looks_at_values(posttask: Any) -> bool:
    function = getattr(posttask, "__func__", posttask)
    module = getattr(function, "__module__", "")
    if module == "dask.diagnostics.profile":
        return "CacheProfiler" in getattr(function, "__qualname__", "")
    return module not in _IGNORE_VALUES


def as_tasks(dsk: Mapping[Key, Any]) -> dict[Key, Any]:
    """Return a graph of Dask's task objects that callbacks may change."""
    return {key: as_data(key, node) for key, node in convert_legacy_graph(dsk).items()}
