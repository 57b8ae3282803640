"""What engines without work give back, and what it costs to begin again: ``python -m studies idle``.

Data are persisted and deleted, in a process of their own for each kind. Then nobody calls anything, until free
memory has gone back to the system and after that the worker processes have ended.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest import mock

import click
import dask
import dask.array as da
import numpy as np
import psutil

from benchmarks import options
from benchmarks.machine import describe_machine, machine_facts
from benchmarks.memory import memory_kind, tree_bytes
from benchmarks.report import MIB, markdown_table, plain_console, print_tables
from dask_mars import Runtime, config
from studies.apart import call_apart

WORKERS = 2
#: How long it may take at most until something has been given back, beyond the time set for that.
_GRACE_S = 10.0
_WARM_CALLS = 20


def arrays(chunk_bytes: int) -> Any:
    """Return 32 chunks of random numbers, which lie in shared memory."""
    length = chunk_bytes // 8
    return da.random.default_rng(0).random(32 * length, chunks=length)


def given(chunk_bytes: int) -> Any:
    """Return 32 chunks computed from an array of the user's, which has to be put into shared memory first."""
    length = chunk_bytes // 8
    return da.from_array(np.arange(32.0 * length), chunks=length) + 1


def strings(chunk_bytes: int) -> Any:
    """Return 8 partitions with strings of Arrow's, which workers make in private memory."""
    import dask.dataframe as dd
    import pandas as pd

    def partition(seed: int) -> pd.DataFrame:
        numbers = np.random.default_rng(seed).integers(0, 10**9, chunk_bytes // 32)
        text = pd.Series(numbers).astype(str)
        return pd.DataFrame({"text": text.astype("string[pyarrow]"), "number": numbers})

    return dd.from_map(partition, range(8), meta=partition(0).iloc[:0])


KINDS: dict[str, Callable[[int], Any]] = {"arrays": arrays, "given": given, "strings": strings}
PROBES: dict[str, Callable[[], Any]] = {
    "arrays": lambda: da.ones(1000, chunks=500).sum(),
    "given": lambda: given(1 << 12).sum(),
    "strings": lambda: strings(1 << 15).text.str.len().sum(),
}


def own_bytes() -> int:
    """Return the memory of this process and of all that it has started."""
    return tree_bytes(os.getpid(), memory_kind())


def await_no_workers(timeout_s: float) -> None:
    """Wait until no process is left that this one has started.

    Raises
    ------
    TimeoutError
        There is one.
    """
    deadline_s = time.monotonic() + timeout_s
    while psutil.Process().children():
        if time.monotonic() > deadline_s:
            raise TimeoutError("workers did not end")
        time.sleep(0.02)


def memory(kind: str, chunk_bytes: int, trim_s: float) -> dict[str, int]:
    """Return the bytes that all processes take at each stage."""
    settings = {
        "dask-mars.idle-timeout": f"{2 * trim_s + 4} s",
        "dask-mars.start-in-threads": False,
    }
    trimmed_early = mock.patch.object(config, "Settings", partial(config.Settings, idle_trim_s=trim_s))
    with dask.config.set(settings), trimmed_early, Runtime(WORKERS) as runtime:
        PROBES[kind]().compute(scheduler=runtime.get)
        found = {"at first": own_bytes()}
        persisted = runtime.persist([KINDS[kind](chunk_bytes)])
        found["with data"] = own_bytes()
        del persisted
        time.sleep(1.0)
        found["1 s after"] = own_bytes()
        time.sleep(trim_s + 1.0)
        found["given back"] = own_bytes()
        await_no_workers(2 * trim_s + _GRACE_S)
        found["without workers"] = own_bytes()
    return found


def latency_s(kind: str, repeat: int) -> dict[str, list[float]]:
    """Return how long a small computation takes with workers that are up, and without, so often each."""
    seconds: dict[str, list[float]] = {"warm": [], "restarted": []}
    settings = {"dask-mars.idle-timeout": "300 ms", "dask-mars.start-in-threads": False}
    with dask.config.set(settings), Runtime(WORKERS) as runtime:

        def once() -> float:
            began_s = time.perf_counter()
            PROBES[kind]().compute(scheduler=runtime.get)
            return time.perf_counter() - began_s

        once()
        for _ in range(repeat):
            seconds["warm"].append(statistics.median(once() for _ in range(_WARM_CALLS)))
            await_no_workers(_GRACE_S)
            seconds["restarted"].append(once())
    return seconds


def _row(values: Sequence[float], unit: float) -> list[str]:
    return [f"{value / unit:,.0f}" for value in values]


@options.command("idle")
@options.several("--kind", "-k", "kinds", of=KINDS)
@click.option(
    "--chunk-bytes", type=click.IntRange(min=1 << 16), default=32 * MIB, help="Of an array or partition."
)
@click.option("--trim", type=float, default=10.0, help="Seconds without work after which memory goes back.")
@click.option("--repeat", "-r", type=click.IntRange(min=1), default=5, help="How often the workers start again.")
def idle(kinds: list[str], chunk_bytes: int, trim: float, repeat: int) -> None:
    """Measure what an engine gives back while it has no work, as Markdown, in MiB of all processes.

    "at first" is after a small computation, "1 s after" and what follows after the data were deleted, "given back"
    two seconds after free memory was due. Of the latencies each is a median.
    """
    console = plain_console()
    console.print(describe_machine(machine_facts()))
    stages: list[str] = []
    rows, times = [], []
    for kind in kinds:
        found = call_apart(memory, kind, chunk_bytes, trim)
        stages = list(found)
        rows.append([kind, *_row(list(found.values()), MIB)])
        seconds = call_apart(latency_s, kind, repeat)
        warm, restarted = seconds["warm"], seconds["restarted"]
        spread = f"{min(restarted) * 1e3:,.0f}-{max(restarted) * 1e3:,.0f}"
        times.append([kind, *_row([statistics.median(warm), statistics.median(restarted)], 1e-3), spread])
    taken = markdown_table("MiB", *stages, words=("MiB",))
    for row in rows:
        taken.add_row(*row)
    waited = markdown_table("ms", "warm", "workers restarted", "min-max", words=("ms",))
    for row in times:
        waited.add_row(*row)
    print_tables(console, taken, waited)
