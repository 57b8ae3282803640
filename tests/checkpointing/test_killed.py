"""Scripts under checkpoints that are killed at random moments, and begun again."""

from __future__ import annotations

import os
from typing import Any

import pytest

from studies.checkpoint import KINDS, WHOM, killed


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "whom", "when"),
    [
        ("sum", "all", "computing"),
        # As the graph is prepared, as saved chunks are read, as results are gathered and files are removed.
        pytest.param("zarr", "process", "any", marks=pytest.mark.nightly),
    ],
)
def test_little_is_computed_twice_and_the_result_is_the_same(zarr: Any, kind: str, whom: str, when: str) -> None:
    found = killed(kind, whom, 1.0, 1 if when == "computing" else 2, 3, 0.05, when)
    assert found.is_same
    # One chunk is dispatched to each worker, and what was computed a moment before is not written yet.
    assert found.repeated_beyond <= max(found.count // 10, 4)


@pytest.mark.slow
@pytest.mark.skipif("LONG" not in os.environ, reason="takes a quarter of an hour: LONG=1 runs it")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("whom", WHOM)
def test_a_minute_of_work_survives_ten_deaths(zarr: Any, kind: str, whom: str) -> None:
    if kind == "xarray":
        pytest.importorskip("xarray")
    found = killed(kind, whom, 60.0, 10, 2)
    print(found)
    assert found.is_same
    assert found.deaths >= 5
    assert found.repeated_beyond <= found.count // 10
