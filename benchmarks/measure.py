"""Runs each job in a fresh child process, watches it, and leaves no process behind."""

from __future__ import annotations

import compileall
import functools
import importlib.util
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import psutil

from benchmarks.jobs import Job, Measurement
from benchmarks.memory import Peak, peak_memory

#: Every peer gets the same processor budget: one thread per worker. Without this a BLAS call under
#: `threads` would use all cores from each of its threads, while LocalCluster sets such variables to
#: 1 for its workers by itself.
ONE_THREAD_EACH = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "BLIS_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
        "NUMEXPR_NUM_THREADS",
    ),
    "1",
)

#: Set in a child to a value of its own and inherited by all it starts, so that they can be told
#: from all others, even where they left the child's session.
MARK = "DASK_MARS_BENCHMARK_CHILD"

#: How long processes may take to end after the child that started them has ended.
GRACE_S = 5.0


def interleave(peers: Sequence[str], workloads: Sequence[str], rounds: int) -> Iterator[tuple[int, str, str]]:
    """Order the measurements so that drift of the machine falls on all peers alike.

    Parameters
    ----------
    peers, workloads
        What to combine.
    rounds
        How often.

    Yields
    ------
    tuple of (int, str, str)
        Round, workload and peer. The peer that comes first changes from round to round.
    """
    for round_index in range(rounds):
        turn = round_index % len(peers)
        for workload in workloads:
            for peer in (*peers[turn:], *peers[:turn]):
                yield round_index, workload, peer


def run_job(job: Job, module: str = "benchmarks.child") -> Measurement:
    """Run a job in a child process of its own.

    Parameters
    ----------
    job
        What to run.
    module
        What the child process runs it with.

    Returns
    -------
    Measurement
        What came of it. A child that fails, dies or takes too long gives a status, not an
        exception.
    """
    measurement = Measurement(job)
    compile_ours()
    start_s = time.perf_counter()
    mark = uuid.uuid4().hex
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(asdict(job))],
            env=_child_environment(mark),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        try:
            _watch(child, measurement)
            if measurement.seconds:
                measurement.process_seconds.append(time.perf_counter() - start_s)
            if measurement.status != "timeout":
                # What the child started may take a moment to follow it.
                measurement.stray_processes = _wait_for_marked(mark)
        finally:
            _kill(child, mark)
        if measurement.status == "failed" and not measurement.detail:
            measurement.detail = f"exit status {child.returncode}: {_last_line(errors)}"
    return measurement


@functools.cache
def compile_ours() -> None:
    """Write the bytecode of what is not compiled when it is installed, as other peers' packages are.

    A checkout has none where Python is told not to write any: then each process compiles our modules anew, which
    takes 0.2 s of processor time and more before it computes anything.
    """
    for name in ("dask_mars", "benchmarks"):
        spec = importlib.util.find_spec(name)
        for directory in (spec and spec.submodule_search_locations) or ():
            compileall.compile_dir(directory, quiet=2)


def _child_environment(mark: str) -> dict[str, str]:
    # Workers import the workloads' functions by name, whatever directory they start in.
    root = str(Path(__file__).resolve().parent.parent)
    search_path = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        **ONE_THREAD_EACH,
        MARK: mark,
        "PYTHONPATH": os.pathsep.join(search_path),
    }


def _watch(child: subprocess.Popen[str], measurement: Measurement) -> None:
    """Take the child's events into the measurement until it ends or its time is over."""
    deadline_s = time.monotonic() + measurement.job.timeout_s
    lines = _lines(child)
    done = False
    peaks: list[Peak] = []
    with ExitStack() as sampling:
        try:
            while (line := lines.get(timeout=max(0.0, deadline_s - time.monotonic()))) is not None:
                event: dict[str, Any] = json.loads(line)
                match event["kind"]:
                    case "timed":
                        measurement.seconds.append(event["seconds"])
                        measurement.values.append(event["value"])
                        measurement.moved_bytes.extend(event.get("moved_bytes", ()))
                    case "figures":
                        measurement.figures[event["name"]] = event["figures"]
                    case "memory_run_began":
                        roots = event.get("roots") or [child.pid]
                        peaks = [sampling.enter_context(peak_memory(root)) for root in roots]
                    case "memory_run_ended":
                        sampling.close()
                    case "noted":
                        measurement.spilled_bytes = event["spilled_bytes"]
                        measurement.lost_workers = event["lost_workers"]
                    case "gave_up":
                        measurement.seconds_to_error = event["seconds"]
                    case "failed":
                        measurement.status, measurement.detail = "failed", event["error"]
                    case "done":
                        done = True
            child.wait(timeout=max(0.0, deadline_s - time.monotonic()))
        except (queue.Empty, subprocess.TimeoutExpired):
            if measurement.status == "ok":
                measurement.status = "timeout"
                measurement.detail = (
                    f"over {measurement.job.timeout_s:g} s, after {len(measurement.seconds)} runs"
                    if not done
                    else "the process did not end after its work was done"
                )
    if peaks:
        # Also of a run that came to no end.
        measurement.peak_memory_bytes = max(peak.bytes for peak in peaks)
    if measurement.status == "ok" and (child.returncode or not done):
        measurement.status = "failed"


def _lines(child: subprocess.Popen[str]) -> queue.SimpleQueue[str | None]:
    """Read the child's output from a thread, because a pipe has no read with a timeout."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read(stream: IO[str]) -> None:
        with stream:
            for line in stream:
                lines.put(line)
        lines.put(None)

    assert child.stdout is not None
    threading.Thread(target=read, args=(child.stdout,), daemon=True).start()
    return lines


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark:
                found.append(process)
    return found


def _wait_for_marked(mark: str) -> int:
    """Give marked processes time to end by themselves, and count those that do not."""
    deadline_s = time.monotonic() + GRACE_S
    while (left := _marked(mark)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return len(left)


def _kill(child: subprocess.Popen[str], mark: str) -> None:
    child.kill()
    child.wait()
    _kill_marked(mark, spare_trackers=True)
    # When those are gone whose semaphores they keep track of, they remove these and end.
    _wait_for_marked(mark)
    _kill_marked(mark, spare_trackers=False)


def _kill_marked(mark: str, *, spare_trackers: bool) -> None:
    deadline_s = time.monotonic() + GRACE_S
    # Again and again, as one may have started another meanwhile.
    while time.monotonic() < deadline_s:
        left = [process for process in _marked(mark) if not (spare_trackers and _is_tracker(process))]
        if not left:
            break
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=1.0)


def _is_tracker(process: psutil.Process) -> bool:
    """Say whether a process is what multiprocessing starts to clean up behind others."""
    with suppress(psutil.Error):
        return any("multiprocessing.resource_tracker" in argument for argument in process.cmdline())
    return False


def _last_line(errors: IO[str]) -> str:
    errors.seek(0)
    lines = [line.strip() for line in errors if line.strip()]
    return lines[-1][:160] if lines else "nothing on standard error"
