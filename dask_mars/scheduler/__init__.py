"""Decides what runs where and when: states, events, the machine, memory, policies.

It is pure: events go in, instructions come out, and time arrives as an argument. It knows no process, thread,
file, array or Dask graph. Begin with `machine`; `events` says what goes in and out, `states` what may follow what.

``dask scheduler --preload dask_mars.scheduler`` has Dask's scheduler follow our plans to the letter, and show how
far our computations are.
"""

from __future__ import annotations

import pkgutil
from typing import Any


def dask_setup(scheduler: Any) -> None:
    """Install our plugins in one of Dask's schedulers. Dask calls this.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The scheduler.
    """
    # The name of this package is what users write; what it stands for there is none of its business.
    pkgutil.resolve_name("dask_mars.cluster.preload:dask_setup")(scheduler)
