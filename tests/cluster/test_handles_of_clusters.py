"""Handles of computations on a cluster, and what tells of that in the user's process."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import pytest
from distributed import Client

import dask_mars
from dask_mars.cluster.runtime import ClusterRuntime
from dask_mars.errors import Cancelled
from tests.cluster.conftest import nothing_is_left
from tests.conftest import eventually
from tests.tasks import fail_with, wait_for

PATIENCE_S = 40.0


@pytest.fixture
def client(cluster: Any) -> Iterator[Client]:
    with Client(cluster) as client:
        yield client
    assert eventually(lambda: nothing_is_left(cluster), PATIENCE_S)


def test_a_finished_one_tells_all(client: Client):
    computation = dask_mars.submit(da.ones((8, 8), chunks=4).sum(), name="<ones>")
    assert computation.result(PATIENCE_S) == 64
    assert computation.state == "finished"
    assert computation.progress.finished == computation.progress.total > 0
    assert "sum" in {layer.label for layer in computation.layers}
    assert sum(layer["count"] for layer in computation.profile().values()) == computation.progress.total
    runtime = dask_mars.runtime()
    assert isinstance(runtime, ClusterRuntime)
    assert runtime.computations()[0]["name"] == "<ones>"
    assert runtime.profile()[computation.id] == computation.profile()
    assert "&lt;ones&gt;" in computation._repr_html_()
    assert "&lt;ones&gt;" in runtime._repr_html_()


def test_one_that_runs_is_followed_and_cancelled(client: Client, tmp_path: Path):
    computation = dask_mars.submit(dask.delayed(wait_for)(tmp_path / "never", 1, dask_key_name="x"), name="waits")
    runtime = dask_mars.runtime()
    assert eventually(lambda: computation.progress.running == 1, PATIENCE_S)
    assert "1 are dispatched to agents" in computation.explain()
    assert "'x' is dispatched to an agent" in computation.explain("x")
    assert "waits: the cluster at" in runtime.explain()
    with pytest.raises(KeyError, match="no such key"):
        computation.explain("y")
    with pytest.raises(TypeError, match="key"):
        runtime.explain(["x"])
    assert eventually(lambda: sum(worker["dispatched"] for worker in runtime.state()["workers"]) == 1, PATIENCE_S)
    # The scheduler's page calls it the same.
    url = client.dashboard_link.replace("/status", f"/mars/api/v1/computations/{computation.id}")
    with urllib.request.urlopen(url, timeout=20) as answer:
        assert json.load(answer)["name"] == "waits"
    assert runtime.cancel(computation)
    with pytest.raises(Cancelled, match=computation.id):
        computation.result(PATIENCE_S)
    assert not runtime.cancel(computation.id)


def test_agents_tell_how_long_chunks_took(client: Client, tmp_path: Path):
    first = dask.delayed(time.sleep)(0.05, dask_key_name="first")
    computation = dask_mars.submit(first, dask.delayed(wait_for)(tmp_path / "go", 1, dask_key_name="waits"))

    def seconds() -> dict[str, float]:
        return {layer.label: layer.seconds for layer in computation.layers}

    try:
        assert eventually(lambda: seconds().get("first", 0) > 0.04, PATIENCE_S)
        assert seconds()["waits"] == 0
    finally:
        (tmp_path / "go").touch()
    assert computation.result(PATIENCE_S)[1] == 1
    assert seconds()["first"] > 0.04
    assert computation.profile()["first"]["total_s"] > 0.04


def test_what_a_task_raises_is_raised_by_result(client: Client):
    computation = dask_mars.submit(dask.delayed(fail_with)("broken"))
    with pytest.raises(LookupError, match="broken"):
        computation.result(PATIENCE_S)
    assert computation.state == "failed"
    record = dask_mars.runtime().records.find(computation.id)
    assert record.failure is not None
    assert "fail_with" in record.failure.traceback


def test_memory_is_that_of_agents_and_no_disks(client: Client, cluster: Any):
    agents = cluster.workers.values()
    memory = dask_mars.runtime().memory()
    assert memory.limit_bytes == sum(agent.engine.settings.memory_limit for agent in agents)
    assert memory.in_use_bytes > 0
    assert memory.store_limit_bytes > 0
    # Heartbeats may be older than the end of the last computation.
    assert eventually(lambda: dask_mars.runtime().memory().store_bytes == 0, PATIENCE_S)


def test_after_its_client_is_closed(cluster: Any):
    with Client(cluster):
        computation = dask_mars.submit(dask.delayed(abs)(-1))
        assert computation.result(PATIENCE_S) == 1
        runtime = dask_mars.runtime()
    assert (computation.result(), computation.state) == (1, "finished")
    assert repr(runtime) == "<ClusterRuntime closed>"
    assert runtime.state()["workers"] == []
    assert runtime.memory().limit_bytes == 0
    assert "the client is closed" in runtime.explain()
    assert "closed" in runtime._repr_html_()
