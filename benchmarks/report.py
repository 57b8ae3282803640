"""Turns measurements into figures, and figures into tables for the terminal, Markdown and JSON."""

from __future__ import annotations

import io
import json
import math
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.jobs import Measurement, Status
from benchmarks.machine import describe_machine
from benchmarks.peers import BASELINE
from benchmarks.workloads import CATALOGUE, GROUPS, Group, Workload, group_of

#: How far apart two peers' results may lie. They add in different orders, so the last digits
#: differ.
RELATIVE_TOLERANCE = 1e-9

_TITLES: dict[Group, str] = {
    "array": "Array workloads",
    "tasks": "Task workloads",
    "latency": "Latency of one task",
}
_NONE = "-"


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
    by_subject: dict[tuple[str, str], list[Measurement]] = {}
    for measurement in measurements:
        subject = measurement.job.workload, measurement.job.peer
        by_subject.setdefault(subject, []).append(measurement)
    peers = list(dict.fromkeys(measurement.job.peer for measurement in measurements))
    return [_figures(name, peer, by_subject) for name in CATALOGUE for peer in peers if (name, peer) in by_subject]


def _median(measurements: Iterable[Measurement]) -> float | None:
    seconds = [second for measurement in measurements for second in measurement.seconds]
    return statistics.median(seconds) if seconds else None


def _figures(name: str, peer: str, by_subject: dict[tuple[str, str], list[Measurement]]) -> Figures:
    own = by_subject[name, peer]
    baseline = by_subject.get((name, BASELINE), [])
    median_s, baseline_s = _median(own), _median(baseline)
    # Without the baseline, the first peer is what the others' results are compared with.
    reference = baseline or next(m for (other, _), m in by_subject.items() if other == name)
    ratio = None
    # A wrong answer is not compared, however fast it came.
    if median_s is not None and baseline_s is not None and all(_agrees(m, baseline) for m in own):
        ratio = median_s / baseline_s
    subject = CATALOGUE[name]
    tasks_per_s = None
    if median_s is not None and isinstance(subject, Workload) and subject.tasks is not None:
        tasks_per_s = subject.tasks(own[0].job.scale) / median_s
    peaks = [m.peak_memory_bytes for m in own if m.peak_memory_bytes is not None]
    return Figures(
        workload=name,
        peer=peer,
        status=next((m.status for m in own if m.status != "ok"), "ok"),
        seconds=tuple(second for measurement in own for second in measurement.seconds),
        ratio=ratio,
        tasks_per_s=tasks_per_s,
        peak_memory_bytes=max(peaks, default=None),
        notes=_notes(own, reference),
    )


def _notes(own: Sequence[Measurement], reference: Sequence[Measurement]) -> tuple[str, ...]:
    notes: dict[str, int] = {}

    def note(text: str) -> None:
        notes[text] = notes.get(text, 0) + 1

    for measurement in own:
        if measurement.status != "ok":
            note(f"{measurement.status}: {measurement.detail}")
        if measurement.stray_processes:
            note(f"left {measurement.stray_processes} processes behind")
        if not _agrees(measurement, reference):
            note(f"WRONG: differs from {reference[0].job.peer}")
    of = f" ({{}} of {len(own)} rounds)" if len(own) > 1 else ""
    return tuple(text + of.format(count) for text, count in notes.items())


def _agrees(measurement: Measurement, reference: Sequence[Measurement]) -> bool:
    """Compare the nth run with the nth run, which has the same seed, as far as both have them."""
    return all(
        np.shape(value) == np.shape(expected) and np.allclose(value, expected, RELATIVE_TOLERANCE, atol=0.0)
        for other in reference
        for value, expected in zip(measurement.values, other.values, strict=False)
    )


def geometric_means(figures: Iterable[Figures]) -> dict[str, tuple[float, int]]:
    """Draw each peer's array workloads together into one ratio.

    Parameters
    ----------
    figures
        As `summarise` gives them.

    Returns
    -------
    dict
        By peer, the geometric mean of its ratios to the baseline, and over how many workloads. A
        peer that failed at some is judged by the others alone, so compare means only where the
        numbers of workloads are equal.
    """
    logarithms: dict[str, list[float]] = {}
    for row in figures:
        if group_of(row.workload) == "array" and row.ratio is not None:
            logarithms.setdefault(row.peer, []).append(math.log(row.ratio))
    return {peer: (math.exp(statistics.fmean(logs)), len(logs)) for peer, logs in logarithms.items()}


def significant(value: float) -> str:
    """Write with three significant digits or all whole ones, never with an exponent.

    Parameters
    ----------
    value
        What to write.
    """
    if value == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def _row(figures: Figures, unit_s: float) -> list[str]:
    if not figures.seconds:
        return [
            figures.workload,
            figures.peer,
            figures.status,
            *[_NONE] * 5,
            "; ".join(figures.notes),
        ]
    times = [second / unit_s for second in figures.seconds]
    peak = figures.peak_memory_bytes
    return [
        figures.workload,
        figures.peer,
        significant(statistics.median(times)),
        f"{significant(min(times))}-{significant(max(times))}",
        str(len(times)),
        _NONE if figures.ratio is None else f"{figures.ratio:.2f}",
        _NONE if figures.tasks_per_s is None else significant(figures.tasks_per_s),
        _NONE if peak is None else f"{peak / 2**20:,.0f}",
        "; ".join(figures.notes),
    ]


def markdown_table(*headings: str, words: Collection[str] = ("graph",)) -> Table:
    """Return a table that prints as Markdown.

    Parameters
    ----------
    *headings
        Of its columns.
    words
        Headings of columns of words; all others have numbers, which stand on the right.
    """
    table = Table(box=box.MARKDOWN)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in words else "right")
    return table


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, markdown: bool) -> Table:
    """Make a table without the columns that say nothing in any row."""
    kept = [i for i in range(len(columns)) if any(row[i] not in ("", _NONE) for row in rows)]
    table = Table(title=None if markdown else title, box=box.MARKDOWN if markdown else box.SIMPLE_HEAD)
    for i in kept:
        textual = columns[i] in ("workload", "peer", "notes")
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
            "tasks/s",
            f"peak {memory_figure} MiB",
            "notes",
        ]
        if rows:
            tables.append((_TITLES[group], _table(_TITLES[group], columns, rows, markdown=markdown)))
    means = [[peer, f"{mean:.2f}", str(count)] for peer, (mean, count) in geometric_means(figures).items()]
    if means:
        title = "Geometric mean over the array workloads"
        columns = ["peer", f"time / {BASELINE}", "workloads"]
        tables.append((title, _table(title, columns, means, markdown=markdown)))
    return tables


def plain_console(width: int, file: IO[str] | None = None) -> Console:
    """Make a console that prints text as it is.

    Parameters
    ----------
    width
        In characters.
    file
        Where to print, by default standard output.

    Returns
    -------
    rich.console.Console
        Without markup, because an error message may well contain brackets and colons.
    """
    return Console(file=file, width=width, markup=False, emoji=False, highlight=False)


def print_tables(console: Console, measurements: Sequence[Measurement], facts: dict[str, Any]) -> None:
    """Print the tables to a terminal.

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


def write_markdown(path: Path, measurements: Sequence[Measurement], facts: dict[str, Any]) -> None:
    """Write the tables as GitHub Markdown.

    Parameters
    ----------
    path
        The file to write.
    measurements
        What was measured.
    facts
        As `benchmarks.machine.machine_facts` gives them.
    """
    job = measurements[0].job
    scale = "" if job.scale == 1 else f" Sizes at scale {job.scale:g}: not for comparison."
    paragraphs = [f"{describe_machine(facts)}; {job.workers} workers, one BLAS thread each.{scale}"]
    # Wide enough that no cell is ever folded: a folded cell would be two rows in Markdown.
    console = plain_console(10_000, file=io.StringIO())
    for title, table in _tables(measurements, facts["memory_figure"], markdown=True):
        with console.capture() as capture:
            console.print(table)
        paragraphs += [f"### {title}", capture.get().strip()]
    path.write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")


def write_json(path: Path, measurements: Sequence[Measurement], facts: dict[str, Any]) -> None:
    """Write every raw figure and the facts about the machine.

    Parameters
    ----------
    path
        The file to write.
    measurements
        What was measured.
    facts
        As `benchmarks.machine.machine_facts` gives them.
    """
    document = {
        "machine": facts,
        "measurements": [asdict(measurement) for measurement in measurements],
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
