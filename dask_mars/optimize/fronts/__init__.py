"""Fronts: each reads one kind of Dask's graphs. A graph that no front reads is taken as plain tasks.

A front returns layers that are compiled when one of their keys is met, and tasks for the rest. Begin with `base`.
"""

from __future__ import annotations

from typing import Any

from dask_mars.optimize.fronts.arrays import read_array_expressions
from dask_mars.optimize.fronts.base import Front, ReadOptions, Symbolic
from dask_mars.optimize.fronts.frames import read_expressions
from dask_mars.optimize.fronts.layers import read_layers

FRONTS: tuple[Front, ...] = (read_layers, read_array_expressions, read_expressions)


def symbolic_graph(dsk: Any, options: ReadOptions) -> Symbolic | None:
    """Return a graph as its front reads it, None if there is none: then use `low_level_graph`."""
    for front in FRONTS:
        found = front(dsk, options)
        if found is not None:
            return found
    return None


__all__ = ["FRONTS", "ReadOptions", "symbolic_graph"]
