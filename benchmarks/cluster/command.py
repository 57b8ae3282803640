"""The command line: ``python -m benchmarks cluster``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median

import click
import psutil
from rich.table import Table

from benchmarks import options
from benchmarks.cluster.child import CLUSTERS
from benchmarks.cluster.network import Network, can_make_namespaces, namespaces
from benchmarks.cluster.workloads import CLUSTER_GROUPS, CLUSTER_WORKLOADS
from benchmarks.jobs import ClusterJob, Measurement
from benchmarks.machine import describe_machine, machine_facts
from benchmarks.measure import interleave, run_job
from benchmarks.memory_command import agree
from benchmarks.report import markdown_table, plain_console, significant, write_json

_BASELINE = next(iter(CLUSTERS))
_NONE = "-"

#: What is wanted of ours beside stock workers.
LEAST_RATE, MOST_TIME, MOST_MOVED, MOST_MEMORY = 10.0, 0.6, 1.0, 0.7
#: What counters see besides data: two hosts that have no data for each other keep connections.
_SMALL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Figures:
    """One workload under one peer, over all rounds. None where no run says."""

    workload: str
    peer: str
    seconds: tuple[float, ...]
    #: Of one run, the median.
    moved_bytes: float | None
    #: Of the host that takes most, the median of rounds.
    peak_bytes: float | None
    rate: float | None
    notes: tuple[str, ...]

    @property
    def median_s(self) -> float | None:
        """The median of all runs."""
        return median(self.seconds) if self.seconds else None


def summarise(measurements: Sequence[Measurement]) -> list[Figures]:
    """Draw the rounds together.

    Parameters
    ----------
    measurements
        In any order.

    Returns
    -------
    list of Figures
        By workload in the catalogue's order, then by peer.
    """
    found = []
    for name in CLUSTER_WORKLOADS:
        of_workload = [m for m in measurements if m.job.workload == name]
        for peer in CLUSTERS:
            own = [m for m in of_workload if m.job.peer == peer]
            if own:
                found.append(_figures(own, of_workload))
    return found


def _figures(own: Sequence[Measurement], of_workload: Sequence[Measurement]) -> Figures:
    job = own[0].job
    seconds = tuple(second for m in own for second in m.seconds)
    moved = [bytes_ for m in own for bytes_ in m.moved_bytes]
    peaks = [m.peak_memory_bytes for m in own if m.peak_memory_bytes is not None]
    tasks = CLUSTER_WORKLOADS[job.workload].tasks
    notes = [f"{m.status}: {m.detail}" for m in own if m.status != "ok"]
    if stray := sum(m.stray_processes for m in own):
        notes.append(f"left {stray} processes behind")
    if not agree([*of_workload[:1], *own]):
        notes.append(f"WRONG: differs from {of_workload[0].job.peer}")
    return Figures(
        workload=job.workload,
        peer=job.peer,
        seconds=seconds,
        moved_bytes=median(moved) if moved else None,
        peak_bytes=median(peaks) if peaks else None,
        rate=tasks(job.scale) / median(seconds) if tasks is not None and seconds else None,
        notes=tuple(dict.fromkeys(notes)),
    )


def over_stock(ours: float | None, stock: float | None) -> float | None:
    """Return a figure of ours over the stock cluster's, None where either is missing."""
    return None if ours is None or not stock else ours / stock


def _row(figures: Figures, stock: Figures | None) -> list[str]:
    seconds = figures.seconds

    def shown(value: float | None, unit: float = 1.0) -> str:
        return _NONE if value is None else significant(value / unit)

    def ratio(figure: Callable[[Figures], float | None]) -> str:
        found = over_stock(figure(figures), None if stock is None else figure(stock))
        return _NONE if found is None else f"{found:.2f}"

    return [
        figures.workload,
        figures.peer,
        shown(figures.median_s),
        f"{significant(min(seconds))}-{significant(max(seconds))}" if seconds else _NONE,
        str(len(seconds)),
        ratio(lambda of: of.median_s),
        shown(figures.rate),
        shown(figures.moved_bytes, 2**20),
        shown(figures.peak_bytes, 2**20),
        ratio(lambda of: of.peak_bytes),
        "; ".join(figures.notes).replace("|", r"\|"),
    ]


def table_of(figures: Sequence[Figures], memory_figure: str) -> Table:
    """Make the table of all figures, in Markdown.

    Parameters
    ----------
    figures
        As `summarise` gives them.
    memory_figure
        What memory is counted in.
    """
    table = markdown_table(
        "workload",
        "peer",
        "median s",
        "min-max s",
        "runs",
        f"time / {_BASELINE}",
        "operands/s",
        "MiB between hosts",
        f"peak {memory_figure} MiB of a host",
        f"peak / {_BASELINE}",
        "notes",
        words=("workload", "peer", "notes"),
    )
    stock = {row.workload: row for row in figures if row.peer == _BASELINE}
    for row in figures:
        table.add_row(*_row(row, stock.get(row.workload)))
    return table


@dataclass(frozen=True, slots=True)
class Goal:
    """What is wanted, and what there is."""

    what: str
    wanted: str
    found: float
    met: bool


def goals(figures: Sequence[Figures]) -> list[Goal]:
    """Hold what there is against what is wanted, as far as both peers have run.

    Parameters
    ----------
    figures
        As `summarise` gives them.
    """
    stock = {row.workload: row for row in figures if row.peer == _BASELINE}
    pairs = [(row, stock[row.workload]) for row in figures if row.peer != _BASELINE and row.workload in stock]
    return [*_rates(pairs), *_times(pairs), *_moved(pairs), *_peaks(pairs)]


_Pairs = Sequence[tuple[Figures, Figures]]


def _rates(pairs: _Pairs) -> Iterator[Goal]:
    for ours, stock in pairs:
        rate = over_stock(ours.rate, stock.rate)
        if rate is not None:
            yield Goal(f"operands/s, {ours.workload}", f"at least {LEAST_RATE:g}", rate, rate >= LEAST_RATE)


def _times(pairs: _Pairs) -> Iterator[Goal]:
    times = [
        time
        for ours, stock in pairs
        if ours.workload in CLUSTER_GROUPS["array"]
        and (time := over_stock(ours.median_s, stock.median_s)) is not None
    ]
    if times:
        mean = geometric_mean(times)
        what = f"time, geometric mean of {len(times)} array workloads"
        yield Goal(what, f"at most {MOST_TIME:g}", mean, mean <= MOST_TIME)


def _moved(pairs: _Pairs) -> Iterator[Goal]:
    for ours, stock in pairs:
        if ours.moved_bytes is None or stock.moved_bytes is None:
            continue
        # Where nothing has to move the ratio is one of noise, and a message more or less is no difference.
        moved = round((ours.moved_bytes + _SMALL_BYTES) / (stock.moved_bytes + _SMALL_BYTES), 2)
        yield Goal(f"bytes between hosts, {ours.workload}", f"at most {MOST_MOVED:g}", moved, moved <= MOST_MOVED)


def _peaks(pairs: _Pairs) -> Iterator[Goal]:
    for ours, stock in pairs:
        peak = over_stock(ours.peak_bytes, stock.peak_bytes)
        if peak is not None and ours.workload in CLUSTER_GROUPS["shared"]:
            yield Goal(
                f"peak memory of a host, {ours.workload}", f"at most {MOST_MEMORY:g}", peak, peak <= MOST_MEMORY
            )


def _table_of_goals(found: Sequence[Goal]) -> Table:
    table = markdown_table("mars / stock", "wanted", "found", "met", words=("mars / stock", "wanted", "met"))
    for goal in found:
        table.add_row(goal.what, goal.wanted, f"{goal.found:.2f}", "yes" if goal.met else "NO")
    return table


def _line(measurement: Measurement) -> str:
    job = measurement.job
    seconds = " ".join(f"{second:.3g}" for second in measurement.seconds)
    end = "" if measurement.status == "ok" else f" {measurement.status}: {measurement.detail}"
    return f"round {job.round_index + 1}  {job.workload:20}{job.peer:8}{seconds}{end}"


@click.command("cluster", context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--peer", "-p", "peers", multiple=True, type=click.Choice(list(CLUSTERS)), help="Default: all.")
@click.option(
    "--workload",
    "-w",
    "workloads",
    multiple=True,
    type=click.Choice([*CLUSTER_GROUPS, *CLUSTER_WORKLOADS]),
    metavar="NAME",
    help="A workload or a group (tasks, array, shared). Default: all.",
)
@options.rounds
@click.option("--repeat", default=3, type=click.IntRange(min=1), help="Timed runs per cluster.")
@options.hosts
@options.n_workers
@options.host_memory
@options.in_namespaces
@options.timeout
@click.option(
    "--scale",
    default=1.0,
    type=click.FloatRange(min=0, min_open=True),
    help="Factor on linear sizes, for smoke tests.",
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures.")
@click.option(
    "--markdown", "markdown_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the tables."
)
def cluster(
    peers: tuple[str, ...],
    workloads: tuple[str, ...],
    rounds: int,
    repeat: int,
    hosts: int,
    n_workers: int,
    limit_bytes: int | None,
    in_namespaces: bool,
    timeout_s: float,
    scale: float,
    json_path: Path | None,
    markdown_path: Path | None,
) -> None:
    """Compare dask_mars on an ordinary Dask cluster with stock workers.

    Both have the same hosts, with as many worker processes of one thread each, started by their command lines.
    Every figure comes from fresh clusters, and the peers take turns. A cluster makes a run that warms it up, the
    timed runs, in which the bytes that hosts send each other are counted, and one more in which each host's memory
    is sampled. Without --namespaces, bytes between hosts are what Dask's workers say that they have received.
    """
    chosen = [peer for peer in CLUSTERS if peer in peers or not peers]
    wanted = {name for word in workloads for name in CLUSTER_GROUPS.get(word, [word])}
    names = [name for name in CLUSTER_WORKLOADS if name in wanted or not workloads]
    limit = limit_bytes or psutil.virtual_memory().total // hosts
    console = plain_console(10_000)
    facts = machine_facts()
    measurements: list[Measurement] = []
    with network_of(hosts, in_namespaces) as network:
        for round_index, workload, peer in interleave(chosen, names, rounds):
            job = ClusterJob(
                peer, workload, round_index, repeat, n_workers, scale, timeout_s, hosts, limit, network.name
            )
            measurements.append(run_job(job, "benchmarks.cluster.child"))
            console.print(_line(measurements[-1]), soft_wrap=True)
    counted = "counters of network namespaces" if in_namespaces else "Dask's log of transfers"
    head = (
        f"{describe_machine(facts)}; {hosts} hosts of {n_workers} worker processes and {limit / 2**20:,.0f} MiB, "
        f"one BLAS thread each; bytes between hosts by {counted}."
    )
    figures = summarise(measurements)
    with console.capture() as capture:
        console.print(table_of(figures, facts["memory_figure"]))
        if found := goals(figures):
            console.print()
            console.print(_table_of_goals(found))
    text = f"{head}\n\n{capture.get().strip()}\n"
    console.print(f"\n{text}", end="", soft_wrap=True)
    if markdown_path is not None:
        markdown_path.write_text(text, encoding="utf-8")
    if json_path is not None:
        write_json(json_path, measurements, facts)


def network_of(hosts: int, in_namespaces: bool) -> contextlib.AbstractContextManager[Network]:
    """Return the network between hosts, to be entered.

    Parameters
    ----------
    hosts
        How many.
    in_namespaces
        Whether each is to have a network namespace of its own.
    """
    if not in_namespaces:
        return contextlib.nullcontext(Network(""))
    if not can_make_namespaces():
        raise click.ClickException("network namespaces need Linux, the `ip` program and the rights of root")
    return namespaces(hosts)
