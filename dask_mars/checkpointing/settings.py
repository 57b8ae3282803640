"""The settings of a checkpoint, from Dask's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from dask.utils import parse_timedelta

from dask_mars import config
from dask_mars.checkpointing.block import Block, open_block
from dask_mars.checkpointing.directory import directory_of


class CheckpointSettings(NamedTuple):
    """Where a computation is saved, and how much of it.

    Attributes
    ----------
    directory : Path
        The directory that the user has named.
    limit_bytes : int or None
        How many bytes may be in it; None for any.
    share : float
        Of the time, what saving may take.
    age_s : float or None
        After which time what nobody uses is removed; None for never.
    wait_s : float
        How long to wait for another process that computes the same.
    block : Block or None
        The `with` block that the computation is in.
    trusts_targets : bool
        Whether what was written to stores counts as written without proof.
    spare_bytes : int
        What is to stay free on the disk.
    """

    directory: Path
    limit_bytes: int | None = None
    share: float = 0.05
    wait_s: float = 10.0
    age_s: float | None = None
    block: Block | None = None
    trusts_targets: bool = False
    spare_bytes: int = 0


def configured(directory: str) -> CheckpointSettings:
    """Return the settings in force, given the directory.

    Raises
    ------
    ValueError
        One of them makes no sense.
    """
    path = directory_of(directory)
    limit, age = config.get("checkpoint.limit"), config.get("checkpoint.age")
    return CheckpointSettings(
        path,
        None if limit is None else config.parse_size(limit, "dask-mars.checkpoint.limit"),
        parse_share(config.get("checkpoint.cost-share")),
        float(parse_timedelta(config.get("checkpoint.wait"))),
        None if age is None else float(parse_timedelta(age)),
        open_block(path),
    )


def parse_share(share: float) -> float:
    """Return a share of the time.

    Raises
    ------
    ValueError
        It is no positive number.
    """
    try:
        found = float(share)
    except (TypeError, ValueError):
        found = 0.0
    if not found > 0:
        raise ValueError(
            f"dask-mars.checkpoint.cost-share is a share of the time, such as 0.05, and not {share!r}"
        )
    return found


__all__ = ["CheckpointSettings", "configured", "parse_share"]
