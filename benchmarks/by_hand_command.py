"""How far schedulers are from loops by hand: ``python -m benchmarks limit``."""

from __future__ import annotations

import importlib.util
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table

from benchmarks import options
from benchmarks.by_hand import LOOPS, SOURCES
from benchmarks.jobs import ByHandJob, Measurement
from benchmarks.machine import machine_facts
from benchmarks.measure import interleave, run_job
from benchmarks.report import (
    MIB,
    Files,
    conclude,
    in_one_cell,
    markdown_table,
    plain_console,
    print_round,
    shown,
    troubles,
)

_WORDS = ("loop", "arrays in")
_RATIOS = (
    *("by hand, ms", "threads / by hand", "mars / by hand", "first run of mars / by hand"),
    *("processor time: by hand, ms", "threads / by hand", "mars / by hand", "notes"),
)
_PARTS = (
    *("mars, ms", "bytes at the speed of a copy, ms", "page faults", "page faults, ms"),
    *("user's thread, ms", "engine's thread, ms", "workers, ms each", "workers wait, ms each"),
)


def tables_of(measurements: Sequence[Measurement], workers: int) -> list[Table]:
    """Make the tables: times beside those by hand, and what the time of mars is made of."""
    ratios, parts = (markdown_table(*_WORDS, *columns, words=_WORDS) for columns in (_RATIOS, _PARTS))
    found: list[tuple[float, ...]] = []
    for source, name in ((source, name) for source in SOURCES for name in LOOPS):
        own = [m for m in measurements if m.job.peer == source and name in m.job.workload.split(",")]
        rounds = [m.figures[name] for m in own if name in m.figures]
        if not rounds:
            if own:
                ratios.add_row(name, source, *"-------", in_one_cell(troubles(own)))
            continue
        (hand_s, threads_s, mars_s), (busy_s, *others_s) = (
            [
                statistics.median(second for one in rounds for second in one[kind][peer])
                for peer in ("by hand", "threads", "mars")
            ]
            for kind in ("seconds", "busy")
        )
        first_s, moved_s, fault_s = (
            statistics.median(one[key] for one in rounds) for key in ("first", "moved", "fault")
        )
        found.append((*[s / hand_s for s in (threads_s, mars_s, first_s)], *[s / busy_s for s in others_s]))
        times = [f"{ratio:.2f}" for ratio in found[-1]]
        cells = [shown(hand_s, unit=1e-3), *times[:3], shown(busy_s, unit=1e-3), *times[3:]]
        ratios.add_row(name, source, *cells, in_one_cell(troubles(own)))
        columns = zip(*[one["taken"] for one in rounds], strict=True)
        faults, all_s, user_s, engine_s = map(statistics.median, columns)
        worker_s = (all_s - user_s - engine_s) / workers
        after = (faults * fault_s, user_s, engine_s, worker_s, max(0.0, mars_s - worker_s))
        before = [shown(value, unit=1e-3) for value in (mars_s, moved_s)]
        parts.add_row(name, source, *before, f"{faults:,.0f}", *[shown(value, unit=1e-3) for value in after])
    if found:
        means = [f"{statistics.geometric_mean(column):.2f}" for column in zip(*found, strict=True)]
        ratios.add_row("geometric mean", "", "", *means[:3], "", *means[3:], "")
    return [ratios, parts]


@options.command("limit")
@options.several("--loop", "-l", "loops", of=LOOPS)
@options.several("--source", "-s", "sources", of=SOURCES)
@click.option("--size", "size_bytes", default="512 MB", callback=options.byte_size, help="Of a loop's arrays.")
@click.option("--together", is_flag=True, help="All loops in one process, one after another.")
@options.rounds
@options.repeat(5)
@options.workers
@options.timeout
@options.directory("Where zarr is written.  [default: that for temporary files]")
@options.files
def limit(
    loops: list[str],
    sources: list[str],
    size_bytes: int,
    together: bool,
    rounds: int,
    repeat: int,
    workers: int,
    timeout_s: float,
    directory: Path | None,
    files: Files,
) -> None:
    """Compare array computations with the loops that a person would write for numba, without fastmath.

    In each process loops by hand, Dask's threads and dask_mars take turns, and results are compared. Times are
    medians; the first run of mars in a process has a column, while numba compiles before anything is timed.
    Processor time, of all processes, tells more where other programs run.
    By hand, zarr is read into an array first. The second table is of the time of mars: bytes that have to be
    read, and for zarr those that reading writes, at the speed of a copy by all threads; page faults of all
    processes, and what as many take here; processor time of the user's and the engine's thread and of a worker;
    and how long a worker waits. Parts overlap.
    """
    needed = {"numba", *[module for name in loops for module in LOOPS[name].modules], *{"zarr"} & {*sources}}
    if missing := [name for name in sorted(needed) if importlib.util.find_spec(name) is None]:
        raise click.ClickException(
            f"{' and '.join(missing)} cannot be imported here: install dask_mars with its extra 'benchmarks'."
        )
    console, measurements = plain_console(), []
    with tempfile.TemporaryDirectory(dir=directory, ignore_cleanup_errors=True) as own:
        for number, workload, source in interleave(sources, [",".join(loops)] if together else loops, rounds):
            job = ByHandJob(source, workload, number, repeat, workers, 1.0, timeout_s, own, size_bytes)
            measurements.append(run_job(job, "benchmarks.by_hand_child"))
            print_round(console, measurements[-1])
    setting = f"{size_bytes / MIB:,.0f} MiB in each loop, {workers} threads or workers"
    conclude(console, tables_of(measurements, workers), setting, measurements, machine_facts(), files)
