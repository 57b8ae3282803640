"""Arrays within delayed values: Dask's calls that do nothing go, and what is read says how large it is."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

from dask_mars.graph.chunks import DATA, ChunkGraph
from dask_mars.optimize.prepare import prepare
from dask_mars.optimize.read_sizes import with_reads
from studies.graphs import handed_over


class Source:
    """An array that is read by slices, such as one of a file."""

    shape, dtype, ndim = (100, 50), np.dtype("f4"), 2

    def __getitem__(self, index: Any) -> Any:
        return np.ones(self.shape, self.dtype)[index]


def delayed_values(**options: Any) -> list[Any]:
    """Return two delayed values of one array, from which Dask keeps what they share."""
    x = da.from_array(Source(), chunks=(30, 50), **options)
    return [dask.delayed(np.sum)(x + 1), dask.delayed(np.max)(x)]


def chunks_of(graph: ChunkGraph, layer: str) -> list[int]:
    return [chunk for chunk in range(len(graph)) if graph.layer_of(chunk).startswith(layer)]


def test_what_keeps_delayed_values_apart_is_not_called(get):
    graph = prepare(*handed_over(*delayed_values()))
    functions = {getattr(function, "__name__", "") for operand in graph.operands for function in operand.functions}
    assert "_identity" not in functions
    sources = chunks_of(graph, "original-")
    assert len(sources) == 2
    assert all(graph.operand_of[chunk] == DATA for chunk in sources)
    assert dask.compute(*delayed_values(), scheduler=get) == (10_000.0, 1.0)


@pytest.mark.parametrize("options", [{}, {"inline_array": True}])
def test_what_is_read_is_declared(options):
    graph = prepare(*handed_over(*delayed_values(**options)))
    read = [size for chunk in range(len(graph)) if (size := graph.declared_bytes(chunk)) is not None]
    # Of the sum's chunks each is more than what is read for it.
    assert sorted(read) == [10 * 50 * 4, *3 * [30 * 50 * 4]]


def test_what_a_collection_says_comes_first():
    x = da.from_array(Source(), chunks=(30, 50))
    graph = prepare(*handed_over(x[::2] + 1))
    assert with_reads(graph, graph.declared) == graph.declared


@pytest.mark.parametrize(
    "index",
    [(slice(0, 9, 2), slice(0, 9)), (slice(None), slice(0, 9)), (3, slice(0, 9)), ([1, 2], slice(0, 9)), 5],
)
def test_of_other_indices_nothing_is_said(index):
    key, source = ("x", 0, 0), np.ones((9, 9))
    graph = prepare({key: (da.core.getter, source, index)}, [key])
    assert not graph.declared


def test_keys_that_only_look_like_those_of_blocks():
    def read(*index: slice) -> Any:
        return da.core.getter, np.ones((9, 9)), index

    some = slice(0, 2)
    assert len(prepare({("x", 0): read(some), ("x", 0, 0): read(some, some)}, [("x", 0), ("x", 0, 0)])) == 2


@pytest.mark.parametrize("at", ["a", -1, 10**12])
def test_of_other_keys_nothing_is_said(at):
    key = ("x", at)
    assert not prepare({key: (da.core.getter, np.ones(9), (slice(0, 2),))}, [key]).declared


def test_of_sources_without_a_type_nothing_is_said():
    key = ("x", 0)
    assert not prepare({key: (da.core.getter, [1, 2, 3], (slice(0, 2),))}, [key]).declared
