"""The command line: ``python -m benchmarks climatology``."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table

from benchmarks import options
from benchmarks.climatology import GRID, Difference, compare, days_of, make_store
from benchmarks.climatology_child import SCHEDULERS
from benchmarks.cluster.options import Layout, layout
from benchmarks.jobs import ClimatologyJob, Measurement
from benchmarks.machine import machine_facts
from benchmarks.measure import interleave, run_job
from benchmarks.report import (
    MIB,
    NONE,
    Files,
    conclude,
    in_one_cell,
    markdown_table,
    median_of,
    moved_of,
    peaks_of,
    plain_console,
    print_round,
    seconds_of,
    shown,
    spread,
    troubles,
)

_REFERENCE = next(iter(SCHEDULERS))
#: How far results may be from each other and still be the same sums in another order: degrees.
_CLOSE = 1e-4
#: How often the bytes of the source have to fit on the disk: with the reference's result and one more.
_COPIES = 3

#: A job's result beside the reference's; None where there is none.
Compared = tuple[Measurement, Difference | None]


def _row(peer: str, own: Sequence[Compared], reference_s: float | None) -> list[str]:
    measurements = [measurement for measurement, _ in own]
    differences = [difference for _, difference in own if difference is not None]
    seconds, moved = seconds_of(measurements), moved_of(measurements)
    median_s = median_of(seconds)
    notes = troubles(measurements)
    if any(not difference.largest <= _CLOSE for difference in differences):
        notes.append(f"WRONG: differs from {_REFERENCE}")
    return [
        peer,
        shown(median_s),
        spread(seconds),
        str(len(seconds)),
        shown(median_s / reference_s if median_s and reference_s else None, ".2f"),
        shown(max(peaks_of(measurements), default=None), ",.0f", MIB),
        shown(median_of(moved) if any(moved) else None, unit=MIB),
        "; ".join(dict.fromkeys(map(str, differences))) or NONE,
        in_one_cell(notes),
    ]


def table_of(results: Sequence[Compared], memory_figure: str) -> Table:
    """Make the table, in Markdown.

    Parameters
    ----------
    results
        Of any peers.
    memory_figure
        What memory is counted in.
    """
    table = markdown_table(
        "peer",
        "median s",
        "min-max s",
        "runs",
        f"time / {_REFERENCE}",
        f"peak {memory_figure} MiB of all",
        "MiB between hosts",
        f"beside {_REFERENCE}",
        "notes",
        words=("peer", f"beside {_REFERENCE}", "notes"),
    )
    of_reference = seconds_of(m for m, _ in results if m.job.peer == _REFERENCE)
    for peer in SCHEDULERS:
        own = [result for result in results if result[0].job.peer == peer]
        if own:
            table.add_row(*_row(peer, own, median_of(of_reference)))
    return table


def _require(directory: Path, size: float) -> None:
    if missing := [name for name in ("xarray", "zarr") if importlib.util.find_spec(name) is None]:
        raise click.ClickException(f"{' and '.join(missing)} cannot be imported here: install it first.")
    free = shutil.disk_usage(directory).free
    if free < _COPIES * size:
        raise click.ClickException(
            f"{directory} has {free / 1e9:.1f} GB free, and {_COPIES * size / 1e9:.1f} are needed."
        )


@options.command("climatology")
@options.peers(SCHEDULERS)
@click.option("--gigabytes", default=4.0, type=click.FloatRange(min=0, min_open=True), help="Of the source.")
@click.option(
    "--by", default="month", type=click.Choice(["season", "month", "dayofyear"]), help="What is grouped by."
)
@options.rounds
@options.repeat(1)
@layout
@options.timeout
@options.directory("Where the stores are made.  [default: that for temporary files]")
@options.files
def climatology(
    peers: list[str],
    gigabytes: float,
    by: str,
    rounds: int,
    repeat: int,
    layout: Layout,
    timeout_s: float,
    directory: Path | None,
    files: Files,
) -> None:
    """Compute climatology and anomaly of daily fields with xarray, under schedulers of one and of several hosts.

    A zarr store is made, each peer reads it and writes another in processes of its own, and what it has written is
    compared with what threads have, chunk by chunk. Threads and the schedulers of one machine have as many threads
    or processes as all hosts together. A process makes a run in which memory is sampled, and then the timed ones.
    """
    days = days_of(gigabytes)
    _require(directory or Path(tempfile.gettempdir()), days * GRID[0] * GRID[1] * 4)
    console = plain_console()
    facts = machine_facts()
    results: list[Compared] = []
    with (
        tempfile.TemporaryDirectory(dir=directory, ignore_cleanup_errors=True) as own,
        layout.network() as network,
    ):
        source, reference = Path(own, "source.zarr"), Path(own, f"{_REFERENCE}.zarr")
        size = make_store(source, days)
        console.print(f"{days:,} days of {GRID[0]} x {GRID[1]}, {size / 1e9:.2f} GB", soft_wrap=True)
        for round_index, _, peer in interleave(peers, [""], rounds):
            target = Path(own, f"{peer}.zarr")
            shutil.rmtree(target, ignore_errors=True)
            job = ClimatologyJob(
                peer, "climatology", round_index, repeat, layout.n_workers, 1.0, timeout_s,
                layout.hosts, layout.memory_bytes, network.name, str(source), str(target), by,
            )  # fmt: skip
            measurement = run_job(job, "benchmarks.climatology_child")
            difference = None
            if peer != _REFERENCE and measurement.status == "ok" and reference.exists():
                difference = compare(target, reference)
            results.append((measurement, difference))
            if peer != _REFERENCE:
                shutil.rmtree(target, ignore_errors=True)
            print_round(console, measurement)
    setting = f"{size / 1e9:.2f} GB by {by}; {layout}, one BLAS thread each."
    measurements = [measurement for measurement, _ in results]
    conclude(console, [table_of(results, facts["memory_figure"])], setting, measurements, facts, files)
