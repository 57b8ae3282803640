"""The preload module of Dask's scheduler, which installs both plugins."""

from __future__ import annotations

from distributed import Scheduler, SchedulerPlugin

from dask_mars.cluster import monitor, scheduler_plugin
from dask_mars.cluster.marks import TAKE_OVER


def dask_setup(scheduler: Scheduler) -> None:
    """Install our plugins in a Dask scheduler."""
    scheduler_plugin.install(scheduler)
    monitor.install(scheduler)


class Preload(SchedulerPlugin):  # type: ignore[misc]
    """Installs our plugins in a running scheduler. They ignore the tasks of others, and stay."""

    name = TAKE_OVER
    idempotent = True

    async def start(self, scheduler: Scheduler) -> None:
        """Install them."""
        dask_setup(scheduler)
