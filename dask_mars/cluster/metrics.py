"""Metrics of an agent's engine, sent with each heartbeat.

Of operands nothing is noted for it. Who asks counts them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

# Dask's scheduler has no engine.
if TYPE_CHECKING:
    from dask_mars.engine.loop import Engine

#: What results take in the memory of an agent, and what they may take.
STORED, STORE_LIMIT = "mars_stored_bytes", "mars_store_limit_bytes"
#: What an agent and its worker processes may take; Dask's own figure counts disks.
MEMORY_LIMIT = "mars_memory_limit_bytes"
#: Under which the overview finds how far subtasks are.
SUBTASKS = "dask-mars-subtasks"


def measure(engine: Engine, subtasks: Mapping[Any, int | None], managed_bytes: int) -> dict[str, Any]:
    """Return what is to replace and to join the metrics of a stock worker.

    Parameters
    ----------
    engine : Engine
        Of the agent.
    subtasks : mapping
        Number in the engine of each subtask that is being computed, None before it has one, by its key.
    managed_bytes : int
        Of all results that Dask knows of, as if they were in memory.

    Returns
    -------
    dict
        ``memory`` and ``spilled_bytes`` mean what they do with stock workers; the worker processes and the store
        are part of it. Plain numbers among the others are columns of the dashboard's page of workers.
    """
    view = engine.view
    store, on_disk_bytes = view.store(), view.on_disk_bytes()
    running = Counter([noted.graph for noted in view.running().values() if noted is not None])
    computed = view.computed()
    return {
        "memory": engine.memory_bytes(),
        # Some on disk may be of subtasks that are not done yet, and of no result that Dask knows of.
        "spilled_bytes": {"memory": min(on_disk_bytes, managed_bytes), "disk": on_disk_bytes},
        "mars_chunks_running": sum(running.values()),
        STORED: store["stored_bytes"],
        STORE_LIMIT: store["limit_bytes"],
        MEMORY_LIMIT: engine.settings.memory_limit,
        SUBTASKS: [
            (key, computed.get(number, 0), running[number])
            for key, number in list(subtasks.items())
            if number is not None
        ],
    }


__all__ = ["MEMORY_LIMIT", "STORED", "STORE_LIMIT", "SUBTASKS", "measure"]
