from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import pytest

from dask_mars import Runtime
from dask_mars.engine.listeners import listeners
from dask_mars.web import recorder, runtime_monitor
from dask_mars.web.monitor import Monitor
from dask_mars.web.runtime_monitor import RuntimeMonitor
from tests.conftest import eventually
from tests.tasks import fail_with, wait_for


@pytest.fixture
def monitor(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> Iterator[RuntimeMonitor]:
    """A monitor that looks each time."""
    monkeypatch.setattr(runtime_monitor, "_LOOK_S", 0.0)
    monkeypatch.setattr(runtime_monitor, "_COSTS", 0.0)
    monitor = RuntimeMonitor(runtime)
    # So that it hears of what comes.
    monitor.revision()
    yield monitor
    monitor.close()
    assert not listeners.active


def test_it_tells_what_it_was_installed_without(runtime: Runtime, monkeypatch: pytest.MonkeyPatch):
    for missing in (), ("dask_mars.store._arena",):
        monkeypatch.setattr(runtime_monitor, "missing_extensions", lambda missing=missing: missing)
        monitor = RuntimeMonitor(runtime)
        assert isinstance(monitor, Monitor)
        assert monitor.state().get("missing_extensions", []) == list(missing)
        monitor.close()


def test_a_finished_computation(runtime: Runtime, monitor: RuntimeMonitor):
    computation = runtime.submit(da.ones((8, 8), chunks=4).sum(axis=0), name="ones")
    computation.result(100)
    found = monitor.computation(computation.id)
    assert found == json.loads(json.dumps(found))
    assert (found["id"], found["name"], found["state"], found["attempt"]) == (
        computation.id,
        "ones",
        "finished",
        1,
    )
    assert found["created"] <= found["started"] <= found["ended"]
    assert found["chunks"]["total"] == found["chunks"]["finished"] == sum(one["total"] for one in found["layers"])
    assert found["result"] == {"kind": "array", "dtype": "float64", "shape": [8], "bytes": 64, "evicted": False}
    assert (found["remaining"], found["error"]) == (None, None)
    assert monitor.computations(None, None, 1)["computations"][0]["id"] == computation.id
    assert monitor.computations("failed", None, 1000)["computations"] == [
        row for row in monitor.computations(None, None, 1000)["computations"] if row["state"] == "failed"
    ]
    assert monitor.error(computation.id) == {"type": "", "message": "", "traceback": ""}
    assert not monitor.cancel(computation.id)
    graph = monitor.graph(computation.id, None)
    assert [layer["name"] for layer in graph["layers"]] == [layer["name"] for layer in found["layers"]]
    assert graph["edges"]
    first = graph["layers"][0]["name"]
    blocks = monitor.graph(computation.id, first)
    assert blocks["numblocks"] == [2, 2]
    assert blocks["states"] == "ffff"
    with pytest.raises(KeyError):
        monitor.graph(computation.id, "no such layer")


def test_a_timeline_has_what_was_heard(runtime: Runtime, monitor: RuntimeMonitor):
    computation = runtime.submit(*[da.ones((8, 8), chunks=2).sum(axis=axis) for axis in (0, 1)])
    computation.result(100)
    assert eventually(
        lambda: sum(row[4] for row in monitor.timeline(computation.id)["tasks"]) == computation.progress.total
    )
    timeline = monitor.timeline(computation.id)
    assert timeline == json.loads(json.dumps(timeline))
    assert {row[0] for row in timeline["tasks"]} == set(timeline["workers"])
    assert all(0 <= row[3] < len(timeline["layers"]) and row[1] <= row[2] for row in timeline["tasks"])
    known = [worker["label"] for worker in monitor.state()["workers"]]
    assert set(timeline["labels"]) <= {"your process", *known}
    assert len(timeline["labels"]) == len(timeline["workers"])
    # A worker that has replaced another has its number and a later process.
    processes = sorted(label.partition(" (process ")[2] for label in known)
    assert processes == sorted(f"{pid})" for pid in runtime.engine().worker_pids())
    # Of the next one it is told apart.
    other = runtime.submit(dask.delayed(abs)(-1))
    other.result(100)
    assert eventually(lambda: len(monitor.timeline(other.id)["tasks"]) == 1)
    assert monitor.timeline(other.id)["layers"] == ["abs"]


def test_what_runs_and_is_cancelled(runtime: Runtime, monitor: RuntimeMonitor, tmp_path: Path):
    before, others = monitor.revision(), monitor.state()["counts"]["running"]
    computation = runtime.submit_graph({("waits", 0): (wait_for, tmp_path / "never")}, [("waits", 0)])
    assert eventually(lambda: monitor.computation(computation.id)["chunks"]["running"] == 1, 20)
    assert monitor.revision() > before
    assert monitor.computation(computation.id)["revision"] <= monitor.revision()
    state = monitor.state()
    # What other tests have left may still be said to run.
    assert 1 <= state["counts"]["running"] <= others + 1
    assert state == json.loads(json.dumps(state))
    assert "('waits', 0)" in [worker["running"] for worker in state["workers"]]
    assert state["memory"]["limit_bytes"] > 0
    assert monitor.explain(computation.id, "('waits', 0)")["rows"]
    assert monitor.explain(None, "('waits', 0)")["rows"]
    with pytest.raises(KeyError):
        monitor.explain(computation.id, "('no', 'key')")
    assert monitor.cancel(computation.id)
    assert computation.wait(100)
    assert monitor.computation(computation.id)["state"] == "cancelled"


def test_a_computation_that_ends_during_a_look_keeps_the_layers_of_its_end(
    runtime: Runtime, monitor: RuntimeMonitor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    computation = runtime.submit(dask.delayed(wait_for)(tmp_path / "go"))
    assert eventually(lambda: monitor.computation(computation.id)["chunks"]["running"] == 1, 20)
    look = monitor._look_at_layers

    def end_after(record: Any) -> None:
        look(record)
        (tmp_path / "go").touch()
        computation.result(100)

    monkeypatch.setattr(monitor, "_look_at_layers", end_after)
    monitor.computation(computation.id)
    monkeypatch.undo()
    found = monitor.computation(computation.id)
    assert (found["state"], found["layers"][0]["finished"]) == ("finished", 1)


def test_a_failed_one_says_why_and_what_was_said(runtime: Runtime, monitor: RuntimeMonitor):
    computation = runtime.submit(dask.delayed(fail_with)("broken"))
    computation.wait(100)
    found = monitor.computation(computation.id)
    assert found["error"] == {"type": "LookupError", "message": "broken"}
    assert found["chunks"]["failed"] == 1
    error = monitor.error(computation.id)
    assert "fail_with" in error["traceback"]
    assert monitor.log(computation.id) == {"lines": [], "truncated": False}
    assert [event[1] for event in monitor.timeline(computation.id)["events"]] == ["retry"]


def test_unknown_ids(monitor: RuntimeMonitor):
    id = str(uuid.uuid4())
    for name, *more in (
        *[(name,) for name in ("computation", "cancel", "error", "log", "timeline")],
        ("graph", None),
        ("explain", None),
    ):
        with pytest.raises(KeyError):
            getattr(monitor, name)(id, *more)


def test_a_runtime_that_does_not_run():
    monitor = RuntimeMonitor(Runtime(1))
    assert monitor.state()["workers"] == []
    assert monitor.computations(None, None, 10) == {"computations": [], "next": None}
    assert monitor.explain(None, None) == {"rows": ["no workers are running"]}
    monitor.close()


def test_all_viewers_share_a_look(runtime: Runtime, monkeypatch: pytest.MonkeyPatch):
    monitor = RuntimeMonitor(runtime)
    looks: list[int] = []
    look = monitor._look_at_computations
    monkeypatch.setattr(monitor, "_look_at_computations", lambda: looks.append(1) or look())
    monkeypatch.setattr(runtime_monitor, "_LOOK_S", 60.0)
    monkeypatch.setattr(runtime_monitor, "_COSTS", 0.0)
    for _ in range(10):
        monitor.state()
        monitor.computations(None, None, 10)
    assert len(looks) == 1
    # A request for a newer computation takes a new snapshot.
    computation = runtime.submit(dask.delayed(abs)(-1))
    assert monitor.computation(computation.id)["id"] == computation.id
    assert len(looks) == 2
    computation.result(100)
    monitor.close()


def test_nobody_is_listened_to_when_nobody_watches(runtime: Runtime, monkeypatch: pytest.MonkeyPatch):
    monitor = RuntimeMonitor(runtime)
    monitor.state()
    assert listeners.active
    monkeypatch.setattr(recorder, "_LISTEN_S", -1.0)
    runtime.submit(dask.delayed(abs)(-1)).result(100)
    assert eventually(lambda: not listeners.active)
