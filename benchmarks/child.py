"""The child process: warms a peer, runs one workload, and reports to its parent in JSON lines.

The order is: a small run of the workload, which starts the pool and imports what the workers need;
the timed runs; and one more run, untimed, during which the parent samples memory. Sampling holds
locks that a process needs to map memory, so it never overlaps with a timed run.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.events import Events, main
from benchmarks.jobs import DataJob, Job
from benchmarks.latency import Probe
from benchmarks.peers import PEERS, Get
from benchmarks.workload import Bounds, Setting, Workload
from benchmarks.workloads import CATALOGUE

#: The part of the asked-for scale at which a workload is run to warm the peer. Arrays at full size: the first
#: touch of a page in a virtual machine costs many times a later one, and would be most of what is measured.
WARM_UP_SCALE = {"tasks": 0.01}

R = TypeVar("R")


class Clock:
    """Times the runs of a process, and says whether there is time for another.

    Parameters
    ----------
    timeout_s : float
        What all of them may take from now on.
    """

    def __init__(self, timeout_s: float) -> None:
        self._end_s = time.monotonic() + timeout_s
        self._longest_s = 0.0
        #: What the run took that ended in an error.
        self.seconds_to_error: float | None = None

    def time(self, run: Callable[[], R]) -> tuple[R, float]:
        """Return what a run returns, and the seconds that it took."""
        start_s = time.perf_counter()
        try:
            result = run()
        except Exception:
            self.seconds_to_error = time.perf_counter() - start_s
            raise
        duration_s = time.perf_counter() - start_s
        self._longest_s = max(self._longest_s, duration_s)
        return result, duration_s

    def fits(self) -> bool:
        """Say whether there is time for one more run."""
        # A quarter more than the longest run so far, because the machine is shared.
        return time.monotonic() + 1.25 * self._longest_s < self._end_s


def require_within(bounds: Bounds, value: float, name: str) -> None:
    """Raise unless a value lies where a right answer does.

    Parameters
    ----------
    bounds
        The least and the largest right answer.
    value
        The answer.
    name
        Of what was computed.

    Raises
    ------
    ArithmeticError
        It does not.
    """
    low, high = bounds
    # Written so that a NaN fails too.
    if not low <= value <= high:
        raise ArithmeticError(f"{name} gave {value!r}, expected {low!r} to {high!r}")


def run_workload(
    workload: Workload,
    get: Get,
    job: Job,
    events: Events,
    clock: Clock,
    *,
    directory: Path | None = None,
    roots: Sequence[int] = (),
    moved_bytes: Callable[[], int] | None = None,
) -> None:
    """Make the runs of a workload, and tell of each.

    Parameters
    ----------
    workload
        What to run.
    get
        The scheduler, which is up.
    job
        Says how often.
    events
        The line to the parent.
    clock
        Times them.
    directory
        Of the files that the workload needs.
    roots
        Roots of the process trees whose memory counts, by default this process.
    moved_bytes
        What hosts have sent each other until now.
    """

    def prepare(scale: float, seed: int) -> Callable[[], Any]:
        return workload.prepare(Setting(scale, seed, get, directory or Path()))

    prepare(job.scale * WARM_UP_SCALE.get(workload.group, 1.0), job.repeat)()
    for seed in range(job.repeat):
        if seed > 0 and not clock.fits():
            break
        # Each run has its own seed, so that no peer can answer from what it computed before.
        call = prepare(job.scale, seed)
        gc.collect()
        moved_before = moved_bytes() if moved_bytes else 0
        result, duration_s = clock.time(call)
        value = workload.digest(result)
        del result, call
        require_within(workload.bounds(job.scale), value.max(), workload.name)
        moved = [moved_bytes() - moved_before] if moved_bytes else []
        events.send("timed", seconds=duration_s, value=value.tolist(), moved_bytes=moved)
    if clock.fits():
        call = prepare(job.scale, job.repeat + 1)
        gc.collect()
        events.send("memory_run_began", roots=list(roots))
        call()
        events.send("memory_run_ended")


def run(job: DataJob, events: Events) -> None:
    """Do a job.

    Parameters
    ----------
    job
        What to do.
    events
        Where to tell of it.
    """
    clock = Clock(job.timeout_s)
    peer = PEERS[job.peer]
    peer.load()
    subject = CATALOGUE[job.workload]
    if isinstance(subject, Probe):
        for duration_s in subject.durations_s(peer, job.workers, job.repeat):
            events.send("timed", seconds=duration_s, value=[])
    else:
        with peer.open(job.workers) as get:
            run_workload(subject, get, job, events, clock, directory=Path(job.data_directory))


if __name__ == "__main__":
    main(DataJob, run)
