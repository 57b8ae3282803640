"""The schedulers that are compared under a limit of memory, and the child process that runs a case on one."""

from __future__ import annotations

import gc
import importlib
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dask

from benchmarks import control_groups
from benchmarks.child import Clock, require_within
from benchmarks.events import Events, main
from benchmarks.functions import noop
from benchmarks.jobs import LimitedJob
from benchmarks.memory_cases import CASES
from benchmarks.peers import PEERS, Get


@dataclass(frozen=True, slots=True)
class Session:
    """A scheduler that is up."""

    get: Get
    #: What it has written to disk; None if it does not say.
    spilled_bytes: Callable[[], int | None]
    #: Workers that were ended and replaced.
    lost_workers: Callable[[], int]


def _none() -> int:
    return 0


@contextmanager
def _threads(job: LimitedJob) -> Iterator[Session]:
    with PEERS["threads"].open(job.workers) as get:
        yield Session(get, _none, _none)


class _Restarts(logging.Handler):
    """Counts the workers that their nannies have ended over memory."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += "Restarting" in record.getMessage()


def _written_bytes(dask_worker: Any) -> float:
    """In a worker of `distributed`: what it has written to disk since it began."""
    # Without a disk to spill to, data is a plain dict.
    buffer = getattr(dask_worker.data, "slow", None)
    return 0.0 if buffer is None else float(dask_worker.data.cumulative_metrics["disk-write", "bytes"])


@contextmanager
def _distributed(job: LimitedJob) -> Iterator[Session]:
    # Without annotations of its own, like most of Dask.
    distributed: Any = importlib.import_module("distributed")
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    restarts = _Restarts()
    nannies = logging.getLogger("distributed.nanny.memory")
    nannies.setLevel(logging.WARNING)
    nannies.addHandler(restarts)
    nannies.propagate = False
    with (
        distributed.LocalCluster(
            n_workers=job.workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            memory_limit="auto" if job.control_group else job.limit_bytes // job.workers,
            local_directory=job.directory,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):

        def spilled_bytes() -> int | None:
            try:
                return int(sum(client.run(_written_bytes).values()))
            except Exception:
                # A worker that is being ended cannot say.
                return None

        yield Session(client.get, spilled_bytes, lambda: restarts.count)


@contextmanager
def _mars(job: LimitedJob) -> Iterator[Session]:
    dask_mars: Any = importlib.import_module("dask_mars")
    with (
        dask.config.set({"dask-mars.spill-directory": job.directory}),
        dask_mars.Runtime(
            num_workers=job.workers, memory_limit=None if job.control_group else job.limit_bytes
        ) as runtime,
    ):
        yield Session(runtime.get, lambda: runtime.engine().spilled_bytes, _none)


#: How each peer is opened.
LIMITED: dict[str, Callable[[LimitedJob], AbstractContextManager[Session]]] = {
    "threads": _threads,
    "distributed": _distributed,
    "mars": _mars,
}


def _checked(job: LimitedJob, get: Get, seed: int) -> float:
    case = CASES[job.workload]
    value = case.run(get, job.limit_bytes, seed)
    require_within(case.bounds(job.limit_bytes), value, case.name)
    return value


def run(job: LimitedJob, events: Events) -> None:
    """Make a run whose memory the parent samples, and then the timed ones."""
    if job.control_group:
        # First of all: some look for limits when they are imported.
        control_groups.enter(Path(job.control_group))
    clock = Clock(job.timeout_s)
    PEERS[job.peer].load()
    try:
        _run_with(job, events, clock)
    except Exception:
        events.send("gave_up", seconds=clock.seconds_to_error)
        raise


def _run_with(job: LimitedJob, events: Events, clock: Clock) -> None:
    with LIMITED[job.peer](job) as session:
        events.send("memory_run_began")
        try:
            # Brings processes up, and no more: what tasks import is part of what is sampled.
            clock.time(partial(session.get, {"up": (noop,)}, "up"))
            clock.time(partial(_checked, job, session.get, job.repeat))
        finally:
            events.send("memory_run_ended")
            # A worker that was replaced has taken its count with it.
            events.send("noted", spilled_bytes=session.spilled_bytes(), lost_workers=session.lost_workers())
        for seed in range(job.repeat):
            if seed > 0 and not clock.fits():
                break
            gc.collect()
            value, duration_s = clock.time(partial(_checked, job, session.get, seed))
            events.send("timed", seconds=duration_s, value=[value])


if __name__ == "__main__":
    main(LimitedJob, run)
