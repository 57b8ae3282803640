"""Plain tasks: the low-level graph, for collections that no front reads.

Dask's fusion of expressions would give an annotated task the key of its successor, so annotated expressions are
made without it. Dask's setting for fusion holds in all threads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask
from dask.highlevelgraph import HighLevelGraph

from dask_mars.dask_api.core import Alias, DataNode, Expr
from dask_mars.graph.chunks import Key
from dask_mars.locking import Lock

_SETTINGS = {"optimization.fuse.active": False, "optimization.annotations.fuse": False}


def low_level_graph(dsk: Any, is_annotated: bool) -> Mapping[Key, Any]:
    """Return the low-level graph of any argument of a getter."""
    if isinstance(dsk, HighLevelGraph):
        tasks: Mapping[Key, Any] = dsk.to_dict()
        return tasks
    if isinstance(dsk, Mapping):
        return dsk
    return unfused_graph(dsk) if is_annotated else _graph(dsk)


def alias_targets(dsk: Mapping[Key, Any]) -> dict[Key, Key]:
    """Return the target of every alias in a graph."""
    return {key: node.target for key, node in dsk.items() if isinstance(node, Alias)}


def replace_cached(dsk: Mapping[Key, Any], cache: Mapping[Key, Any]) -> dict[Key, Any]:
    """Return a graph with the cached values in place of tasks."""
    return {**dsk, **{key: DataNode(key, value) for key, value in cache.items()}}


class _NoFusion:
    """The setting while graphs are made, perhaps several at a time: the last one restores the previous setting."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._count = 0
        self._setting: dask.config.set | None = None

    def __enter__(self) -> None:
        with self._lock:
            if not self._count:
                self._setting = dask.config.set(_SETTINGS)
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1
            if not self._count:
                self._restore()

    def _restore(self) -> None:
        setting, self._setting = self._setting, None
        if setting is not None:
            setting.__exit__(None, None, None)

    def forget(self) -> None:
        """In a forked process, reset the state: other threads are gone, and one may have held the lock."""
        self._lock = Lock()
        self._count = 0
        self._restore()


_no_fusion = _NoFusion()
os.register_at_fork(after_in_child=_no_fusion.forget)


def unfused_graph(dsk: Expr) -> Mapping[Key, Any]:
    """Return the low-level graph of an expression, with each task under its own key."""
    # Another thread makes it, which Ctrl-C does not reach, so that the setting is always restored.
    with ThreadPoolExecutor(1, thread_name_prefix="dask-mars-graph") as pool:
        return pool.submit(_unfused, dsk).result()


def _graph(dsk: Expr) -> Mapping[Key, Any]:
    graph: Mapping[Key, Any] = dsk.__dask_graph__()
    return graph


def _unfused(dsk: Expr) -> Mapping[Key, Any]:
    with _no_fusion:
        return _graph(dsk)
