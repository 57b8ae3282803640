"""The settings of a checkpoint, from Dask's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from dask.utils import parse_timedelta

from dask_mars import config
from dask_mars.checkpointing.block import Block, open_block
from dask_mars.checkpointing.directory import directory_of


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
        block=open_block(path),
        token=config.get("checkpoint.token"),
    )
