"""What comes of rounds on clusters: figures, their table, and what is wanted of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from rich.table import Table

from benchmarks.cluster.child import CLUSTERS
from benchmarks.cluster.workloads import CLUSTER_GROUPS, CLUSTER_WORKLOADS
from benchmarks.jobs import Measurement
from benchmarks.report import (
    MIB,
    agrees,
    by_subject,
    in_one_cell,
    markdown_table,
    median_of,
    moved_of,
    peaks_of,
    seconds_of,
    shown,
    spread,
    troubles,
)

_BASELINE = next(iter(CLUSTERS))

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
        return median_of(self.seconds)


def summarise(measurements: Sequence[Measurement]) -> list[Figures]:
    """Draw the rounds together, by workload in the catalogue's order and then by peer."""
    return [_figures(*rounds) for rounds in by_subject(measurements, CLUSTER_WORKLOADS, CLUSTERS)]


def _figures(own: Sequence[Measurement], of_workload: Sequence[Measurement]) -> Figures:
    job = own[0].job
    seconds = seconds_of(own)
    median_s = median_of(seconds)
    tasks = CLUSTER_WORKLOADS[job.workload].tasks
    notes = troubles(own)
    if not all(agrees(measurement, of_workload[:1]) for measurement in own):
        notes.append(f"WRONG: differs from {of_workload[0].job.peer}")
    return Figures(
        workload=job.workload,
        peer=job.peer,
        seconds=tuple(seconds),
        moved_bytes=median_of(moved_of(own)),
        peak_bytes=median_of(peaks_of(own)),
        rate=tasks(job.scale) / median_s if tasks is not None and median_s is not None else None,
        notes=tuple(notes),
    )


def over_stock(ours: float | None, stock: float | None) -> float | None:
    """Return a figure of ours over the stock cluster's, None where either is missing."""
    return None if ours is None or not stock else ours / stock


def _row(figures: Figures, stock: Figures | None) -> list[str]:
    def ratio(figure: Callable[[Figures], float | None]) -> str:
        return shown(over_stock(figure(figures), None if stock is None else figure(stock)), ".2f")

    return [
        figures.workload,
        figures.peer,
        shown(figures.median_s),
        spread(figures.seconds),
        str(len(figures.seconds)),
        ratio(lambda of: of.median_s),
        shown(figures.rate),
        shown(figures.moved_bytes, unit=MIB),
        shown(figures.peak_bytes, unit=MIB),
        ratio(lambda of: of.peak_bytes),
        in_one_cell(figures.notes),
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


def table_of_goals(found: Sequence[Goal]) -> Table:
    """Make the table of what is wanted, in Markdown."""
    table = markdown_table("mars / stock", "wanted", "found", "met", words=("mars / stock", "wanted", "met"))
    for goal in found:
        table.add_row(goal.what, goal.wanted, f"{goal.found:.2f}", "yes" if goal.met else "NO")
    return table
