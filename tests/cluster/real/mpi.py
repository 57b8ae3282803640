"""Agents as ranks of dask-mpi, and by `take_over` of its stock workers: ``python -m tests.cluster.real.mpi``."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import uuid
from pathlib import Path

from distributed import Client

import dask_mars
from tests.cluster.real.services import agents, compute, left, reach, service


def _run(folder: Path, worker_class: str, take_over: bool = False) -> None:
    """Start a scheduler and two workers, compute, shut down."""
    file = folder / f"{worker_class}.json"
    command = ["mpiexec.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "3", sys.executable]
    command += ["-m", "dask_mpi.cli", f"--scheduler-file={file}", "--nthreads=2"]
    command += [f"--worker-class={worker_class}", "--memory-limit=1GiB", f"--local-directory={folder}/local"]
    with service([*command, "--no-dashboard"], folder / f"{worker_class}.log") as process:
        with Client(scheduler_file=str(file), set_as_default=False, timeout=60) as client:
            client.wait_for_workers(2, timeout=60)
            taken = dask_mars.take_over(client) if take_over else None
            reach("two agents", lambda: len(agents(client)) == 2)
            compute(client)
            if taken is not None:
                taken.give_back()
                reach("none after give_back", lambda: not agents(client))
            client.shutdown()
        reach("mpiexec has ended", lambda: process.poll() is not None)
        print(f"exit code {process.returncode}")


def main() -> None:
    """Run all."""
    os.environ["DASK_MARS_REAL"] = marker = uuid.uuid4().hex
    folder = Path(tempfile.mkdtemp(prefix="mpi-", dir="/tmp"))
    print("-- agents as ranks")
    _run(folder, "dask_mars.cluster.agent.MarsWorker")
    for worker_class in ("distributed.Worker", "distributed.Nanny"):
        print(f"-- take_over of {worker_class}")
        _run(folder, worker_class, take_over=True)
    reach("nothing is left", lambda: not left(marker), 30)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
