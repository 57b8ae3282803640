"""Agents as jobs of a real SLURM with two nodes on this machine: ``python -m tests.cluster.real.slurm``."""

from __future__ import annotations

import contextlib
import math
import operator
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array as da
from dask_jobqueue import SLURMCluster
from distributed import Client

import dask_mars
from tests.cluster.real.services import (
    agents,
    checksums,
    compute,
    free_ports,
    keep,
    kill_agent,
    left,
    reach,
    service,
)

_NODES = 2
_CONFIGURATION = """
ClusterName=real
SlurmctldHost={host}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0
KillWait=30
ReturnToService=2
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[None]:
    """Run munge, a controller and two nodes; the commands find them by ``SLURM_CONF``."""
    host = socket.gethostname()
    ports = free_ports(1 + _NODES)
    nodes = "\n".join(
        f"NodeName=node{index} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=4000"
        for index, port in enumerate(ports[1:])
    )
    for name in ("state", *(f"node{index}" for index in range(_NODES))):
        (folder / name).mkdir()
    (folder / "slurm.conf").write_text(_CONFIGURATION.format(folder=folder, host=host, ports=ports, nodes=nodes))
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    munged = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    munged += [f"--{kind}-file={folder}/munge.{kind}" for kind in ("pid", "log", "seed")]
    with contextlib.ExitStack() as stack:
        stack.enter_context(service(munged, folder / "munged.log"))
        reach("munge", (folder / "munge.socket").exists)
        stack.enter_context(service(["slurmctld", "-D"], folder / "slurmctld.out"))
        for index in range(_NODES):
            stack.enter_context(service(["slurmd", "-D", "-N", f"node{index}"], folder / f"node{index}.out"))
        reach("nodes are idle", lambda: _output("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == str(_NODES))
        try:
            yield
        finally:
            subprocess.run(["scancel", "--user=root"], check=False)
            reach("no jobs", lambda: not _output("squeue", "-h"))


def _output(*command: str) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout


def _cluster(folder: Path, **options: Any) -> SLURMCluster:
    return SLURMCluster(
        cores=2,
        processes=1,
        memory="1GiB",
        job_mem="1500MB",
        walltime="00:10:00",
        local_directory='"${TMPDIR:-/tmp}"',
        log_directory=str(folder / "jobs"),
        scheduler_options={"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"},
        **{"python": sys.executable, "worker_command": "dask_mars.cluster.cli", **options},
    )


def _job_of(cluster: SLURMCluster, name: str) -> str:
    return str(next(job.job_id for key, job in cluster.workers.items() if str(key) == name))


def _scale_and_kill(folder: Path, **options: Any) -> None:
    """Scale, compute, kill an agent, scale down, adapt."""
    with _cluster(folder, **options) as cluster, Client(cluster, set_as_default=False) as client:
        cluster.scale(jobs=2)
        reach("two jobs are agents", lambda: len(agents(client)) == 2)
        print(_output("squeue", "-h", "-o", "%i %T %N").strip().replace("\n", "; "))
        compute(client)
        kill_agent(client)
        compute(client)
        kept, before = keep(client)
        cluster.scale(jobs=1)
        reach("one agent after scale down", lambda: len(agents(client)) == 1)
        print(f"scale down keeps persisted values: {checksums(client, kept) == before}")
        del kept
        cluster.adapt(minimum_jobs=1, maximum_jobs=2)
        compute(client)
    reach("no jobs after close", lambda: not _output("squeue", "-h"))


def _cancel(folder: Path, **options: Any) -> None:
    """Cancel a job while both agents have results."""
    with _cluster(folder, **options) as cluster, Client(cluster, set_as_default=False) as client:
        cluster.scale(jobs=2)
        reach("two jobs are agents", lambda: len(agents(client)) == 2)
        kept, before = keep(client)
        gone = min(agents(client))
        job = _job_of(cluster, gone)
        subprocess.run(["scancel", job], check=True)
        reach(f"{gone} is gone after scancel", lambda: gone not in agents(client))
        same = sum(map(operator.eq, checksums(client, kept), before))
        print(f"persisted values that scancel keeps: {same} of {len(before)}")
        compute(client)
        del kept
    reach("no jobs after close", lambda: not _output("squeue", "-h"))


def _workloads() -> dict[str, Any]:
    x = da.random.default_rng(0).random((8_000, 8_000), chunks=1_000)
    return {
        "sum": x.sum(),
        "chain": ((x * 2 + 1 - x / 3) ** 2 + x).mean(),
        "standardise": ((x - x.mean(axis=0)) / x.std(axis=0)).max(),
        "rechunk": x.rechunk((8_000, 500)).sum(axis=0).max(),
        "neighbours": abs(x[1:, 1:] - x[:-1, :-1]).mean(),
        "many chunks": da.arange(100_000, chunks=50).sum(),
    }


def _timed(client: Client, scheduler: Any) -> dict[str, tuple[float, float]]:
    """Return the value of each workload, and the least of three times in seconds."""
    found = {}
    for name, array in _workloads().items():
        times = []
        for _ in range(3):
            begun_s = time.perf_counter()
            value = float(array.compute(scheduler=scheduler, client=client))
            times.append(time.perf_counter() - begun_s)
        found[name] = value, min(times)
    return found


def _take_over(folder: Path, **options: Any) -> None:
    """Take over stock workers, compare with them, kill one, and give them back."""
    options["worker_command"] = "distributed.cli.dask_worker"
    with _cluster(folder, **options) as cluster, Client(cluster, set_as_default=False) as client:
        cluster.scale(jobs=2)
        reach("two jobs are stock workers", lambda: len(client.scheduler_info(n_workers=-1)["workers"]) == 2)
        stock = _timed(client, client.get)
        with dask_mars.take_over(client):
            reach("two jobs are agents", lambda: len(agents(client)) == 2)
            taken = _timed(client, dask_mars.get)
            kill_agent(client)
            reach("two jobs are agents", lambda: len(agents(client)) == 2)
            compute(client)
        reach("no job is an agent", lambda: not agents(client))
        assert float(_workloads()["sum"].compute(scheduler=client.get)) == stock["sum"][0]
    for name, (value, stock_s) in stock.items():
        same, ours_s = math.isclose(value, taken[name][0], rel_tol=1e-12), taken[name][1]
        print(
            f"{name}: {stock_s:.2f} s stock, {ours_s:.2f} s taken over, {ours_s / stock_s:.2f}, same value: {same}"
        )
    ratios = [taken[name][1] / stock_s for name, (_, stock_s) in stock.items()]
    print(f"geometric mean: {math.prod(ratios) ** (1 / len(ratios)):.2f}")


def main() -> None:
    """Run all."""
    os.environ["DASK_MARS_REAL"] = marker = uuid.uuid4().hex
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    folder.chmod(0o755)
    with slurm(folder):
        print("-- scale, SIGKILL, adapt; the nanny replaces the shell of the job's script")
        _scale_and_kill(folder, python=f"exec {sys.executable}")
        print("-- take_over of stock workers")
        _take_over(folder, python=f"exec {sys.executable}")
        print("-- scancel, the job's script is a shell")
        _cancel(folder)
        print("-- scancel, the nanny replaces that shell")
        _cancel(folder, python=f"exec {sys.executable}")
    reach("nothing is left", lambda: not left(marker), 30)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
