"""Rechunks in one step, and those that Dask would have its workers do among themselves: the same results."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_mars.cluster.requirements import RequirementsFinder
from dask_mars.graph.chunks import ChunkGraph
from dask_mars.optimize.fronts import rechunk
from dask_mars.optimize.prepare import PrepareOptions, prepare
from studies.graphs import handed_over
from tests.symbolic import assert_identical, in_place

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
def test_results_are_those_of_tasks(get, shape, before, after):
    def used(method: str) -> Any:
        x = rechunked(shape, before, after, method)
        return [x, x[: shape[0] // 3], (x + 1).T.sum(axis=0)]

    assert_identical(dask.compute(used("p2p"), scheduler=get), dask.compute(used("tasks"), scheduler="sync"))


def test_workers_of_dask_are_not_needed():
    handed = handed_over(rechunked((400, 400), (100, 400), (400, 100), "p2p") + 1)
    requirements = RequirementsFinder()
    graph = prepare(*handed, PrepareOptions(select_unmergeable=requirements.select_unmergeable))
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


# -- in one step --------------------------------------------------------------------------------------------------


def layer_names(graph: ChunkGraph) -> set[str]:
    return {graph.layer_of(chunk).rpartition("-")[0] for chunk in range(len(graph))}


def staged(shape: Any = (40, 40), before: Any = (2, 40), after: Any = (40, 2)) -> Any:
    """Rechunk an array by way of other chunks."""
    x = da.random.default_rng(0).random(shape, chunks=before)
    with dask.config.set({"array.rechunk.threshold": 1, "array.chunk-size": "2 kiB"}):
        y = x.rechunk(after)
    assert sum(name.startswith("rechunk-merge") for name in y.dask.layers) > 1
    return y


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rechunk, "_PIECE_BYTES", 1)


@pytest.mark.usefixtures("small_pieces")
def test_no_stage_and_no_piece_is_stored():
    graph = in_place(staged())
    assert layer_names(graph) == {"random", "rechunk-merge", "finalize-hlgfinalizecompute"}
    merges = [chunk for chunk in range(len(graph)) if graph.layer_of(chunk).startswith("rechunk-merge")]
    assert [len(graph.inputs[chunk]) for chunk in merges] == [20] * 20
    assert all(graph.declared_bytes(chunk) == 40 * 2 * 8 for chunk in merges)


@pytest.mark.usefixtures("small_pieces")
def test_only_where_the_array_has_a_place_in_memory():
    y = staged()
    assert len(in_place(y, resident_bytes=40 * 40 * 8)) < len(in_place(y, resident_bytes=40 * 40 * 8 - 1))
    # Of several all have to have one.
    both = y.sum(), staged((40, 42), (2, 42), (40, 2)).sum()
    assert "rechunk-split" not in layer_names(in_place(*both, resident_bytes=40 * 82 * 8))
    assert "rechunk-split" in layer_names(in_place(*both, resident_bytes=40 * 82 * 8 - 1))


def test_not_where_the_pieces_would_be_small_and_many():
    assert "rechunk-split" in layer_names(in_place(staged()))


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", ["wanted", "used", "annotated"])
def test_a_stage_that_is_needed_stays(kind):
    x = da.random.default_rng(0).random((40, 40), chunks=(2, 40))
    y = x.rechunk((10, 10))
    if kind == "annotated":
        with dask.annotate(priority=1):
            z = y.rechunk((40, 2))
        assert in_place(z).priorities
        return
    z = y.rechunk((40, 2))
    graph = in_place(z, y if kind == "wanted" else y.sum())
    # Both layers are computed once.
    assert len({graph.keys[chunk][0] for chunk in range(len(graph)) if "merge" in graph.layer_of(chunk)}) == 2


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", ["objects", "masked", "unknown", "empty", "empty blocks", "dates", "no axes"])
def test_arrays_of_all_kinds(kind):
    x = da.arange(120, chunks=7).reshape(10, 12).rechunk((3, 5))
    if kind == "objects":
        x = x.astype(object)
    elif kind == "masked":
        x = da.ma.masked_where(x % 3 == 0, x)
    elif kind == "unknown":
        x = x[x[:, 0] > 30].rechunk({1: 4})
    elif kind == "empty":
        x = x[:0]
    elif kind == "empty blocks":
        x = da.concatenate([x[:4], x[:0], x[4:]])
    elif kind == "dates":
        x = x.astype("M8[s]")
    if kind == "no axes":
        in_place(x.sum().rechunk(()))
        return
    in_place(x.rechunk({1: 7}))
    in_place((x.rechunk({1: 7}) == x.rechunk({1: 7})).rechunk({1: 2}))


@st.composite
def chunks_of(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    cuts = draw(st.sets(st.integers(1, size - 1), max_size=5)) if size > 1 else set()
    ends = [*sorted(cuts), size]
    return tuple(end - start for start, end in zip([0, *ends], ends, strict=False))


@settings(max_examples=10)
@given(st.data())
@pytest.mark.usefixtures("small_pieces")
def test_any_chunks(data):
    shape = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=3))
    before, between, after = ([data.draw(chunks_of(size)) for size in shape] for _ in range(3))
    x = da.from_array(np.arange(np.prod(shape)).reshape(shape), chunks=tuple(before))
    in_place(x.rechunk(tuple(between)).rechunk(tuple(after)))
    in_place(x.rechunk(tuple(after)).sum(axis=0), x.rechunk(tuple(between)) + 1)


@pytest.mark.usefixtures("small_pieces")
def test_rechunks_on_workers(get):
    x = da.arange(10_000, chunks=500).reshape(100, 100).rechunk((5, 100))
    y = (x + 1).rechunk((100, 5))
    assert_identical(y.compute(scheduler=get), np.arange(1, 10_001).reshape(100, 100))
    assert y.sum(axis=0).max().compute(scheduler=get) == (np.arange(1, 10_001).reshape(100, 100)).sum(axis=0).max()
