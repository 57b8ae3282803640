"""The child process of ``python -m benchmarks viewers``: computes a graph, watched or not."""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.child import Clock, require_within
from benchmarks.events import Events, main
from benchmarks.functions import one
from benchmarks.jobs import ViewersJob
from benchmarks.viewer import VIEWS

#: Chunks along each of two dimensions, at scale 1.
SIDE = 1000
ALONE, WATCHED = "alone", "watched"


def graph_of(side: int) -> dict[Any, Any]:
    """Return a graph of ``side * side`` chunks in a grid, and their sum.

    Parameters
    ----------
    side
        Chunks along each dimension.
    """
    graph: dict[Any, Any] = {("load", row, column): (one,) for row in range(side) for column in range(side)}
    for row in range(side):
        graph["row", row] = (sum, [("load", row, column) for column in range(side)])
    graph["total", 0] = (sum, [("row", row) for row in range(side)])
    return graph


@contextmanager
def watching(runtime: Any, viewers: int) -> Iterator[list[float]]:
    """Have viewers look at a runtime; then the list has of each view median and maximum of seconds.

    Parameters
    ----------
    runtime
        A `dask_mars.Runtime`.
    viewers
        How many.
    """
    figures: list[float] = []
    with runtime.serve() as server:
        command = [sys.executable, "-m", "benchmarks.viewer", server.url, server.token, str(viewers)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            yield figures
            told = json.loads(process.communicate()[0])
    if told["errors"]:
        raise RuntimeError(told["errors"][0])
    for view in VIEWS:
        seconds = told["seconds"][view]
        figures += [statistics.median(seconds), max(seconds)] if seconds else [0.0, 0.0]


def run(job: ViewersJob, events: Events) -> None:
    """Do a job.

    Parameters
    ----------
    job
        What to do.
    events
        Where to tell of it.
    """
    # Each process is to be charged for it alike.
    from dask_mars import Runtime

    side = max(int(SIDE * job.scale), 2)
    clock = Clock(job.timeout_s)
    with Runtime(job.workers) as runtime:
        runtime.get(graph_of(10), ("total", 0))
        for number in range(job.repeat):
            if number and not clock.fits():
                break
            graph = graph_of(side)
            gc.collect()
            if job.peer == WATCHED:
                with watching(runtime, job.viewers) as figures:
                    value, seconds = clock.time(lambda graph=graph: runtime.get(graph, ("total", 0)))
            else:
                figures = []
                value, seconds = clock.time(lambda graph=graph: runtime.get(graph, ("total", 0)))
            require_within((side * side, side * side), value, "the sum of ones")
            events.send("timed", seconds=seconds, value=figures)


if __name__ == "__main__":
    main(ViewersJob, run)
