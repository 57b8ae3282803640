"""Entry points by which other packages extend this one."""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from collections.abc import Sequence


def entry_points(group: str) -> Sequence[importlib.metadata.EntryPoint]:
    """Return the entry points of a group of this package's, such as ``dask_mars.policies``."""
    return [entry_point for entry_point in _ours(tuple(sys.path)) if entry_point.group == group]


@functools.lru_cache(1)
def _ours(path: tuple[str, ...]) -> Sequence[importlib.metadata.EntryPoint]:
    """Return the entry points of all groups of this package's, in the distributions of a search path."""
    return [
        entry_point
        for distribution in importlib.metadata.distributions()
        # Most packages have none, and parsing all entry points would take three times as long.
        if "dask_mars." in (distribution.read_text("entry_points.txt") or "")
        for entry_point in distribution.entry_points
    ]
