"""What it costs to be looked at: ``python -m benchmarks viewers``."""

from __future__ import annotations

from collections.abc import Sequence

import click
import numpy as np
from rich.table import Table

from benchmarks import options
from benchmarks.jobs import Measurement, ViewersJob
from benchmarks.machine import machine_facts
from benchmarks.measure import interleave, run_job
from benchmarks.report import Files, conclude, markdown_table, median_of, plain_console, print_round, shown
from benchmarks.viewer import VIEWS
from benchmarks.viewers_child import ALONE, SIDE, WATCHED


def tables_of(measurements: Sequence[Measurement], chunks: int) -> list[Table]:
    """Make the tables of throughput and of answers, in Markdown.

    Parameters
    ----------
    measurements
        Of both kinds of rounds.
    chunks
        That each run computes.
    """
    throughput = markdown_table("", "median s", "min-max s", "chunks / s", "share of alone", words=("",))
    medians = {}
    for peer in (ALONE, WATCHED):
        seconds = [second for m in measurements if m.job.peer == peer for second in m.seconds]
        median = medians[peer] = median_of(seconds)
        alone = medians[ALONE]
        throughput.add_row(
            peer,
            shown(median, ".2f"),
            f"{min(seconds):.2f}-{max(seconds):.2f}" if seconds else "-",
            shown(None if median is None else chunks / median, ",.0f"),
            shown(None if median is None or alone is None else alone / median, ".3f"),
        )
    answers = markdown_table("view", "median ms", "slowest ms", words=("view",))
    found = [value for m in measurements if m.job.peer == WATCHED for value in m.values]
    for place, view in enumerate(VIEWS):
        if found:
            middle = float(np.median([value[2 * place] for value in found]))
            slowest = max([value[2 * place + 1] for value in found])
            answers.add_row(view, f"{1e3 * middle:.1f}", f"{1e3 * slowest:.1f}")
    return [throughput, answers]


@options.command("viewers")
@click.option("--viewers", "count", default=5, type=click.IntRange(min=1), help="How many look.")
@options.rounds
@options.repeat(1)
@options.workers
@options.timeout
@options.scale
@options.files
def viewers(
    count: int, rounds: int, repeat: int, workers: int, timeout_s: float, scale: float, files: Files
) -> None:
    """Compute a million chunks while viewers look at all that the page can show, and while nobody does.

    Viewers ask for all views, wait for a second as the page does, and ask again. They run in one other process, on
    the same processors. Every figure comes from fresh processes, and rounds with and without viewers take turns.
    """
    console = plain_console()
    facts = machine_facts()
    measurements: list[Measurement] = []
    for round_index, workload, peer in interleave((ALONE, WATCHED), ("viewers",), rounds):
        job = ViewersJob(peer, workload, round_index, repeat, workers, scale, timeout_s, count)
        measurements.append(run_job(job, "benchmarks.viewers_child"))
        print_round(console, measurements[-1])
    side = max(int(SIDE * scale), 2)
    setting = f"{count} viewers, {side * side:,} chunks, {workers} workers."
    conclude(console, tables_of(measurements, side * side), setting, measurements, facts, files)
