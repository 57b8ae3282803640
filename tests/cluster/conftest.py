"""The cluster that the tests of this directory share, and its clients."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dask_mars
from dask_mars.cluster.stored_result import release_unread
from tests.conftest import PATIENCE_S, cluster_of_agents, eventually, shared_cluster


@pytest.fixture(scope="package")
def cluster(private_tmp: Path) -> Iterator[Any]:
    """Two agents with a worker process each."""
    with shared_cluster() as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Any) -> Iterator[Client]:
    """Return a client that is not the current one."""
    with Client(cluster, set_as_default=False) as client:
        yield client
    assert eventually(lambda: nothing_is_left(cluster), PATIENCE_S)


@pytest.fixture
def get(client: Client) -> Callable[..., Any]:
    return partial(dask_mars.get, client=client)


def nothing_is_left(cluster: Any) -> bool:
    release_unread()
    agents = cluster.workers.values()
    stored = sum(agent.engine.inspection.state()["store"]["stored_bytes"] for agent in agents)
    return not stored and not any(agent.data or agent._subtasks for agent in agents)


def ended(process: subprocess.Popen[str], timeout_s: float = PATIENCE_S) -> int:
    """Wait for a process; what it has written tells why it goes on."""
    try:
        process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"it goes on: {process.communicate()}")
    return process.returncode


def asked(client: Client, path: str, token: str = "", **options: Any) -> Any:
    """Ask the web API at a client's scheduler."""
    url = client.dashboard_link.replace("/status", f"/mars/api/v1/{path}")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers, **options), timeout=20) as answer:
        return json.load(answer)


class Place:
    """Where one scheduler comes after the other, with agents in this process."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.port = server.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.cluster: Any = None

    def start(self, agents: int = 1) -> None:
        self.cluster = cluster_of_agents(agents, scheduler_port=self.port)

    def stop(self) -> None:
        # Its clients hear no more of that than of a scheduler that is killed.
        cluster, self.cluster = self.cluster, None
        if cluster is not None:
            cluster.close()


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    place.start()
    yield place
    place.stop()
