"""Control groups with a limit of memory, below that of this process, so that outer limits still hold."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: How long the kernel may take to see that the last process of a group has ended.
_GRACE_S = 5.0


class NotPossibleError(Exception):
    """No control group can be made here, for the reason that the message gives."""


def _own_groups(memberships: str, root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the folders of this process's groups that could count memory, and how a limit is called in each."""
    for line in memberships.splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield root / "memory" / path.lstrip("/"), "memory.limit_in_bytes"
        elif not controllers and (root / "cgroup.controllers").exists():
            yield root / path.lstrip("/"), "memory.max"


@contextmanager
def control_group(limit_bytes: int, root: Path = Path("/sys/fs/cgroup")) -> Iterator[Path]:
    """Make a control group, of either version, and remove it again.

    Parameters
    ----------
    limit_bytes
        What its processes may use.
    root
        Where control groups are mounted.

    Yields
    ------
    Path
        Its folder. All its processes must have ended when the context is closed.

    Raises
    ------
    NotPossibleError
        This machine has none, this user no right to, or the second version does not let groups have processes and
        groups with limits at once.
    """
    try:
        memberships = Path("/proc/self/cgroup").read_text(encoding="ascii")
    except OSError as error:
        raise NotPossibleError(f"no control groups here: {error.strerror}") from error
    reasons = []
    for folder, limit_file in _own_groups(memberships, root):
        group = folder / f"dask-mars-benchmark-{uuid.uuid4().hex}"
        try:
            group.mkdir()
        except OSError as error:
            reasons.append(f"{error.strerror} below {folder}")
            continue
        try:
            # Where memory is not counted, the file is not there, and nobody can make one.
            _write(group / limit_file, limit_bytes)
        except OSError as error:
            reasons.append(f"{limit_file}: {error.strerror}")
            _remove(group)
            continue
        try:
            yield group
        finally:
            _remove(group)
        return
    raise NotPossibleError("no control group with a limit: " + ("; ".join(reasons) or "memory is not counted"))


def enter(group: Path) -> None:
    """Put this process, and all that it starts from now on, into a group."""
    _write(group / "cgroup.procs", os.getpid())


def _write(file: Path, number: int) -> None:
    # Without making a file where there is none.
    with file.open("r+", encoding="ascii") as opened:
        opened.write(str(number))


def _remove(group: Path) -> None:
    deadline_s = time.monotonic() + _GRACE_S
    while True:
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)
        else:
            return
