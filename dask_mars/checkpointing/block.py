"""The settings of checkpoints, and `with dask_mars.checkpoint(...)` blocks, which remove files at their end."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import dask
from dask.utils import parse_timedelta

from dask_mars import config
from dask_mars.checkpointing.directory import ComputationDirectory, directory_of
from dask_mars.errors import CheckpointInUse
from dask_mars.locking import Lock


class Block:
    """A `with` block, or several open ones for one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = Lock()
        self._finished: dict[str, ComputationDirectory] = {}
        self._depth = 0
        #: Whether it has ended without an exception, so that its files are removed.
        self.is_closed = False

    def enter(self) -> None:
        """Count one more open block."""
        with self._lock:
            self._depth += 1

    def leave(self, failed: bool) -> bool:
        """End a block, and return whether it was the last.

        Then files of finished computations are removed; after an exception they stay for the restart.
        """
        with self._lock:
            self._depth -= 1
            if self._depth:
                return False
            self.is_closed = not failed
            finished, self._finished = self._finished, {}
        if not failed:
            for directory in finished.values():
                # A process that computes it now removes it later.
                with contextlib.suppress(CheckpointInUse):
                    directory.discard()
        return True

    def keeps(self, directory: ComputationDirectory) -> bool:
        """Return whether the files of a finished computation stay until the block ends."""
        with self._lock:
            if not self.is_closed:
                self._finished[directory.identity] = ComputationDirectory(directory.root, directory.identity)
            return not self.is_closed


_lock = Lock()
_blocks: dict[Path, Block] = {}


def _forget_after_fork() -> None:
    """Forget the blocks of the parent in a forked process."""
    global _lock
    _lock = Lock()
    _blocks.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


class CheckpointSettings(NamedTuple):
    """Settings for the checkpoint of a computation."""

    directory: Path
    #: Limit for the directory; None for none.
    limit_bytes: int | None = None
    share: float = 0.05
    #: Age at which unused checkpoints are removed, in seconds; None for never.
    age_s: float | None = None
    block: Block | None = None
    #: Whether unverifiable targets count as written.
    trusts_targets: bool = False
    #: Bytes that must stay free on the disk.
    spare_bytes: int = 0
    #: The user's token, which changes with the content of sources that are not on local disks.
    token: str | None = None


def configured(directory: str) -> CheckpointSettings:
    """Return the current settings for a directory."""
    path = directory_of(directory)
    limit, age = config.get("checkpoint.limit"), config.get("checkpoint.age")
    return CheckpointSettings(
        path,
        None if limit is None else config.parse_size(limit, "dask-mars.checkpoint.limit"),
        float(config.get("checkpoint.cost-share")),
        age_s=None if age is None else float(parse_timedelta(age)),
        block=_blocks.get(path),
        token=config.get("checkpoint.token"),
    )


class Checkpoint:
    """Saves chunks while it is active; `dask_mars.checkpoint` creates it."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        limit: int | float | str | None,
        cost_share: float | None,
        token: str | None,
    ) -> None:
        self.directory = directory_of(directory)
        self._settings: dict[str, Any] = {"dask-mars.checkpoint.directory": str(self.directory)}
        if limit is not None:
            config.parse_size(limit, "limit")
            self._settings["dask-mars.checkpoint.limit"] = limit
        if cost_share is not None:
            if not isinstance(cost_share, int | float) or not cost_share > 0:
                raise ValueError(f"cost_share is a share of the time, such as 0.05, and not {cost_share!r}")
            self._settings["dask-mars.checkpoint.cost-share"] = cost_share
        if token is not None:
            if not isinstance(token, str):
                raise TypeError(f"token is a text that changes with the data, and not {token!r}")
            self._settings["dask-mars.checkpoint.token"] = token
        self._entered: list[tuple[Any, Block]] = []

    def __enter__(self) -> Self:
        with _lock:
            block = _blocks.setdefault(self.directory, Block(self.directory))
            block.enter()
        self._entered.append((dask.config.set(self._settings), block))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        settings, block = self._entered.pop()
        settings.__exit__(kind, error, traceback)
        with _lock:
            is_last = block.leave(error is not None)
            if is_last and _blocks.get(self.directory) is block:
                del _blocks[self.directory]

    def __repr__(self) -> str:
        return f"<checkpoint {self.directory}>"


def checkpoint(
    directory: str | os.PathLike[str],
    limit: int | float | str | None = None,
    cost_share: float | None = None,
    token: str | None = None,
) -> Checkpoint:
    """Save chunks in a `with` block where that pays, so that they need not be computed again.

    When the process dies and the script runs again, saved chunks are read, and chunks that only they need are not
    computed. When the block ends without an exception, its files are removed.

    Parameters
    ----------
    directory : str or Path
        Where to save. Several computations, and several processes, may use it, but no two may compute the same.
    limit : int, float or str, optional
        Limit for the directory, in bytes or as in ``"50 GiB"``. Default: ``dask-mars.checkpoint.limit``.
    cost_share : float, optional
        Share of the time that saving may take. Default: ``dask-mars.checkpoint.cost-share``, 0.05.
    token : str, optional
        Text that changes with the content of sources that are not on local disks, such as a version or a date.
        Without one, computations that read such sources are computed again from the beginning.

    Returns
    -------
    Checkpoint
        For a `with` statement.

    Raises
    ------
    TypeError, ValueError
        An argument is invalid.

    Examples
    --------
    >>> import tempfile
    >>> import dask.array as da
    >>> import dask_mars
    >>> with tempfile.TemporaryDirectory() as directory, dask_mars.checkpoint(directory, limit="1 GiB"):
    ...     int(da.arange(10, chunks=5).sum().compute(scheduler=dask_mars.get))
    45
    """
    return Checkpoint(directory, limit, cost_share, token)
