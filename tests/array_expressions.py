"""Imports `dask_array`, which `tests.conftest` keeps from changing Dask's settings."""

from __future__ import annotations

from typing import Any

import pytest


def dask_array() -> Any:
    """Return the package, or skip the test or module that calls this."""
    # With another Dask than it is made for, it may lack what it imports.
    return pytest.importorskip("dask_array", exc_type=ImportError)
