"""Plans: what is told before anything runs, and what to change."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import dask
import dask.array as da
import numpy as np
import pytest

import dask_mars
from dask_mars import units
from dask_mars.observe.planning.plan import Plan, advise

GIB = 1 << 30


def random(*shape: int, chunks: object) -> da.Array:
    return da.random.default_rng(0).random(shape, chunks=chunks)


@pytest.fixture(autouse=True)
def a_small_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have plans count what a process takes that has computed nothing before."""
    monkeypatch.setattr("dask_mars.limits.estimate_memory", lambda pids: 100 << 20)


def planned(*collections: object, limit: str = "8 GiB") -> Plan:
    return dask_mars.plan(*collections, num_workers=2, memory_limit=limit)


def kinds(plan: Plan) -> list[str]:
    return [advice.kind for advice in plan.warnings]


def test_chunks_and_operands_by_layer():
    x = random(4000, 4000, chunks=1000)
    plan = planned((x + 1).sum())
    by_label = {layer.label: layer for layer in plan.layers}
    assert by_label["sum"].chunks == 16
    # Random numbers and the addition are a part of it.
    assert by_label["sum"].composed_of == 48
    assert plan.chunks == sum(layer.chunks for layer in plan.layers)
    assert plan.chunks_before == sum(layer.composed_of for layer in plan.layers)
    assert 1 < plan.operands <= len(plan.layers)
    assert plan.warnings == ()


def test_nothing_runs():
    calls = []
    x = da.map_blocks(lambda block: calls.append(1) or block, da.ones(8, chunks=2), meta=np.ones(0))
    planned(x.sum())
    assert calls == []


def test_the_peak_and_what_goes_to_disk():
    x = random(16_000, 16_000, chunks=2_000)
    centred = ((x - x.mean()) ** 2).sum()
    plan = planned(centred)
    assert plan.spilled_bytes == 0
    assert 2 * GIB < plan.peak_bytes - plan.process_bytes + (100 << 20) < 2.5 * GIB
    short = planned(centred, limit="1 GiB")
    # The store has half of it, and the others have to go.
    assert 1.2 * GIB < short.spilled_bytes < 1.7 * GIB
    assert short.peak_bytes < GIB
    assert kinds(short) == ["spilling"]
    assert short.largest_bytes == 32_000_000
    assert short.largest_chunk[0].startswith("random-")
    assert {layer.label for layer in short.layers if layer.spilled_bytes} == {"random"}


def test_pieces_of_a_rechunk_go_to_disk_with_bytes_of_their_own():
    """They are views of what is cut, which stays in memory until all of them have gone."""
    x = random(10_000, 10_000, chunks=(500, 10_000))
    plan = planned(x.rechunk((10_000, 500)).sum(axis=0).max(), limit="1 GiB")
    by_label = {layer.label: layer.spilled_bytes for layer in plan.layers if layer.spilled_bytes}
    assert by_label["rechunk-split"] > 200 << 20
    # All that is cut goes through half a gigabyte, of which some stays there.
    assert 0.5 * x.nbytes < plan.spilled_bytes < 2.5 * x.nbytes
    assert "spilling" in kinds(plan)


@pytest.mark.nightly
def test_the_forecast_is_near_what_is_measured():
    def measured(graph: str) -> float:
        command = [sys.executable, "-m", "studies", "plan", "--here", "--graph", graph]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100)
        found = json.loads(done.stdout)
        return found["forecast"] / found["measured"]

    assert 0.8 <= measured("centre, spilling") <= 1.3
    assert 0.8 <= measured("matmul") <= 1.3


def test_chunks_for_which_there_is_no_room(monkeypatch: pytest.MonkeyPatch):
    plan = planned(da.map_blocks(np.sort, random(20_000, 20_000, chunks=20_000), axis=0), limit="1 GiB")
    assert kinds(plan)[0] == "chunk over the limit"
    assert "of the limit of 1.00 GiB" in plan.warnings[0].message
    assert "times smaller" in plan.warnings[0].remedy
    x = random(16_000, 8_000, chunks=(4_000, 8_000))
    large = da.map_blocks(np.sort, x, axis=0).sum()
    assert kinds(planned(large, limit="1 GiB"))[0] == "large chunks"
    monkeypatch.setattr("dask_mars.limits.estimate_memory", lambda pids: 1 << 30)
    assert kinds(planned(large, limit="1 GiB"))[0] == "chunk over the limit"


def test_tiny_chunks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dask_mars.observe.planning.plan._MANY", 5_000)
    plan = dask_mars.plan(da.ones(3_000, chunks=1).sum(), num_workers=2, memory_limit="8 GiB", simulated=1000)
    assert plan.peak_bytes is None
    assert "too many chunks to forecast" in str(plan)
    assert kinds(plan) == ["tiny chunks"]
    assert "B on average" in plan.warnings[0].message
    assert "1 chunk of some 100 MiB" in plan.warnings[0].remedy


def test_a_rechunk_that_writes_thrice_what_it_reads():
    plan = planned(random(4000, 4000, chunks=1000))
    for gib, kinds in ((3, ["rechunk"]), (2, [])):
        layer = dataclasses.replace(plan.layers[0], rechunk_reads_bytes=GIB, rechunk_writes_bytes=gib * GIB)
        found = list(advise(dataclasses.replace(plan, layers=(layer,)), GIB, None))
        assert [advice.kind for advice in found] == kinds
        for advice in found:
            assert "reads 1.00 GiB and writes 3.00 GiB, 3.0 times as much" in advice.message
            assert "array.rechunk.threshold" in advice.remedy


def test_what_rechunks_read_and_write():
    # In one GiB the parts cannot be read in place, and in two steps all is written twice.
    with dask.config.set({"array.rechunk.threshold": 1}):
        x = random(6_000, 6_000, chunks=(60, 6_000)).rechunk((6_000, 60))
        plan = planned(x.sum(axis=0), limit="1 GiB")
    (last,) = [layer for layer in plan.layers if layer.rechunk_reads_bytes]
    assert last.rechunk_reads_bytes == 6_000 * 6_000 * 8
    assert last.rechunk_writes_bytes >= last.rechunk_reads_bytes


def test_a_plan_is_data_and_shows_itself():
    plan = planned(random(16_000, 16_000, chunks=2_000) + 1, limit="1 GiB")
    plain = json.loads(json.dumps(plan.to_dict()))
    assert plain["chunks"] == plan.chunks
    assert plain["layers"][0]["label"] == plan.layers[0].label
    assert "large result" in kinds(plan)
    assert plan.result_bytes == 16_000 * 16_000 * 8
    text, html = str(plan), plan._repr_html_()
    for shown in (text, html):
        assert "on 2 workers within 1.00 GiB" in shown
        assert "peak about" in shown
        assert units.size(plan.spilled_bytes) in shown
    assert plan.layers[0].name not in text
    assert "! " in text
    pandas = pytest.importorskip("pandas")
    frame = plan.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.chunks) == [layer.chunks for layer in plan.layers]


def test_other_collections_and_wrong_calls():
    delayed = [dask.delayed(abs)(-n) for n in range(5)]
    plan = planned(*delayed, {"more": delayed[0]})
    assert plan.chunks == 5
    assert plan.unknown == 5
    assert "nothing says how large" in str(plan)
    with pytest.raises(ValueError, match="no Dask collections"):
        planned(1, "2")
    with pytest.raises(ValueError, match="memory_limit"):
        planned(*delayed, limit="many")
