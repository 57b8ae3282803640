"""Entry points by which other packages extend this one."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence


def entry_points(group: str) -> Sequence[importlib.metadata.EntryPoint]:
    """Return the entry points of a group of this package's, such as ``dask_mars.policies``."""
    return [
        entry_point
        for distribution in importlib.metadata.distributions()
        # Most packages have none, and parsing all entry points would take three times as long.
        if group in (distribution.read_text("entry_points.txt") or "")
        for entry_point in distribution.entry_points.select(group=group)
    ]
