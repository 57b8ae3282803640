"""Scheduling policies side by side: ``python -m studies policies``.

As in `ordering`, graphs are computed once to know the sizes of results; then the state machine says what runs
where, and chunks all take equally long.
"""

from __future__ import annotations

import click

from benchmarks import options
from benchmarks.report import markdown_table, plain_console
from dask_mars.scheduler.policies import POLICIES
from dask_mars.scheduler.simulate import NO_WORKER
from studies.graphs import SizedGraph, SizedRun, sized_graph
from studies.ordering import GRAPHS, peak_bytes

#: How many workers there are.
WORKERS = (2, 10, 100, 1000)


def moved_bytes(sized: SizedGraph, workers: list[int]) -> int:
    """Return the bytes that workers read of chunks that others have made, each once by each worker."""
    moved = {
        (source, worker)
        for chunk, worker in enumerate(workers)
        for source in sized.graph.inputs[chunk]
        if workers[source] not in (worker, NO_WORKER)
    }
    return sum(sized.sizes[source] for source, _ in moved)


def balance(sized: SizedGraph, simulation: SizedRun, workers: int) -> float:
    """Return which share of the workers' time they compute, of what could be had by dividing the chunks evenly."""
    fewest = max(1, -(-len(sized.computed()) // workers))
    return fewest / simulation.now_s


@options.command("policies")
@options.graphs(GRAPHS)
@click.option(
    "--workers", "-n", multiple=True, type=click.IntRange(min=1), default=WORKERS, help="How many workers."
)
def policies(graphs: tuple[str, ...], workers: tuple[int, ...]) -> None:
    """Compare scheduling policies, as Markdown.

    "length" is when the last chunk ends, where each takes 1; "peak" the most kB of results that are stored at any
    moment; "moved" the kB that workers read of chunks that others have made; "busy" the share of the time that
    workers compute, of what is possible without dependencies.
    """
    console = plain_console()
    headings = [f"{policy}: {figure}" for policy in POLICIES for figure in ("length", "peak", "moved", "busy")]
    table = markdown_table("graph", "chunks", "workers", *headings, words=("graph",))
    for name in graphs or GRAPHS:
        sized = sized_graph(*GRAPHS[name](), composed=True)
        for count in workers:
            cells = []
            for policy in POLICIES:
                simulation = sized.simulate(count, policy)
                peak, moved = peak_bytes(sized, simulation.steps), moved_bytes(sized, simulation.workers)
                busy = balance(sized, simulation, count)
                cells += [f"{int(simulation.now_s):,}", f"{peak / 1e3:,.0f}", f"{moved / 1e3:,.0f}", f"{busy:.2f}"]
            table.add_row(name, f"{len(sized.computed()):,}", f"{count:,}", *cells)
    console.print(table)
