"""The workloads: right answers are within their bounds, and there are as many tasks as they say."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import dask.threaded
import numpy as np
import pytest

from benchmarks.workload import Setting, Workload
from benchmarks.workloads import CATALOGUE, GROUPS
from tests.array_expressions import dask_array

SCALE = 1e-3


@pytest.mark.parametrize("name", GROUPS["tasks"])
def test_right_answers_are_within_their_bounds(name):
    workload = CATALOGUE[name]
    assert isinstance(workload, Workload)
    low, high = workload.bounds(SCALE)
    result = workload.digest(workload.prepare(Setting(SCALE, 1, dask.get))())
    assert low <= result.max() <= high


@pytest.mark.parametrize(("name", "tasks"), [("tree", 8_191), ("tree-65535", 65_535), ("noop-200000", 200_000)])
def test_plain_graphs_have_as_many_tasks_as_they_say(name, tasks):
    workload = CATALOGUE[name]
    assert isinstance(workload, Workload)
    assert workload.tasks is not None
    assert workload.tasks(1.0) == tasks
    seen: list[int] = []
    workload.prepare(Setting(0.05, 1, lambda dsk, keys: seen.append(len(dsk))))()
    assert seen == [workload.tasks(0.05)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("products", "overlap") else pytest.mark.nightly)
        for group in ("array", "expressions", "persisted", "zarr", "real", "frames")
        for name in GROUPS[group]
    ],
)
def test_threads_and_mars_agree_within_bounds(name, directory, get, zarr):
    workload = CATALOGUE[name]
    assert isinstance(workload, Workload)
    for module in workload.modules:
        dask_array() if module == "dask_array" else pytest.importorskip(module)
    # What has many small chunks has them at any scale.
    scale = 0.02
    if workload.make is not None:
        workload.make(scale, directory)
    low, high = workload.bounds(scale)
    with ThreadPoolExecutor(2) as pool:
        threads = functools.partial(dask.threaded.get, pool=pool)
        # Twice, but for those that take long: what is kept from one call must not be in the way of the next.
        schedulers = (threads, get, get) if workload.group != "real" else (threads, get)
        found = [workload.digest(workload.prepare(Setting(scale, 3, each, directory))()) for each in schedulers]
    for result in found:
        assert low <= result.max() <= high
        np.testing.assert_allclose(result, found[0], rtol=workload.tolerance)
