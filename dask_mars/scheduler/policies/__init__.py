"""Scheduling policies: in which order READY chunks run, and which workers they are offered to.

Pure, like the rest of `scheduler`. `memory` is the default, `mars` follows Mars to the letter. What a policy may
decide says `base`, which is the module to open first; `dask_mars.testing.PolicyTests` says what it has to keep.
"""

from __future__ import annotations

from collections.abc import Callable

from dask_mars.scheduler.policies.base import GraphView, Policy, Prioritized, RankedPolicy
from dask_mars.scheduler.policies.mars import MarsPolicy
from dask_mars.scheduler.policies.memory import MemoryPolicy

#: Makes a graph's policy of what `Policy` takes.
PolicyFactory = Callable[..., Policy]

#: Those that are there without anything else installed, by name.
POLICIES: dict[str, PolicyFactory] = {
    "memory": MemoryPolicy,
    "mars": MarsPolicy,
}

__all__ = ["POLICIES", "GraphView", "MemoryPolicy", "Policy", "PolicyFactory", "Prioritized", "RankedPolicy"]
