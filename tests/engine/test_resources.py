"""``dask.annotate(resources=...)`` on one machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

from dask_mars import Runtime, config
from dask_mars.errors import ResourcesMissing
from tests.conftest import eventually
from tests.tasks import note, notes, pid_after


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Runtime]:
    with Runtime(2, resources={"GPU": 1, "tape": 2}) as runtime:
        tasks = {f"task-{number}": (pid_after, 0.02, number) for number in range(4)}
        assert eventually(lambda: len(set(runtime.get(tasks, list(tasks)))) == 2, 20)
        yield runtime


def alone(value: Any, path: str) -> Any:
    """Note begin and end: where this runs alone, each begin is followed by its end."""
    note(path, "begin")
    time.sleep(0.02)
    note(path, "end")
    return value


def side_by_side(path: Path) -> int:
    """Return how many ran at the same time, at most."""
    running = most = 0
    for line in notes(path):
        running += 1 if line == "begin" else -1
        most = max(most, running)
    return most


@pytest.mark.parametrize(("amount", "most"), [(1, 1), pytest.param(0.5, 2, marks=pytest.mark.nightly)])
def test_it_limits_what_runs_side_by_side(laboratory: Runtime, tmp_path: Path, amount: float, most: int) -> None:
    with dask.annotate(resources={"GPU": amount}):
        tasks = [dask.delayed(alone)(number, str(tmp_path / "notes")) for number in range(6)]
    assert dask.compute(*tasks, scheduler=laboratory.get) == tuple(range(6))
    assert side_by_side(tmp_path / "notes") <= most


def test_blocks_of_arrays_take_it_too(laboratory: Runtime, tmp_path: Path) -> None:
    x = da.ones(8, chunks=1)
    with dask.annotate(resources={"GPU": 1}):
        y = x.map_blocks(alone, str(tmp_path / "notes"), meta=x._meta)
    assert y.sum().compute(scheduler=laboratory.get) == 8
    assert side_by_side(tmp_path / "notes") == 1


def test_what_can_never_be_fails_at_once(laboratory: Runtime) -> None:
    with dask.annotate(resources={"GPU": 2}):
        task = dask.delayed(alone)(1, "/nowhere")
    with pytest.raises(ResourcesMissing, match="takes 2 GPU, and the runtime has 1 GPU, 2 tape"):
        task.compute(scheduler=laboratory.get)
    with dask.annotate(resources={"laser": 1}):
        other = dask.delayed(np.sum)([1, 2])
    with pytest.raises(ResourcesMissing, match="1 laser"):
        other.compute(scheduler=laboratory.get)
    with dask.annotate(resources={"laser": 1}, allow_other_workers=True):
        other = dask.delayed(np.sum)([1, 2])
    assert other.compute(scheduler=laboratory.get) == 3


def test_without_resources_annotations_are_ignored_as_by_threads(get: Any) -> None:
    with dask.annotate(resources={"GPU": 2}):
        task = dask.delayed(np.sum)([1, 2])
    assert task.compute(scheduler=get) == 3


def test_the_setting_gives_them() -> None:
    with dask.config.set({"dask-mars.resources": {"GPU": 2}}):
        assert config.settings().resources == {"GPU": 2.0}


@pytest.mark.parametrize("wrong", [{"GPU": 0}, {"GPU": -1}, {"GPU": float("inf")}, ["GPU"], {"GPU": "many"}])
def test_nonsense_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"resources|could not convert"):
        Runtime(resources=wrong)
