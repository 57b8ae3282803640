"""The cluster that the tests of this directory share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import shared_cluster


@pytest.fixture(scope="package")
def cluster(private_tmp: Path) -> Iterator[Any]:
    """Two agents with a worker process each."""
    with shared_cluster() as cluster:
        yield cluster
