"""Finds policies by name: our own, and those that other packages bring by entry point."""

from __future__ import annotations

from functools import partial

from dask_mars.scheduler.policies import POLICIES
from dask_mars.scheduler.policies.guarded import Guarded

GROUP = "dask_mars.policies"


def load_policy(name: str) -> None:
    """Make a policy known to the state machine.

    Parameters
    ----------
    name : str
        As in the setting ``dask-mars.policy``.

    Raises
    ------
    ValueError
        There is no policy of that name.
    """
    if name in POLICIES:
        return
    # It takes what ten other modules here take to import, and few have policies of their own.
    from importlib.metadata import entry_points

    found = entry_points(group=GROUP)
    if name not in found.names:
        known = ", ".join(sorted({*POLICIES, *found.names}))
        raise ValueError(
            f"there is no scheduling policy {name!r}, but {known}; others come by entry points ({GROUP})"
        )
    POLICIES[name] = partial(Guarded, found[name].load())


__all__ = ["GROUP", "load_policy"]
