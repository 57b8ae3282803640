"""The child process: runs loops by hand, by threads and by dask_mars in turn, and counts what mars takes."""

from __future__ import annotations

import gc
import importlib
import mmap
import os
import resource
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil

from benchmarks.by_hand import LOOPS, da, in_chunks
from benchmarks.child import Clock
from benchmarks.events import Events, main
from benchmarks.jobs import ByHandJob
from benchmarks.peers import PEERS, Get, persist
from benchmarks.workload import RELATIVE_TOLERANCE

_TOUCHED_BYTES = 64 << 20
_PEERS = ("threads", "mars")

Calls = dict[str, Callable[[], Any]]


def taken() -> tuple[float, ...]:
    """Return page faults and processor seconds of all processes, then those of this and the engine's thread."""
    faults, processor_s = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.process_time()
    for process in psutil.Process().children(recursive=True):
        times = process.cpu_times()
        processor_s += times.user + times.system
        # psutil does not count faults.
        stat = Path(f"/proc/{process.pid}/stat")
        faults += int(stat.read_text().rpartition(")")[2].split()[7]) if stat.exists() else 0
    clocks = [
        time.pthread_getcpuclockid(thread.ident)
        for thread in threading.enumerate()
        if thread.name == "dask-mars-engine" and thread.ident
    ]
    return faults, processor_s, time.thread_time(), sum(map(time.clock_gettime, clocks))


def fault_s() -> float:
    """Return what a page fault takes, in seconds."""
    with mmap.mmap(-1, _TOUCHED_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as fresh:
        before, began_s = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter()
        np.frombuffer(fresh, np.uint8)[:: mmap.PAGESIZE] = 1
        taken_s = time.perf_counter() - began_s
        return taken_s / max(1, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)


def copied_bytes_per_s(x: Any) -> float:
    """Return the bytes that all threads together read and write in a second when they copy a row of numbers."""
    from benchmarks.by_hand_loops import copy

    out, clock = np.zeros_like(x), Clock(1.0)
    durations = [clock.time(lambda: copy(x, out))[1] for _ in range(4)]
    return float(2 * x.nbytes / min(durations))


def calls_of(name: str, source: str, gets: dict[str, Get], arrays: list[Any], files: list[Path]) -> Calls:
    """Return what computes a loop, by hand and by each peer."""
    from benchmarks.by_hand_loops import BY_HAND

    def by_hand() -> Any:
        if source == "zarr":
            zarr = importlib.import_module("zarr")
            return BY_HAND[name](*[zarr.open_array(file, mode="r")[:] for file in files])
        return BY_HAND[name](*arrays)

    def by_peer(get: Get) -> Callable[[], Any]:
        lazy = [da.from_zarr(file) for file in files] if source == "zarr" else [in_chunks(x) for x in arrays]
        if source == "persisted":
            lazy = list(persist(get, *lazy))
        # Users also wait for Dask to build the graph.
        return lambda: dask.compute(*LOOPS[name].collections(*lazy), scheduler=get)  # type: ignore[attr-defined]

    return {"by hand": by_hand} | {peer: by_peer(get) for peer, get in gets.items()}


def measure(name: str, calls: Calls, repeat: int, clock: Clock) -> dict[str, Any]:
    """Return all seconds and processor seconds, those of the first run of mars, and what `taken` counts later."""
    # The first call by hand is compiled, and one of mars is timed.
    expected, first_s = np.ravel(calls["by hand"]()), clock.time(calls["mars"])[1]
    calls["threads"]()
    seconds: dict[str, list[float]] = {peer: [] for peer in calls}
    busy: dict[str, list[float]] = {peer: [] for peer in calls}
    parts: list[list[float]] = []
    while len(parts) < repeat and (not parts or clock.fits()):
        turn = len(parts) % len(calls)
        for peer in [*calls][turn:] + [*calls][:turn]:
            gc.collect()
            before = taken()
            result, duration_s = clock.time(calls[peer])
            part = [after - b for after, b in zip(taken(), before, strict=True)]
            if peer == "mars":
                parts.append(part)
            seconds[peer].append(duration_s)
            busy[peer].append(part[1])
            found = np.ravel(result if peer == "by hand" or len(result) > 1 else result[0])
            if not np.allclose(found, expected, RELATIVE_TOLERANCE, atol=0.0):
                raise ArithmeticError(f"{name}: {peer} gave {found[:3]}, by hand {expected[:3]}")
    middle = [statistics.median(part) for part in zip(*parts, strict=True)]
    return {"seconds": seconds, "busy": busy, "first": first_s, "taken": middle}


def run(job: ByHandJob, events: Events) -> None:
    """Do a job: the loops it names, one after another in this process.

    Parameters
    ----------
    job
        What to do; its peer is the place of the arrays.
    events
        Where to tell of it.
    """
    os.environ["NUMBA_NUM_THREADS"] = str(job.workers)
    clock = Clock(job.timeout_s)
    for peer in _PEERS:
        PEERS[peer].load()
    threads, mars = (PEERS[peer].open_in_script or PEERS[peer].open for peer in _PEERS)
    with threads(job.workers) as of_threads, mars(job.workers) as of_mars:
        for name in job.workload.split(","):
            loop = LOOPS[name]
            arrays, files = loop.make(job.size_bytes), []
            if job.peer == "zarr":
                files = [Path(job.data_directory, f"{name}-{number}.zarr") for number in range(loop.arrays)]
                for x, file in zip(arrays, files, strict=True):
                    if not file.exists():
                        store = in_chunks(x).to_zarr(file, compute=False)
                        dask.compute(store, scheduler=of_threads)  # type: ignore[attr-defined]
            moved_bytes = sum(x.nbytes for x in arrays) * (loop.passes + 2 * (job.peer == "zarr"))
            limits = {"moved": moved_bytes / copied_bytes_per_s(arrays[0].ravel()), "fault": fault_s()}
            calls = calls_of(name, job.peer, {"threads": of_threads, "mars": of_mars}, arrays, files)
            events.send("figures", name=name, figures=limits | measure(name, calls, job.repeat, clock))


if __name__ == "__main__":
    main(ByHandJob, run)
