"""What reports have in common: what is drawn from rounds, how it is written in cells and tables, and where to."""

from __future__ import annotations

import io
import json
import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.jobs import Measurement
from benchmarks.machine import describe_machine
from benchmarks.workload import RELATIVE_TOLERANCE

#: What stands in a cell for which there is no figure.
NONE = "-"

#: Characters of a line in which no cell is ever folded: a folded one would be two rows in Markdown.
UNFOLDED = 10_000

MIB = 1 << 20


# -- rounds -------------------------------------------------------------------------------------------------------


def by_subject(
    measurements: Sequence[Measurement], workloads: Iterable[str], peers: Iterable[str]
) -> Iterator[tuple[list[Measurement], list[Measurement]]]:
    """Put the rounds of each workload under each peer together.

    Parameters
    ----------
    measurements
        In any order.
    workloads, peers
        Names in the order of the report.

    Yields
    ------
    tuple of (list of Measurement, list of Measurement)
        Those of one workload and peer, at least one, and those of that workload under any peer.
    """
    peers = list(peers)
    for workload in workloads:
        of_workload = [m for m in measurements if m.job.workload == workload]
        for peer in peers:
            if own := [m for m in of_workload if m.job.peer == peer]:
                yield own, of_workload


def seconds_of(own: Iterable[Measurement]) -> list[float]:
    """Return every timed run of some rounds."""
    return [second for measurement in own for second in measurement.seconds]


def moved_of(own: Iterable[Measurement]) -> list[int]:
    """Return the bytes that hosts sent each other in every timed run of some rounds."""
    return [moved for measurement in own for moved in measurement.moved_bytes]


def peaks_of(own: Iterable[Measurement]) -> list[int]:
    """Return the peaks of memory of the rounds that have one."""
    return [m.peak_memory_bytes for m in own if m.peak_memory_bytes is not None]


def median_of(values: Sequence[float]) -> float | None:
    """Return the median, or None of nothing."""
    return statistics.median(values) if values else None


def agrees(
    measurement: Measurement, reference: Iterable[Measurement], tolerance: float = RELATIVE_TOLERANCE
) -> bool:
    """Compare the nth run with the nth run, which has the same seed, as far as both have them.

    Parameters
    ----------
    measurement
        What is in question.
    reference
        Of the same computation.
    tolerance
        Relative to the numbers.
    """
    return all(
        np.shape(value) == np.shape(expected) and np.allclose(value, expected, tolerance, atol=0.0)
        for other in reference
        for value, expected in zip(measurement.values, other.values, strict=False)
    )


def troubles(own: Sequence[Measurement]) -> list[str]:
    """Say how rounds failed and what they left behind, each thing once."""
    notes = [measurement.trouble for measurement in own if measurement.trouble]
    if stray := sum(measurement.stray_processes for measurement in own):
        notes.append(f"left {stray} processes behind")
    return list(dict.fromkeys(notes))


# -- cells and tables ---------------------------------------------------------------------------------------------


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


def shown(value: float | None, form: str = "", unit: float = 1.0) -> str:
    """Write a figure that there may be none of.

    Parameters
    ----------
    value
        The figure.
    form
        As of `format`; by default three digits are significant.
    unit
        What the figure is divided by.
    """
    if value is None:
        return NONE
    return format(value / unit, form) if form else significant(value / unit)


def spread(values: Sequence[float]) -> str:
    """Write from where to where figures go."""
    return f"{significant(min(values))}-{significant(max(values))}" if values else NONE


def in_one_cell(notes: Iterable[str]) -> str:
    """Write notes into a cell of a table in Markdown."""
    return "; ".join(notes).replace("|", r"\|")


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


# -- where they go ------------------------------------------------------------------------------------------------


def plain_console(width: int = UNFOLDED, file: IO[str] | None = None) -> Console:
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


def print_round(console: Console, measurement: Measurement) -> None:
    """Print a line on a round that has come to its end.

    Parameters
    ----------
    console
        Where to. It gets plain lines and no live display, which would take processor time from what is measured.
    measurement
        What came of the round.
    """
    job = measurement.job
    seconds = [f"{second:.4g}" for second in measurement.seconds]
    outcome = " ".join(filter(None, [*seconds, measurement.trouble]))
    console.print(f"round {job.round_index + 1}  {job.workload:20}{job.peer:24}{outcome}", soft_wrap=True)


def print_tables(console: Console, *tables: Table) -> None:
    """Print tables, each below an empty line."""
    for table in tables:
        console.print()
        console.print(table)


def text_of(*tables: Table) -> str:
    """Return tables in Markdown as text."""
    # Not of the terminal's console, which would put its colours into files.
    console = plain_console(file=io.StringIO())
    with console.capture() as capture:
        print_tables(console, *tables)
    return capture.get().strip()


@dataclass(frozen=True, slots=True)
class Files:
    """Where a report is written besides being printed; None for nowhere.

    Attributes
    ----------
    json_path
        For every raw figure and the facts about the machine.
    markdown_path
        For the tables.
    """

    json_path: Path | None
    markdown_path: Path | None

    def write(self, text: str, measurements: Sequence[Measurement], facts: dict[str, Any]) -> None:
        """Write the files.

        Parameters
        ----------
        text
            The tables and what they are of, in Markdown.
        measurements
            What was measured.
        facts
            As `benchmarks.machine.machine_facts` gives them.
        """
        if self.markdown_path is not None:
            self.markdown_path.write_text(text, encoding="utf-8")
        if self.json_path is not None:
            document = {"machine": facts, "measurements": [asdict(measurement) for measurement in measurements]}
            self.json_path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def conclude(
    console: Console,
    tables: Sequence[Table],
    setting: str,
    measurements: Sequence[Measurement],
    facts: dict[str, Any],
    files: Files,
) -> None:
    """Print a report, and write it to the files that were asked for.

    Parameters
    ----------
    console
        Where to print it.
    tables
        In Markdown.
    setting
        What was run on the machine, for the line above the tables.
    measurements
        What was measured.
    facts
        As `benchmarks.machine.machine_facts` gives them.
    files
        Where else it goes.
    """
    text = f"{describe_machine(facts)}; {setting}\n\n{text_of(*tables)}\n"
    console.print(f"\n{text}", end="", soft_wrap=True)
    files.write(text, measurements, facts)
