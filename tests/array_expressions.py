"""Imports `dask_array` without its defaults for Dask, which all other tests of the process would get."""

from __future__ import annotations

import copy
from typing import Any

import dask
import pytest


def dask_array() -> Any:
    """Return the package, or skip the test or module that calls this."""
    settings = copy.deepcopy(dask.config.config)
    # With another Dask than it is made for, it may lack what it imports.
    found = pytest.importorskip("dask_array", exc_type=ImportError)
    dask.config.config.clear()
    dask.config.config.update(settings)
    return found
