"""Overlaps whose edges are read in place: no edge is a chunk of its own, and the values stay the same."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest

from dask_mars.graph.chunks import ChunkGraph
from dask_mars.optimize.fronts.parts import Residents
from tests.symbolic import assert_identical, in_place


def edges(graph: ChunkGraph) -> int:
    return sum(any(type(at) is float for at in key[1:]) for key in graph.keys if type(key) is tuple)


def numbers(shape: Any = (12, 15), chunks: Any = (4, 5)) -> Any:
    return da.random.default_rng(0).random(shape, chunks=chunks)


@pytest.mark.parametrize("depth", [1, 2, (1, 0), {0: (0, 2), 1: 1}, {0: (1, 0), 1: (0, 3)}, 0])
def test_edges_are_read_in_place(depth):
    x = numbers()
    y = da.overlap.overlap(x, depth=depth, boundary="none")
    graph = in_place(y)
    assert not edges(graph)
    # Numbers, blocks and their assembly; with no edges a block is itself.
    assert len(graph) == (19 if depth else 10)


@pytest.mark.parametrize("boundary", ["none", "reflect", "periodic", "nearest", 7])
def test_boundaries(boundary):
    in_place(numbers().map_overlap(lambda block: block * 2 - block.mean(), depth=1, boundary=boundary))


def test_only_where_the_array_has_a_place_in_memory():
    y = numbers().map_overlap(np.negative, depth=1, boundary="none")
    assert not edges(in_place(y, resident_bytes=12 * 15 * 8))
    assert edges(in_place(y, resident_bytes=12 * 15 * 8 - 1))


@pytest.mark.parametrize("kind", ["objects", "masked", "unknown", "one block"])
def test_arrays_of_all_kinds(kind):
    x = numbers(chunks=(12, 15)) if kind == "one block" else numbers()
    if kind == "objects":
        x = x.astype(object)
    elif kind == "masked":
        x = da.ma.masked_where(x > 0.5, x)
    elif kind == "unknown":
        x = x[x[:, 0] > 0.2]
        in_place(da.overlap.overlap_internal(x, {0: 0, 1: 1}))
        return
    in_place(x.map_overlap(np.negative, depth=1, boundary="none"))


def test_three_axes_and_a_part_of_them():
    x = numbers((8, 9, 10), (4, 3, 5))
    y = x.map_overlap(np.negative, depth={0: 1, 2: 2}, boundary="none")
    in_place(y[1:5, 3, ::3], y.sum())


def test_on_workers(get):
    x = numbers((400, 300), (100, 100))
    y = x.map_overlap(lambda block: np.gradient(block, axis=0), depth=2, boundary="reflect", dtype=float)
    assert_identical(y.compute(scheduler=get), y.compute(scheduler="sync"))


def test_what_stays_in_memory_is_counted():
    asked = []
    residents = Residents(lambda: asked.append(0) or 100)
    assert not asked
    assert residents.reserve(60)
    assert not residents.reserve(41)
    assert residents.reserve(40)
    assert not residents.reserve(1)
