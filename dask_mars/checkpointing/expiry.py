"""Which checkpoints of other computations are removed before one begins, and their removal.

Files go when what they were for has succeeded. What nobody begins again leaves its files: scripts that were
given up, and those whose random numbers have no seed, so that their keys are others each time.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from dask_mars.checkpointing.directory import ComputationDirectory, computations
from dask_mars.errors import CheckpointError

#: What was used within this time is not removed for want of room: it may belong to a block that goes on.
FRESH_S = 86_400.0
#: How much of the limit may be taken by what nobody uses, once that is in the way.
_SHARE = 0.5
#: How often a process looks at a directory at most.
_LOOK_S = 3600.0


class Unused(NamedTuple):
    """A checkpoint that no process uses.

    Attributes
    ----------
    id : str
        The name of its directory.
    age_s : float
        For how long nobody has used it.
    size_bytes : int
        What it takes on disk.
    can_be_found : bool
        Whether its keys may be the same when it is computed again.
    is_empty : bool
        Whether nothing is saved in it.
    """

    id: str
    age_s: float
    size_bytes: int
    can_be_found: bool
    is_empty: bool


def expired(unused: Iterable[Unused], age_s: float | None, surplus_bytes: int) -> list[str]:
    """Return the ids of those that are to go.

    Parameters
    ----------
    unused : iterable of Unused
        What there is.
    age_s : float or None
        After which time they go; None for never.
    surplus_bytes : int
        How many bytes are to go, those first that were not used for the longest time.
    """
    gone: list[str] = []
    for each in sorted(unused, key=lambda each: (-each.age_s, each.id)):
        is_old = age_s is not None and each.age_s > age_s
        is_in_the_way = surplus_bytes > 0 and each.age_s > FRESH_S
        if each.is_empty or not each.can_be_found or is_old or is_in_the_way:
            gone.append(each.id)
            surplus_bytes -= each.size_bytes
    return gone


def tidy(root: Path, age_s: float | None, limit_bytes: int | None) -> Sequence[str]:
    """Remove what has expired in a directory, and return the ids.

    Parameters
    ----------
    root : Path
        The directory that the user has named.
    age_s : float or None
        As `expired` takes it.
    limit_bytes : int or None
        How many bytes may be there.
    """
    found = {each.identity: each for each in computations(root)}
    sizes = {id: each.size_bytes() for id, each in found.items()}
    unused = [_described(each, sizes[id]) for id, each in found.items() if not each.is_in_use()]
    surplus_bytes = 0
    if limit_bytes is not None:
        # While there is room, none of them is in anybody's way.
        surplus_bytes = sum(sizes.values()) - int(limit_bytes * _SHARE)
    removed: list[str] = []
    for id in expired(unused, age_s, surplus_bytes):
        # Whoever has taken it since has a use for it; and what must not be begun twice has to be known.
        with contextlib.suppress(OSError, CheckpointError):
            if not found[id].read()[1]:
                found[id].discard()
                removed.append(id)
    return removed


def _described(directory: ComputationDirectory, size_bytes: int) -> Unused:
    return Unused(
        directory.identity,
        time.time() - directory.used_last_s(),
        size_bytes,
        directory.about().get("lasting") is not False,
        directory.is_empty(),
    )


_lock = threading.Lock()
_looked_s: dict[Path, float] = {}


def tidy_now_and_then(root: Path, age_s: float | None, limit_bytes: int | None) -> None:
    """Remove what has expired in a directory, unless this process has just looked at it."""
    now = time.monotonic()
    with _lock:
        if now - _looked_s.get(root, -_LOOK_S) < _LOOK_S:
            return
        _looked_s[root] = now
    with contextlib.suppress(OSError, CheckpointError):
        tidy(root, age_s, limit_bytes)


def _forget_after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _looked_s.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


__all__ = ["Unused", "expired", "tidy", "tidy_now_and_then"]
