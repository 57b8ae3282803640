"""The command line: ``python -m benchmarks``."""

from __future__ import annotations

import shutil

import click
from rich.console import Console
from rich.table import Table

from benchmarks import options
from benchmarks.climatology_command import climatology
from benchmarks.cluster.command import cluster
from benchmarks.comparison import in_markdown, print_comparison
from benchmarks.jobs import Job, Measurement
from benchmarks.machine import machine_facts
from benchmarks.measure import interleave, run_job
from benchmarks.memory_command import memory
from benchmarks.peers import PEERS
from benchmarks.report import Files, plain_console, print_round
from benchmarks.workloads import CATALOGUE, GROUPS, group_of

#: What the widest table needs.
TABLE_WIDTH = 120


def _list(console: Console) -> None:
    peers = Table("peer", "what it is")
    for peer in PEERS.values():
        missing = peer.missing_modules()
        peers.add_row(peer.name, peer.summary + (f" (missing: {', '.join(missing)})" if missing else ""))
    workloads = Table("group", "workload", "what it does")
    for name, subject in CATALOGUE.items():
        workloads.add_row(group_of(name), name, subject.summary)
    console.print(peers, workloads)


@click.group(invoke_without_command=True, context_settings=options.SETTINGS)
@options.peers(PEERS)
@options.workloads(CATALOGUE, GROUPS, "; see --list")
@options.rounds
@options.repeat(3)
@options.workers
@options.timeout
@options.scale
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
    files: Files,
    list_only: bool,
) -> None:
    """Compare dask_mars with Dask's own schedulers.

    Every figure comes from fresh processes, and the peers take turns, so that drift of the machine
    falls on all alike. Each process warms its scheduler with a small run, makes the timed runs, and
    then one more run in which memory is sampled. A peer that fails or takes too long is reported as
    such.
    """
    if context.invoked_subcommand is not None:
        return
    # The tables do not get any clearer by being squeezed.
    console = plain_console(max(TABLE_WIDTH, shutil.get_terminal_size().columns))
    if list_only:
        _list(console)
        return
    options.require(peers)
    measurements: list[Measurement] = []
    interrupted = False
    try:
        for round_index, workload, peer in interleave(peers, workloads, rounds):
            job = Job(peer, workload, round_index, repeat, workers, scale, timeout_s)
            measurements.append(run_job(job))
            print_round(console, measurements[-1])
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
main.add_command(memory)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
