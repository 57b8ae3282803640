"""The event log: what is in the file, that it nests, and that whoever listens cannot do harm."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from operator import add
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

from dask_mars import Runtime, errors
from dask_mars.diagnostics import EventLog, Listener, add_listener, decode_subtask_id, remove_listener, report
from dask_mars.engine.listeners import ProcessesMeasured, listeners
from dask_mars.graph import ids
from dask_mars.graph.ids import SubtaskIds, depths_of, subtask_id
from dask_mars.observe import event_log
from dask_mars.observe.trace_file import TraceFile
from dask_mars.scheduler.events import ChunksFinished
from tests.background import in_background
from tests.conftest import eventually
from tests.tasks import die_first, large_array, pid_of, wait_for

pytestmark = pytest.mark.timeout(300)

Get = Callable[..., Any]
Event = dict[str, Any]

STEPS = ("load", "compute", "seal")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


def events(path: Path) -> list[Event]:
    return json.loads(path.read_text())


def of_kind(log: list[Event], **wanted: Any) -> list[Event]:
    return [event for event in log if wanted.items() <= event.items()]


def row_names(log: list[Event]) -> dict[int, str]:
    return {event["tid"]: event["args"]["name"] for event in of_kind(log, ph="M", name="thread_name")}


def instants(log: list[Event]) -> list[str]:
    return [event["name"] for event in of_kind(log, ph="i")]


def ends(event: Event) -> float:
    return event["ts"] + event["dur"]


def within(inner: Event, outer: Event) -> bool:
    # Numbers in the file have three decimals, which floats do not.
    return (
        inner["tid"] == outer["tid"] and inner["ts"] >= outer["ts"] - 0.001 and ends(inner) <= ends(outer) + 0.001
    )


# -- what is in it ----------------------------------------------------------------------------------------------


def test_every_operand_is_in_its_worker_s_row(get: Get, path: Path):
    array = (da.ones((60, 60), chunks=10) + 1).map_blocks(lambda x: np.full_like(x, os.getpid()))
    with EventLog(path):
        pids = array.compute(scheduler=get)
    log = events(path)
    names = row_names(log)
    operands = [event for event in of_kind(log, cat="chunk") if "finalize" not in event["name"]]
    assert len(operands) == len({event["args"]["chunk"] for event in operands}) == 36
    for event in operands:
        layer, row, column = eval(event["args"]["chunk"])
        assert event["name"] == layer
        assert event["args"]["bytes"] == 800
        assert f"(process {int(pids[row * 10, column * 10])})" in names[event["tid"]]
    (assembly,) = [event for event in of_kind(log, cat="chunk") if "finalize" in event["name"]]
    assert names[assembly["tid"]] == "your process"
    assert assembly["args"]["bytes"] == pids.nbytes


def test_steps_are_within_their_operands_which_do_not_overlap(get: Get, path: Path):
    graph = {("x", n): (add, n, 1) for n in range(200)}
    graph |= {("y", n): (add, ("x", n), ("x", n - 1)) for n in range(1, 200)}
    with EventLog(path):
        get(graph, [("y", n) for n in range(1, 200)])
    log = events(path)
    operands, steps = of_kind(log, cat="chunk"), of_kind(log, cat="step")
    assert Counter(event["args"]["chunk"][2] for event in operands) == {"x": 200, "y": 199}
    for row in {event["tid"] for event in operands}:
        in_row = sorted(of_kind(operands, tid=row), key=lambda event: event["ts"])
        assert all(ends(one) <= other["ts"] + 0.001 for one, other in pairwise(in_row))
        for step, operand in zip(of_kind(steps, tid=row, name="compute"), in_row, strict=True):
            assert within(step, operand)
    for step in steps:
        assert step["name"] in STEPS
        assert any(within(step, operand) for operand in operands)


def test_ids_say_computation_depth_and_number(get: Get, path: Path, monkeypatch):
    asked = []
    monkeypatch.setattr(ids, "depths_of", lambda inputs: asked.append(len(inputs)) or depths_of(inputs))
    graph: dict[Any, Any] = {("x", n): (abs, -n) for n in range(5)}
    graph |= {("y", n): (add, ("x", n), ("x", n + 1)) for n in range(4)}
    graph |= {("z", n): (add, ("y", n), ("x", n)) for n in range(4)}
    wanted = [(layer, n) for layer in "xyz" for n in range(4)]
    get(graph, wanted)
    # Depths are computed only for an event log.
    assert asked == []
    with EventLog(path):
        get(graph, wanted)
    assert asked == [13]
    operands = of_kind(events(path), cat="chunk")
    said = {event["args"]["chunk"]: decode_subtask_id(bytes.fromhex(event["args"]["id"])) for event in operands}
    assert len(said) == len({id.number for id in said.values()}) == 13
    assert {(key[2], id.stage) for key, id in said.items()} == {("x", 0), ("y", 1), ("z", 2)}
    assert {id.graph for id in said.values()} == {event["args"]["graph"] for event in operands}


def test_counters_and_instants_of_a_graph(runtime: Runtime, get: Get, path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(event_log, "_COUNT_S", 0.0)
    # So that the engine measures its processes once more, however short a time ago it has.
    runtime.engine()._loop.memory._watched_s = runtime.engine()._loop.memory.watch.next_s = 0.0
    with EventLog(path):
        get({"a": (large_array, 1), "b": (np.sum, "a")}, "b")
    log = events(path)
    assert instants(log) == ["graph submitted", "graph finished"]
    submitted, finished = of_kind(log, ph="i")
    assert submitted["args"] == {"graph": finished["args"]["graph"], "chunks": 2}
    assert row_names(log)[submitted["tid"]] == "engine"
    assert {event["args"]["graph"] for event in of_kind(log, cat="chunk")} == {submitted["args"]["graph"]}
    counters = {event["name"] for event in of_kind(log, ph="C")}
    assert counters == {"bytes stored", "bytes reserved", "bytes spilled", "bytes in use"}
    assert max(event["args"]["bytes"] for event in of_kind(log, name="bytes stored")) >= 1 << 20
    in_use = [event["args"]["bytes"] for event in of_kind(log, name="bytes in use")]
    assert 1 << 20 < max(in_use) <= runtime.memory().peak_bytes


def test_memory_in_use_is_noted_a_few_times_a_second(runtime: Runtime, path: Path):
    log, view = EventLog(path), runtime.engine().view
    with log:
        for in_use_bytes in range(1000, 1050):
            log.on_event(view, ProcessesMeasured(in_use_bytes))
    noted = [event["args"]["bytes"] for event in of_kind(events(path), name="bytes in use")]
    times_s = [event["ts"] / 1e6 for event in of_kind(events(path), name="bytes in use")]
    assert noted[0] == 1000
    assert all(later - earlier > event_log._MEMORY_S - 1e-6 for earlier, later in pairwise(times_s))


def test_a_failing_task(get: Get, path: Path):
    with EventLog(path), pytest.raises(ZeroDivisionError):
        get({"a": (divmod, 1, 0)}, "a")
    log = events(path)
    assert instants(log) == ["graph submitted", "chunk failed", "graph failed"]
    (failed,) = of_kind(log, name="chunk failed")
    assert failed["args"]["chunk"] == "a"
    assert failed["args"]["error"].startswith("ZeroDivisionError")
    (ended,) = of_kind(log, name="graph failed")
    assert failed["args"]["id"] == ended["args"]["id"] == subtask_id(failed["args"]["graph"], 0, 0).hex()
    assert row_names(log)[failed["tid"]].startswith("worker")


@pytest.mark.slow
def test_workers_that_die_and_that_end_for_want_of_work(path: Path, tmp_path: Path):
    with dask.config.set({"dask-mars.idle-timeout": "50 ms"}):
        runtime = Runtime(num_workers=1)
    with runtime, EventLog(path) as opened:
        graph = {"a": (die_first, tmp_path / "died", 1, 5), "b": (pid_of, "a")}
        five, before = runtime.get(graph, ["a", "b"])
        assert five == 5
        assert eventually(lambda: not runtime.engine().worker_pids(), 20)
        after = runtime.get({"c": (pid_of,)}, "c")
    log = events(path)
    names = row_names(log)
    (lost,) = of_kind(log, name="worker lost")
    assert names[lost["tid"]].startswith("worker 0 (process ")
    assert lost["args"]["chunk"] == "a"
    assert lost["args"]["error"].startswith("WorkerDied: ")
    started = [names[event["tid"]] for event in of_kind(log, name="worker started")]
    assert started[-2:] == [f"worker 0 (process {before})", f"worker 0 (process {after})"]
    assert names[lost["tid"]] not in started[-2:]
    assert f"worker 0 (process {before})" in [names[one["tid"]] for one in of_kind(log, name="worker retired")]
    assert opened.lost == 1


def test_a_cancelled_graph(runtime: Runtime, path: Path, tmp_path: Path):
    with EventLog(path):
        computing = in_background(runtime.get, {"a": (wait_for, tmp_path / "go")}, "a")
        assert eventually(lambda: any(worker["running"] for worker in runtime.state()["workers"]))
        (graph,) = runtime.state()["graphs"]
        assert runtime.cancel(graph["graph"])
        assert isinstance(computing.exception(100), errors.Cancelled)
        (tmp_path / "go").touch()
        assert eventually(lambda: not runtime.state()["graphs"])
    log = events(path)
    assert instants(log)[:2] == ["graph submitted", "graph cancelled"]
    (cancelled,) = of_kind(log, name="graph cancelled")
    assert cancelled["args"] == {"graph": graph["graph"]}


def test_what_goes_to_disk(small: Runtime, path: Path, tmp_path: Path):
    x = da.random.default_rng(0).random((2000, 1000), chunks=(250, 1000))
    with EventLog(path), report(tmp_path / "report.html") as opened:
        (x - x.mean()).std().compute(scheduler=small.get)
    log = events(path)
    spills = of_kind(log, ph="X", cat="spill")
    assert spills
    assert all(event["dur"] > 0 and event["args"]["written"] for event in spills)
    assert {event["args"]["bytes"] for event in spills} == {2_000_000}
    assert {event["args"]["chunk"] for event in spills} <= {
        event["args"]["chunk"] for event in of_kind(log, cat="chunk")
    }
    assert {row_names(log)[event["tid"]] for event in spills} == {"disk"}
    named = {event["args"]["id"]: event["args"]["chunk"] for event in of_kind(log, cat="chunk")}
    assert all(named[event["args"]["id"]] == event["args"]["chunk"] for event in spills)
    written = max(event["args"]["bytes"] for event in of_kind(log, name="bytes spilled"))
    assert written > 0
    assert opened.recorded is not None
    assert opened.recorded.spilled_bytes > 0
    assert {(spill.size_bytes, spill.key) for spill in opened.recorded.spills} == {
        (event["args"]["bytes"], event["args"]["chunk"]) for event in spills
    }
    assert "went to disk" in (tmp_path / "report.html").read_text()


def test_rows_of_workers_and_of_tasks_at_the_same_time(path: Path):
    file = TraceFile(path)
    file.note(file.worker, 1, "worker 0 (process 1)")
    file.note(file.worker, 2, "worker 1 (process 2)")
    file.note(file.instant, "graph submitted", 1, None, 1.0, {})
    for key, began_s, ended_s in [("a", 1.0, 4.0), ("b", 2.0, 5.0), ("c", 4.0, 6.0), ("d", 3.0, 3.5)]:
        file.note(file.client_chunk, SubtaskIds(1, [()]), 0, key, (began_s, began_s, ended_s, ended_s), None)
    file.close()
    log = events(path)
    # Their numbers are none of processes.
    names = {1: "worker 0 (process 1)", 2: "worker 1 (process 2)", 3: "engine"}
    own = {4: "your process", 5: "your process, 2", 6: "your process, 3"}
    assert row_names(log) == names | own
    rows = {event["name"]: event["tid"] for event in of_kind(log, cat="chunk")}
    assert rows == {"a": 4, "b": 5, "c": 4, "d": 6}


# -- the file ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_that_was_killed_lacks_only_the_bracket(scripts: Any, path: Path):
    script = scripts.write(
        "killed.py",
        "import os, signal, time, dask_mars\n"
        "from dask_mars.observe import trace_file\n"
        "trace_file._WRITE_S = 0.01\n"
        "dask_mars.get({('x', n): (abs, n) for n in range(50)}, [('x', n) for n in range(50)])\n"
        f"while 'graph finished' not in open({str(path)!r}).read(): time.sleep(0.01)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n",
    )
    done = scripts.run(str(script), env={"DASK_DASK_MARS__EVENT_LOG": str(path)}, timeout_s=50)
    assert done.returncode == -signal.SIGKILL, done.stderr
    text = path.read_text()
    assert not text.endswith("]\n")
    assert len(of_kind(json.loads(text + "]"), cat="chunk")) == 50


@pytest.mark.slow
def test_the_setting_logs_all_computations_of_a_process(scripts: Any, tmp_path: Path):
    script = scripts.write(
        "twice.py",
        "import os, sys, dask_mars\n"
        "dask_mars.get({'x': (abs, -1)}, 'x')\n"
        "dask_mars.close()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    dask_mars.get({'z': (abs, -1)}, 'z')\n"
        "    sys.exit()\n"
        "os.waitpid(child, 0)\n"
        "dask_mars.get({'y': (abs, -1)}, 'y')\n"
        "print(os.getpid(), child)\n",
    )
    done = scripts.run(
        str(script), env={"DASK_DASK_MARS__EVENT_LOG": str(tmp_path / "log-{pid}.json")}, timeout_s=50
    )
    assert done.returncode == 0, done.stderr
    parent, child = done.stdout.split()
    log = events(tmp_path / f"log-{parent}.json")
    assert [event["args"]["chunk"] for event in of_kind(log, cat="chunk")] == ["x", "y"]
    assert instants(log).count("worker started") == 2
    # The settings of a runtime are read once, but a process that was forked makes one of its own.
    log = events(tmp_path / f"log-{child}.json")
    assert [event["args"]["chunk"] for event in of_kind(log, cat="chunk")] == ["z"]


def test_a_log_can_be_opened_again_and_then_begins_anew(get: Get, path: Path, tmp_path: Path):
    log = EventLog(path)
    for key in ("a", "b"):
        with log:
            get({key: (abs, -1)}, key)
            with pytest.raises(ValueError, match="open already"):
                log.open()
        assert [event["args"]["chunk"] for event in of_kind(events(path), cat="chunk")] == [key]
    # Where no file can be made nothing listens.
    with pytest.raises(FileNotFoundError), EventLog(tmp_path / "nowhere" / "trace.json"):
        pass
    assert listeners.active == ()


# -- listeners --------------------------------------------------------------------------------------------------


class Recorder(Listener):
    def __init__(self, wants_steps: bool = False) -> None:
        self.wants_steps = wants_steps
        self.finished: list[ChunksFinished] = []

    def on_event(self, engine: Any, event: Any) -> None:
        if isinstance(event, ChunksFinished):
            self.finished.append(event)


class Raising(Listener):
    def on_event(self, engine: Any, event: Any) -> None:
        raise SystemExit("on purpose")


def test_several_listen_and_one_that_raises_is_removed(get: Get, nothing_left_behind: list[str]):
    raising, recorder = Raising(), Recorder()
    add_listener(raising)
    add_listener(recorder)
    try:
        assert get({"a": (abs, -1)}, "a") == 1
        assert listeners.active == (recorder,)
    finally:
        remove_listener(recorder)
        remove_listener(raising)
    assert len(recorder.finished) == 1
    assert len(nothing_left_behind) == 1
    assert "on purpose" in nothing_left_behind.pop()


@pytest.mark.parametrize("wanted", [True, False])
def test_steps_are_reported_where_they_are_wanted(get: Get, wanted: bool):
    recorder = Recorder(wanted)
    add_listener(recorder)
    try:
        get({("x", n): (abs, -n) for n in range(20)}, [("x", n) for n in range(20)])
    finally:
        remove_listener(recorder)
    assert sum(len(event.chunks) for event in recorder.finished) == 20
    for event in recorder.finished:
        assert len(event.steps_s) == (len(event.chunks) if wanted else 0)
        for (began_s, loaded_s, computed_s), duration_s in zip(event.steps_s, event.durations_s, strict=False):
            assert began_s <= loaded_s <= computed_s <= began_s + duration_s + 1e-6


def test_a_log_is_data_and_shows_itself(get, tmp_path):
    with EventLog(tmp_path / "trace.json") as log:
        assert get({"a": (abs, -1), "b": (abs, "a")}, "b") == 1
        with pytest.raises(ZeroDivisionError):
            get({"bad": (divmod, 1, 0)}, "bad")
        assert log.to_dict()["is_open"]
    assert log.chunks == 2
    assert log.to_dict() == {
        "path": str(tmp_path / "trace.json"),
        "is_open": False,
        "chunks": 2,
        "failed": 1,
        "lost": 0,
        "spills": 0,
        "spilled_bytes": 0,
    }
    assert [event["name"] for event in log.events() if event.get("cat") == "chunk"] == ["a", "b"]
    assert list(pytest.importorskip("pandas").DataFrame(log.events()).ph) == list(log.to_pandas().ph)
    assert "chunks computed" in str(log)
    # Where it lies can be longer than a line.
    assert "trace.json, closed" in repr(log).replace("\n", "")
    assert "<td" in log._repr_html_()
