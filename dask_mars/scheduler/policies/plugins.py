"""Finds policies by name: those of this package, and those of others by entry point."""

from __future__ import annotations

from functools import partial

from dask_mars.scheduler.policies import POLICIES
from dask_mars.scheduler.policies.guarded import Guarded

GROUP = "dask_mars.policies"


def load_policy(name: str) -> None:
    """Make a policy known to the state machine; raise `ValueError` for an unknown name."""
    if name in POLICIES:
        return
    # The import takes milliseconds, and few users have policies of their own.
    from dask_mars.entry_points import entry_points

    found = {entry_point.name: entry_point for entry_point in entry_points(GROUP)}
    if name not in found:
        known = ", ".join(sorted({*POLICIES, *found}))
        raise ValueError(
            f"there is no scheduling policy {name!r}, but {known}; others come by entry points ({GROUP})"
        )
    POLICIES[name] = partial(Guarded, found[name].load())
