"""How much memory orders of execution need: ``python -m studies order``.

Graphs are computed once, to know the sizes of all results. From then on nothing is, and chunks all take equally
long.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any

import dask.array

from benchmarks import options
from benchmarks.arrays import COLLECTIONS
from benchmarks.report import markdown_table, plain_console
from dask_mars.scheduler.policies.mars import depths
from studies.graphs import SizedGraph, Steps, dask_order, scaled_workload, sized_graph

# Dask has few annotations. Saying so once keeps the type checker strict with all the rest.
da: Any = dask.array

#: Of the linear sizes of the benchmarks.
SCALE = 0.1


# -- graphs -------------------------------------------------------------------------------------------------------


def _quadratic_means() -> list[Any]:
    # https://github.com/dask/dask/issues/10384, where xarray makes these means; a tenth of its length and sides.
    u, v = (da.random.default_rng(seed).random((500, 1, 99, 192), chunks=(10, 1, -1, -1)) for seed in (1, 2))
    return [da.nanmean(square, axis=0) for square in (u**2, v**2, u * v)]


def _correlations() -> list[Any]:
    # https://github.com/dask/dask/issues/5859, the short example there, with smaller chunks.
    x = da.random.default_rng(1).random((30, 64, 64), chunks=(10, 64, 64))
    products = x[:, None] * x.conj()[None]
    flat = products.reshape((*products.shape[:-2], -1))
    return [da.argmax(flat, axis=-1), da.max(flat, axis=-1)]


def _broadcast_products() -> list[Any]:
    # https://github.com/dask/dask/issues/3139: rows of a large array times two smaller ones.
    x = da.random.default_rng(1).random((25, 64, 256), chunks=(1, -1, -1))
    rows, columns = da.ones((64, 1), chunks=-1), da.ones((1, 256), chunks=-1)
    return [(x.rechunk((1, 32, -1)) * rows * columns).sum(axis=0)]


def _anomaly_mean() -> list[Any]:
    # https://github.com/dask/dask/issues/9995: the mean of what is left when means of days are subtracted.
    days = 10
    x = da.random.default_rng(1).random((10 * days, 50, 200), chunks=(days, 50, 20))
    parts = [x[day::days] - x[day::days].mean(axis=0) for day in range(days)]
    return [da.concatenate(parts).mean(axis=0)]


def _climatology() -> list[Any]:
    # Of each month the mean of all years, and the deviation of each year's month from it.
    years = 20
    x = da.random.default_rng(1).random((12 * years, 50, 200), chunks=(12, 50, 20))
    by_year = [x[12 * year : 12 * year + 12] for year in range(years)]
    climate = da.stack(by_year).mean(axis=0)
    return [da.concatenate([part - climate for part in by_year]).std(axis=0)]


def _benchmark(name: str) -> Callable[[], list[Any]]:
    return lambda: [scaled_workload(name, SCALE)]


#: By name, what makes the collections that are computed together.
GRAPHS: dict[str, Callable[[], list[Any]]] = {
    **{name: _benchmark(name) for name in COLLECTIONS},
    "quadratic-means": _quadratic_means,
    "correlations": _correlations,
    "broadcast-products": _broadcast_products,
    "anomaly-mean": _anomaly_mean,
    "climatology": _climatology,
}


# -- orders -------------------------------------------------------------------------------------------------------


def by_priority(sized: SizedGraph, key: Callable[[int], Any], workers: int) -> Steps:
    """Let workers always take the READY chunk with the smallest key.

    Parameters
    ----------
    sized
        The graph.
    key
        Priority of a chunk.
    workers
        How many there are.
    """
    inputs = sized.graph.inputs
    consumers: list[list[int]] = [[] for _ in inputs]
    waiting = [0] * len(inputs)
    for chunk in sized.computed():
        for source in set(inputs[chunk]):
            if not sized.is_known(source):
                consumers[source].append(chunk)
                waiting[chunk] += 1
    ready = [(key(chunk), chunk) for chunk in sized.computed() if not waiting[chunk]]
    heapq.heapify(ready)
    steps: Steps = []
    running: list[int] = []
    while ready or running:
        while ready and len(running) < workers:
            running.append(heapq.heappop(ready)[1])
            steps.append((running[-1], False))
        # All take equally long, so that who began first ends first.
        ended = running.pop(0)
        steps.append((ended, True))
        for consumer in consumers[ended]:
            waiting[consumer] -= 1
            if not waiting[consumer]:
                heapq.heappush(ready, (key(consumer), consumer))
    return steps


def by_dask(sized: SizedGraph, workers: int) -> Steps:
    """Let workers follow `dask.order.order`."""
    inputs = sized.graph.inputs
    known = {chunk for chunk in range(len(inputs)) if sized.is_known(chunk)}
    return by_priority(sized, dask_order(inputs, known).__getitem__, workers)


def by_rules(sized: SizedGraph, workers: int) -> Steps:
    """Let workers follow Mars's three rules: the deeper, what deeper ones wait for, the smaller."""
    (depth, demand), sizes = depths(sized.plan()), sized.sizes
    return by_priority(sized, lambda chunk: (-depth[chunk], -demand[chunk], sizes[chunk]), workers)


def by_machine(sized: SizedGraph, workers: int) -> Steps:
    """Let the state machine say what is next, with the default policy."""
    return sized.simulate(workers).steps


ORDERS: dict[str, Callable[[SizedGraph, int], Steps]] = {"dask": by_dask, "memory": by_machine, "rules": by_rules}


def peak_bytes(sized: SizedGraph, steps: Iterable[tuple[int, bool]]) -> int:
    """Return the most that results take at any moment.

    A result takes its bytes from when its chunk begins until the last consumer of it, and of all views of it, has
    ended.

    Parameters
    ----------
    sized
        The graph.
    steps
        Begin and end of each chunk.
    """
    inputs, sizes, blocks = sized.graph.inputs, sized.sizes, sized.blocks
    uses = [0] * len(inputs)
    for chunk in sized.graph.outputs:
        # The user is one more to need it, who never ends.
        uses[chunk] += 1
    for chunk in sized.computed():
        for source in set(inputs[chunk]):
            uses[source] += 1
    # Results by block of memory.
    views = [0] * len(inputs)
    stored = peak = 0
    for chunk, ends in steps:
        if not ends:
            block = blocks[chunk]
            if not views[block] and not sized.is_known(block):
                stored += sizes[block]
                peak = max(peak, stored)
            views[block] += 1
            continue
        for source in set(inputs[chunk]):
            uses[source] -= 1
            if not uses[source] and not sized.is_known(source):
                views[blocks[source]] -= 1
                if not views[blocks[source]] and not sized.is_known(blocks[source]):
                    stored -= sizes[blocks[source]]
    return peak


@options.command("order")
@options.graphs(GRAPHS)
def ordering(graphs: tuple[str, ...]) -> None:
    """Compare how many kB of results are stored at most under orders of execution, as Markdown.

    "dask" is Dask's own order, "memory" the default policy's, "rules" Mars's three rules alone. Graphs are
    given as they are before chains are merged ("layers"), and after ("composed").
    """
    console = plain_console()
    columns = [(name, workers) for workers in (1, 2) for name in ORDERS]
    peak_headings = [f"{name}, {workers} w" for name, workers in columns]
    table = markdown_table(
        "graph", "form", "chunks", *peak_headings, "memory / dask, 1 w", words=("graph", "form")
    )
    for name in graphs or GRAPHS:
        for composed in (False, True):
            sized = sized_graph(*GRAPHS[name](), composed=composed)
            peaks = [peak_bytes(sized, ORDERS[order_name](sized, workers)) for order_name, workers in columns]
            table.add_row(
                name,
                "composed" if composed else "layers",
                f"{len(sized.computed()):,}",
                *[f"{peak / 1e3:,.0f}" if peak > 1e4 else f"{peak / 1e3:.3g}" for peak in peaks],
                f"{peaks[1] / peaks[0]:.2f}",
            )
    console.print(table)
