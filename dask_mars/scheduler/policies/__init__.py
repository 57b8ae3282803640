"""Scheduling policies: the order of READY chunks, and the workers they are offered to.

Pure, like the rest of `scheduler`. `mars` is the default, `mars-strict` follows Mars to the letter. `base`, the
module to open first, describes what a policy may decide; `dask_mars.testing.PolicyTests` tests what it must
observe.
"""

from __future__ import annotations

from collections.abc import Callable

from dask_mars.scheduler.policies.base import GraphView, Policy, Prioritized, RankedPolicy
from dask_mars.scheduler.policies.mars import MarsPolicy, StrictMarsPolicy
from dask_mars.scheduler.policies.memory import MemoryPolicy

#: Makes a graph's policy; takes the parameters of `Policy`.
PolicyFactory = Callable[..., Policy]

#: Policies of this package, by name.
POLICIES: dict[str, PolicyFactory] = {
    "mars": MarsPolicy,
    "memory": MemoryPolicy,
    "mars-strict": StrictMarsPolicy,
}

__all__ = ["POLICIES", "GraphView", "MarsPolicy", "Policy", "PolicyFactory", "Prioritized", "RankedPolicy"]
