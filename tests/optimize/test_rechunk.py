"""Rechunks that Dask would have its workers do among themselves: the same results, from tasks like any other."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

from dask_mars.cluster.requirements import RequirementsFinder
from dask_mars.optimize.prepare import prepare
from studies.graphs import handed_over

#: Shape, chunks before, chunks after.
CASES = [
    ((40, 40), (10, 40), (40, 10)),
    ((30, 20, 10), (7, 20, 3), (30, 6, 10)),
    ((100,), (7,), (13,)),
    ((12, 12), (5, 12), (12, 12)),
]


def rechunked(shape: Any, before: Any, after: Any, method: str) -> Any:
    with dask.config.set({"array.rechunk.method": method}):
        x = da.arange(np.prod(shape), chunks=-1).reshape(shape).rechunk(before, method="tasks")
        return x.rechunk(after)


@pytest.mark.parametrize(("shape", "before", "after"), CASES)
@pytest.mark.parametrize("use", ["all", "a part", "between others"])
def test_results_are_those_of_tasks(get, shape, before, after, use):
    def used(method: str) -> Any:
        x = rechunked(shape, before, after, method)
        return {"all": x, "a part": x[: shape[0] // 3], "between others": (x + 1).T.sum(axis=0)}[use]

    ours, theirs = used("p2p").compute(scheduler=get), used("tasks").compute(scheduler="sync")
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)


def test_workers_of_dask_are_not_needed():
    handed = handed_over(rechunked((400, 400), (100, 400), (400, 100), "p2p") + 1)
    requirements = RequirementsFinder()
    graph = prepare(*handed, select_unmergeable=requirements.select_unmergeable)
    assert not requirements.of(graph).chunks()
    # What the array declares of its chunks holds for those of the rechunk.
    (output,) = graph.outputs
    assert [graph.declared_bytes(chunk) for chunk in graph.inputs[output]] == [400 * 100 * 8] * 4


def test_several_rechunks_of_one_array(get):
    x = rechunked((40, 40), (10, 40), (40, 10), "p2p")
    with dask.config.set({"array.rechunk.method": "p2p"}):
        y = x.rechunk((5, 40))
    ours = dask.compute(x.sum(), y.max(axis=0), (x + y).sum(), scheduler=get)
    theirs = np.arange(1600).reshape(40, 40)
    assert ours[0] == theirs.sum()
    np.testing.assert_array_equal(ours[1], theirs.max(axis=0))
    assert ours[2] == 2 * theirs.sum()


def test_unknown_sizes_along_other_axes(get):
    def used(method: str) -> Any:
        x = da.arange(60, chunks=10).reshape(20, 3)
        x = x[x[:, 0] % 2 == 0]
        with dask.config.set({"array.rechunk.method": method}):
            return x.rechunk({1: 1})

    np.testing.assert_array_equal(used("p2p").compute(scheduler=get), used("tasks").compute(scheduler="sync"))
