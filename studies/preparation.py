"""What it takes to make graphs ready to run: ``python -m studies preparation``.

Nothing here starts a worker. Each figure comes from a process of its own, so that its peak of memory is that of
one preparation.
"""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable
from typing import Any

import click
import dask
import dask.array
from dask._task_spec import convert_legacy_graph
from dask.local import start_state_from_dask

from benchmarks import options
from benchmarks.functions import noop
from benchmarks.machine import describe_machine, machine_facts
from benchmarks.memory import own_peak_bytes
from benchmarks.report import markdown_table, plain_console, print_tables
from dask_mars.optimize.prepare import prepare
from studies.apart import call_apart
from studies.graphs import Handed, handed_over

# Dask has few annotations. Saying so once keeps the type checker strict with all the rest.
_dask: Any = dask
da: Any = dask.array

# -- graphs of about as many tasks or chunks as asked for ---------------------------------------------------------


def _elementwise_sum(count: int) -> Handed:
    return handed_over((da.ones(count * 10, chunks=10) * 2 + 1).sum())


def _overlap(count: int) -> Handed:
    # Of each block there are eight edges, a block with its neighbours' edges, and what is made of that.
    side = max(3, math.isqrt(count // 10))
    return handed_over(da.ones((4 * side, 4 * side), chunks=4).map_overlap(operator.neg, depth=1, boundary="none"))


def _rechunk(count: int) -> Handed:
    # From columns to rows, with half of the tasks cutting.
    side = max(2, math.isqrt(count))
    return handed_over(da.ones((side, side), chunks=(side, 1)).rechunk((1, side), threshold=1 << 60))


def _delayed(count: int) -> Handed:
    task = _dask.delayed(noop, pure=False)
    return handed_over(_dask.delayed(noop)([task(task(number)) for number in range(count // 2)]))


def _tree(count: int) -> Handed:
    leaves = (count + 1) // 2
    graph: dict[Any, Any] = {("t", number): (operator.add, number, 1) for number in range(leaves, 2 * leaves)}
    for number in range(leaves - 1, 0, -1):
        graph["t", number] = (operator.add, ("t", 2 * number), ("t", 2 * number + 1))
    return graph, [("t", 1)]


GRAPHS: dict[str, Callable[[int], Handed]] = {
    "elementwise-sum": _elementwise_sum,
    "overlap": _overlap,
    "rechunk": _rechunk,
    "delayed": _delayed,
    "tree": _tree,
}


# -- ways ---------------------------------------------------------------------------------------------------------


def _by_mars(dsk: Any, keys: list[Any]) -> int:
    return len(prepare(dsk, keys))


def _by_dask(dsk: Any, keys: list[Any]) -> int:
    """Do what Dask's threaded scheduler does before it starts a task."""
    tasks = dsk if isinstance(dsk, dict) else dsk.__dask_graph__()
    start_state_from_dask(convert_legacy_graph(tasks), keys=set(keys))
    return len(tasks)


WAYS: dict[str, Callable[[Any, list[Any]], int]] = {"threads": _by_dask, "mars": _by_mars}


def _measure_here(graph: str, way: str, count: int) -> dict[str, float]:
    dsk, keys = GRAPHS[graph](count)
    before_bytes = own_peak_bytes()
    start = time.perf_counter()
    made = WAYS[way](dsk, keys)
    taken_s = time.perf_counter() - start
    return {"made": made, "seconds": taken_s, "peak_bytes": own_peak_bytes() - before_bytes}


def measure(graph: str, way: str, count: int, repeat: int) -> dict[str, float]:
    """Measure one way to prepare a graph, in processes of its own.

    Parameters
    ----------
    graph, way
        Names in `GRAPHS` and `WAYS`.
    count
        About how many chunks or tasks it is to have.
    repeat
        How many processes.

    Returns
    -------
    dict
        ``made`` chunks or tasks, ``seconds`` of the median process, and ``peak_bytes`` that it took beyond what it
        had before.
    """
    runs = [call_apart(_measure_here, graph, way, count, environment={}) for _ in range(repeat)]
    return dict(sorted(runs, key=operator.itemgetter("seconds"))[repeat // 2])


@options.command("preparation")
@options.graphs(GRAPHS)
@click.option(
    "--way", "-p", "ways", multiple=True, type=click.Choice(list(WAYS)), help="Whose preparation. Default: all."
)
@options.counts([20_000], "chunks or tasks")
@options.repeat(3, "Processes per figure, of which the median counts.")
def preparation(graphs: tuple[str, ...], ways: tuple[str, ...], counts: tuple[int, ...], repeat: int) -> None:
    """Measure how long graphs take from Dask's expression to being ready to run, as Markdown.

    For threads that is all that Dask's scheduler does before it starts a task: optimisation, tasks, their order.
    Microseconds and bytes are for one of the chunks or tasks that were asked for with --count.
    """
    console = plain_console()
    console.print(describe_machine(machine_facts()), soft_wrap=True)
    headings = ("graph", "count", "way", "chunks or tasks made", "seconds", "us each", "peak bytes each")
    table = markdown_table(*headings, words=("graph", "way"))
    for graph in graphs or GRAPHS:
        for count in counts:
            for way in ways or WAYS:
                figures = measure(graph, way, count, repeat)
                table.add_row(
                    graph,
                    f"{count:,}",
                    way,
                    f"{figures['made']:,}",
                    f"{figures['seconds']:.3g}",
                    f"{figures['seconds'] / count * 1e6:.3g}",
                    f"{figures['peak_bytes'] / count:,.0f}",
                )
    print_tables(console, table)
