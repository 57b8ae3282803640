"""Starts an agent in a process of its own; its nanny needs to import only this.

A nanny lives as long as its host's agent and only waits, so this module imports no computing code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dask_mars.worker.preload import load_dask_array

if TYPE_CHECKING:
    from dask_mars.cluster.agent import MarsWorker


def start_agent(*args: Any, **options: Any) -> MarsWorker:
    """Return an agent. A nanny treats it as the worker class, and calls it in the worker's process."""
    load_dask_array()
    from dask_mars.cluster.agent import MarsWorker

    return MarsWorker(*args, **options)
