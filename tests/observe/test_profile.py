"""What layers took: a dict as ever, and a table in terminals and notebooks."""

from __future__ import annotations

import pickle
from array import array
from operator import add
from pathlib import Path

import dask.array as da
import pytest

from dask_mars import Runtime
from dask_mars.engine.graph_run import ChunkMeasurements
from dask_mars.observe.profile import LayerProfile, Profile, by_layer
from tests.background import in_background
from tests.conftest import eventually
from tests.tasks import wait_for

LAYER = "random-dc6f260ca5b1b3d7cfe9a2c9ce0e2990"


def profile() -> Profile:
    keys = [(LAYER, 0), (LAYER, 1), ("sum<b>", 0), ("sum<b>", 1)]
    measured = ChunkMeasurements(
        4, keys, array("f", [0.25, 0.5, 0.0625, -1.0]), array("q", [1 << 20, 1 << 20, 0, 0])
    )
    return Profile({4: by_layer(measured)})


def test_it_is_a_dict_with_attributes():
    found = profile()
    assert found == {
        4: {
            LAYER: {"count": 2, "total_s": 0.75, "mean_s": 0.375, "stored_bytes": 2 << 20},
            "sum<b>": {"count": 1, "total_s": 0.0625, "mean_s": 0.0625, "stored_bytes": 0},
        }
    }
    assert found[4][LAYER].mean_s == found[4][LAYER]["mean_s"] == 0.375
    assert (found[4][LAYER].count, found[4][LAYER].total_s, found[4][LAYER].stored_bytes) == (2, 0.75, 2 << 20)
    plain = found.to_dict()
    assert plain == found
    assert [type(part) for part in (plain, plain[4], plain[4][LAYER])] == [dict] * 3
    assert pickle.loads(pickle.dumps(found)) == found
    assert pickle.loads(pickle.dumps(found)).tables() == found.tables()


def test_it_shows_itself_by_readable_names_and_units():
    text = str(profile())
    assert text == repr(profile())
    assert "computation 4" in text
    assert LAYER not in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "random 2 0.75 s 0.38 s 2.00 MiB" in lines
    assert "all 3 0.81 s 0.27 s 2.00 MiB" in lines
    html = profile()._repr_html_()
    assert "<b>computation 4</b>" in html
    assert "sum&lt;b&gt;" in html
    assert repr(LayerProfile(2, 0.75, 2 << 20)) == "<2 chunks in 0.75 s, 0.38 s each, 2.00 MiB stored>"
    assert str(Profile()) == "nothing has been computed"


def test_with_and_without_rich_it_can_be_read(monkeypatch: pytest.MonkeyPatch):
    console = pytest.importorskip("rich.console").Console(width=100, record=True, quiet=False)
    with console.capture() as printed:
        console.print(profile())
    assert "0.38 s" in printed.get()
    monkeypatch.setattr("dask_mars.tables.find_spec", lambda name: None)
    assert "random  2  0.75 s  0.38 s  2.00 MiB" in str(profile())


def test_as_a_frame():
    pytest.importorskip("pandas")
    frame = profile().to_pandas()
    assert list(frame.columns) == ["computation", "layer", "label", "count", "total_s", "mean_s", "stored_bytes"]
    assert list(frame.label) == ["random", "sum<b>"]
    assert list(profile()[4].to_pandas().stored_bytes) == [2 << 20, 0]


def test_of_many_layers_the_least_share_a_row():
    keys = [(f"layer{number:02d}", 0) for number in range(40)]
    measured = ChunkMeasurements(1, keys, array("f", range(40)), array("q", [0] * 40))
    (table,) = by_layer(measured).tables()
    assert len(table.rows) == 32
    assert table.rows[0][0] == "layer10"
    assert table.rows[-2][0] == "10 other layers"


def test_of_a_runtime(runtime: Runtime, tmp_path: Path):
    x = da.ones((400, 400), chunks=100, name="ones")
    x.map_blocks(add, 1, name="more").sum().compute(scheduler=runtime.get, optimize_graph=False)
    assert eventually(lambda: not runtime.state()["graphs"])
    (layers,) = runtime.profile().values()
    assert (layers["more"].count, layers["more"]["stored_bytes"]) == (16, 16 * 80_000)
    assert layers["more"]["mean_s"] == pytest.approx(layers["more"]["total_s"] / 16)
    assert layers["more"].total_s > 0
    assert "computation" in str(runtime.profile())
    graph = {"a": (abs, -1), "b": (wait_for, tmp_path / "go", "a")}
    computing = in_background(runtime.get, graph, ["a", "b"])
    try:
        assert eventually(lambda: any(set(layers) == {"a"} for layers in runtime.profile().values()))
    finally:
        (tmp_path / "go").touch()
    computing.result(100)
    assert Runtime(1).profile() == {}
