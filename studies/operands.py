"""What one operand costs in graphs of growing size: ``python -m studies operands``.

Whole calls of the scheduler are timed, each size in fresh processes with a warm pool. If the cost were the same at
every size, a graph ten times as large would take ten times as long.
"""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import dask.array

from benchmarks import options
from benchmarks.machine import describe_machine, machine_facts
from benchmarks.memory import memory_kind, own_peak_bytes, peak_memory, tree_bytes
from benchmarks.peers import PEERS, Get
from benchmarks.report import NONE, markdown_table, plain_console, print_tables
from benchmarks.tasks import independent_noops, tree_of_sums
from studies.apart import call_apart
from studies.graphs import Handed, handed_over

# Dask has few annotations. Saying so once keeps the type checker strict with all the rest.
da: Any = dask.array

#: How many operands a process runs at least in all, in calls of which the median counts: small graphs take
#: milliseconds, and a single one says little.
LEAST_OPERANDS = 100_000
MOST_CALLS = 20

#: The part of the operands with which the pool is warmed.
WARM_UP_SHARE = 0.01

# -- graphs -------------------------------------------------------------------------------------------------------


def _independent(count: int, seed: int) -> Handed:
    graph = independent_noops(count, seed)
    return graph, list(graph)


def _tree(count: int, seed: int) -> Handed:
    return tree_of_sums((count + 1) // 2, seed), [f"tree-{seed}-1"]


def _array(count: int, seed: int) -> Handed:
    # Another number to add gives keys of its own.
    return handed_over((da.ones(count * 10, chunks=10) + seed).sum())


#: Graphs of about so many operands, by name. An array's sum has a third more, which are not counted: those that
#: add what is left of its chunks.
GRAPHS: dict[str, Callable[[int, int], Handed]] = {"independent": _independent, "tree": _tree, "array": _array}


# -- one process --------------------------------------------------------------------------------------------------


class Figures(NamedTuple):
    """What one process has measured.

    Attributes
    ----------
    seconds
        Of the median call.
    client_bytes
        By how much the peak of the client's own memory grew.
    tree_bytes
        By how much the memory of all processes grew, at most; 0 where that was not looked at.
    """

    seconds: float
    client_bytes: int
    tree_bytes: int


def _call(get: Get, handed: Handed) -> float:
    gc.collect()
    start_s = time.perf_counter()
    get(*handed)
    return time.perf_counter() - start_s


def _measure_here(graph: str, count: int, workers: int, sampled: bool) -> Figures:
    make, kind = GRAPHS[graph], memory_kind()
    with PEERS["mars"].open(workers) as get:
        _call(get, make(max(round(count * WARM_UP_SHARE), 100), 0))
        handed = make(count, 1)
        gc.collect()
        client_before = own_peak_bytes()
        if sampled:
            tree_before = tree_bytes(os.getpid(), kind)
            with peak_memory(os.getpid()) as peak:
                seconds = [_call(get, handed)]
            return Figures(seconds[0], own_peak_bytes() - client_before, max(peak.bytes - tree_before, 0))
        seconds = [_call(get, handed)]
        client_bytes = own_peak_bytes() - client_before
        for seed in range(2, min(LEAST_OPERANDS // count, MOST_CALLS) + 1):
            seconds.append(_call(get, make(count, seed)))
    return Figures(statistics.median(seconds), client_bytes, 0)


def measure(graph: str, count: int, workers: int, timeout_s: float, sampled: bool) -> Figures | None:
    """Measure one graph in a process of its own.

    Parameters
    ----------
    graph
        A name in `GRAPHS`.
    count
        About how many operands it is to have.
    workers
        How many worker processes there are.
    timeout_s
        What it may take.
    sampled
        Whether the memory of all processes is sampled, which takes time.

    Returns
    -------
    Figures or None
        None if it took too long.
    """
    arguments = graph, count, workers, sampled
    try:
        return Figures(*call_apart(_measure_here, *arguments, environment={}, timeout_s=timeout_s))
    except subprocess.TimeoutExpired:
        return None


# -- the command --------------------------------------------------------------------------------------------------


def growth(costs: Iterable[float]) -> float:
    """Return how many times the least cost per operand the largest is."""
    found = list(costs)
    return max(found) / min(found)


def _row(graph: str, count: int, timed: list[Figures], sampled: Figures | None) -> list[str]:
    if not timed:
        return [graph, f"{count:,}", "timeout", *[NONE] * 4]
    seconds = statistics.median(figures.seconds for figures in timed)
    return [
        graph,
        f"{count:,}",
        f"{seconds:.3g}",
        f"{seconds / count * 1e6:.3g}",
        f"{count / seconds:,.0f}",
        f"{max(figures.client_bytes for figures in timed) / count:,.0f}",
        NONE if sampled is None else f"{sampled.tree_bytes / count:,.0f}",
    ]


@options.command("operands")
@options.graphs(GRAPHS)
@options.counts([1_000, 10_000, 100_000, 1_000_000], "operands")
@options.rounds
@options.workers
@options.timeout
def operands(
    graphs: tuple[str, ...], counts: tuple[int, ...], rounds: int, workers: int, timeout_s: float
) -> None:
    """Measure what an operand costs in small and large graphs, as Markdown.

    Whole calls are timed, from Dask's graph to the values. Operands are no-ops and additions of two numbers in
    plain dicts, and the blocks of an array of ones, to each of which one is added before the sum is taken. Memory
    is what a call adds at most to what there was before it, in the client's process and in all of them; of small
    graphs that is less than can be measured.
    """
    chosen = [graph for graph in GRAPHS if graph in graphs or not graphs]
    timed: dict[tuple[str, int], list[Figures]] = {(graph, count): [] for graph in chosen for count in counts}
    # The sizes take turns, so that drift of the machine falls on all alike.
    for _ in range(rounds):
        for (graph, count), found in timed.items():
            if (figures := measure(graph, count, workers, timeout_s, sampled=False)) is not None:
                found.append(figures)
    console = plain_console()
    console.print(f"{describe_machine(machine_facts())}; {workers} workers.", soft_wrap=True)
    heads = (
        "seconds",
        "us each",
        "operands/s",
        "client bytes each",
        f"bytes of all processes ({memory_kind()}) each",
    )
    table = markdown_table("graph", "operands", *heads)
    for (graph, count), found in timed.items():
        table.add_row(*_row(graph, count, found, measure(graph, count, workers, timeout_s, sampled=True)))
    flatness = markdown_table("graph", "largest / smallest cost")
    for graph in chosen:
        costs = [
            statistics.median(figures.seconds for figures in found) / count
            for (name, count), found in timed.items()
            if name == graph and found
        ]
        if costs:
            flatness.add_row(graph, f"{growth(costs):.2f}")
    print_tables(console, table, flatness)
