"""Pictures of chunk graphs: what they show, as plain data, and the files that are made of it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import numpy as np
import pytest
from dask.utils import key_split
from hypothesis import given
from hypothesis import strategies as st

import dask_mars
from dask_mars import units
from dask_mars.graph.chunks import DATA, ChunkGraph, Operand, Step, flatten
from dask_mars.graph.composition import composed_of
from dask_mars.observe.drawing import figure
from dask_mars.observe.drawing.figure import place
from dask_mars.observe.drawing.picture import (
    FUSED,
    KNOWN,
    SINGLE,
    Picture,
    make_layers_picture,
    make_legend,
    make_picture,
    worker_colours,
)
from dask_mars.optimize.prepare import engine_options, prepare
from dask_mars.scheduler.events import CLIENT
from dask_mars.scheduler.simulate import NO_WORKER, simulate
from tests.machines import plan

needs_matplotlib = pytest.mark.skipif(
    not importlib.util.find_spec("matplotlib"), reason="matplotlib is not installed"
)


def graphs(*collections: Any) -> tuple[ChunkGraph, ChunkGraph]:
    """Return the chunk graph of persisted collections before and after composing."""
    found = dask.base.collections_to_expr(collections).optimize()
    keys = flatten(list(found.__dask_keys__()))
    after = prepare(found, keys, engine_options(2, lambda: 1 << 30))
    return prepare(found, keys, composed=False), after


def pictures(*collections: Any, num_workers: int = 2) -> list[Picture]:
    """Return the pictures of the graph before and after composing."""
    before, after = graphs(*collections)
    return [make_picture("", graph, before, num_workers, key_split) for graph in (before, after)]


def random_pair(chunks: int = 2) -> Any:
    """Return two arrays of random numbers, of four chunks each unless told otherwise."""
    rng = da.random.default_rng(0)
    return rng.random((4, 4), chunks=chunks), rng.random((4, 4), chunks=chunks)


def sum_of_sum() -> Any:
    a, b = random_pair()
    return (a + b).sum()


def texts(picture: Picture) -> list[str]:
    return [" ".join(node.lines) for node in picture.nodes]


# -- simulations ----------------------------------------------------------------------------------------------


def test_chunks_go_to_workers_in_turn():
    simulation = simulate(plan((), (), (0, 1), (), (), (3, 4)), 2)
    # Worker 0 has finished chunk 0 a moment before worker 1 has finished chunk 1, for which chunk 2 still waits.
    assert simulation.workers == [0, 1, 1, 0, 0, 0]
    assert simulation.order == [0, 1, 3, 2, 4, 5]
    simulation = simulate(plan((), data=[0]), 2)
    assert (simulation.workers, simulation.order) == ([NO_WORKER], [])


@st.composite
def plans(draw: st.DrawFn) -> Any:
    count = draw(st.integers(1, 12))
    inputs = [tuple(draw(st.lists(st.integers(0, n - 1), max_size=3))) if n else () for n in range(count)]
    data = [n for n in range(count) if not inputs[n] and draw(st.booleans())]
    in_client = frozenset(n for n in range(count) if n not in data and draw(st.booleans()) and draw(st.booleans()))
    return plan(*inputs, data=data, in_client=in_client)


@given(plans(), st.integers(1, 4))
def test_simulation_runs_everything_once_and_after_its_inputs(graph_plan, num_workers):
    simulation = simulate(graph_plan, num_workers)
    workers, order = simulation.workers, simulation.order
    position = {chunk: number for number, chunk in enumerate(order)}
    assert len(position) == len(order)
    assert position.keys() == {chunk for chunk, operand in enumerate(graph_plan.operand_of) if operand >= 0}
    for chunk, inputs in enumerate(graph_plan.inputs):
        assert (workers[chunk] == NO_WORKER) == (chunk not in position)
        assert (workers[chunk] == CLIENT) == (chunk in graph_plan.in_client)
        assert workers[chunk] < num_workers
        for source in inputs:
            assert chunk not in position or position.get(source, -1) < position[chunk]
    again = simulate(graph_plan, num_workers)
    assert (again.workers, again.order) == (workers, order)


def test_policy_is_the_configured_one(monkeypatch, tmp_path):
    def step(name: str, value: Any) -> Any:
        return dask.delayed(abs)(value, dask_key_name=name)

    module = importlib.import_module("dask_mars.observe.drawing.visualize")
    drawn: list[Picture] = []
    monkeypatch.setattr(
        module, "make_picture", lambda *arguments: drawn.append(make_picture(*arguments)) or drawn[-1]
    )
    short, long = step("s1", step("s0", -1)), step("d3", step("d2", step("d1", step("d0", -1))))

    def order(policy: str) -> list[str]:
        with dask.config.set({"dask-mars.policy": policy}):
            dask_mars.visualize(short, long, filename=str(tmp_path / "x.svg"), composed=False)
        return [heading.split()[1] for heading in sorted(texts(drawn[-1]))]

    assert order("memory") == ["s0", "s1", "d0", "d1", "d2", "d3"]
    assert order("mars") == ["d0", "d1", "d2", "d3", "s0", "s1"]
    with pytest.raises(ValueError, match="no scheduling policy 'none'"):
        order("none")


# -- pictures -------------------------------------------------------------------------------------------------


def test_add_and_sum_are_one_and_the_random_numbers_stay_apart():
    before, after = pictures(sum_of_sum())
    assert texts(before)[:4] == ["#0 random (0, 0)", "#1 random (0, 0)", "#2 add (0, 0)", "#3 sum (0, 0)"]
    assert len(before.nodes) == 17
    assert before.edges[:3] == [(0, 2), (1, 2), (2, 3)]
    assert {node.kind for node in before.nodes} == {SINGLE}
    assert texts(after)[:3] == ["#0 random (0, 0)", "#1 random (0, 0)", "#2 · FUSE of 2 add · sum (0, 0)"]
    assert texts(after)[-1] == "#12 sum-aggregate"
    assert len(after.nodes) == 13
    assert after.edges[:2] == [(0, 2), (1, 2)]
    assert [node.kind for node in after.nodes[:3]] == [SINGLE, SINGLE, FUSED]
    assert [node.wanted for node in after.nodes] == [False] * 12 + [True]
    (picture, _) = pictures(sum_of_sum(), num_workers=3)
    colours = worker_colours(3)
    assert all(node.colour == colours[node.worker] for node in picture.nodes)
    assert make_legend([picture]) == [(f"worker {worker}", colours[worker]) for worker in range(3)]


def test_workers_differ_in_colour():
    for count in (1, 2, 7, 64):
        colours = worker_colours(count)
        assert colours.keys() == {NO_WORKER, CLIENT, *range(count)}
        assert len(set(colours.values())) == count + 2
        assert all(len(colour) == 7 and int(colour[1:], 16) >= 0 for colour in colours.values())


def test_number_is_the_priority_whatever_the_number_of_workers():
    with dask.annotate(priority=1):
        first = dask.delayed(abs)(-1)
    second = dask.delayed(abs)(-2)
    for num_workers in (1, 2):
        (picture, _) = pictures(second, first, num_workers=num_workers)
        assert texts(picture) == ["#1 abs", "#0 abs"]


def test_known_values_and_stores_are_no_workers():
    (picture, _) = pictures(da.from_array(np.ones((200, 400)), chunks=200) + 1)
    known = [node for node in picture.nodes if node.kind == KNOWN]
    assert [node.lines for node in known] == [["array", "(0, 0)"], ["array", "(0, 1)"]]
    assert {node.worker for node in known} == {NO_WORKER}
    assert make_legend([picture]) == [(f"worker {n}", worker_colours(2)[n]) for n in (0, 1)]
    a, b = random_pair(chunks=4)
    # Dask's optimizer makes one of the sum and the store, which the conversion cuts in two again.
    for picture in pictures(da.store(a + b, np.zeros((4, 4)), compute=False, lock=False)):
        found = [(node.name, node.worker) for node in picture.nodes]
        assert found == [("random", 0), ("random", 1), ("add", 0), ("store-map", CLIENT)]
        assert make_legend([picture])[0] == ("your process", worker_colours(2)[CLIENT])
    # An input that is used twice has one edge.
    (picture, _) = pictures(a.dot(a))
    assert len(picture.edges) == len(set(picture.edges))


def chunk_graph(*inputs: tuple[int, ...], keys: list[str], outputs: list[int]) -> ChunkGraph:
    """Return a graph of one operand for each number of inputs; the key ``"known"`` is a value."""
    widest = max(map(len, inputs)) + 1
    operands = [Operand("f", (max,), (Step(0, tuple(range(n)), ()),), n, 0) for n in range(widest)]
    return ChunkGraph(
        keys=list(keys),
        operand_of=[DATA if key == "known" else len(sources) for key, sources in zip(keys, inputs, strict=True)],
        literals=[()] * len(keys),
        inputs=list(inputs),
        operands=operands,
        outputs=outputs,
        ids={key: chunk for chunk, key in enumerate(keys)},
    )


def test_a_chunk_is_composed_of_what_it_needs_that_is_gone():
    before = chunk_graph((), (0,), (1,), (1,), (2, 3), keys=["a", "b", "c", "d", "e"], outputs=[4])
    after = chunk_graph((), (0,), (0, 1), keys=["a", "d", "e"], outputs=[2])
    # The chunk b went into both of its consumers: each computes it.
    assert composed_of(before, after) == [[0], [1, 3], [1, 2, 4]]
    assert composed_of(before, before) == [[0], [1], [2], [3], [4]]
    # What is cut off computes the rest.
    before = chunk_graph((), (0,), (1,), (2,), keys=["a", "b", "c", "d"], outputs=[3])
    after = chunk_graph((), (0,), (0, 1), keys=["a", "new", "d"], outputs=[2])
    assert composed_of(before, after) == [[0], [1, 2], [3]]
    # A chunk of a new key that nothing uses has the name of that.
    before, after = [chunk_graph((), keys=[key], outputs=[0]) for key in ("a-1", "b-1")]
    assert composed_of(before, after) == [[]]
    assert texts(make_picture("", after, before, 1, lambda name: name[0])) == ["#0 b"]


# -- layout ---------------------------------------------------------------------------------------------------


@given(plans())
def test_inputs_are_below_and_nodes_apart(graph_plan):
    edges = [(source, node) for node, inputs in enumerate(graph_plan.inputs) for source in dict.fromkeys(inputs)]
    places = place(len(graph_plan.inputs), edges)
    for source, node in edges:
        assert places[source][1] < places[node][1]
    assert min(column for column, _ in places) == 0
    assert min(row for _, row in places) >= 0
    for node, (column, row) in enumerate(places):
        for other_column, other_row in places[:node]:
            assert other_row != row or abs(other_column - column) > 1 - 1e-6


def test_trees_are_drawn_as_trees():
    #      6
    #   2     5
    #  0 1   3 4
    edges = [(0, 2), (1, 2), (3, 5), (4, 5), (2, 6), (5, 6)]
    assert place(7, edges) == [(0, 0), (1, 0), (0.5, 1), (2, 0), (3, 0), (2.5, 1), (1.5, 2)]
    # An input is right below its first consumer.
    assert [row for _, row in place(4, [(0, 1), (1, 3), (2, 3)])] == [0, 1, 1, 2]
    found = {rankdir: figure._oriented([(0, 0), (0, 1)], rankdir) for rankdir in ("BT", "TB", "LR", "RL")}
    assert found == {
        "BT": [(0, 0), (0, 1)],
        "TB": [(0, 1), (0, 0)],
        "LR": [(0, 0), (1, 0)],
        "RL": [(1, 0), (0, 0)],
    }


def test_what_is_drawn_is_what_runs(get, monkeypatch):
    prepared: list[ChunkGraph] = []

    def note(*arguments: Any, **options: Any) -> ChunkGraph:
        prepared.append(prepare(*arguments, **options))
        return prepared[-1]

    monkeypatch.setattr("dask_mars.client.backend.prepare", note)
    a, b = random_pair()
    for collection in (da.concatenate([a + 1, (a + 1) @ b.T]), db.from_sequence(range(6), npartitions=2).map(abs)):
        _, drawn = graphs(collection)
        collection.persist(scheduler=get)
        collection.compute(scheduler=get)
        persisted, computed = prepared
        prepared.clear()
        assert (persisted.keys, persisted.inputs) == (drawn.keys, drawn.inputs)
        # Without the task that puts the collection together.
        found = zip(computed.keys, computed.inputs, strict=True)
        assert [inputs for key, inputs in found if not str(key).startswith("finalize-")] == drawn.inputs


# -- files ----------------------------------------------------------------------------------------------------


def drawn(*arguments: Any, **options: Any) -> str:
    """Return the picture as SVG, in which texts can be searched."""
    dask_mars.visualize(*arguments, filename="drawn.svg", **options)
    return Path("drawn.svg").read_text(encoding="utf-8")


@pytest.fixture(scope="module", autouse=True)
def fonts() -> None:
    """Matplotlib keeps the files of its fonts open."""
    if importlib.util.find_spec("matplotlib"):
        dask_mars.visualize(dask.delayed(abs)(-1), filename=None)


@pytest.fixture(autouse=True)
def in_own_directory(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


@needs_matplotlib
def test_matplotlib_draws_texts_in_colours_and_the_same_each_time():
    text = drawn(sum_of_sum(), num_workers=2)
    parts = ["add · sum", "#2 · FUSE of 2", "(0, 0)", "worker 0", "worker 1", worker_colours(2)[0]]
    titles = ["before composing: 17 chunks", "after composing: 13 chunks"]
    for part in parts + titles:
        assert part in text
    assert drawn(sum_of_sum(), num_workers=2) == text
    for composed in (True, False):
        source = drawn(sum_of_sum(), composed=composed)
        assert [title for title in titles if title in source] == [titles[composed]]
    # Names are drawn as they are.
    small = dask.delayed(abs)(-1, dask_key_name="$a^b$ <x>")
    source = drawn(small, num_workers=1)
    assert "$a^b$ &lt;x&gt;" in source
    assert "1 chunk, nothing to compose" in source


@needs_matplotlib
@pytest.mark.parametrize(
    ("options", "name", "start", "kind"),
    [
        ({}, "mars.png", b"\x89PNG", "Image"),
        ({"filename": "graph", "format": "pdf"}, "graph.pdf", b"%PDF", "NoneType"),
        ({"filename": Path("graph.svg")}, "graph.svg", b"<?xml", "SVG"),
        ({"filename": None}, None, b"", "Image"),
    ],
)
def test_files_and_what_notebooks_get_are_as_dask_has_them(tmp_path, options, name, start, kind):
    shown = dask_mars.visualize(dask.delayed(abs)(-1), **options)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [name][: name is not None]
    assert name is None or (tmp_path / name).read_bytes().startswith(start)
    assert type(shown).__name__ == kind or not importlib.util.find_spec("IPython")


# -- bad input ------------------------------------------------------------------------------------------------


def test_what_cannot_be_drawn_is_refused(tmp_path, monkeypatch):
    one = dask.delayed(abs)(-1)
    x = sum_of_sum()
    with pytest.raises(ValueError, match=r"^30 chunks .* the limit is 29\..* composed=True .* limit=30 "):
        dask_mars.visualize(x, limit=29)
    for arguments, options, message in (
        ((), {}, "nothing to draw"),
        ((1, "text"), {}, "nothing to draw"),
        (([one],), {"traverse": False}, "nothing to draw"),
        ((one,), {"composed": "yes"}, "composed must be"),
        ((one,), {"detail": "rows"}, "detail must be 'auto', 'layers' or 'chunks', not 'rows'"),
        ((one,), {"num_workers": 0}, "number of workers"),
    ):
        with pytest.raises(ValueError, match=message):
            dask_mars.visualize(*arguments, **options)
    assert not [path for path in tmp_path.iterdir() if path.is_file()]
    dask_mars.visualize(x, limit=30)
    if importlib.util.find_spec("matplotlib"):
        with pytest.raises(ValueError, match="rankdir must be"):
            dask_mars.visualize(one, rankdir="up")
        with pytest.raises(TypeError, match="nodesep"):
            dask_mars.visualize(one, nodesep="1")
        with pytest.raises(ValueError, match="dot"):
            dask_mars.visualize(one, format="dot")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(RuntimeError, match="pip install 'dask-mars"):
        dask_mars.visualize(one)


# -- what fits a screen -----------------------------------------------------------------------------------------


def layered() -> Any:
    x = da.random.default_rng(0).random((60, 60), chunks=10)
    return (x - x.mean(axis=0)).std()


@pytest.mark.slow
def test_many_chunks_are_drawn_by_layers():
    source = drawn(layered())
    assert "36 chunks" in source
    assert "sub · var" in source
    assert "(5, 5)" not in source
    assert "worker 0" not in source
    assert "4 chunks" in drawn(sum_of_sum(), detail="layers")
    assert "(1, 1)" in drawn(sum_of_sum())
    before, after = graphs(layered())
    picture = make_layers_picture("t", after, before, key_split, units.size)
    by_name = {node.name: node for node in picture.nodes}
    assert by_name["random"].lines == ["36 chunks", "random", "28.1 KiB"]
    assert by_name["sub · var"].kind == "fused"
    assert sum(node.wanted for node in picture.nodes) == 1
    assert all(source < position for source, position in picture.edges)


@pytest.mark.slow
def test_notebooks_scale_what_is_too_wide(tmp_path):
    display = pytest.importorskip("IPython.display")
    image = dask_mars.visualize(layered(), filename=str(tmp_path / "wide.png"))
    assert isinstance(image, display.Image)
    assert image.width == 900
    assert dask_mars.visualize(da.ones(2, chunks=1), filename=str(tmp_path / "narrow.png")).width is None
    svg = dask_mars.visualize(layered(), filename=str(tmp_path / "wide.svg"))
    assert 'style="max-width: 100%; height: auto"' in svg.data
