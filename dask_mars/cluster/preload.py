"""The preload of Dask's scheduler: both plugins, installed."""

from __future__ import annotations

from distributed import Scheduler

from dask_mars.cluster import monitor, scheduler_plugin


def dask_setup(scheduler: Scheduler) -> None:
    """Install our plugins in one of Dask's schedulers."""
    scheduler_plugin.install(scheduler)
    monitor.install(scheduler)


__all__ = ["dask_setup"]
