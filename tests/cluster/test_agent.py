"""The agent of a host: subtasks on its engine, what becomes of their results, and tasks of others."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import pickle
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from operator import call
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
from dask._task_spec import Task, TaskRef
from distributed import Client
from distributed.protocol import deserialize, serialize
from distributed.utils_test import async_poll_for, captured_logger, gen_cluster

from dask_mars.cluster.agent import MarsWorker
from dask_mars.cluster.local import LocalMarsCluster
from dask_mars.cluster.marks import MARK
from dask_mars.cluster.metrics import STORED
from dask_mars.cluster.partition.subtasks import cut, place
from dask_mars.cluster.stored_result import StoredResult, release_unread
from dask_mars.cluster.subtask_spec import Packer
from dask_mars.cluster.transfers import BytesSemaphore
from dask_mars.engine.engine import Engine
from dask_mars.optimize.convert import convert
from dask_mars.scheduler.events import GraphPlan
from dask_mars.store.persisted import PersistedChunk
from tests.conftest import eventually
from tests.tasks import fail_with, note, note_name, pid_of, wait_for

pytestmark = pytest.mark.usefixtures("by_value")


@pytest.fixture
def client(cluster: LocalMarsCluster) -> Iterator[Client]:
    with Client(cluster, set_as_default=False) as client:
        yield client
    assert eventually(lambda: all(map(nothing_is_stored, cluster.workers.values())), 5)


@pytest.fixture
def agent(cluster: LocalMarsCluster) -> MarsWorker:
    """Return the agent that subtasks go to, unless told otherwise."""
    return cluster.workers[0]


@pytest.fixture
def other(cluster: LocalMarsCluster) -> MarsWorker:
    return cluster.workers[1]


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Have only those objects go that nothing refers to."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def piece_of(dsk: dict[Any, Any], *wanted: Any, reads: tuple[Any, ...] = (), item: int | None = 0) -> bytes:
    """Make a piece of a whole graph; those in `reads` come as arguments, one each, and are an item of it."""
    graph = convert({**dsk, **dict.fromkeys(reads)}, wanted)
    plan = GraphPlan(graph.inputs, graph.outputs, graph.operand_of)
    (subtask,) = cut(plan, place(plan, {}, [0]), {0: 1}, seconds=[0.0] * len(graph))
    sources = {graph.ids[key]: (number, item) for number, key in enumerate(reads)}
    values = {chunk: value for chunk, value in graph.values.items() if chunk not in sources}
    return Packer(graph, 0).pack(subtask, [[graph.ids[key] for key in wanted]], sources, values)


def submit(client: Any, agent: Any, spec: bytes, *arguments: Any, key: str = "subtask") -> Any:
    """Have a piece computed by an agent, as the client side does it."""
    refs = [TaskRef(future.key) for future in arguments]
    graph = {key: Task(key, call, Task(None, pickle.loads, spec), *refs)}
    held = {future.key: future for future in arguments}
    with dask.annotate(**{MARK: True}):
        return client.get({**held, **graph}, key, sync=False, workers=[agent.address])


def large(value: float = 1.0) -> np.ndarray[Any, Any]:
    return np.linspace(value, value, 100_000)


def nothing_is_stored(agent: MarsWorker) -> bool:
    release_unread()
    state = agent.engine.inspection.state()
    return not agent.data and not state["persisted"] and not state["store"]["stored_bytes"]


def endless(client: Any, agent: Any, folder: Path) -> tuple[Any, Callable[[], bool]]:
    """Submit a subtask that would go on for ever, and return what says whether it has begun."""
    begun, never = folder / "begun", folder / "never"
    spec = piece_of({"x": (note, str(begun)), "y": (wait_for, str(never), "x")}, "y")
    return submit(client, agent, spec), begun.exists


@contextlib.contextmanager
def all_of_the_store(agent: MarsWorker) -> Iterator[None]:
    """Have an agent's results go to disk, and no others come meanwhile."""
    answers: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
    reservation = agent.engine.reserve("all of it", agent.engine.view.store()["limit_bytes"], answers.put)
    try:
        assert answers.get(timeout=100) is None
        yield
    finally:
        agent.engine.release_reservation(reservation)


# -- subtasks -------------------------------------------------------------------------------------------------


def test_a_subtask_stays_in_the_store_of_the_agent(client, agent):
    future = submit(client, agent, piece_of({"x": (large, 2.0), "y": (np.sum, "x"), "z": (pid_of,)}, *"xyz"))
    x, y, pid = future.result()
    assert y == 200_000
    assert np.array_equal(x, large(2.0))
    assert x.flags.writeable
    assert pid in agent.engine.worker_pids()
    stored = agent.data["subtask"]
    assert isinstance(stored.items[0], PersistedChunk)
    assert stored.nbytes == agent.state.tasks["subtask"].nbytes == pytest.approx(800_000, rel=0.01)
    assert agent.engine.inspection.state()["store"]["stored_bytes"] >= 800_000


def test_a_subtask_reads_in_place_what_another_has_left(client, agent):
    first = submit(client, agent, piece_of({"x": (large,)}, "x"), key="first")
    assert eventually(first.done, 10)
    before = agent.engine.inspection.state()["store"]["stored_bytes"]
    second = submit(client, agent, piece_of({"y": (np.sum, "x")}, "y", reads=("x",)), first)
    assert second.result() == [100_000]
    assert agent.engine.inspection.state()["store"]["stored_bytes"] == before


def test_what_another_host_has_left_comes_over(client, agent, other):
    dsk = {"x": (large,), "y": (pd.DataFrame, {"a": [1, 2], "b": [0.5] * 2}), "z": (int, 3)}
    first = submit(client, agent, piece_of(dsk, *"xyz"), key="first")
    second = submit(client, other, piece_of({"t": (type_and_sum, "x")}, "t", reads=("x",)), first)
    assert second.result() == [("ndarray", 100_000.0)]
    # It was put into the store there, once.
    arrived = other.data["first"]
    assert type(arrived.items[0]) is PersistedChunk
    stored = other.engine.inspection.state()["store"]["stored_bytes"]
    assert 800_000 <= stored < 1_000_000
    third = submit(client, other, piece_of({"t": (np.max, "x")}, "t", reads=("x",)), first, key="third")
    assert third.result() == [1]
    assert other.data["first"] is arrived
    assert other.engine.inspection.state()["store"]["stored_bytes"] == stored
    x, y, z = arrived.value()
    assert np.array_equal(x, large())
    assert y.equals(pd.DataFrame({"a": [1, 2], "b": [0.5] * 2}))
    assert z == 3


def test_what_waits_for_its_reader_waits_in_the_store(client, agent, other, tmp_path):
    first = submit(client, agent, piece_of({"x": (large,)}, "x"), key="first")
    blocker, has_begun = endless(client, other, tmp_path)
    assert eventually(has_begun, 10)
    second = submit(client, other, piece_of({"y": (np.sum, "x")}, "y", reads=("x",)), first, key="second")
    assert eventually(lambda: isinstance(other.data.get("first"), StoredResult), 10)
    assert other.state.tasks["second"].state != "executing"
    blocker.cancel()
    assert second.result() == [100_000]


def test_what_another_host_has_left_waits_there_for_room(client, agent, other):
    first = submit(client, agent, piece_of({"x": (large,)}, "x"), key="first")
    assert eventually(first.done, 10)
    with all_of_the_store(other):
        second = submit(client, other, piece_of({"y": (np.sum, "x")}, "y", reads=("x",)), first, key="second")
        assert eventually(lambda: f"what comes from {agent.address}" in other.engine.inspection.explain(), 10)
        assert "first" not in other.data
    assert second.result() == [100_000]


def test_what_is_on_disk_is_sent_in_turns(client, agent, other, monkeypatch):
    shares = []
    acquire = BytesSemaphore.acquire
    monkeypatch.setattr(BytesSemaphore, "acquire", lambda self, size: shares.append(size) or acquire(self, size))
    first = submit(client, agent, piece_of({"x": (large,)}, "x"), key="first")
    assert eventually(first.done, 10)
    with all_of_the_store(agent):
        assert agent.data["first"].on_disk_bytes == 800_000
        second = submit(client, other, piece_of({"y": (np.sum, "x")}, "y", reads=("x",)), first, key="second")
        assert second.result() == [100_000]
    assert 800_000 in shares


def test_frames_are_the_shared_memory(client, agent):
    future = submit(client, agent, piece_of({"x": (large,)}, "x"))
    assert eventually(future.done, 10)
    stored = agent.data["subtask"]
    _, (frame,) = stored.serialized()
    arenas = [(own.address, own.address + own.capacity_bytes) for own in agent.engine.store.arenas]
    address = np.frombuffer(frame, np.uint8).__array_interface__["data"][0]
    assert any(low <= address < high for low, high in arenas)
    # As long as somebody reads the frame it stays, whatever happens to the result.
    del stored, future
    assert eventually(lambda: not agent.data)
    time.sleep(0.1)
    assert agent.engine.inspection.state()["store"]["stored_bytes"] >= 800_000
    assert np.array_equal(np.frombuffer(frame), large())


def test_results_within_results_travel_as_lists():
    stored = StoredResult([StoredResult([1, 2]), StoredResult([large()]), StoredResult([{"a": 1}], bare=True)])
    for first, (array,), last in (
        stored.value(),
        deserialize(*serialize(stored)),
        pickle.loads(pickle.dumps(stored)),
    ):
        assert (list(first), last) == ([1, 2], {"a": 1})
        assert np.array_equal(array, large())


# -- errors and the end ---------------------------------------------------------------------------------------


def test_a_cancelled_subtask_ends(client, agent, tmp_path):
    future, has_begun = endless(client, agent, tmp_path)
    assert eventually(has_begun, 10)
    future.cancel()
    assert eventually(lambda: nothing_is_stored(agent), 2)
    # The slot is free again.
    assert submit(client, agent, piece_of({"y": (int, 1)}, "y"), key="next").result() == [1]


@pytest.mark.parametrize("how", ["it is cancelled", "it fails"])
def test_what_a_subtask_has_read_goes_when_it_ends(client, agent, tmp_path, no_collector, how):
    first = submit(client, agent, piece_of({"x": (large,)}, "x"), key="first")
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    dsk = {"b": (note_name, str(begun), 1, "x"), "w": (wait_for, str(gate), "b"), "z": (fail_with, "no", "w", "x")}
    second = submit(client, agent, piece_of(dsk, "z", reads=("x",)), first)
    assert eventually(begun.exists, 10)
    if how == "it fails":
        gate.touch()
        assert isinstance(second.exception(100), LookupError)
    del first, second
    assert eventually(lambda: nothing_is_stored(agent), 5)


def test_a_subtask_that_is_cancelled_before_it_begins_never_does(client, agent, tmp_path, monkeypatch):
    arriving = threading.Event()

    async def move_to_store(key: Any) -> None:
        arriving.set()
        await asyncio.sleep(0.2)

    monkeypatch.setattr(agent._transfers, "move_to_store", move_to_store)
    scattered = client.scatter(1, workers=[agent.address])
    spec = piece_of({"y": (note_name, str(tmp_path / "begun"), "x")}, "y", reads=("x",), item=None)
    future = submit(client, agent, spec, scattered)
    assert arriving.wait(100)
    future.cancel()
    assert eventually(lambda: "subtask" not in agent.state.tasks, 5)
    assert not (tmp_path / "begun").exists()


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)], Worker=MarsWorker, timeout=120)
async def test_whoever_closes_an_agent_waits_for_its_engine_and_not_for_its_subtasks(
    client, scheduler, agent, tmp_path
):
    future, has_begun = endless(client, agent, tmp_path)
    await async_poll_for(has_begun, timeout=60)
    engine = agent.engine
    first = asyncio.create_task(agent.close())
    await agent.finished()
    await agent.close()
    assert not engine.alive
    await first
    assert future.status == "pending"


# -- with others ----------------------------------------------------------------------------------------------


@gen_cluster(nthreads=[], timeout=120)
async def test_an_agent_registers_before_its_engine_is_up_and_logs_its_limit(scheduler, monkeypatch):
    is_up, may_be_up = Engine.is_up.fget, threading.Event()
    monkeypatch.setattr(Engine, "is_up", property(lambda engine: may_be_up.is_set() and is_up(engine)))
    with captured_logger("distributed.worker", level="INFO") as log:
        agent = MarsWorker(scheduler.address, nthreads=1, memory_limit="4 GiB")
        starting = asyncio.ensure_future(agent.start())
        await async_poll_for(lambda: scheduler.workers, timeout=60)
    assert re.search(r"Memory: +4\.00 GiB", log.getvalue())
    # Its disk counts for Dask, which would refuse what reads more.
    assert next(iter(scheduler.workers.values())).memory_limit > 4 << 30
    assert not starting.done()
    may_be_up.set()
    await starting
    assert agent.engine.worker_pids()
    await agent.close()


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)], config={"dask-mars.idle-timeout": "300 ms"}, timeout=120)
async def test_results_outlive_the_processes_of_an_agent_and_workers_of_dask_read_and_compute_them(
    client, scheduler, plain
):
    async with MarsWorker(scheduler.address, nthreads=1) as agent:
        first = submit(client, agent, piece_of({"x": (large,), "y": (pid_of,)}, "x", "y"), key="first")
        await first
        await async_poll_for(lambda: not agent.engine.worker_pids(), 60)
        seen = client.submit(
            lambda values: (type(values), values[0].sum()), first, workers=[plain.address], key="seen"
        )
        assert await seen == (list, 100_000)
        second = submit(client, plain, piece_of({"y": (np.sum, "x")}, "y", reads=("x",)), first, key="second")
        assert await second == [100_000]
        spec = piece_of({"z": (np.sum, "x"), "y": (pid_of,)}, "z", "y", reads=("x",))
        third = submit(client, agent, spec, first, key="third")
        found, pid = await third
        assert found == 100_000
        assert pid != (await first)[1]
        assert (await agent.get_metrics())[STORED] >= 800_000
        del first, second, third, seen


def type_and_sum(value: Any) -> tuple[str, float]:
    return type(value).__name__, float(value.sum())


def test_agents_of_a_local_cluster_share_the_memory_limit():
    with (
        dask.config.set({"dask-mars.memory-limit": "3 GiB"}),
        LocalMarsCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
    ):
        assert [agent.engine.settings.memory_limit for agent in cluster.workers.values()] == [3 << 29] * 2
