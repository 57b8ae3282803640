"""The preload module of Dask's scheduler, which installs both plugins."""

from __future__ import annotations

from distributed import Scheduler

from dask_mars.cluster import monitor, scheduler_plugin


def dask_setup(scheduler: Scheduler) -> None:
    """Install our plugins in a Dask scheduler."""
    scheduler_plugin.install(scheduler)
    monitor.install(scheduler)
