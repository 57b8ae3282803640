"""Metrics of an agent's engine, sent with each heartbeat.

Counting chunks is left to the reader, so that metrics cost nothing per chunk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

# Dask's scheduler has no engine.
if TYPE_CHECKING:
    from dask_mars.engine.engine import Engine

#: Metric of the chunks that workers run.
RUNNING = "mars_chunks_running"
#: Metrics of the store: bytes of results in memory, and their limit.
STORED, STORE_LIMIT = "mars_stored_bytes", "mars_store_limit_bytes"
#: Metric of the memory limit of an agent with its workers; Dask's own figure includes disks.
MEMORY_LIMIT = "mars_memory_limit_bytes"
#: Metric of the progress of subtasks.
SUBTASKS = "dask-mars-subtasks"
#: Metrics by field of `MemoryAccount`.
_OF_ACCOUNT = {
    "limit_bytes": MEMORY_LIMIT,
    "in_use_bytes": "memory",
    "store_bytes": STORED,
    "store_limit_bytes": STORE_LIMIT,
}


def measure(engine: Engine, subtasks: Mapping[Any, int | None], managed_bytes: int) -> dict[str, Any]:
    """Return metrics that replace or extend those of a stock worker."""
    view = engine.view
    store, on_disk_bytes = view.store(), view.on_disk_bytes()
    running = Counter([noted.graph for noted in view.running().values() if noted is not None])
    computed = view.computed()
    return {
        "memory": engine.memory_bytes(),
        # Spilled bytes include those of unfinished subtasks, which Dask does not know.
        "spilled_bytes": {"memory": min(on_disk_bytes, managed_bytes), "disk": on_disk_bytes},
        RUNNING: sum(running.values()),
        STORED: store["stored_bytes"],
        STORE_LIMIT: store["limit_bytes"],
        MEMORY_LIMIT: engine.settings.memory_limit,
        SUBTASKS: [
            (key, computed.get(graph_id, 0), running[graph_id])
            for key, graph_id in list(subtasks.items())
            if graph_id is not None
        ],
    }


def memory_of(agents: Collection[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields of a `MemoryAccount` of agents together, from their metrics."""
    account = {name: sum([known.get(metric, 0) for known in agents]) for name, metric in _OF_ACCOUNT.items()}
    on_disk_bytes = sum([known.get("spilled_bytes", {}).get("disk", 0) for known in agents])
    return account | {"on_disk_bytes": on_disk_bytes}
