"""Agents by dask-gateway's local backend: ``python -m tests.cluster.real.gateway``."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dask_gateway import Gateway
from dask_gateway.auth import BasicAuth
from distributed import Client

import dask_mars
from tests.cluster.real.services import agents, checksums, compute, free_ports, keep, left, reach, service

_CONFIGURATION = """
c.DaskGateway.backend_class = "dask_gateway_server.backends.local.UnsafeLocalBackend"
c.DaskGateway.address = "127.0.0.1:{ports[0]}"
c.Proxy.address = "127.0.0.1:{ports[1]}"
c.UnsafeLocalBackend.clusters_directory = "{folder}/clusters"
c.UnsafeLocalBackend.inherited_environment = ["PATH", "PYTHONPATH", "DASK_MARS_REAL"]
c.ClusterConfig.scheduler_cmd = ["{python}", "-m", "distributed.cli.dask_scheduler"]
c.ClusterConfig.worker_cmd = {worker_cmd}
c.ClusterConfig.worker_cores = 2
c.ClusterConfig.worker_memory = "1 G"
"""


def _run(folder: Path, worker_cmd: list[str], use: Callable[[Any, Client], None]) -> None:
    """Start a gateway and a cluster of two workers, and use it."""
    ports = free_ports(2)
    folder.mkdir()
    (folder / "clusters").mkdir()
    configuration = folder / "configuration.py"
    configuration.write_text(
        _CONFIGURATION.format(ports=ports, folder=folder, python=sys.executable, worker_cmd=worker_cmd)
    )
    command = [sys.executable, "-m", "dask_gateway_server", f"--config={configuration}"]
    with service(command, folder / "gateway.log"):
        reach("gateway", lambda: _answers(ports[1]))
        with (
            Gateway(f"http://127.0.0.1:{ports[1]}", auth=BasicAuth("user")) as gateway,
            gateway.new_cluster() as cluster,
            cluster.get_client(set_as_default=False) as client,
        ):
            cluster.scale(2)
            client.wait_for_workers(2, timeout=60)
            use(cluster, client)


def _as_agents(cluster: Any, client: Client) -> None:
    reach("two agents", lambda: len(agents(client)) == 2)
    compute(client)
    kept, before = keep(client)
    cluster.scale(1)
    reach("one agent after scale down", lambda: len(agents(client)) == 1)
    print(f"scale down keeps persisted values: {checksums(client, kept) == before}")


def _taken_over(cluster: Any, client: Client) -> None:
    # The gateway ends workers that its scheduler reports as gone, unless they are back before.
    try:
        dask_mars.take_over(client)
        compute(client)
    except (dask_mars.errors.CannotTakeOver, OSError) as error:
        print(f"{type(error).__name__}: {error}")


def _answers(port: int) -> bool:
    """Return whether the proxy knows the gateway, which wants a password."""
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/clusters/", timeout=5)
    except urllib.error.HTTPError as error:
        return error.code == 401
    except OSError:
        return False
    return True


def main() -> None:
    """Run agents, and `take_over` of stock workers."""
    os.environ["DASK_MARS_REAL"] = marker = uuid.uuid4().hex
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[3])
    folder = Path(tempfile.mkdtemp(prefix="gateway-", dir="/tmp"))
    print("-- worker_cmd is dask-mars-worker")
    _run(folder / "agents", [sys.executable, "-m", "dask_mars.cluster.cli"], _as_agents)
    print("-- take_over of stock workers")
    _run(folder / "stock", [sys.executable, "-m", "distributed.cli.dask_worker"], _taken_over)
    reach("nothing is left", lambda: not left(marker), 30)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
