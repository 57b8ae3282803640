"""Clusters of several hosts on this machine, made of the processes that users start."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cluster.network import Network
from benchmarks.jobs import ClusterJob
from benchmarks.peers import Get

#: How long processes may take to come up, and to end.
_START_S = 60.0
_END_S = 20.0

#: Dask's logs would be most of what a failure leaves behind.
_ENVIRONMENT = {"DASK_LOGGING__DISTRIBUTED": "error"}


@dataclass(frozen=True, slots=True)
class Hosts:
    """How many hosts, and what each has.

    Attributes
    ----------
    count
        Of hosts.
    n_workers
        Worker processes of each.
    memory_bytes
        What those of a host may use together.
    network
        What is between them.
    """

    count: int
    n_workers: int
    memory_bytes: int
    network: Network


def hosts_of(job: ClusterJob) -> Hosts:
    """Return the hosts that a job is for."""
    return Hosts(job.hosts, job.workers, job.limit_bytes, Network(job.network))


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that is up.

    Attributes
    ----------
    get
        Computes on it.
    pids
        Of each host, the process that all others of it descend from.
    moved_bytes
        What hosts have sent to other hosts until now.
    """

    get: Get
    pids: list[int]
    moved_bytes: Callable[[], int]


def _stock_command(hosts: Hosts) -> list[str]:
    each = hosts.memory_bytes // hosts.n_workers
    return ["-m", "dask", "worker", "--nthreads=1", f"--memory-limit={each}"]


def _mars_command(hosts: Hosts) -> list[str]:
    return ["-m", "dask_mars.cluster.cli", f"--memory-limit={hosts.memory_bytes}"]


@contextmanager
def stock(hosts: Hosts) -> Iterator[Cluster]:
    """Run `dask worker` on each host."""
    with _cluster(hosts, _stock_command(hosts), hosts.count * hosts.n_workers) as (client, pids):
        yield Cluster(client.get, pids, _counter(client, hosts))


@contextmanager
def mars(hosts: Hosts) -> Iterator[Cluster]:
    """Run `dask-mars-worker` on each host."""
    dask_mars: Any = importlib.import_module("dask_mars")
    with _cluster(hosts, _mars_command(hosts), hosts.count) as (client, pids):

        def get(dsk: Any, keys: Any, **options: Any) -> Any:
            return dask_mars.get(dsk, keys, client=client, **options)

        yield Cluster(get, pids, _counter(client, hosts))


@contextmanager
def _cluster(hosts: Hosts, worker: list[str], workers: int) -> Iterator[tuple[Any, list[int]]]:
    """Start a scheduler and that many workers; yield a client, and each host's first process."""
    distributed: Any = importlib.import_module("distributed")
    network = hosts.network
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        file = Path(directory, "scheduler.json")
        every = ["--no-dashboard", f"--scheduler-file={file}"]
        scheduler = ["-m", "dask", "scheduler", f"--host={network.scheduler_address}", "--port=0"]
        stack.enter_context(_process([], [*scheduler, *every]))
        processes = []
        for host in range(hosts.count):
            # Hosts have no disk in common.
            own = Path(directory, str(host))
            own.mkdir()
            options = [f"--nworkers={hosts.n_workers}", f"--host={network.address(host)}"]
            processes.append(
                stack.enter_context(
                    _process(network.command(host), [*worker, *every, *options, f"--local-directory={own}"])
                )
            )
        client = stack.enter_context(
            distributed.Client(scheduler_file=str(file), timeout=_START_S, set_as_default=False)
        )
        client.wait_for_workers(workers, timeout=_START_S)
        yield client, [process.pid for process in processes]
        client.shutdown()
        for process in processes:
            process.wait(_END_S)


@contextmanager
def _process(prefix: list[str], arguments: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [*prefix, sys.executable, *arguments],
        env={**os.environ, **_ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _counter(client: Any, hosts: Hosts) -> Callable[[], int]:
    if hosts.network.name:
        return lambda: hosts.network.sent_bytes(hosts.count) or 0
    client.run(_keep_log)
    return lambda: sum(client.run(_received_bytes).values())


def _keep_log(dask_worker: Any) -> None:
    """In a worker: forget nothing of what it receives."""
    dask_worker.transfer_incoming_log = deque()


def _received_bytes(dask_worker: Any) -> int:
    """In a worker: what it has received from other hosts, by Dask's own estimate of values' sizes."""
    own = _host_of(dask_worker.address)
    return sum(entry["total"] for entry in dask_worker.transfer_incoming_log if _host_of(entry["who"]) != own)


def _host_of(address: str) -> str:
    return address.rpartition(":")[0]
