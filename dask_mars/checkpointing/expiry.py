"""Expiry of other computations' checkpoints, before a computation starts.

Files are removed when their computation succeeds. Abandoned scripts leave files, and so do computations with
unseeded random numbers, whose keys differ in each run.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from dask_mars.checkpointing.directory import ComputationDirectory, computations
from dask_mars.errors import CheckpointError
from dask_mars.locking import Lock

#: Age below which a checkpoint is not removed for space, in seconds: its block may still run.
FRESH_S = 86_400.0
#: Share of the limit that unused checkpoints may take once space is short.
_SHARE = 0.5
#: Shortest interval between two checks of a directory by one process, in seconds.
_LOOK_S = 3600.0


class Unused(NamedTuple):
    """A checkpoint that no process uses."""

    id: str
    #: Time since its last use, in seconds.
    age_s: float
    size_bytes: int
    #: Whether another run may have the same keys.
    can_be_found: bool
    is_empty: bool


def expired(unused: Iterable[Unused], age_s: float | None, surplus_bytes: int) -> list[str]:
    """Return the ids of checkpoints to remove."""
    gone: list[str] = []
    for each in sorted(unused, key=lambda each: (-each.age_s, each.id)):
        is_old = age_s is not None and each.age_s > age_s
        is_in_the_way = surplus_bytes > 0 and each.age_s > FRESH_S
        if each.is_empty or not each.can_be_found or is_old or is_in_the_way:
            gone.append(each.id)
            surplus_bytes -= each.size_bytes
    return gone


def tidy(root: Path, age_s: float | None, limit_bytes: int | None) -> None:
    """Remove expired checkpoints."""
    found = {each.identity: each for each in computations(root)}
    sizes = {id: each.size_bytes() for id, each in found.items()}
    unused = [_described(each, sizes[id]) for id, each in found.items() if not each.is_in_use()]
    surplus_bytes = 0
    if limit_bytes is not None:
        # Without a surplus no checkpoint is removed for space.
        surplus_bytes = sum(sizes.values()) - int(limit_bytes * _SHARE)
    for id in expired(unused, age_s, surplus_bytes):
        # Skip those that a process has locked since, and those with starts that must not be repeated.
        with contextlib.suppress(OSError, CheckpointError):
            if not found[id].read()[1]:
                found[id].discard()


def _described(directory: ComputationDirectory, size_bytes: int) -> Unused:
    return Unused(
        directory.identity,
        time.time() - directory.used_last_s(),
        size_bytes,
        directory.about().get("lasting") is not False,
        directory.is_empty(),
    )


_lock = Lock()
_looked_s: dict[Path, float] = {}


def tidy_now_and_then(root: Path, age_s: float | None, limit_bytes: int | None) -> None:
    """Remove expired checkpoints, unless this process has checked the directory recently."""
    now = time.monotonic()
    with _lock:
        if now - _looked_s.get(root, -_LOOK_S) < _LOOK_S:
            return
        _looked_s[root] = now
    with contextlib.suppress(OSError, CheckpointError):
        tidy(root, age_s, limit_bytes)


def _forget_after_fork() -> None:
    global _lock
    _lock = Lock()
    _looked_s.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
