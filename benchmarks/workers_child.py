"""The child process: an engine with many workers, whose tasks sleep; reports figures as JSON."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks.functions import dozed, dozed_array
from dask_mars import Runtime

#: Bytes of results that other tasks read.
RESULT_BYTES = 1 << 20

Graph = dict[Any, Any]


def flat(count: int) -> tuple[Graph, list[Any]]:
    """Return independent tasks."""
    graph: Graph = {("flat", n): (dozed, n) for n in range(count)}
    return graph, list(graph)


def tree(count: int) -> tuple[Graph, list[Any]]:
    """Return tasks, and sums of eight until one is left."""
    graph: Graph = {("leaf", n): (dozed, n) for n in range(count)}
    level, depth = list(graph), 0
    while len(level) > 1:
        groups = [level[at : at + 8] for at in range(0, len(level), 8)]
        graph.update({("sum", depth, n): (dozed, group) for n, group in enumerate(groups)})
        level, depth = [("sum", depth, n) for n in range(len(groups))], depth + 1
    return graph, level


def exchange(count: int) -> tuple[Graph, list[Any]]:
    """Return tasks with large results, each of which two of as many other tasks read."""
    half = count // 2
    graph: Graph = {("made", n): (dozed_array, n, RESULT_BYTES) for n in range(half)}
    readers: Graph = {("read", n): (dozed, [("made", n), ("made", (n + 7) % half)]) for n in range(half)}
    return graph | readers, list(readers)


GRAPHS: dict[str, Callable[[int], tuple[Graph, list[Any]]]] = {"flat": flat, "tree": tree, "exchange": exchange}


def engine_thread() -> threading.Thread:
    """Return the thread of the one engine of this process."""
    (found,) = [thread for thread in threading.enumerate() if thread.name == "dask-mars-engine"]
    return found


def measure(workers: int, count: int) -> dict[str, tuple[float, float]]:
    """Return microseconds of the engine's processor and seconds in all, of a chunk and of a graph of each kind."""
    figures = {}
    with Runtime(num_workers=workers) as runtime:
        runtime.start()
        # Every worker has to be up, and its arena warm.
        for make in GRAPHS.values():
            runtime.get(*make(max(count // 4, 8 * workers)))
        ident = engine_thread().ident
        assert ident is not None
        clock = time.pthread_getcpuclockid(ident)
        for name, make in GRAPHS.items():
            graph, keys = make(count)
            began_s, used_s = time.perf_counter(), time.clock_gettime(clock)
            runtime.get(graph, keys)
            used_s, taken_s = time.clock_gettime(clock) - used_s, time.perf_counter() - began_s
            figures[name] = 1e6 * used_s / len(graph), taken_s
    return figures


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:]))))
