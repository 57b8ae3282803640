"""The web service's view of a cluster, from Dask's scheduler."""

from __future__ import annotations

import pkgutil
import uuid
from collections.abc import Mapping
from typing import Any

from distributed import Scheduler

from dask_mars.client.records import OVER, STATES
from dask_mars.cluster.dashboard import Dashboard, TrackedComputation
from dask_mars.cluster.metrics import RUNNING, memory_of
from dask_mars.observe.counts import ChunkCounts, LayerCounts
from dask_mars.version import __version__

Json = dict[str, Any]


class SchedulerMonitor:
    """A `dask_mars.web.monitor.Monitor` of a cluster, for calls in the scheduler's event loop."""

    # A subtask counts for the layer of its result. The scheduler does not know its other layers, the dependencies
    # of layers, and the output of agents.

    def __init__(self, scheduler: Scheduler, dashboard: Dashboard) -> None:
        self._scheduler = scheduler
        self._dashboard = dashboard
        #: Largest observed memory in use, in bytes.
        self._peak_bytes = 0
        self._page_of = pkgutil.resolve_name("dask_mars.web.api:page_of")

    def revision(self) -> int:
        """Return a number that grows with each change."""
        # Progress of agents arrives with heartbeats, so each of them counts as a change.
        beats = sum([state.last_seen for state in self._scheduler.workers.values()])
        return self._dashboard.revision + int(beats * 1000)

    def state(self) -> Json:
        """Return the agents, their memory, and the number of computations in each state."""
        hosts = self._dashboard.hosts()
        counts = dict.fromkeys(STATES, 0)
        for tracked in self._dashboard.tracked.values():
            counts[tracked.state] += 1
        memory = memory_of(hosts.values())
        self._peak_bytes = max(self._peak_bytes, memory["in_use_bytes"])
        return {
            "revision": self.revision(),
            "version": __version__,
            "can": ["cancel"],
            "workers": [
                {
                    "worker": worker_id,
                    "label": str(self._scheduler.workers[address].name),
                    "pid": self._scheduler.workers[address].pid,
                    "running": address if metrics[RUNNING] else None,
                    "step": None,
                    "dispatched": metrics[RUNNING],
                }
                for worker_id, (address, metrics) in enumerate(hosts.items())
            ],
            "memory": {
                **memory,
                "peak_bytes": self._peak_bytes,
                "promised_bytes": 0,
                "spilled_bytes": memory["on_disk_bytes"],
            },
            "counts": counts,
        }

    def computations(self, state: str | None, before: str | None, limit: int) -> Json:
        """Return summaries, the newest first."""
        told = self._dashboard.told()
        summaries = [
            _summary(name, tracked, told.get(name, {})) for name, tracked in self._dashboard.tracked.items()
        ]
        found: Json = self._page_of(summaries, state, before, limit)
        return found

    def computation(self, id: str) -> Json:
        """Return the summary of one computation, and its layers."""
        name, tracked = self._tracked(id)
        layers = []
        for label, layer in tracked.layers.items():
            finished, running, failed = [layer.counts[state] for state in ("memory", "processing", "erred")]
            counts = LayerCounts(label, label, layer.counts.total(), finished, running, failed, layer.seconds)
            layers.append(counts._asdict())
        return {**_summary(name, tracked, self._dashboard.told().get(name, {})), "layers": layers}

    def cancel(self, id: str) -> bool:
        """Cancel a computation; return False if it is over."""
        name, tracked = self._tracked(id)
        if tracked.state in OVER:
            return False
        self._dashboard.cancel(name)
        return True

    def error(self, id: str) -> Json:
        """Return the error of a computation."""
        error = self._tracked(id)[1].error or ("", "", "")
        return dict(zip(("type", "message", "traceback"), error, strict=True))

    def log(self, id: str) -> Json:
        """Return an empty log: agents keep the output of tasks."""
        self._tracked(id)
        return {"lines": [], "truncated": False}

    def timeline(self, id: str) -> Json:
        """Return when each agent computed which subtask."""
        _, tracked = self._tracked(id)
        rows = list(tracked.rows)
        agents = {address: worker_id for worker_id, address in enumerate(sorted({row[0] for row in rows}))}
        layers = {label: layer_id for layer_id, label in enumerate(tracked.layers)}
        return {
            "start": tracked.created,
            "workers": list(agents.values()),
            "labels": list(agents),
            "layers": list(layers),
            "tasks": [
                # Clocks of hosts differ.
                [
                    agents[address],
                    max(first - tracked.created, 0.0),
                    max(last - tracked.created, 0.0),
                    layers[layer],
                    chunks,
                ]
                for address, first, last, chunks, layer in rows
            ],
            "memory": [],
            "events": [],
        }

    def graph(self, id: str, layer: str | None) -> Json:
        """Return no layers: the scheduler knows only subtasks."""
        self._tracked(id)
        if layer is not None:
            raise KeyError(layer)
        return {"layers": [], "edges": []}

    def explain(self, id: str | None, key: str | None) -> Json:
        """Explain what agents do."""
        if key is not None:
            raise KeyError(key)
        if id is None:
            found = [(name, tracked) for name, tracked in self._dashboard.tracked.items() if tracked.left]
        else:
            found = [self._tracked(id)]
        hosts = self._dashboard.hosts()
        rows = [
            _in_words(_summary(name, tracked, self._dashboard.told().get(name, {}))) for name, tracked in found
        ]
        rows += [f"{address} computes {metrics[RUNNING]} chunks" for address, metrics in hosts.items()]
        return {"rows": rows if hosts else [*rows, "there are no agents: nothing is computed until one comes"]}

    def _tracked(self, id: str) -> tuple[str, TrackedComputation]:
        for name, tracked in self._dashboard.tracked.items():
            if _id_of(name, tracked) == id:
                return name, tracked
        raise KeyError(id)


def _id_of(name: str, tracked: TrackedComputation) -> str:
    """Return the id of a computation: that of its handle, or one from its name among subtasks."""
    if tracked.id:
        return tracked.id
    try:
        return str(uuid.UUID(name))
    except ValueError:
        # A client of another version has named it.
        return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


def _summary(name: str, tracked: TrackedComputation, told: Mapping[str, int]) -> Json:
    counts, state = tracked.counts, tracked.state
    total, failed, running = counts.total(), counts["erred"], told.get("running", 0)
    finished = counts["memory"] + told.get("finished", 0)
    chunks = ChunkCounts(total, max(total - finished - failed - running, 0), running, finished, failed)
    return {
        "id": _id_of(name, tracked),
        "name": tracked.title,
        "state": state,
        "created": tracked.created,
        "started": tracked.started,
        "ended": tracked.changed if state in OVER else None,
        "attempt": 1,
        "revision": tracked.revision + finished + running,
        "chunks": chunks._asdict(),
        "remaining": None,
        "error": None if tracked.error is None else dict(zip(("type", "message"), tracked.error, strict=False)),
        "result": None,
    }


def _in_words(summary: Json) -> str:
    chunks = summary["chunks"]
    counted = ", ".join([f"{chunks[state]} {state}" for state in ("waiting", "running", "finished", "failed")])
    return f"{summary['name'] or summary['id'][:8]} is {summary['state']}: of {chunks['total']} chunks {counted}"


def install(scheduler: Scheduler) -> Dashboard:
    """Install the dashboard in a scheduler, with a page at ``/mars/`` of its HTTP server."""
    # The token of ``dask-mars.web.token`` is needed to cancel. Without one everyone may look, as on all of Dask's
    # pages.
    dashboard: Dashboard | None = scheduler.plugins.get(Dashboard.name)
    if dashboard is None:
        dashboard = Dashboard(scheduler)
        scheduler.add_plugin(dashboard)
        application = getattr(scheduler, "http_application", None)
        if application is not None:
            prefix = f"{_prefix(application)}/mars"
            # `web` imports `cluster`, not the other way round.
            rules = pkgutil.resolve_name("dask_mars.web.on_scheduler:rules")
            application.add_handlers(".*$", rules(SchedulerMonitor(scheduler, dashboard), prefix))
    return dashboard


def _prefix(application: Any) -> str:
    """Return the prefix of Dask's pages, which only the paths of its routes contain."""
    for rule in application.wildcard_router.rules:
        pattern: str = getattr(getattr(rule.matcher, "regex", None), "pattern", "")
        if pattern.endswith("/health$"):
            return pattern.removesuffix("/health$")
    return ""
