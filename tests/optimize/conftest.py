"""Fixtures of the tests of preparation."""

from __future__ import annotations

import pytest

from dask_mars.optimize.passes import common_inputs, reductions


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fuse chunks of a few elements, too."""
    for module in (common_inputs, reductions):
        monkeypatch.setattr(module, "FEWEST_BYTES", 1)
