"""What waits for what, in words; and computations that would wait for ever."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest

from dask_mars import Runtime
from dask_mars.engine import explain as explanations
from dask_mars.engine.explain import RunningStep
from dask_mars.engine.graph_run import GraphRun
from dask_mars.errors import EngineStopped, Stalled
from dask_mars.graph.chunks import ChunkGraph, Declared
from dask_mars.graph.ids import subtask_id
from dask_mars.scheduler.events import CLIENT, ChunkFailed, ChunksFinished, TimePassed
from tests.background import in_background
from tests.conftest import LEAST_LIMIT_OF_TWO, eventually
from tests.machines import CheckedMachine
from tests.tasks import wait_for

NAMES = ["a", "b", "c", "d", "e", "f"]
explain = partial(explanations.explain, steps={}, reservations={}, persisted=0)
explain_chunk = partial(explanations.explain_chunk, steps={}, labels={})


def graph_of(*inputs: tuple[int, ...]) -> ChunkGraph:
    """Return as much of a chunk graph as an explanation needs."""
    keys = NAMES[: len(inputs)]
    return ChunkGraph(keys=list(keys), inputs=list(inputs), ids={key: chunk for chunk, key in enumerate(keys)})


def told(checked: CheckedMachine, key: str, *inputs: tuple[int, ...]) -> list[str]:
    run = GraphRun(1, graph_of(*inputs), None, 0)
    return explain_chunk(checked.machine, run, run.graph.ids[key], checked.now_s).splitlines()


LABELS = {0: "worker 0 (process 77)", 1: "worker 1 (process 78)"}
CHAIN = ((), (0,), (1,))
#: What chunks are called: their keys and ids. Those that end with their stage are of the chain.
A, B, D = [f"{NAMES[chunk]!r} [{subtask_id(1, 0, chunk).hex()}]" for chunk in (0, 1, 3)]
B_1, C_2 = [f"{NAMES[depth]!r} [{subtask_id(1, depth, depth).hex()}]" for depth in (1, 2)]


def test_workers_that_are_missing_are_starting_if_there_is_work():
    checked = CheckedMachine()
    checked.submit(*CHAIN)
    assert explain(checked.machine, {}, {}).startswith("no workers, which start with the next computation;")
    runs = {1: GraphRun(1, graph_of(*CHAIN), None, 0)}
    assert explain(checked.machine, runs, {}).startswith("no workers yet, which are starting;")


def test_what_waits_leads_to_what_it_waits_for():
    checked = CheckedMachine()
    checked.submit(*CHAIN)
    assert told(checked, "c", *CHAIN) == [
        f"{C_2} waits for 1 of its 1 inputs",
        f"{B_1} waits for 1 of its 1 inputs",
        f"{A} is dispatched to worker 0, and next or running",
    ]


def test_queues_have_positions():
    checked = CheckedMachine()
    inputs = ((), (), (), ())
    checked.submit(*inputs)
    checked.finish(0, 0, seconds=1e-6)
    assert told(checked, "d", *inputs) == [f"{D} is dispatched to worker 0, behind 2 others"]
    assert told(checked, "a", *inputs) == [f"{A} is computed"]


def test_retries_have_a_time():
    checked = CheckedMachine()
    checked.submit((), default_retries=1)
    checked.post(ChunkFailed(0, 1, 0))
    assert told(checked, "a", ()) == [f"{A} is ready and will be tried again in 0.1 s"]
    # To wait for time is no stall.
    assert checked.machine.stalled() == []


def test_steps_are_told():
    checked = CheckedMachine()
    checked.submit(())
    run = GraphRun(1, graph_of(()), None, 0)
    steps = {0: RunningStep(1, 0, "load")}
    told = explain_chunk(checked.machine, run, run.graph.ids["a"], checked.now_s, steps=steps)
    assert told == f"{A} is dispatched to worker 0, which loads the inputs of it"
    everything = explain(checked.machine, {1: run}, {0: LABELS[0]}, steps=steps)
    assert f"worker 0 (process 77) has {A}, and loads the inputs of {A}" in everything.splitlines()


def test_without_workers_they_are_waited_for():
    checked = CheckedMachine(workers=0)
    checked.submit(())
    assert told(checked, "a", ()) == [f"{A} is ready and waits for a worker"]


def test_the_users_process_has_hands_too():
    checked = CheckedMachine()
    checked.submit((), in_client=frozenset({0}))
    assert told(checked, "a", ()) == [f"{A} is dispatched to your process"]
    run = GraphRun(1, graph_of(()), None, 0)
    assert f"your process has {A}" in explain(checked.machine, {1: run}, {0: LABELS[0]})


def test_resources_are_waited_for():
    checked = CheckedMachine(2, resources={"GPU": 1.0}, num_workers=2)
    inputs = ((), ())
    checked.submit(*inputs, resources=dict.fromkeys(range(2), (("GPU", 1.0),)))
    assert told(checked, "b", *inputs) == [f"{B} is ready and waits for 1 GPU, of which 0 is free"]


def test_memory_is_waited_for():
    checked = CheckedMachine(store_limit=100, memory_limit=200)
    inputs = ((), ())
    checked.submit(*inputs, declared_bytes=[60, 60])
    checked.machine._dispatcher.workforce.start(1, is_thread=False)
    checked.post(TimePassed())
    assert told(checked, "b", *inputs) == [f"{B} is ready and waits for 60 B of memory"]
    run = GraphRun(1, graph_of(*inputs), None, 0)
    text = explain(checked.machine, {1: run}, LABELS)
    assert text.splitlines() == [
        "2 workers; the store holds 0 B of 100 B, 60 B are reserved for dispatched chunks, "
        "0 B are being written to disk",
        "graph 1: 1 READY, 1 RUNNING",
        f"worker 0 (process 77) has {A}",
        "worker 1 (process 78) has nothing",
        f"{B} is next and waits for 60 B of memory",
    ]


def test_what_waits_for_memory_has_its_declared_shape_and_dtype():
    checked = CheckedMachine(workers=2, store_limit=100, memory_limit=200)
    inputs = ((), ())
    checked.submit(*inputs, declared_bytes=[60, 60])
    graph = ChunkGraph(keys=[("x", 0), ("x", 1)], inputs=list(inputs))
    graph.declared = {"x": Declared(np.dtype("u1"), ((60, 60),))}
    run = GraphRun(1, graph, None, 0)
    waits = "waits for 60 B of memory; its result is declared as uint8 of shape (60,)"
    name = run.name_of(1)
    assert explain(checked.machine, {1: run}, LABELS).splitlines()[-1] == f"{name} is next and {waits}"
    assert explain_chunk(checked.machine, run, 1, checked.now_s) == f"{name} is ready and {waits}"


def test_longer_lists_of_chunks_are_cut():
    checked = CheckedMachine()
    inputs = ((),) * len(NAMES)
    checked.submit(*inputs)
    checked.finish(0, 0, seconds=1e-6)
    run = GraphRun(1, graph_of(*inputs), None, 0)
    *_, line = explain(checked.machine, {1: run}, {0: LABELS[0]}).splitlines()
    shown = ", ".join([run.name_of(chunk) for chunk in (1, 2, 3)])
    assert line == f"worker 0 (process 77) has {shown} and 2 more"


def test_a_running_computation_explains_itself(runtime: Runtime, tmp_path: Path):
    first = dask.delayed(wait_for)(tmp_path / "go on", 1, dask_key_name="first")
    second = dask.delayed(lambda value: value + 1)(first, dask_key_name="second")
    assert "nothing is being computed" in runtime.explain()
    computing = in_background(second.compute, scheduler=runtime.get)
    try:
        while "'first'" not in runtime.explain():
            assert not computing.done()
        assert "dispatched to worker " in runtime.explain("second")
        with pytest.raises(KeyError, match="third"):
            runtime.explain("third")
    finally:
        (tmp_path / "go on").touch()
    assert computing.result(100) == 2


def test_the_state_says_who_runs_what(tmp_path: Path):
    first = dask.delayed(wait_for)(tmp_path / "go on", 1, dask_key_name="first")
    with Runtime(num_workers=2, memory_limit=LEAST_LIMIT_OF_TWO) as runtime:
        kept = da.ones(10**5, chunks=10**5).map_blocks(np.copy).persist(scheduler=runtime.get)
        computing = in_background(first.compute, scheduler=runtime.get)
        try:
            assert eventually(lambda: [w for w in runtime.state()["workers"] if w["running"] == "first"], 20)
            state = runtime.state()
        finally:
            (tmp_path / "go on").touch()
            computing.result(100)
        assert sorted(worker["dispatched"] for worker in state["workers"]) == [0, 1]
        assert {worker["pid"] for worker in state["workers"]} == set(runtime.engine().worker_pids())
        assert state["persisted"] > 0
        assert not state["reservations"]
        (graph,) = state["graphs"]
        assert graph["chunks"]["RUNNING"] == 1
        assert state["store"]["stored_bytes"] >= kept.nbytes
        assert state["store"]["limit_bytes"] <= 100 << 20
    assert runtime.state() == {}


# -- cancelling -------------------------------------------------------------------------------------------------


def test_engines_that_have_ended_do_not_answer():
    with Runtime(num_workers=1) as runtime:
        engine = runtime.engine()
    assert runtime.explain() == "no workers are running"
    assert not runtime.cancel(1)
    with pytest.raises(EngineStopped):
        engine.inspection.explain()


# -- stalls -----------------------------------------------------------------------------------------------------


def test_a_chunk_that_nobody_would_run_is_a_stall():
    checked = CheckedMachine()
    checked.submit(*CHAIN)
    assert checked.machine.stalled() == []
    graph = checked.machine._graphs[1]
    graph.client.is_needed[1] = 1
    checked.machine.handle(ChunksFinished(0, 1, [0], [1.0]), checked.now_s)
    assert checked.machine.stalled() == []
    checked.machine._dispatcher.remove_from_worker(CLIENT, graph, [1])
    assert checked.machine.stalled() == [1]


def test_results_that_nobody_takes_are_no_stall():
    checked = CheckedMachine()
    checked.submit(())
    checked.finish(0, 0)
    assert checked.machine.stalled() == []


def test_stalled_computations_fail_and_say_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dask_mars.engine.loop._LIVENESS_S", 0.05)
    with Runtime(num_workers=1) as runtime:
        machine = runtime.engine()._loop.machine
        monkeypatch.setattr(machine, "stalled", lambda: [graph for graph in machine.graphs if not found])
        found: list[Exception] = []
        with pytest.raises(Stalled, match="'waiting'") as caught:
            dask.delayed(wait_for)(tmp_path / "go on", dask_key_name="waiting").compute(scheduler=runtime.get)
        found.append(caught.value)
        (tmp_path / "go on").touch()
        assert pickle.loads(pickle.dumps(caught.value)).explanation == caught.value.explanation
        assert dask.delayed(len)("abc").compute(scheduler=runtime.get) == 3
