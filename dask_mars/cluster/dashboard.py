"""Progress of computations by chunk, on a page of Dask's scheduler.

The scheduler hears of subtasks as of any other task, and from the agents' heartbeats how far those are that are
running. Nothing is sent for it, and nobody's results depend on it.
"""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from dask.utils import format_bytes
from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.http.utils import RequestHandler

from dask_mars.cluster.marks import MARK
from dask_mars.cluster.metrics import SUBTASKS

_REFRESH_S = 1

#: What operands can be.
STATES = ("waiting", "running", "finished", "failed")


class ComputationStatus(TypedDict):
    """How far a computation is.

    `chunks` are those that have been handed to the scheduler, `hosts` has by address those that are running and
    finished there.
    """

    computation: str
    client: str
    chunks: int
    waiting: int
    running: int
    finished: int
    failed: int
    hosts: dict[str, dict[str, int]]


class HostStatus(TypedDict):
    """What an agent does: operands that are running, and the bytes of its store in memory and on disk."""

    name: str
    processes: int
    running: int
    stored_bytes: int
    store_limit_bytes: int
    on_disk_bytes: int


@dataclass(slots=True)
class _Subtask:
    chunks: int
    #: As Dask's scheduler says, but that what was in memory once is done, even if it has been released.
    state: str = "waiting"
    #: Address of who computes or has computed it.
    worker: str = ""


@dataclass(slots=True)
class _TrackedComputation:
    """A computation of which the scheduler knows some task."""

    client: str
    subtasks: dict[Any, _Subtask] = field(default_factory=dict)
    #: How many of them are not forgotten.
    left: int = 0


class Dashboard(SchedulerPlugin):  # type: ignore[misc]
    """Keeps what there is to know of dask_mars's computations, until the scheduler forgets their tasks.

    Parameters
    ----------
    scheduler : Scheduler
        Dask's.
    """

    name = "dask-mars-overview"

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._computations: dict[str, _TrackedComputation] = {}
        self._computation_of: dict[Any, str] = {}

    # -- what Dask calls --------------------------------------------------------------------------------------

    def update_graph(
        self, scheduler: Scheduler, *, client: str, annotations: Mapping[str, Mapping[Any, Any]], **kwargs: Any
    ) -> None:
        """Take note of new subtasks."""
        for key, mark in annotations.get(MARK, {}).items():
            if isinstance(mark, dict) and mark["chunks"] and key not in self._computation_of:
                name = self._computation_of[key] = mark["computation"]
                tracked = self._computations.setdefault(name, _TrackedComputation(client))
                tracked.subtasks[key] = _Subtask(mark["chunks"])
                tracked.left += 1

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Take note of a change of a task's state."""
        name = self._computation_of.get(key)
        if name is None:
            return
        tracked = self._computations[name]
        subtask = tracked.subtasks[key]
        if finish == "forgotten":
            del self._computation_of[key]
            tracked.left -= 1
            if not tracked.left:
                del self._computations[name]
        elif finish == "processing":
            subtask.state, subtask.worker = finish, self._scheduler.tasks[key].processing_on.address
        elif finish == "memory":
            subtask.state, subtask.worker = finish, kwargs.get("worker", subtask.worker)
        elif finish != "released":
            subtask.state, subtask.worker = finish, ""

    def restart(self, scheduler: Scheduler) -> None:
        """Forget everything."""
        self._computations.clear()
        self._computation_of.clear()

    # -- what there is to know --------------------------------------------------------------------------------

    def computations(self) -> list[ComputationStatus]:
        """Return how far computations are of which anything is left to do."""
        told = {
            (address, key): (computed, running)
            for address, state in self._scheduler.workers.items()
            for key, computed, running in state.metrics.get(SUBTASKS, ())
        }
        found = []
        for name, tracked in self._computations.items():
            counts: Counter[str] = Counter()
            hosts: dict[str, Counter[str]] = {}
            for key, subtask in tracked.subtasks.items():
                of_subtask = _count(subtask, *told.get((subtask.worker, key), (0, 0)))
                counts.update(of_subtask)
                if subtask.worker:
                    hosts.setdefault(subtask.worker, Counter()).update(of_subtask)
            if counts["waiting"] or counts["running"]:
                found.append(_computation(name, tracked.client, counts, hosts))
        return found

    def hosts(self) -> dict[str, HostStatus]:
        """Return what agents do, by their addresses."""
        return {
            address: HostStatus(
                name=str(state.name),
                processes=state.nthreads,
                running=state.metrics["mars_chunks_running"],
                stored_bytes=state.metrics["mars_stored_bytes"],
                store_limit_bytes=state.metrics["mars_store_limit_bytes"],
                on_disk_bytes=state.metrics["spilled_bytes"]["disk"],
            )
            for address, state in sorted(self._scheduler.workers.items())
            if SUBTASKS in state.metrics
        }


def _count(subtask: _Subtask, computed: int, running: int) -> dict[str, int]:
    """Return how many operands of a subtask are in which state, given what its host has said of it."""
    chunks = subtask.chunks
    if subtask.state == "memory":
        return {"finished": chunks}
    if subtask.state == "erred":
        return {"failed": chunks}
    if subtask.state != "processing":
        return {"waiting": chunks}
    # The two figures are not of the same moment.
    running = min(running, chunks - computed)
    return {"finished": computed, "running": running, "waiting": chunks - computed - running}


def _computation(
    name: str, client: str, counts: Counter[str], hosts: dict[str, Counter[str]]
) -> ComputationStatus:
    return ComputationStatus(
        computation=name,
        client=client,
        chunks=counts.total(),
        waiting=counts["waiting"],
        running=counts["running"],
        finished=counts["finished"],
        failed=counts["failed"],
        hosts={
            address: {state: counted[state] for state in ("running", "finished")}
            for address, counted in sorted(hosts.items())
        },
    )


# -- pages ----------------------------------------------------------------------------------------------------


class _Json(RequestHandler):  # type: ignore[misc]
    """All of it for programs."""

    def get(self) -> None:
        """Answer a request."""
        dashboard = self.extra["dashboard"]
        self.set_header("Content-Type", "application/json")
        self.write(json.dumps({"computations": dashboard.computations(), "hosts": dashboard.hosts()}))


class _Page(RequestHandler):  # type: ignore[misc]
    """All of it for people."""

    def get(self) -> None:
        """Answer a request."""
        dashboard = self.extra["dashboard"]
        self.write(page(dashboard.computations(), dashboard.hosts()))


def page(computations: list[ComputationStatus], hosts: Mapping[str, HostStatus]) -> str:
    """Return a page of HTML that asks for itself again every second."""
    of_computations = _table(
        ("computation", "", "chunks", *STATES, "running on"),
        [
            (
                computation["computation"][:8],
                (computation["finished"], computation["chunks"]),
                computation["chunks"],
                *[computation[state] for state in STATES],  # type: ignore[literal-required]
                ", ".join([address for address, counts in computation["hosts"].items() if counts["running"]]),
            )
            for computation in computations
        ],
    )
    of_hosts = _table(
        ("host", "name", "processes", "operands running", "stored", "limit", "on disk"),
        [
            (
                address,
                host["name"],
                host["processes"],
                host["running"],
                *[format_bytes(host[of]) for of in ("stored_bytes", "store_limit_bytes", "on_disk_bytes")],
            )
            for address, host in hosts.items()
        ],
    )
    return (
        f'<!DOCTYPE html><html><head><meta charset="utf-8"><meta http-equiv="refresh" content="{_REFRESH_S}">'
        "<title>dask_mars: operands</title><style>body {font-family: sans-serif} td, th {padding: 2px 12px;"
        " text-align: left} td.number {text-align: right}</style></head><body>"
        f"<h2>Operands</h2>{of_computations if computations else '<p>Nothing is being computed.</p>'}"
        f'<h2>Hosts</h2>{of_hosts}<p><a href="mars/chunks.json">JSON</a></p></body></html>'
    )


def _table(titles: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    head = "".join([f"<th>{html.escape(title)}</th>" for title in titles])
    body = "".join([f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows])
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    """Return a cell; of a pair of numbers a bar."""
    if isinstance(value, tuple):
        return f'<td><progress value="{value[0]}" max="{value[1]}"></progress></td>'
    if isinstance(value, int):
        return f'<td class="number">{value:,}</td>'
    return f"<td>{html.escape(str(value))}</td>"


def routes(dashboard: Dashboard, prefix: str = "") -> Iterator[tuple[str, type, dict[str, Any]]]:
    """Yield the pages as Tornado takes them."""
    for path, handler in (("mars", _Page), ("mars/chunks.json", _Json)):
        yield f"{prefix}/{path}", handler, {"extra": {"dashboard": dashboard}}


def install(scheduler: Scheduler) -> Dashboard:
    """Have a scheduler keep an overview, and show it at ``/mars`` where it shows anything.

    Parameters
    ----------
    scheduler : Scheduler
        Dask's. If it has an overview already, that one stays.
    """
    dashboard: Dashboard | None = scheduler.plugins.get(Dashboard.name)
    if dashboard is None:
        dashboard = Dashboard(scheduler)
        scheduler.add_plugin(dashboard)
        application = getattr(scheduler, "http_application", None)
        if application is not None:
            application.add_handlers(".*$", list(routes(dashboard, _prefix(application))))
    return dashboard


def _prefix(application: Any) -> str:
    """Return what stands before all paths of Dask's pages, which is to be found nowhere but there."""
    for rule in application.wildcard_router.rules:
        pattern: str = getattr(getattr(rule.matcher, "regex", None), "pattern", "")
        if pattern.endswith("/health$"):
            return pattern.removesuffix("/health$")
    return ""


__all__ = ["STATES", "ComputationStatus", "Dashboard", "HostStatus", "install"]
