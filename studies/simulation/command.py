"""The command line: ``python -m studies simulate``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import geometric_mean

import click
from rich.console import Console

from benchmarks import options
from benchmarks.report import markdown_table, plain_console
from studies.simulation.cluster import Cluster, Outcome, Simulation
from studies.simulation.jobs import GROWTH, job_of
from studies.simulation.policies import POLICIES

#: Graph, number of workers and policy.
Case = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class _Figure:
    title: str
    of: Callable[[Outcome], float]
    #: What the last rows say of all graphs.
    summary: str
    summarise: Callable[[Iterable[float]], float]


_FIGURES = (
    _Figure("Makespan in seconds", lambda outcome: outcome.makespan_s, "geometric mean", geometric_mean),
    _Figure("GB moved between workers", lambda outcome: outcome.moved_bytes / 1e9, "sum", math.fsum),
    _Figure(
        "Most chunks of a worker over the mean", lambda outcome: outcome.balance, "geometric mean", geometric_mean
    ),
)


def _print_table(console: Console, figure: _Figure, outcomes: dict[Case, Outcome]) -> None:
    values = {case: figure.of(outcome) for case, outcome in outcomes.items()}
    graphs, counts, policies = (list(dict.fromkeys(parts)) for parts in zip(*outcomes, strict=True))
    table = markdown_table("graph", "workers", *policies)
    for graph in graphs:
        for count in counts:
            table.add_row(graph, f"{count:,}", *[_text(values[graph, count, policy]) for policy in policies])
    for count in counts:
        summaries = [figure.summarise([values[graph, count, policy] for graph in graphs]) for policy in policies]
        table.add_row(figure.summary, f"{count:,}", *map(_text, summaries))
    console.print(f"\n### {figure.title}\n")
    console.print(table)


def _text(value: float) -> str:
    return f"{value:.3g}" if value >= 0.001 else "0"


@options.command("simulate")
@click.option(
    "--graph", "-g", "graphs", multiple=True, type=click.Choice(list(GROWTH)), help="Workload. Default: all."
)
@click.option(
    "--workers",
    "-n",
    "counts",
    multiple=True,
    default=[10, 100, 1000],
    type=click.IntRange(min=1),
    help="How many workers the cluster has.",
)
@click.option("--policy", "-p", "policies", multiple=True, type=click.Choice(list(POLICIES)), help="Default: all.")
@click.option("--slots", default=4, type=click.IntRange(min=1), help="Chunks a worker computes at the same time.")
@click.option("--bandwidth", default=1.25e9, type=click.FloatRange(min=1.0), help="Bytes a second of each link.")
@click.option("--latency", "latency_s", default=1e-3, type=click.FloatRange(min=0.0), help="Of transfers, in s.")
@click.option("--growth", type=click.FloatRange(min=1.0), help="How much shapes grow. Default: by graph.")
@click.option("--stealing/--no-stealing", default=True, help="Idle workers take work from long queues.")
@click.option("--seed", default=1, help="For what is left to chance.")
def simulate(
    graphs: tuple[str, ...],
    counts: tuple[int, ...],
    policies: tuple[str, ...],
    slots: int,
    bandwidth: float,
    latency_s: float,
    growth: float | None,
    stealing: bool,
    seed: int,
) -> None:
    """Simulate clusters that run the array workloads, grown to thousands of chunks, as Markdown.

    breadth-first, depth-first and random say how chunks without inputs are assigned; the others go where most of
    their input bytes are. dask and dask-unbounded are Dask's order and placement, with its worker-saturation of
    1.1 and without limit.
    """
    outcomes: dict[Case, Outcome] = {}
    for graph in graphs or GROWTH:
        job = job_of(graph, growth or GROWTH[graph], seed)
        for workers in counts:
            cluster = Cluster(workers, slots, bandwidth, latency_s)
            for name in policies or POLICIES:
                policy = POLICIES[name](job, cluster, seed)
                outcomes[graph, workers, name] = Simulation(job, cluster, policy, stealing).run()
    console = plain_console()
    for figure in _FIGURES:
        _print_table(console, figure, outcomes)
