"""The chunk graphs that computing collections would run, without running them."""

from __future__ import annotations

import contextlib
from typing import Any

import dask

from dask_mars import config
from dask_mars.graph.chunks import ChunkGraph, flatten
from dask_mars.optimize.passes import OnPass
from dask_mars.optimize.prepare import engine_options, prepare


class _HandedOver(BaseException):
    """Ends a computation at the call of its scheduler."""


def handed_over(collections: tuple[Any, ...], traverse: bool, optimize_graph: bool) -> tuple[Any, list[Any]]:
    """Return the graph and the keys that `dask.compute` passes to a scheduler."""
    found: list[tuple[Any, list[Any]]] = []

    def capture(dsk: Any, keys: Any, **_: Any) -> Any:
        found.append((dsk, flatten(keys)))
        raise _HandedOver

    with contextlib.suppress(_HandedOver):
        dask.compute(*collections, traverse=traverse, optimize_graph=optimize_graph, scheduler=capture)
    if not found:
        raise ValueError("there is nothing to compute: no Dask collections given")
    return found[0]


def before_and_after(
    dsk: Any, keys: list[Any], settings: config.Settings, on_pass: OnPass | None = None
) -> tuple[ChunkGraph, ChunkGraph]:
    """Return the graph before composing, and the one that an engine runs."""
    cache = dask.config.get("cache", None)
    options = engine_options(settings.num_workers, lambda: settings.store_limit)
    if on_pass is not None:
        options = options._replace(on_pass=on_pass)
    after = prepare(dsk, keys, options, cache=cache)
    return prepare(dsk, keys, composed=False, cache=cache), after
