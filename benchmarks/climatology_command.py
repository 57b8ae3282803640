"""The command line: ``python -m benchmarks climatology``."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import click
import psutil
from rich.table import Table

from benchmarks import options
from benchmarks.climatology import GRID, Difference, compare, days_of, make_store
from benchmarks.climatology_child import SCHEDULERS
from benchmarks.cluster.command import network_of
from benchmarks.jobs import ClimatologyJob, Measurement
from benchmarks.machine import describe_machine, machine_facts
from benchmarks.measure import interleave, run_job
from benchmarks.report import markdown_table, plain_console, significant, write_json

_REFERENCE = next(iter(SCHEDULERS))
_NONE = "-"
#: How far results may be from each other and still be the same sums in another order: degrees.
_CLOSE = 1e-4
#: How often the bytes of the source have to fit on the disk: with the reference's result and one more.
_COPIES = 3

#: A job's result beside the reference's; None where there is none.
Compared = tuple[Measurement, Difference | None]


def _row(peer: str, own: Sequence[Compared], reference_s: float | None) -> list[str]:
    measurements = [measurement for measurement, _ in own]
    differences = [difference for _, difference in own if difference is not None]
    seconds = [second for m in measurements for second in m.seconds]
    peaks = [m.peak_memory_bytes for m in measurements if m.peak_memory_bytes is not None]
    moved = [bytes_ for m in measurements for bytes_ in m.moved_bytes]
    notes = [f"{m.status}: {m.detail}" for m in measurements if m.status != "ok"]
    if stray := sum(m.stray_processes for m in measurements):
        notes.append(f"left {stray} processes behind")
    if any(not difference.largest <= _CLOSE for difference in differences):
        notes.append(f"WRONG: differs from {_REFERENCE}")
    return [
        peer,
        significant(median(seconds)) if seconds else _NONE,
        f"{significant(min(seconds))}-{significant(max(seconds))}" if seconds else _NONE,
        str(len(seconds)),
        f"{median(seconds) / reference_s:.2f}" if seconds and reference_s else _NONE,
        f"{max(peaks) / 2**20:,.0f}" if peaks else _NONE,
        significant(median(moved) / 2**20) if any(moved) else _NONE,
        "; ".join(dict.fromkeys(map(str, differences))) or _NONE,
        "; ".join(dict.fromkeys(notes)).replace("|", r"\|"),
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
    of_reference = [second for m, _ in results if m.job.peer == _REFERENCE for second in m.seconds]
    for peer in SCHEDULERS:
        own = [result for result in results if result[0].job.peer == peer]
        if own:
            table.add_row(*_row(peer, own, median(of_reference) if of_reference else None))
    return table


def _require(directory: Path, size: float) -> None:
    if missing := [name for name in ("xarray", "zarr") if importlib.util.find_spec(name) is None]:
        raise click.ClickException(f"{' and '.join(missing)} cannot be imported here: install it first.")
    free = shutil.disk_usage(directory).free
    if free < _COPIES * size:
        raise click.ClickException(
            f"{directory} has {free / 1e9:.1f} GB free, and {_COPIES * size / 1e9:.1f} are needed."
        )


@click.command("climatology", context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--peer", "-p", "peers", multiple=True, type=click.Choice(list(SCHEDULERS)), help="Default: all.")
@click.option("--gigabytes", default=4.0, type=click.FloatRange(min=0, min_open=True), help="Of the source.")
@click.option(
    "--by", default="month", type=click.Choice(["season", "month", "dayofyear"]), help="What is grouped by."
)
@options.rounds
@click.option("--repeat", default=1, type=click.IntRange(min=1), help="Timed runs per process.")
@options.hosts
@options.n_workers
@options.host_memory
@options.in_namespaces
@options.timeout
@click.option(
    "--directory",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Where the stores are made.  [default: that for temporary files]",
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures.")
@click.option(
    "--markdown", "markdown_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the table."
)
def climatology(
    peers: tuple[str, ...],
    gigabytes: float,
    by: str,
    rounds: int,
    repeat: int,
    hosts: int,
    n_workers: int,
    limit_bytes: int | None,
    in_namespaces: bool,
    timeout_s: float,
    directory: Path | None,
    json_path: Path | None,
    markdown_path: Path | None,
) -> None:
    """Compute climatology and anomaly of daily fields with xarray, under schedulers of one and of several hosts.

    A zarr store is made, each peer reads it and writes another in processes of its own, and what it has written is
    compared with what threads have, chunk by chunk. Threads and the schedulers of one machine have as many threads
    or processes as all hosts together. A process makes a run in which memory is sampled, and then the timed ones.
    """
    chosen = [peer for peer in SCHEDULERS if peer in peers or not peers]
    limit = limit_bytes or psutil.virtual_memory().total // hosts
    days = days_of(gigabytes)
    _require(directory or Path(tempfile.gettempdir()), days * GRID[0] * GRID[1] * 4)
    console = plain_console(10_000)
    facts = machine_facts()
    results: list[Compared] = []
    with (
        tempfile.TemporaryDirectory(dir=directory, ignore_cleanup_errors=True) as own,
        network_of(hosts, in_namespaces) as network,
    ):
        source, reference = Path(own, "source.zarr"), Path(own, f"{_REFERENCE}.zarr")
        size = make_store(source, days)
        console.print(f"{days:,} days of {GRID[0]} x {GRID[1]}, {size / 1e9:.2f} GB", soft_wrap=True)
        for round_index, _, peer in interleave(chosen, [""], rounds):
            target = Path(own, f"{peer}.zarr")
            shutil.rmtree(target, ignore_errors=True)
            job = ClimatologyJob(
                peer, "climatology", round_index, repeat, n_workers, 1.0, timeout_s, hosts, limit, network.name,
                str(source), str(target), by,
            )  # fmt: skip
            measurement = run_job(job, "benchmarks.climatology_child")
            difference = None
            if peer != _REFERENCE and measurement.status == "ok" and reference.exists():
                difference = compare(target, reference)
            results.append((measurement, difference))
            if peer != _REFERENCE:
                shutil.rmtree(target, ignore_errors=True)
            end = "" if measurement.status == "ok" else f"{measurement.status}: {measurement.detail}"
            seconds = " ".join(f"{second:.3g}" for second in measurement.seconds)
            console.print(f"round {round_index + 1}  {peer:16}{seconds} {end}", soft_wrap=True)
    head = (
        f"{describe_machine(facts)}; {size / 1e9:.2f} GB by {by}; {hosts} hosts of {n_workers} worker processes "
        f"and {limit / 2**20:,.0f} MiB, one BLAS thread each."
    )
    with console.capture() as capture:
        console.print(table_of(results, facts["memory_figure"]))
    text = f"{head}\n\n{capture.get().strip()}\n"
    console.print(f"\n{text}", end="", soft_wrap=True)
    if markdown_path is not None:
        markdown_path.write_text(text, encoding="utf-8")
    if json_path is not None:
        write_json(json_path, [measurement for measurement, _ in results], facts)
