"""Products of matrices with their own transposes: each block is computed once, and the values stay the same."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

from dask_mars.graph.chunks import ChunkGraph
from tests.symbolic import function_names, in_place, prepared


def matrix(shape: Any = (40, 30), chunks: Any = 10, seed: int = 0) -> Any:
    return da.random.default_rng(seed).random(shape, chunks=chunks)


def close(ours: Any, theirs: Any) -> None:
    assert np.asarray(ours).dtype == np.asarray(theirs).dtype
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


mirrored = partial(in_place, check=close)


def products(graph: ChunkGraph) -> list[int]:
    names = [function_names(operand) for operand in graph.operands]
    return [chunk for chunk, number in enumerate(graph.operand_of) if number >= 0 and "_matmul" in names[number]]


@pytest.mark.parametrize("product", [lambda a: a @ a.T, lambda a: (a @ a.T).sum(), lambda a: (a @ a.T) @ a])
def test_half_of_the_products_is_computed(product):
    a = matrix()
    graph = mirrored(product(a))
    # Three blocks along what is contracted, of each four times four.
    symmetric = [chunk for chunk in products(graph) if "transpose" in function_names(operand_of(graph, chunk))]
    assert len(symmetric) == 3 * 10


def operand_of(graph: ChunkGraph, chunk: int) -> Any:
    return graph.operands[graph.operand_of[chunk]]


def test_the_transpose_may_come_first():
    a = matrix()
    assert len(products(mirrored(a.T @ a))) == 4 * 6


@pytest.mark.parametrize("dtype", ["f4", "i8", "c16", "?", "f2"])
def test_numbers_of_all_kinds(dtype):
    values = (np.arange(1200) % 5).reshape(40, 30).astype(dtype)
    a = da.from_array(values * (1 + 2j) if dtype == "c16" else values, chunks=10)
    assert len(products(mirrored(a @ a.T))) == 3 * 10


def test_only_numbers_that_commute():
    a = da.from_array(np.array([["a", "b"], ["c", "d"]], dtype=object), chunks=1)
    assert len(products(prepared(a @ a.T, resident_bytes=1 << 40))) == 8


def test_products_of_others_stay():
    a, b = matrix(), matrix(seed=1)
    for product in (a @ b.T, a @ (a + 1).T, matrix((40, 40)) @ matrix((40, 40))):
        keep = len(products(prepared(product)))
        assert len(products(prepared(product, resident_bytes=1 << 40))) == keep


def test_blocks_of_several_sizes():
    a = matrix((23, 17), (5, 7))
    mirrored(a @ a.T, (a.T @ a).max(axis=0))
    mirrored(matrix((7, 9), 100) @ matrix((7, 9), 100).T)


def test_what_is_made_of_both_is_made_together():
    a = matrix((100, 100))
    with warnings.catch_warnings():
        # Of the number of chunks.
        warnings.simplefilter("ignore")
        total = (a @ a.T).sum()
    graph = mirrored(total)
    found = set(products(graph))
    last_use = {source: chunk for chunk in range(len(graph)) for source in graph.inputs[chunk] if source in found}
    # Ten blocks along what is contracted, each of which is read twice, and soon.
    assert all(last - chunk <= 25 for chunk, last in last_use.items())


def test_only_where_results_have_a_place_in_memory():
    a = matrix()
    everything = 40 * 40 * 8
    assert len(products(mirrored(a @ a.T, resident_bytes=everything))) == 30
    assert len(products(mirrored(a @ a.T, resident_bytes=everything // 4))) == 48


def test_annotated_products_and_the_switch():
    a = matrix()
    with dask.annotate(priority=3):
        product = a @ a.T
    assert len(products(mirrored(product))) == 48
    with dask.config.set({"dask-mars.expressions.reductions": False}):
        assert len(products(mirrored(a @ a.T))) == 48


def test_on_workers(get):
    a = matrix((300, 200), 50)
    product = a @ a.T
    np.testing.assert_allclose(product.compute(scheduler=get), product.compute(scheduler="sync"), rtol=1e-12)
    values = np.array([[np.nan, np.inf], [0.0, -np.inf]])
    b = da.from_array(values, chunks=1)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal((b @ b.T).compute(scheduler=get), (b @ b.T).compute(scheduler="sync"))
