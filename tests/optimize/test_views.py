"""Slices of the user's arrays are no chunks of their own."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest

from dask_mars.graph.chunks import DATA, ChunkGraph
from dask_mars.optimize.passes.compose import compose
from dask_mars.optimize.passes.views import fold_views
from studies.graphs import handed_over
from tests.optimize.test_passes import converted
from tests.symbolic import assert_identical, evaluate, function_names, passed

pytestmark = pytest.mark.usefixtures("small_chunks")

VALUES = np.random.default_rng(0).random((20, 30))


def slices_of(graph: ChunkGraph) -> list[int]:
    """Return the chunks that only slice."""
    names = [set(function_names(operand)) for operand in graph.operands]
    return [at for at, number in enumerate(graph.operand_of) if number != DATA and names[number] == {"getitem"}]


def folded(*arrays: Any, limit: int = 1 << 30) -> ChunkGraph:
    dsk, wanted = handed_over(*arrays)
    before = passed(converted(dsk, wanted), compose)
    graph = passed(before, fold_views, resident_bytes=lambda: limit)
    ours, theirs = evaluate(graph), evaluate(before)
    for key in wanted:
        assert_identical(ours[key], theirs[key])
    return graph


def difference(x: Any) -> Any:
    return x[1:, 1:] - x[:-1, :-1]


def test_readers_of_slices_slice_the_users_array():
    assert not slices_of(folded(difference(da.from_array(VALUES, chunks=10)).sum()))
    array = da.from_array(VALUES, chunks=10)
    sliced = array[1:]
    # What the user asks for is a chunk: three of its blocks are cut.
    assert len(slices_of(folded(sliced, (sliced * 2).sum()))) == 3


def test_readers_of_transposes_transpose_the_users_array():
    array = da.from_array(VALUES, chunks=10)
    both = array.T.rechunk((30, 5)).max(axis=0), array.T[1:] - array.T[:-1], array[2:].T[:, 1:] * 2
    names = [set(function_names(operand)) for operand in folded(*both).operands]
    assert not any(each <= {"transpose", "getitem"} for each in names)


def test_arrays_that_are_sliced_have_to_fit_into_the_budget():
    array = da.from_array(VALUES, chunks=10)
    assert not slices_of(folded(difference(array), limit=VALUES.nbytes))
    assert slices_of(folded(difference(array), limit=VALUES.nbytes - 1))


def test_slices_of_what_is_computed_stay():
    array = da.from_array(VALUES, chunks=10)
    computed = da.map_blocks(np.sort, array)
    assert slices_of(folded(difference(computed)))


def test_other_indices_stay():
    array = da.from_array(VALUES, chunks=10)
    row = array[3]
    assert slices_of(folded(row + row.sum()))


def test_results_are_not_views_of_the_users_array(get: Any):
    values = VALUES.copy()
    array = da.from_array(values, chunks=10)
    kept, shifted = array[:10, :10].map_blocks(lambda part: part), difference(array)
    (first, second), expected = da.compute(kept, shifted, scheduler=get), difference(values)
    values[:] = 0.0
    np.testing.assert_array_equal(first, VALUES[:10, :10])
    np.testing.assert_array_equal(second, expected)
