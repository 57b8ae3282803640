"""A service that computes on the agents of a Dask scheduler."""

from __future__ import annotations

import time
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest

from dask_mars.errors import NoAgents, ServiceError
from tests.conftest import cluster_of_agents, eventually
from tests.web.services import running

pytest.importorskip("tornado")
pytest.importorskip("distributed")


@pytest.mark.slow
def test_agents_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The service starts before there are agents, and so without a limit of memory.
    monkeypatch.setattr("tests.web.services.eventually", lambda *condition: True)
    with (
        cluster_of_agents(0) as cluster,
        running(tmp_path / "d", "--scheduler", cluster.scheduler_address) as served,
        served.connect() as service,
    ):
        with pytest.raises(NoAgents, match="dask-mars-worker tcp://"):
            da.ones(3).compute(scheduler=service.get)
        cluster.scale(1)
        cluster.wait_for_workers(1)
        x = da.random.default_rng(7).random((200, 200), chunks=50)
        assert np.array_equal(x.compute(scheduler=service.get), x.compute(scheduler="sync"))
        with pytest.raises(ZeroDivisionError):
            dask.delayed(lambda: 1 // 0)().compute(scheduler=service.get)
        with pytest.raises(ServiceError, match="memory of your process"):
            da.store(da.ones(4, chunks=2), np.zeros(4), scheduler=service.get)
        done = service.submit(x.sum(), name="sum")
        assert done.result(100) == pytest.approx(float(x.sum().compute(scheduler="sync")))
        assert all(layer["finished"] == layer["total"] for layer in done.summary()["layers"])
        slow = service.submit(dask.delayed(time.sleep)(60))
        assert eventually(lambda: slow.state == "running", 20)
        assert eventually(lambda: len(service.state()["workers"]) == 1)
        assert eventually(lambda: "cluster" in slow.explain())
        assert slow.cancel()
        assert slow.wait(100)
        assert slow.state == "cancelled"
