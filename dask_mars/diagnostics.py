"""Observation of this process's engines: event logs, progress, reports, and custom listeners."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dask_mars.engine.listeners import EngineView, Listener, listeners
from dask_mars.graph.ids import SubtaskId, decode_subtask_id
from dask_mars.observe.event_log import EventLog

if TYPE_CHECKING:
    from dask_mars.observe.progress import Progress
    from dask_mars.observe.report import report

__all__ = [
    "EngineView",
    "EventLog",
    "Listener",
    "Progress",
    "SubtaskId",
    "add_listener",
    "decode_subtask_id",
    "remove_listener",
    "report",
]

add_listener = listeners.add
remove_listener = listeners.remove


def __getattr__(name: str) -> Any:
    # Event logs need no imports for drawing.
    if name == "Progress":
        from dask_mars.observe.progress import Progress

        return Progress
    if name == "report":
        from dask_mars.observe.report import report

        return report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
