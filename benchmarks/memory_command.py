"""Schedulers with less memory than data or tasks would take: ``python -m benchmarks memory``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import click
from rich.table import Table

from benchmarks import options
from benchmarks.control_groups import NotPossibleError, control_group
from benchmarks.jobs import LimitedJob, Measurement
from benchmarks.limited import LIMITED
from benchmarks.machine import machine_facts
from benchmarks.measure import interleave, run_job
from benchmarks.memory_case import Case
from benchmarks.memory_cases import CASES, GROUPS
from benchmarks.report import (
    MIB,
    NONE,
    Files,
    agrees,
    by_subject,
    conclude,
    markdown_table,
    median_of,
    peaks_of,
    plain_console,
    print_round,
    seconds_of,
    shown,
)

#: Peaks beyond this many limits are marked.
MOST_LIMITS = 1.05

#: How errors are called in the column of outcomes, as far as not by their own names.
_OUTCOMES = {"KilledWorker": "killed worker", "ArithmeticError": "WRONG", "exit status -9": "killed"}


def outcome(measurement: Measurement) -> str:
    """Say in a word or two how a job ended.

    Parameters
    ----------
    measurement
        What came of it.

    Returns
    -------
    str
        ``"ok"``, ``"timeout"``, ``"skipped"``, or the kind of error.
    """
    if measurement.status != "failed":
        return measurement.status
    error = measurement.detail.partition(":")[0]
    return _OUTCOMES.get(error, error)


def row(own: Sequence[Measurement], all_of_case: Sequence[Measurement]) -> list[str]:
    """Draw the rounds of one case and peer together.

    Parameters
    ----------
    own
        The rounds, at least one.
    all_of_case
        The same case's of all peers.

    Returns
    -------
    list of str
        The cells of a row of the table.
    """
    job = own[0].job
    assert isinstance(job, LimitedJob)
    ends = [outcome(measurement) for measurement in own]
    seconds = seconds_of(own)
    to_error = [m.seconds_to_error for m in own if m.seconds_to_error is not None]
    peak = max(peaks_of(own), default=None)
    spilled = [m.spilled_bytes for m in own if m.spilled_bytes is not None]
    notes = [f"{ends.count(end)} of {len(ends)}: {end}" for end in dict.fromkeys(ends) if len(set(ends)) > 1]
    if lost := sum(measurement.lost_workers for measurement in own):
        notes.append(f"{lost} workers ended over memory")
    if stray := sum(measurement.stray_processes for measurement in own):
        notes.append(f"left {stray} processes behind")
    if files := sum(measurement.stray_files for measurement in own):
        notes.append(f"left {files} files behind")
    notes.extend(dict.fromkeys(m.detail for m in own if m.status == "skipped"))
    if not all(agrees(measurement, all_of_case[:1]) for measurement in own):
        notes.append(f"WRONG: differs from {all_of_case[0].job.peer}")
    return [
        job.workload,
        shown(job.limit_bytes, ",.0f", MIB),
        job.peer,
        next((end for end in ends if end != "ok"), "ok"),
        shown(median_of(seconds), ".2f"),
        f"{min(seconds):.2f}-{max(seconds):.2f}" if seconds else NONE,
        shown(median_of(to_error), ".2f"),
        shown(peak, ",.0f", MIB),
        _peak_in_limits(peak, job.limit_bytes),
        shown(max(spilled, default=None), ",.0f", MIB),
        "; ".join(notes),
    ]


def _peak_in_limits(peak_bytes: int | None, limit_bytes: int) -> str:
    text = shown(peak_bytes, ".2f", limit_bytes)
    return text if peak_bytes is None or peak_bytes <= MOST_LIMITS * limit_bytes else f"**{text}**"


def table_of(measurements: Sequence[Measurement], memory_figure: str) -> Table:
    """Make the table, in Markdown.

    Parameters
    ----------
    measurements
        Of any cases and peers.
    memory_figure
        What memory is counted in.
    """
    table = markdown_table(
        "case",
        "limit MiB",
        "peer",
        "outcome",
        "median s",
        "min-max s",
        "s to error",
        f"peak {memory_figure} MiB",
        "peak / limit",
        "spilled MiB",
        "notes",
        words=("case", "peer", "outcome", "notes"),
    )
    for own, of_case in by_subject(measurements, CASES, LIMITED):
        table.add_row(*[cell.replace("|", r"\|") for cell in row(own, of_case)])
    return table


def _run(job: LimitedJob, case: Case) -> Measurement:
    """Run a case on a peer, in a control group if the case is of one."""
    try:
        with control_group(job.limit_bytes) if case.in_control_group else nullcontext("") as group:
            return run_job(replace(job, control_group=str(group)), "benchmarks.limited")
    except NotPossibleError as reason:
        return Measurement(job, "skipped", str(reason))


def _files_with_data(folder: Path) -> int:
    # Locks of `distributed` are empty, and stay.
    return sum(path.is_file() and path.stat().st_size > 0 for path in folder.rglob("*"))


def _default_directory() -> Path:
    # More likely on a disk than the directory for temporary files.
    lasting = Path("/var/tmp")
    return lasting if os.access(lasting, os.W_OK) else Path(tempfile.gettempdir())


@options.command("memory")
@options.in_groups("--case", "-c", "cases", of=CASES, groups=GROUPS, kind="case")
@options.peers(LIMITED)
@click.option(
    "--limit",
    "limit_bytes",
    callback=options.byte_size,
    metavar="SIZE",
    help="Of memory; sizes follow it. Default: each case's own.",
)
@options.rounds
@options.repeat(1)
@options.workers
@options.timeout
@options.directory("Where peers may spill.  [default: /var/tmp]")
@options.files
def memory(
    cases: list[str],
    peers: list[str],
    limit_bytes: int | None,
    rounds: int,
    repeat: int,
    workers: int,
    timeout_s: float,
    directory: Path | None,
    files: Files,
) -> None:
    """Run what does not fit into memory, under schedulers with the same limit.

    Cases of the group "spilling" have more data than memory, in small chunks. Those of the group "limits" have
    tasks that take much of the limit or more than all of it; there an error is an outcome as good as another, and
    what counts is the peak. Peaks of more than 1.05 limits are in bold type.

    The limit is that of dask_mars's whole process tree; of `distributed` each worker has its share of it, and its
    scheduler and the client have none. Threads know no limit and are shown as they are. Each figure comes from
    fresh processes, and peers take turns. A process makes a run in which its memory is sampled and counted, and
    then the timed runs.
    """
    options.require(peers)
    console = plain_console()
    facts = machine_facts()
    measurements: list[Measurement] = []
    for round_index, name, peer in interleave(peers, cases, rounds):
        case = CASES[name]
        with tempfile.TemporaryDirectory(dir=directory or _default_directory(), ignore_cleanup_errors=True) as own:
            limit = case.limit_bytes if limit_bytes is None else limit_bytes
            measurement = _run(
                LimitedJob(peer, name, round_index, repeat, workers, 1.0, timeout_s, limit, own), case
            )
            measurement.stray_files = _files_with_data(Path(own))
        measurements.append(measurement)
        print_round(console, measurement)
    setting = f"{workers} workers."
    conclude(console, [table_of(measurements, facts["memory_figure"])], setting, measurements, facts, files)
