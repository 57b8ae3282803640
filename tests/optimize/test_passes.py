"""Passes: any of them, in any order, leave the values as they are."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_mars.graph.chunks import ChunkGraph
from dask_mars.optimize.convert import convert
from dask_mars.optimize.declarations import declarations
from dask_mars.optimize.fronts import ReadOptions, symbolic_graph
from dask_mars.optimize.passes import PASSES
from studies.graphs import handed_over
from tests.optimize.test_compose import graphs
from tests.symbolic import assert_identical, evaluate, passed

recomputing = import_module("dask_mars.optimize.passes.recompute")

pytestmark = pytest.mark.usefixtures("small_chunks")

passes_in_any_order = st.lists(st.sampled_from(PASSES), max_size=len(PASSES) + 2)


@pytest.fixture(autouse=True, scope="module")
def cheap_random_numbers() -> Iterator[None]:
    """Have random numbers of any kind and number recomputed."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(recomputing, "make_ns", lambda operand, literals: 0.1)
        patched.setattr(recomputing, "never_stored", lambda operand: True)
        yield


LIMITS: dict[str, Any] = {
    "workers": 1,
    "groups_per_worker": 2,
    "consumers_per_worker": 2,
    "resident_bytes": lambda: 1 << 40,
    "recomputes": True,
}


def subjects() -> list[list[Any]]:
    """Return arrays for which passes have something to do: integers, whose sums do not depend on their order."""
    picture = np.random.default_rng(0).integers(0, 255, (48, 240, 3), np.uint8)
    rgb = da.map_blocks(lambda part: part, da.from_array(picture, chunks=(6, 240, 3)), dtype=np.uint8)
    red, green, _ = (rgb[:, :, channel].astype(np.int64) for channel in range(3))
    light = red + green
    matrix = da.from_array(np.arange(300).reshape(20, 15), chunks=5)
    first, second, third = (
        da.random.default_rng(seed).integers(0, 9, (64, 20), chunks=(8, 20)) for seed in range(3)
    )
    return [
        [light.sum(axis=1), (light * red).max(axis=1), light[::6, ::6]],
        [(matrix @ matrix.T).sum(axis=0)],
        [(first * first).sum(axis=0), (first * second).sum(axis=0)],
        [third - third.max(axis=0)],
        [(matrix[1:, 1:] - matrix[:-1, :-1]).sum()],
        [(da.ones(40, chunks=4, dtype=int) + da.arange(40, chunks=4)).sum()],
    ]


def converted(dsk: Any, wanted: list[Any]) -> ChunkGraph:
    """Return the graph before any pass."""
    symbolic = symbolic_graph(dsk, ReadOptions(resident_bytes=lambda: 1 << 40))
    graph = convert(symbolic.tasks, wanted, symbolic.layers)
    graph.declared = declarations(dsk)
    return graph


@settings(max_examples=8)
@given(chosen=st.sets(st.integers(0, len(subjects()) - 1), min_size=1), passes=passes_in_any_order)
def test_any_passes_leave_the_values_of_arrays(chosen, passes):
    arrays = subjects()
    dsk, wanted = handed_over(*[array for number in sorted(chosen) for array in arrays[number]])
    before = converted(dsk, wanted)
    ours, theirs = evaluate(passed(before, *passes, **LIMITS)), evaluate(before)
    for key in wanted:
        assert_identical(ours[key], theirs[key])


@settings(max_examples=20)
@given(drawn=graphs(), passes=passes_in_any_order)
def test_any_passes_leave_the_values_of_tasks(drawn, passes):
    before = convert(*drawn)
    values, expected = evaluate(passed(before, *passes, **LIMITS)), evaluate(before)
    assert [values[key] for key in drawn[1]] == [expected[key] for key in drawn[1]]


def test_each_pass_has_something_to_do():
    changed = set()
    for arrays in subjects():
        graph = converted(*handed_over(*arrays))
        for each in PASSES:
            after = passed(graph, each, **LIMITS)
            changed |= {each} if after is not graph else set()
            graph = after
    assert changed == set(PASSES)
