"""Draws the rounds of all peers together: figures, and their tables for the terminal and in Markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.jobs import Measurement, Status
from benchmarks.machine import describe_machine
from benchmarks.peers import BASELINE
from benchmarks.report import (
    MIB,
    NONE,
    agrees,
    by_subject,
    median_of,
    peaks_of,
    seconds_of,
    shown,
    significant,
    spread,
    text_of,
)
from benchmarks.workload import Group, Workload
from benchmarks.workloads import CATALOGUE, GROUPS, group_of, tolerance_of

_TITLES: dict[Group, str] = {
    "array": "Array workloads",
    "expressions": "Array workloads, on expressions",
    "persisted": "Array workloads, of persisted arrays",
    "zarr": "Array workloads, from zarr",
    "real": "Real workloads",
    "frames": "Dataframes",
    "cold": "From the first import of a process to the result",
    "tasks": "Task workloads",
    "latency": "Latency of one task",
}
#: Groups whose ratios have a mean that says something.
_MEANT: tuple[Group, ...] = ("array", "expressions", "persisted", "zarr", "real", "frames", "cold")


@dataclass(frozen=True, slots=True)
class Figures:
    """One workload under one peer, over all rounds."""

    workload: str
    peer: str
    #: ``"ok"`` if all rounds were, else what the first other round was.
    status: Status
    #: Every timed run, empty where none came to an end.
    seconds: tuple[float, ...]
    #: Median time over the baseline's median time. None where either has none, or where their
    #: results differ.
    ratio: float | None
    #: Median time of whole processes, and its ratio; None unless each made one run.
    process_s: float | None
    process_ratio: float | None
    #: None where a rate means nothing.
    tasks_per_s: float | None
    #: The largest over all rounds.
    peak_memory_bytes: int | None
    #: What a reader should know before trusting the figures; empty if nothing.
    notes: tuple[str, ...]


def summarise(measurements: Sequence[Measurement]) -> list[Figures]:
    """Draw the rounds together.

    Parameters
    ----------
    measurements
        In any order.

    Returns
    -------
    list of Figures
        By workload in the catalogue's order, then by peer in the order of their first appearance.
    """
    peers = dict.fromkeys(measurement.job.peer for measurement in measurements)
    return [_figures(own, of_workload) for own, of_workload in by_subject(measurements, CATALOGUE, peers)]


def _figures(own: Sequence[Measurement], of_workload: Sequence[Measurement]) -> Figures:
    job = own[0].job
    seconds = seconds_of(own)
    baseline = [m for m in of_workload if m.job.peer == BASELINE]
    median_s, baseline_s = median_of(seconds), median_of(seconds_of(baseline))
    # Without the baseline, the first peer is what the others' results are compared with.
    reference = baseline or [m for m in of_workload if m.job.peer == of_workload[0].job.peer]
    process_s = baseline_process_s = None
    if group_of(job.workload) == "cold":
        process_s, baseline_process_s = median_of(_process_seconds(own)), median_of(_process_seconds(baseline))
    ratio = process_ratio = None
    # A wrong answer is not compared, however fast it came.
    if (
        median_s is not None
        and baseline_s is not None
        and all(agrees(m, baseline, tolerance_of(job.workload)) for m in own)
    ):
        ratio = median_s / baseline_s
        if process_s is not None and baseline_process_s is not None:
            process_ratio = process_s / baseline_process_s
    subject = CATALOGUE[job.workload]
    tasks_per_s = None
    if median_s is not None and isinstance(subject, Workload) and subject.tasks is not None:
        tasks_per_s = subject.tasks(job.scale) / median_s
    return Figures(
        workload=job.workload,
        peer=job.peer,
        status=next((m.status for m in own if m.status != "ok"), "ok"),
        seconds=tuple(seconds),
        ratio=ratio,
        process_s=process_s,
        process_ratio=process_ratio,
        tasks_per_s=tasks_per_s,
        peak_memory_bytes=max(peaks_of(own), default=None),
        notes=_notes(own, reference),
    )


def _process_seconds(own: Iterable[Measurement]) -> list[float]:
    return [seconds for measurement in own for seconds in measurement.process_seconds]


def _notes(own: Sequence[Measurement], reference: Sequence[Measurement]) -> tuple[str, ...]:
    notes: dict[str, int] = {}

    def note(text: str) -> None:
        notes[text] = notes.get(text, 0) + 1

    for measurement in own:
        if measurement.trouble:
            note(measurement.trouble)
        if measurement.stray_processes:
            note(f"left {measurement.stray_processes} processes behind")
        if not agrees(measurement, reference, tolerance_of(measurement.job.workload)):
            note(f"WRONG: differs from {reference[0].job.peer}")
    of = f" ({{}} of {len(own)} rounds)" if len(own) > 1 else ""
    return tuple(text + of.format(count) for text, count in notes.items())


@dataclass(frozen=True, slots=True)
class Mean:
    """The ratios of one peer over the workloads of a group."""

    #: What the ratios are of: a group, or whole processes of it.
    of: str
    peer: str
    #: Their geometric mean.
    mean: float
    #: Over how many workloads. A peer that failed at some is judged by the others alone, so compare means only
    #: where these are equal.
    count: int
    #: The largest ratio, and of which workload.
    worst: float
    worst_workload: str


def geometric_means(figures: Sequence[Figures]) -> list[Mean]:
    """Draw each peer's workloads of a group together into one ratio.

    Parameters
    ----------
    figures
        As `summarise` gives them.

    Returns
    -------
    list of Mean
        By group, but for those in which a mean means nothing, then by peer.
    """
    ratios: dict[tuple[str, str], dict[str, float]] = {}
    for group in _MEANT:
        for row in figures:
            if group_of(row.workload) == group and row.ratio is not None:
                ratios.setdefault((group, row.peer), {})[row.workload] = row.ratio
        for row in figures:
            if group_of(row.workload) == group and row.process_ratio is not None:
                ratios.setdefault((f"{group}, whole process", row.peer), {})[row.workload] = row.process_ratio
    means = []
    for (of, peer), by_workload in ratios.items():
        worst = max(by_workload, key=by_workload.__getitem__)
        mean = math.exp(statistics.fmean(map(math.log, by_workload.values())))
        means.append(Mean(of, peer, mean, len(by_workload), by_workload[worst], worst))
    return means


def _row(figures: Figures, unit_s: float) -> list[str]:
    if not figures.seconds:
        return [
            figures.workload,
            figures.peer,
            figures.status,
            *[NONE] * 7,
            "; ".join(figures.notes),
        ]
    times = [second / unit_s for second in figures.seconds]
    return [
        figures.workload,
        figures.peer,
        significant(statistics.median(times)),
        spread(times),
        str(len(times)),
        shown(figures.ratio, ".2f"),
        shown(figures.process_s),
        shown(figures.process_ratio, ".2f"),
        shown(figures.tasks_per_s),
        shown(figures.peak_memory_bytes, ",.0f", MIB),
        "; ".join(figures.notes),
    ]


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, markdown: bool) -> Table:
    """Make a table without the columns that say nothing in any row."""
    kept = [i for i in range(len(columns)) if any(row[i] not in ("", NONE) for row in rows)]
    table = Table(title=None if markdown else title, box=box.MARKDOWN if markdown else box.SIMPLE_HEAD)
    for i in kept:
        textual = columns[i] in ("of", "workload", "peer", "notes")
        table.add_column(columns[i], justify="left" if textual else "right", no_wrap=columns[i] != "notes")
    sections = columns[0] == "workload" and not markdown
    for number, row in enumerate(rows):
        last = number + 1 == len(rows) or rows[number + 1][0] != row[0]
        cells = [row[i].replace("|", r"\|") if markdown else row[i] for i in kept]
        table.add_row(*cells, end_section=sections and last)
    return table


def _tables(measurements: Sequence[Measurement], memory_figure: str, *, markdown: bool) -> list[tuple[str, Table]]:
    figures = summarise(measurements)
    tables = []
    for group, names in GROUPS.items():
        unit, unit_s = ("ms", 1e-3) if group == "latency" else ("s", 1.0)
        rows = [_row(row, unit_s) for row in figures if row.workload in names]
        columns = [
            "workload",
            "peer",
            f"median {unit}",
            f"min-max {unit}",
            "runs",
            f"time / {BASELINE}",
            "process s",
            f"process / {BASELINE}",
            "tasks/s",
            f"peak {memory_figure} MiB",
            "notes",
        ]
        if rows:
            tables.append((_TITLES[group], _table(_TITLES[group], columns, rows, markdown=markdown)))
    means = [
        [mean.of, mean.peer, f"{mean.mean:.2f}", str(mean.count), f"{mean.worst:.2f} ({mean.worst_workload})"]
        for mean in geometric_means(figures)
        if mean.peer != BASELINE
    ]
    if means:
        title = f"Geometric means of time / {BASELINE}"
        tables.append(
            (title, _table(title, ["of", "peer", "mean", "workloads", "worst"], means, markdown=markdown))
        )
    return tables


def print_comparison(console: Console, measurements: Sequence[Measurement], facts: dict[str, Any]) -> None:
    """Print the tables as they are for a terminal.

    Parameters
    ----------
    console
        Where to.
    measurements
        What was measured.
    facts
        As `benchmarks.machine.machine_facts` gives them.
    """
    for _, table in _tables(measurements, facts["memory_figure"], markdown=False):
        console.print(table)


def in_markdown(measurements: Sequence[Measurement], facts: dict[str, Any]) -> str:
    """Return the tables as GitHub Markdown.

    Parameters
    ----------
    measurements
        What was measured.
    facts
        As `benchmarks.machine.machine_facts` gives them.
    """
    job = measurements[0].job
    scale = "" if job.scale == 1 else f" Sizes at scale {job.scale:g}: not for comparison."
    paragraphs = [f"{describe_machine(facts)}; {job.workers} workers, one BLAS thread each.{scale}"]
    for title, table in _tables(measurements, facts["memory_figure"], markdown=True):
        paragraphs += [f"### {title}", text_of(table)]
    return "\n\n".join(paragraphs) + "\n"
