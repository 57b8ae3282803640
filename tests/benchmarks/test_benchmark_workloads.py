"""The workloads of tasks: right answers are within their bounds, and there are as many tasks as they say."""

from __future__ import annotations

import dask
import pytest

from benchmarks.workloads import CATALOGUE, GROUPS, Workload

SCALE = 1e-3


@pytest.mark.parametrize("name", GROUPS["tasks"])
def test_right_answers_are_within_their_bounds(name):
    workload = CATALOGUE[name]
    assert isinstance(workload, Workload)
    low, high = workload.bounds(SCALE)
    result = workload.digest(workload.prepare(SCALE, 1)(dask.get))
    assert low <= result.max() <= high


@pytest.mark.parametrize(("name", "tasks"), [("tree", 8_191), ("tree-65535", 65_535), ("noop-200000", 200_000)])
def test_plain_graphs_have_as_many_tasks_as_they_say(name, tasks):
    workload = CATALOGUE[name]
    assert isinstance(workload, Workload)
    assert workload.tasks is not None
    assert workload.tasks(1.0) == tasks
    seen: list[int] = []
    workload.prepare(1.0, 1)(lambda dsk, keys: seen.append(len(dsk)))
    assert seen == [tasks]
