"""The command line: ``python -m benchmarks``."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks import options
from benchmarks.by_hand_command import limit
from benchmarks.climatology_command import climatology
from benchmarks.cluster.command import cluster
from benchmarks.comparison import in_markdown, print_comparison
from benchmarks.data import DataNotMade, make_data
from benchmarks.jobs import DataJob, Measurement
from benchmarks.machine import machine_facts
from benchmarks.measure import interleave, run_job
from benchmarks.memory_command import memory
from benchmarks.peers import PEERS
from benchmarks.reloads import reloads
from benchmarks.report import Files, plain_console, print_round
from benchmarks.viewers_command import viewers
from benchmarks.web import web
from benchmarks.workers import workers as workers_command
from benchmarks.workloads import CATALOGUE, GROUPS, group_of

#: What the widest table needs.
TABLE_WIDTH = 150


def _list(console: Console) -> None:
    peers = Table("peer", "what it is")
    for peer in PEERS.values():
        missing = peer.missing_modules()
        peers.add_row(peer.name, peer.summary + (f" (missing: {', '.join(missing)})" if missing else ""))
    workloads = Table("group", "workload", "what it does")
    for name, subject in CATALOGUE.items():
        workloads.add_row(group_of(name), name, subject.summary)
    console.print(peers, workloads)


def _jobs(
    peers: Sequence[str],
    workloads: Sequence[str],
    rounds: int,
    repeat: int,
    workers: int,
    scale: float,
    timeout_s: float,
    directory: str,
) -> Iterator[tuple[DataJob, str]]:
    """Say what processes do in which order, and what runs them."""
    cold = [name for name in workloads if group_of(name) == "cold"]
    warm = [name for name in workloads if name not in cold]
    for round_index, workload, peer in interleave(peers, warm, rounds):
        yield (
            DataJob(peer, workload, round_index, repeat, workers, scale, timeout_s, directory),
            "benchmarks.child",
        )
    # A process is cold once, so that each timed run has one of its own; a last one is for its memory.
    last = rounds * repeat
    for round_index, workload, peer in interleave(peers, cold, last + 1):
        own = int(round_index < last)
        yield (
            DataJob(peer, workload, round_index, own, workers, scale, timeout_s, directory),
            "benchmarks.cold_child",
        )


@click.group(invoke_without_command=True, context_settings=options.SETTINGS)
@options.peers(PEERS)
@options.workloads(CATALOGUE, GROUPS, "; see --list")
@options.rounds
@options.repeat(3)
@options.workers
@options.timeout
@options.scale
@options.directory("Where data are made that workloads read.  [default: that for temporary files]")
@options.files
@click.option("--list", "list_only", is_flag=True, help="List peers and workloads, and stop.")
@click.pass_context
def main(
    context: click.Context,
    peers: list[str],
    workloads: list[str],
    rounds: int,
    repeat: int,
    workers: int,
    timeout_s: float,
    scale: float,
    directory: Path | None,
    files: Files,
    list_only: bool,
) -> None:
    """Compare dask_mars with Dask's own schedulers.

    Every figure comes from fresh processes, and the peers take turns, so that drift of the machine
    falls on all alike. Each process warms its scheduler with a small run, makes the timed runs, and
    then one more run in which memory is sampled. Workloads of the group "cold" have a new process for
    each timed run, which is timed from its first import to the result, and as a whole. What workloads
    read is made first, and on no peer's time. A peer that fails or takes too long is reported as such.
    """
    if context.invoked_subcommand is not None:
        return
    # The tables do not get any clearer by being squeezed.
    console = plain_console(max(TABLE_WIDTH, shutil.get_terminal_size().columns))
    if list_only:
        _list(console)
        return
    options.require(peers)
    options.require_workloads(workloads)
    measurements: list[Measurement] = []
    interrupted = False
    try:
        with tempfile.TemporaryDirectory(dir=directory, ignore_cleanup_errors=True) as own:
            made: set[str] = set()
            for job, module in _jobs(peers, workloads, rounds, repeat, workers, scale, timeout_s, own):
                if job.workload not in made:
                    make_data(job.workload, scale, Path(own))
                    made.add(job.workload)
                measurements.append(run_job(job, module))
                print_round(console, measurements[-1])
    except DataNotMade as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        interrupted = True
        console.print("Interrupted: what follows is what was measured until now.")
    if measurements:
        facts = machine_facts()
        print_comparison(console, measurements, facts)
        files.write(in_markdown(measurements, facts), measurements, facts)
    if interrupted:
        # As a shell reports a process that Ctrl-C ended.
        raise SystemExit(130)


main.add_command(climatology)
main.add_command(cluster)
main.add_command(limit)
main.add_command(memory)
main.add_command(reloads)
main.add_command(viewers)
main.add_command(web)
main.add_command(workers_command)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
