"""Deciding what runs where and when, and the shell that carries it out.

``dask scheduler --preload dask_mars.scheduler`` has Dask's scheduler follow our plans to the letter, and show how
far our computations are.
"""

from __future__ import annotations

from typing import Any


def dask_setup(scheduler: Any) -> None:
    """Install our plugins in one of Dask's schedulers. Dask calls this.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The scheduler.
    """
    from dask_mars.cluster import overview, plugin

    plugin.install(scheduler)
    overview.install(scheduler)
