"""Which call of a client, and of collections under it, goes where; the table of docs/cluster.md."""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import numpy as np
import pytest
from distributed import Client, LocalCluster, Queue, Variable, as_completed, fire_and_forget, wait, worker_client
from distributed.utils_test import gen_test

import dask_mars
from dask_mars.cluster.client_methods import switch, switch_back
from dask_mars.cluster.stored_result import StoredResult
from dask_mars.errors import NoHostAllowed
from tests.cluster.conftest import nothing_is_left
from tests.conftest import PATIENCE_S, eventually
from tests.tasks import pid_of

#: Process of a task that goes Dask's way: that of the agents, which is the tests' own.
DASKS = os.getpid()


@pytest.fixture
def switched(cluster: Any) -> Iterator[Client]:
    with Client(cluster) as client:
        switch(client)
        yield client
    assert eventually(lambda: nothing_is_left(cluster), PATIENCE_S)


def pids() -> db.Bag:
    return db.range(2, npartitions=2).map(pid_of)


def low_level() -> dict[str, Any]:
    return {"x": 1, "pid": (pid_of, "x")}


def process_of(value: Any) -> int:
    """Return the only process in a value, a future or a persisted bag."""
    if isinstance(value, db.Bag):
        value = [future.result()[0] for future in value.dask.values()]
    value = value.result() if hasattr(value, "result") else value
    return value if isinstance(value, int) else {*np.ravel(value).tolist()}.pop()


OURS: dict[str, Callable[[Client], Any]] = {
    "compute with get": lambda client: pids().compute(scheduler=dask_mars.get),
    "persist with get": lambda client: pids().persist(scheduler=dask_mars.get),
    "submit of ours": lambda client: dask_mars.submit(pids()),
    "compute": lambda client: pids().compute(),
    "persist": lambda client: pids().persist(),
    "dask.compute": lambda client: dask.compute(pids(), pids())[1],
    "client.compute": lambda client: client.compute(pids()),
    "client.compute of several": lambda client: client.compute([pids(), [pids()], 3])[1],
    "client.compute and wait": lambda client: client.compute((pids(),), sync=True)[0],
    "client.compute unoptimized": lambda client: client.compute(pids(), optimize_graph=False),
    "client.persist": lambda client: client.persist(pids()),
    "client.persist of several": lambda client: client.persist([pids()])[0],
    "client.get": lambda client: client.get(low_level(), "pid"),
    "client.get of futures": lambda client: client.get(low_level(), [["pid"]], sync=False)[0][0],
}
THEIRS: dict[str, Callable[[Client], Any]] = {
    "submit": lambda client: client.submit(pid_of, 1),
    "map": lambda client: client.map(pid_of, [1])[0],
    "a client that is not switched": lambda client: Client(client.cluster, set_as_default=False).compute(pids()),
}


def _process_in_task() -> int:
    with worker_client() as client:
        switch(client)
        try:
            return process_of(client.compute(pids()))
        finally:
            switch_back(client)


@pytest.mark.parametrize("name", OURS)
def test_engines_compute(switched, cluster, name):
    engines = set.union(*[set(agent.engine.worker_pids()) for agent in cluster.workers.values()])
    assert process_of(OURS[name](switched)) in engines


@pytest.mark.parametrize("name", THEIRS)
def test_dask_computes(switched, name):
    found = THEIRS[name](switched)
    assert process_of(found) == DASKS
    if getattr(found, "client", switched) is not switched:
        found.client.close()


def test_calls_of_tasks_and_of_clients_without_agents_go_dasks_way(switched):
    # Tasks of the agents in this process reach its client.
    assert switched.submit(_process_in_task).result() == DASKS
    switch_back(switched)
    assert process_of(switched.compute(pids())) == process_of(pids().compute()) == DASKS
    switch(switched)


def test_arguments_that_only_dask_knows_go_its_way(client, monkeypatch):
    def compute(client: Client, collections: Any, actors: Any = None, **kwargs: Any) -> str:
        return f"Dask's {actors} {kwargs}"

    monkeypatch.setattr(Client, "compute", compute)
    switch(client)
    assert client.compute(pids(), actors=True) == "Dask's True {}"
    assert client.compute(pids(), fuse=False) == "Dask's None {'fuse': False}"


def test_nothing_changes_without_agents():
    local = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": "127.0.0.1:0"}
    with (
        dask.config.set({"distributed.client.preload": "dask_mars.client"}),
        LocalCluster(**local) as cluster,
        Client(cluster) as client,
    ):
        assert "compute" in vars(client)
        assert process_of(client.compute(pids())) == process_of(pids().persist()) == DASKS
        assert dask.config.get("scheduler") == "dask.distributed"
    with pytest.raises(Exception, match="clos"):
        client.compute(pids()).result()


@gen_test()
async def test_asynchronous_clients_go_dasks_way():
    local = {"n_workers": 0, "processes": False, "dashboard_address": "127.0.0.1:0"}
    async with (
        LocalCluster(asynchronous=True, **local) as cluster,
        Client(cluster, asynchronous=True, set_as_default=False) as client,
    ):
        switch(client)
        assert client.compute(pids()).status == "pending"


def test_futures_mix_with_dasks(switched, tmp_path):
    x = da.arange(10, chunks=5)
    kept = switched.persist(x + 1)
    total = switched.compute(kept.sum())
    assert switched.submit(operator.add, total, 1).result() == 56
    assert dask.delayed(operator.add)(total, 2).compute() == 57
    assert switched.compute(dask.delayed(total)).result() == 55
    assert (switched.compute(kept).result() == np.arange(1, 11)).all()
    assert {future.result() for future in as_completed([total, switched.submit(int, 3)])} == {55, 3}
    assert switched.gather({"a": [total]}) == {"a": [55]}
    Variable("sum").set(total)
    queue = Queue("sums")
    queue.put(total)
    assert (Variable("sum").get().result(), queue.get().result()) == (55, 55)
    Variable("sum").delete()
    queue.close()
    statuses: list[str] = []
    total.add_done_callback(lambda future: statuses.append(future.status))
    assert eventually(lambda: statuses == ["finished"])
    # Dask keeps results that are there before this call.
    fire_and_forget(switched.compute(dask.delayed(_touch_later)(tmp_path / "there")))
    assert eventually((tmp_path / "there").exists)
    switched.cancel([total, *switched.futures_of(kept)])


def test_a_delayed_object_has_its_key_and_is_computed_once(switched, tmp_path, caplog):
    delayed = dask.delayed(Path.mkdir)(tmp_path / "once")
    first = switched.compute(delayed)
    assert first.key == delayed.key
    wait(first)
    assert switched.compute(delayed).result() is None
    assert switched.compute(dask.delayed(5)).result() == 5
    assert switched.compute({"a": [delayed]}).result() == {"a": [None]}
    failing = dask.delayed(operator.truediv)(1, 0)
    future = switched.compute(failing)
    assert isinstance(future.exception(), ZeroDivisionError)
    assert future.traceback() is not None
    again = switched.compute(failing)
    with pytest.raises(ZeroDivisionError):
        again.result()
    assert "run_spec" not in caplog.text


def test_arguments_and_annotations_reach_tasks(switched, cluster):
    chosen = [*cluster.workers.values()][1]
    own = set(chosen.engine.worker_pids())
    assert process_of(switched.compute(pids(), workers=chosen.address)) in own
    with dask.annotate(workers=[chosen.address]):
        assert process_of(switched.persist(pids())) in own
        assert process_of(pids().compute()) in own
    assert process_of(pids().compute(workers=[chosen.address], priority=2, retries=1)) in own
    with pytest.raises(NoHostAllowed, match="absent"):
        switched.compute(pids(), workers=["absent"])
    with pytest.raises(TypeError, match=r"Client\.compute\(\) missing"):
        switched.compute()


def test_cancelled_and_dropped_futures_stop_their_tasks(switched, cluster):
    def run() -> Any:
        future = switched.compute(dask.delayed(time.sleep)(60))
        assert eventually(lambda: any(agent._subtasks for agent in cluster.workers.values()))
        return future

    future = run()
    future.cancel()
    assert eventually(lambda: nothing_is_left(cluster))
    assert future.status == "cancelled"
    future = run()
    del future
    assert eventually(lambda: nothing_is_left(cluster))


def test_stores_of_later_computations_reach_the_users_array(switched):
    target = np.zeros(10)
    switched.compute(da.ones(10, chunks=5).store(target, compute=False)).result()
    assert target.sum() == 10


def test_foreign_results_beyond_their_share_go_into_the_store(switched, cluster, monkeypatch):
    for agent in cluster.workers.values():
        monkeypatch.setattr(agent, "_foreign_bytes", 0)
    ones = switched.submit(np.ones, 1 << 17)
    scattered = switched.scatter(np.zeros(1 << 17))

    def is_stored(future: Any) -> bool:
        return any(isinstance(agent.data.get(future.key), StoredResult) for agent in cluster.workers.values())

    assert eventually(lambda: is_stored(ones) and is_stored(scattered))
    assert switched.submit(_incremented, ones).result() == 1 << 18
    assert ones.result().sum() == 1 << 17
    assert not scattered.result().any()


def _touch_later(path: Path) -> None:
    time.sleep(0.3)
    path.touch()


def _incremented(values: np.ndarray[Any, Any]) -> float:
    values += 1
    return float(values.sum())
