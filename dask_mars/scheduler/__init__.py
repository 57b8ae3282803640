"""Decides what runs where and when: states, events, the machine, memory, policies.

The package is pure: events go in, instructions come out, and time is an argument. It knows no process, thread,
file, array or Dask graph. Begin with `machine`; `events` has its inputs and outputs, `states` the legal moves.

``dask scheduler --preload dask_mars.scheduler`` makes Dask's scheduler follow our plans to the letter, and shows
the progress of our computations.
"""

from __future__ import annotations

import pkgutil
from typing import Any


def dask_setup(scheduler: Any) -> None:
    """Install our plugins in one of Dask's schedulers. Dask calls this."""
    # Users write this package's name, but its code must not import clusters.
    pkgutil.resolve_name("dask_mars.cluster.preload:dask_setup")(scheduler)
