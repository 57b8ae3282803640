"""Observation of this process's engines: event logs, progress, reports, plans, pictures of graphs.

It listens to engines, which do not know it, and reads chunk graphs. Without a listener it costs nothing. Begin
with `event_log` or `progress`; `drawing` makes pictures, `planning` plans, `reports` pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dask_mars.diagnostics.event_log import EventLog
from dask_mars.diagnostics.finish_callback import FinishCallback
from dask_mars.engine.listeners import EngineView, Listener, listeners
from dask_mars.graph.ids import SubtaskId, decode_subtask_id

if TYPE_CHECKING:
    from dask_mars.diagnostics.progress import Progress
    from dask_mars.diagnostics.reports.report import report

__all__ = [
    "EngineView",
    "EventLog",
    "FinishCallback",
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
    # An engine may open an event log, and skips the imports for drawing.
    if name == "Progress":
        from dask_mars.diagnostics.progress import Progress

        return Progress
    if name == "report":
        from dask_mars.diagnostics.reports.report import report

        return report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
