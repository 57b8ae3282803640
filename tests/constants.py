"""Constants of ours that tests change."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from typing import Any
from unittest import mock

from dask_mars import config
from dask_mars.config import Settings
from dask_mars.engine import loop
from dask_mars.scheduler.parameters import Parameters


@contextlib.contextmanager
def constants(**values: Any) -> Iterator[None]:
    """Have engines that start meanwhile use other constants: fields of `Settings` or `Parameters`."""
    names = {field.name for field in fields(Settings)}
    ours = {name: value for name, value in values.items() if name in names}
    others = {name: value for name, value in values.items() if name not in names}
    with (
        mock.patch.object(config, "Settings", partial(Settings, **ours)),
        mock.patch.object(loop, "Parameters", partial(Parameters, **others)),
    ):
        yield
