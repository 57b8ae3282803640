"""Schedulers with more data than memory: ``python -m benchmarks memory``."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from rich.table import Table

from benchmarks import options
from benchmarks.jobs import LimitedJob, Measurement
from benchmarks.limited import LIMITED
from benchmarks.machine import describe_machine, machine_facts
from benchmarks.measure import interleave, run_job
from benchmarks.memory_cases import CASES
from benchmarks.peers import PEERS
from benchmarks.report import markdown_table, plain_console, write_json

_NONE = "-"
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
        ``"ok"``, ``"timeout"``, or the kind of error.
    """
    if measurement.status != "failed":
        return measurement.status
    error = measurement.detail.partition(":")[0]
    return _OUTCOMES.get(error, error)


def agree(measurements: Sequence[Measurement]) -> bool:
    """Compare the nth run with the nth run, which has the same seed, as far as both have them.

    Parameters
    ----------
    measurements
        Of the same computation.
    """
    return all(
        abs(value - expected) <= 1e-9 * abs(expected)
        for measurement in measurements
        for values, others in zip(measurement.values, measurements[0].values, strict=False)
        for value, expected in zip(values, others, strict=True)
    )


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
    seconds = [second for measurement in own for second in measurement.seconds]
    peaks = [m.peak_memory_bytes for m in own if m.peak_memory_bytes is not None]
    spilled = [m.spilled_bytes for m in own if m.spilled_bytes is not None]
    notes = [f"{ends.count(end)} of {len(ends)}: {end}" for end in dict.fromkeys(ends) if len(set(ends)) > 1]
    if lost := sum(measurement.lost_workers for measurement in own):
        notes.append(f"{lost} workers ended over memory")
    if stray := sum(measurement.stray_processes for measurement in own):
        notes.append(f"left {stray} processes behind")
    if not agree([*all_of_case[:1], *own]):
        notes.append(f"WRONG: differs from {all_of_case[0].job.peer}")

    def shown(figures: Sequence[float], draw: Callable[[Sequence[float]], float], form: str) -> str:
        return format(draw(figures), form) if figures else _NONE

    spread = f"{min(seconds):.2f}-{max(seconds):.2f}" if seconds else _NONE
    return [
        job.workload,
        job.peer,
        next((end for end in ends if end != "ok"), "ok"),
        shown(seconds, statistics.median, ".2f"),
        spread,
        shown([peak / 2**20 for peak in peaks], max, ",.0f"),
        shown([peak / job.limit_bytes for peak in peaks], max, ".2f"),
        shown([bytes_ / 2**20 for bytes_ in spilled], max, ",.0f"),
        "; ".join(notes),
    ]


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
        "peer",
        "outcome",
        "median s",
        "min-max s",
        f"peak {memory_figure} MiB",
        "peak / limit",
        "spilled MiB",
        "notes",
        words=("case", "peer", "outcome", "notes"),
    )
    for case in CASES:
        of_case = [m for m in measurements if m.job.workload == case]
        for peer in LIMITED:
            own = [m for m in of_case if m.job.peer == peer]
            if own:
                table.add_row(*[cell.replace("|", r"\|") for cell in row(own, of_case)])
    return table


def _line(measurement: Measurement) -> str:
    job = measurement.job
    seconds = " ".join(f"{second:.3g}" for second in measurement.seconds)
    end = "ok" if measurement.status == "ok" else f"{measurement.status}: {measurement.detail}"
    return f"round {job.round_index + 1}  {job.workload:12}{job.peer:14}{seconds} {end}"


def _default_directory() -> Path:
    # More likely on a disk than the directory for temporary files.
    lasting = Path("/var/tmp")
    return lasting if os.access(lasting, os.W_OK) else Path(tempfile.gettempdir())


def _require(peers: Sequence[str]) -> None:
    for peer in peers:
        if missing := PEERS[peer].missing_modules():
            raise click.ClickException(
                f"peer {peer!r} cannot run, because {', '.join(missing)} cannot be imported."
            )


@click.command("memory", context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--case", "-c", "cases", multiple=True, type=click.Choice(list(CASES)), help="Default: all.")
@click.option("--peer", "-p", "peers", multiple=True, type=click.Choice(list(LIMITED)), help="Default: all.")
@click.option(
    "--limit",
    "limit_bytes",
    default="1 GiB",
    callback=options.byte_size,
    metavar="SIZE",
    help="Of memory; sizes follow it.",
)
@options.rounds
@click.option("--repeat", default=1, type=click.IntRange(min=1), help="Timed runs per process.")
@options.workers
@options.timeout
@click.option(
    "--directory",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Where peers may spill.  [default: /var/tmp]",
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures.")
@click.option(
    "--markdown", "markdown_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the table."
)
def memory(
    cases: tuple[str, ...],
    peers: tuple[str, ...],
    limit_bytes: int,
    rounds: int,
    repeat: int,
    workers: int,
    timeout_s: float,
    directory: Path | None,
    json_path: Path | None,
    markdown_path: Path | None,
) -> None:
    """Run what does not fit into memory, under schedulers with the same limit.

    The limit is that of dask_mars's whole process tree; of `distributed` each worker has its share of it, and its
    scheduler and the client have none. Threads know no limit and are shown as they are. Each figure comes from
    fresh processes, and peers take turns. A process makes a small run, a run in which its memory is sampled and
    counted, and then the timed runs.
    """
    chosen = [peer for peer in LIMITED if peer in peers or not peers]
    _require(chosen)
    console = plain_console(10_000)
    facts = machine_facts()
    measurements: list[Measurement] = []
    wanted = [case for case in CASES if case in cases or not cases]
    for round_index, case, peer in interleave(chosen, wanted, rounds):
        with tempfile.TemporaryDirectory(dir=directory or _default_directory(), ignore_cleanup_errors=True) as own:
            job = LimitedJob(peer, case, round_index, repeat, workers, 1.0, timeout_s, limit_bytes, own)
            measurements.append(run_job(job, "benchmarks.limited"))
        console.print(_line(measurements[-1]), soft_wrap=True)
    head = f"{describe_machine(facts)}; {workers} workers, a limit of {limit_bytes / 2**20:,.0f} MiB."
    with console.capture() as capture:
        console.print(table_of(measurements, facts["memory_figure"]))
    text = f"{head}\n\n{capture.get().strip()}\n"
    console.print(f"\n{text}", end="", soft_wrap=True)
    if markdown_path is not None:
        markdown_path.write_text(text, encoding="utf-8")
    if json_path is not None:
        write_json(json_path, measurements, facts)
