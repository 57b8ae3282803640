"""Reductions that read the same chunks: which are joined, what becomes of the graph, and the values."""

from __future__ import annotations

from functools import partial
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

from dask_mars.graph.chunks import DATA, ChunkGraph
from dask_mars.optimize.convert import convert
from dask_mars.optimize.passes import common_inputs, reductions
from dask_mars.optimize.passes.compose import compose
from dask_mars.optimize.passes.reductions import fuse_reductions
from studies.graphs import handed_over
from tests.symbolic import function_names, in_place, passed, prepared

pytestmark = pytest.mark.usefixtures("small_chunks")


def array(seed: int, shape: Any = (80, 20), chunks: Any = (10, 20)) -> Any:
    return da.random.default_rng(seed).random(shape, chunks=chunks)


def joined_chunks(graph: ChunkGraph) -> list[int]:
    assert set(graph.joined_bytes) <= set(range(len(graph)))
    return sorted(graph.joined_bytes)


check = partial(in_place, workers=2)


def test_quadratic_means_read_each_chunk_once():
    u, v = array(1), array(2)
    graph = check((u * u).mean(axis=0), (v * v).mean(axis=0), (u * v).mean(axis=0))
    joined = joined_chunks(graph)
    assert len(joined) == 8
    # The numbers are made where they are read.
    assert not any(graph.inputs[chunk] for chunk in joined)
    names = function_names(graph.operands[graph.operand_of[joined[0]]])
    assert names.count("_apply_random_func") == 2
    assert names[-1] == "make_tuple"
    # Three rows of sums, and their counts are not declared.
    assert [graph.declared_bytes(chunk) for chunk in joined] == [3 * 20 * 8] * 8
    assert graph.shape_of(joined[0]) is None


def test_what_two_workers_have_no_room_for_is_made_apart():
    u, v = array(1), array(2)
    needed = 2 * 2 * 10 * 20 * 8
    for resident_bytes in (needed, needed - 1):
        graph = check((u * u).mean(axis=0), (u * v).mean(axis=0), resident_bytes=resident_bytes)
        inputs = {len(graph.inputs[chunk]) for chunk in joined_chunks(graph)}
        assert inputs == ({0} if resident_bytes == needed else {2})


def test_trees_are_put_together_side_by_side():
    u = array(1, (320, 20))
    graph = check((u * u).mean(axis=0), (u + 1).mean(axis=0))
    joined = joined_chunks(graph)
    assert len(joined) == 32
    consumers = [chunk for chunk in range(len(graph)) if set(graph.inputs[chunk]) & set(joined)]
    # Each follows the last of those that it needs.
    assert all(chunk - max(graph.inputs[chunk]) <= 2 for chunk in consumers)


def test_a_source_that_others_read_stays():
    x = array(1)
    graph = check(((x - x.mean(axis=0)) / x.std(axis=0)).max())
    joined = joined_chunks(graph)
    assert len(joined) == 8
    assert all(len(graph.inputs[chunk]) == 1 for chunk in joined)


def test_what_waits_for_one_of_them_is_not_joined_with_it():
    x = array(1)
    graph = check(x.sum(), (x - x.mean()).max(), x.min(axis=0))
    for chunk in joined_chunks(graph):
        assert "sub" not in function_names(graph.operands[graph.operand_of[chunk]])


def test_not_where_there_are_too_few_for_all_workers():
    x = array(1)
    assert joined_chunks(prepared(x.sum(), x.max(), workers=2))
    assert not joined_chunks(prepared(x.sum(), x.max(), workers=3))
    assert not joined_chunks(prepared(x.sum(), x.max(), workers=None))


def test_only_what_is_small_beside_its_source():
    x = array(1)
    for first, second in (((x + 1), (x * 2)), (x.sum(axis=1), x.cumsum(axis=0))):
        assert not joined_chunks(check(first, second))
    narrow = array(1, (80, 2), (10, 2))
    assert joined_chunks(check(narrow.sum(axis=0), narrow.max(axis=0)))
    assert not joined_chunks(check(narrow.sum(axis=1), narrow.max(axis=1)))


def test_small_chunks_are_left_alone(monkeypatch):
    for module in (common_inputs, reductions):
        monkeypatch.setattr(module, "FEWEST_BYTES", 2 * 10 * 20 * 8 + 1)
    x = array(1)
    assert not joined_chunks(check(x.sum(), x.max()))


def test_wanted_and_annotated_chunks_stay_as_they_are():
    x = array(1)
    with dask.annotate(retries=2):
        total = (x + 1).sum(axis=1)
    graph = check(total, x.max(axis=1), x.min(axis=1))
    assert graph.retries
    assert not set(graph.retries) & set(joined_chunks(graph))
    dsk, wanted = handed_over(x.max(), x.min())
    composed = passed(convert(dsk.__dask_graph__(), wanted), compose)
    outside = [chunk for chunk, sources in enumerate(composed.inputs) if len(sources) == 1]
    assert passed(composed, fuse_reductions, fixed=outside, workers=2) is composed


def test_values_that_are_known_are_no_reductions():
    x = da.from_array(np.arange(1600.0).reshape(80, 20), chunks=(10, 20))
    graph = check(x.sum(), x.max())
    assert joined_chunks(graph)
    assert DATA in graph.operand_of


def test_functions_of_the_users_stay_apart():
    x = array(1)
    parts = [
        x.map_blocks(function, chunks=(1, 1), dtype=float)
        for function in (lambda block: block.sum()[None, None], lambda block: block.max()[None, None])
    ]
    assert not joined_chunks(check(*[part.rechunk((8, 1)) for part in parts]))


@pytest.mark.parametrize("dtype", ["f4", "i2", "c8", "?", "O", "M8[s]"])
def test_dtypes(dtype):
    x = da.from_array((np.arange(800) % 7).astype("i8").astype(dtype).reshape(80, 10), chunks=(10, 10))
    check(x.min(axis=0), x.max(axis=0))


def test_several_groups_share_a_chunk():
    a, b, c = array(1), array(2), array(3)
    products = [a * b, b * c, a * c, a * a, b * b, c * c]
    graph = check(*[product.mean(axis=0) for product in products])
    # The third pair has nothing left to be joined with.
    assert len(joined_chunks(graph)) == 16


def test_on_workers(get):
    u, v = array(1, (800, 200), (50, 200)), array(2, (800, 200), (50, 200))
    collections = [(u * u).mean(axis=0), (v * v).std(axis=0), (u * v).max(), da.nanmean(u), u.var(), u.mean()]
    ours, theirs = dask.compute(collections, scheduler=get)[0], dask.compute(collections, scheduler="sync")[0]
    for our, their in zip(ours, theirs, strict=True):
        assert our.dtype == their.dtype
        np.testing.assert_allclose(our, their, rtol=1e-12)
