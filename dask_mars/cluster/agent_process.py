"""Starts an agent in a process of its own: what its nanny has to know of it, and no more.

A nanny does nothing but wait for its agent, all the time that a host is there. So it loads none of what computes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dask_mars.worker.preload import load_dask_array

if TYPE_CHECKING:
    from dask_mars.cluster.agent import MarsWorker


def start_agent(*args: Any, **options: Any) -> MarsWorker:
    """Return an agent. A nanny takes it for the class of its worker, and calls it in the worker's process.

    Parameters
    ----------
    *args, **options
        As for `MarsWorker`.
    """
    load_dask_array()
    from dask_mars.cluster.agent import MarsWorker

    return MarsWorker(*args, **options)


__all__ = ["start_agent"]
