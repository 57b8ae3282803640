"""What a standing service shows: how its front grows with bodies and results, and how fast others are answered."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import dask
import dask.array as da
import numpy as np
import psutil
from rich.table import Table

import dask_mars
from benchmarks import options
from benchmarks.report import MIB, markdown_table, plain_console
from dask_mars.web.client import RemoteComputation, Service

_SERVICE = "from dask_mars.commands import web; web()"
#: How often others ask while something large goes on.
_ASK_S = 0.01
_SMALL_RUNS = 30
#: One of the processes that all submit the same.
_SAME = """
import sys, dask.array as da
from dask_mars.web.client import connect

with connect(sys.argv[1]) as service:
    service._put(sys.argv[2], "collection", da.arange(1000, chunks=100).sum(), {})
"""


@dataclass
class Figures:
    """What was seen while something went on.

    Attributes
    ----------
    seconds : float
        How long it took.
    growth_bytes : int
        By how much the front grew at most.
    slowest_s : float
        The slowest answer to somebody else.
    """

    seconds: float
    growth_bytes: int
    slowest_s: float


@contextlib.contextmanager
def running(directory: Path, workers: int) -> Iterator[tuple[psutil.Process, Service]]:
    """Run a service in a process of its own; yield its front and a client."""
    arguments = ["--directory", str(directory), "--num-workers", str(workers)]
    with subprocess.Popen(
        [sys.executable, "-c", _SERVICE, *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("dask_mars listens"):
                raise click.ClickException(f"the service did not start: {line}")
            with dask_mars.connect(directory) as service:
                yield psutil.Process(process.pid), service
        finally:
            process.terminate()


def watched(front: psutil.Process, socket_path: Path, work: Callable[[], object]) -> Figures:
    """Do something, and look meanwhile at the front's memory and at how fast others are answered."""
    done = threading.Event()
    before = peak = front.memory_info().rss
    slowest_s = 0.0

    def watch() -> None:
        nonlocal peak, slowest_s
        while not done.wait(_ASK_S):
            peak = max(peak, front.memory_info().rss)
            slowest_s = max(slowest_s, ask(socket_path))

    watcher = threading.Thread(target=watch)
    watcher.start()
    begun = time.perf_counter()
    try:
        work()
        seconds = time.perf_counter() - begun
    finally:
        done.set()
        watcher.join()
    return Figures(seconds, peak - before, slowest_s)


def ask(socket_path: Path) -> float:
    """Ask the service for its state on a new connection; return how long that took."""
    begun = time.perf_counter()
    with contextlib.closing(http.client.HTTPConnection("localhost", timeout=60)) as line:
        line.sock = socket.socket(socket.AF_UNIX)
        line.sock.connect(str(socket_path))
        line.request("GET", "/api/v1/computations?limit=1")
        line.getresponse().read()
    return time.perf_counter() - begun


def copied_s(path: Path) -> float:
    """Return how long a local copy of a file takes."""
    target = path.with_name("copy")
    begun = time.perf_counter()
    shutil.copyfile(path, target)
    seconds = time.perf_counter() - begun
    target.unlink()
    return seconds


def one_of_ten(directory: Path, service: Service) -> int:
    """Submit the same ten times from ten processes; return how many computations the service has more."""
    before = len(list(service.computations()))
    id = "6f1ed002-ab5c-4c57-a0e2-6e1f0b6f5c11"
    processes = [subprocess.Popen([sys.executable, "-c", _SAME, str(directory), id]) for _ in range(10)]
    if any(process.wait() for process in processes):
        raise click.ClickException("a process could not submit")
    assert service.computation(id).result() == 499_500
    return len(list(service.computations())) - before


@options.command("web")
@click.option(
    "--size", "size_bytes", default="2 GB", callback=options.byte_size, metavar="SIZE", help="Of body and result."
)
@options.repeat(3)
@options.workers
@options.directory("Where the service keeps its records.  [default: that for temporary files]")
def web(size_bytes: int, repeat: int, workers: int, directory: Path | None) -> None:
    """Measure a standing service, on this machine and by its unix socket.

    Bodies and results go through the front, which must not grow with them, and others must be answered meanwhile.
    A local copy of the result's file is what its download is compared with. The least of the repeats is shown for
    seconds, and the most for memory and answers.
    """
    console = plain_console()
    table = markdown_table(
        "what", "s", "MB/s", "front grew by, MiB", "slowest answer to others, ms", words=("what",)
    )
    with tempfile.TemporaryDirectory(dir=directory) as own:
        place = Path(own) / "service"
        with running(place, workers) as (front, service):
            socket_path = place / "socket"
            body = np.random.default_rng(1).integers(0, 255, size_bytes, np.uint8)
            submitted = [_submit(front, socket_path, service, body) for _ in range(repeat)]
            _row(table, "submit a body", submitted, size_bytes)
            del body
            result = _large(service, size_bytes)
            path = max((place / "results").iterdir(), key=lambda found: found.stat().st_size)
            rounds = [(copied_s(path), watched(front, socket_path, result.result)) for _ in range(repeat)]
            _row(table, "local copy of a result", [Figures(copy_s, 0, 0.0) for copy_s, _ in rounds], size_bytes)
            _row(table, "fetch a result", [figures for _, figures in rounds], size_bytes)
            compute = partial(dask.delayed(abs)(-1).compute, scheduler=service.get)
            times = [watched(front, socket_path, compute) for _ in range(_SMALL_RUNS)]
            _row(table, "one small computation, waited for", times, 0)
            more = one_of_ten(place, service)
    console.print(table)
    console.print(
        f"{workers} workers, {repeat} repeats. Ten processes submitted the same: {more} computation more."
    )


def _submit(front: psutil.Process, socket_path: Path, service: Service, body: np.ndarray) -> Figures:
    made: list[RemoteComputation] = []
    x = da.from_array(body, chunks=-1, name=False)[:1]
    figures = watched(front, socket_path, lambda: made.append(service.submit(x)))
    made[0].result()
    made[0].delete()
    return figures


def _large(service: Service, size_bytes: int) -> RemoteComputation:
    x = da.random.default_rng(1).integers(0, 255, size_bytes, np.uint8, chunks=64 << 20)
    computation = service.submit(x, name="large")
    computation.wait()
    return computation


def _row(table: Table, what: str, figures: list[Figures], size_bytes: int) -> None:
    seconds = min(one.seconds for one in figures)
    speed = f"{size_bytes / seconds / 1e6:,.0f}" if size_bytes else "-"
    growth = max(one.growth_bytes for one in figures) / MIB
    slowest_ms = max(one.slowest_s for one in figures) * 1e3
    table.add_row(what, f"{seconds:.3f}", speed, f"{growth:,.1f}", f"{slowest_ms:,.0f}")


__all__ = ["web"]
