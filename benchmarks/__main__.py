"""The command line: ``python -m benchmarks``."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks import options
from benchmarks.climatology_command import climatology
from benchmarks.cluster.command import cluster
from benchmarks.jobs import Job, Measurement
from benchmarks.machine import machine_facts
from benchmarks.measure import interleave, run_job
from benchmarks.memory_command import memory
from benchmarks.operands import operands
from benchmarks.ordering import ordering
from benchmarks.peers import PEERS
from benchmarks.preparation import preparation
from benchmarks.profiling import profile
from benchmarks.records import records
from benchmarks.report import plain_console, print_tables, write_json, write_markdown
from benchmarks.simulation.command import simulate
from benchmarks.soak import soak
from benchmarks.store import store
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


def _names(asked: Sequence[str]) -> list[str]:
    """Resolve groups to names, in the catalogue's order and each once."""
    wanted = {name for word in asked for name in GROUPS.get(word, [word])}  # type: ignore[call-overload]
    return [name for name in CATALOGUE if name in wanted or not asked]


def _require(peers: Sequence[str]) -> None:
    for name in peers:
        if missing := PEERS[name].missing_modules():
            raise click.ClickException(
                f"peer {name!r} cannot run, because {', '.join(missing)} cannot be imported here: "
                f"install it, or choose other peers with --peer."
            )


def _line(measurement: Measurement) -> str:
    job = measurement.job
    outcome = " ".join(f"{second:.4g}" for second in measurement.seconds)
    if measurement.status != "ok":
        outcome = f"{outcome} {measurement.status}: {measurement.detail}".strip()
    return f"round {job.round_index + 1}  {job.workload:20}{job.peer:24}{outcome}"


@click.group(
    invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.option("--peer", "-p", "peers", multiple=True, type=click.Choice(list(PEERS)), help="Default: all.")
@click.option(
    "--workload",
    "-w",
    "workloads",
    multiple=True,
    type=click.Choice([*GROUPS, *CATALOGUE]),
    metavar="NAME",
    help="A workload or a group (array, tasks, latency); see --list. Default: all.",
)
@options.rounds
@click.option("--repeat", default=3, type=click.IntRange(min=1), help="Timed runs per process.")
@options.workers
@options.timeout
@click.option(
    "--scale",
    default=1.0,
    type=click.FloatRange(min=0, min_open=True),
    help="Factor on linear sizes, for smoke tests.",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write all figures.",
)
@click.option(
    "--markdown",
    "markdown_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write tables.",
)
@click.option("--list", "list_only", is_flag=True, help="List peers and workloads, and stop.")
@click.pass_context
def main(
    context: click.Context,
    peers: tuple[str, ...],
    workloads: tuple[str, ...],
    rounds: int,
    repeat: int,
    workers: int,
    timeout_s: float,
    scale: float,
    json_path: Path | None,
    markdown_path: Path | None,
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
    chosen = [name for name in PEERS if name in peers or not peers]
    _require(chosen)
    measurements: list[Measurement] = []
    interrupted = False
    try:
        for round_index, workload, peer in interleave(chosen, _names(workloads), rounds):
            job = Job(peer, workload, round_index, repeat, workers, scale, timeout_s)
            measurements.append(run_job(job))
            # Plain lines and no live display, which would take processor time from what is
            # measured.
            console.print(_line(measurements[-1]), soft_wrap=True)
    except KeyboardInterrupt:
        interrupted = True
        console.print("Interrupted: what follows is what was measured until now.")
    if measurements:
        facts = machine_facts()
        print_tables(console, measurements, facts)
        if json_path is not None:
            write_json(json_path, measurements, facts)
        if markdown_path is not None:
            write_markdown(markdown_path, measurements, facts)
    if interrupted:
        # As a shell reports a process that Ctrl-C ended.
        raise SystemExit(130)


main.add_command(climatology)
main.add_command(cluster)
main.add_command(memory)
main.add_command(operands)
main.add_command(ordering)
main.add_command(preparation)
main.add_command(profile)
main.add_command(records)
main.add_command(simulate)
main.add_command(soak)
main.add_command(store)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
