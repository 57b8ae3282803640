"""Versions of dask_mars on a cluster; agents and clients of different versions may not understand each other."""

from __future__ import annotations

import warnings
from collections.abc import Collection

from dask_mars.version import __version__

_warned: set[frozenset[str]] = set()


def warn_of_other_versions(agents: Collection[str]) -> None:
    """Warn, once for each combination, about agents with other versions than this process."""
    others = frozenset(map(str, agents)) - {__version__}
    if others and others not in _warned:
        _warned.add(others)
        # The stack level points at our own code: the user's call is not known here.
        warnings.warn(other_versions("this process", others), stacklevel=2)


def other_versions(here: str, others: Collection[str]) -> str:
    """Return the message about different versions, with advice."""
    return (
        f"{here} has dask_mars {__version__}, and agents of this cluster have {', '.join(sorted(others))}: "
        "they may not understand each other. Install the same version everywhere; "
        "client.get_versions(packages=['dask_mars']) shows who has which"
    )
