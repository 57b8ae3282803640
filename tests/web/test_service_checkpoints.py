"""A service whose processes are killed goes on with what it has computed, and computes nothing twice at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import psutil
import pytest

from tests.conftest import eventually, marked_processes
from tests.tasks import notes
from tests.web.services import RunningService

pytest.importorskip("tornado")


def noting(path: str, seconds: float) -> Callable[..., Any]:
    """Return a function that travels whole, and notes each call."""

    def step(block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        time.sleep(seconds)
        with open(path, "ab", buffering=0) as file:
            file.write(b"x\n")
        return block + 1

    return step


def summed(path: Path, count: int, seconds: float) -> da.Array:
    # Its keys are others each time, but those of a graph that is stored stay.
    x = da.random.default_rng().random((count * 10, 10), chunks=10)
    return x.map_blocks(noting(str(path), seconds), dtype=float, meta=np.empty((0, 0))).sum()


def killed(served: RunningService, whom: str) -> None:
    if whom == "runner":
        runner = served.runner()
        runner.kill()
        _, alive = psutil.wait_procs([runner], 10)
        assert not alive
        return
    served.kill()
    # Workers and the runner end with it.
    assert eventually(lambda: not marked_processes(str(served.directory)), 10)
    served.start()


@pytest.mark.slow
def test_what_was_computed_is_not_computed_again(served, service, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    submitted = service.submit(summed(calls, 30, 0.02))
    assert eventually(lambda: len(notes(calls)) >= 12, 60)
    runner = served.runner().pid
    killed(served, "runner")
    # The front answers meanwhile.
    assert service.state()["can"]
    assert submitted.wait(60)
    assert served.runner().pid != runner
    assert np.isfinite(submitted.result())
    assert submitted.summary()["attempt"] == 2
    # One worker has one in its hands, and one may have been on its way to the disk.
    assert 30 <= len(notes(calls)) <= 34
    assert os.listdir(served.directory / "checkpoints") == []
