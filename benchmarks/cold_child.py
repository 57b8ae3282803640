"""The child process that computes one thing once, as a script does, from its first import on."""

from __future__ import annotations

import importlib
import time
from typing import Any

from benchmarks.events import Events, main
from benchmarks.jobs import DataJob


def run(job: DataJob, events: Events) -> None:
    """Do a job: one run that is timed or, if none is asked for, one in which the parent samples memory."""
    timed = job.repeat > 0
    if not timed:
        events.send("memory_run_began")
    start_s = time.perf_counter()
    # Nothing heavy has been imported before.
    importlib.import_module("dask.array")
    peers: Any = importlib.import_module("benchmarks.peers")
    workloads: Any = importlib.import_module("benchmarks.workloads")
    setting: Any = importlib.import_module("benchmarks.workload").Setting
    pathlib: Any = importlib.import_module("pathlib")
    peer = peers.PEERS[job.peer]
    peer.load()
    workload = workloads.CATALOGUE[job.workload]
    with (peer.open_in_script or peer.open)(job.workers) as get:
        # Always the same seed: processes have nothing to remember.
        result = workload.prepare(setting(job.scale, 0, get, pathlib.Path(job.data_directory)))()
        duration_s = time.perf_counter() - start_s
    if not timed:
        events.send("memory_run_ended")
        return
    value = workload.digest(result)
    importlib.import_module("benchmarks.child").require_within(
        workload.bounds(job.scale), value.max(), workload.name
    )
    events.send("timed", seconds=duration_s, value=value.tolist())


if __name__ == "__main__":
    main(DataJob, run)
