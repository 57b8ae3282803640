"""The soak: rounds of random work under random troubles, for as long as asked: ``python -m tests.soak``."""

from __future__ import annotations

import os
import time

import click
import numpy as np

from benchmarks import options
from benchmarks.memory import peak_memory
from benchmarks.report import plain_console
from tests.soak.checkpoints import checkpoint_round
from tests.soak.leaks import share_allocator
from tests.soak.rounds import Failure, Tally, check_growth, soak_round


def _silent(line: str) -> None:
    pass


@options.command()
@click.option("--minutes", default=30.0, type=click.FloatRange(min=0), help="How long to go on.")
@click.option("--seed", default=0, type=click.IntRange(min=0), help="Of the first round; the next has the next.")
@click.option(
    "--limit",
    "limit_s",
    default=120.0,
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="What one computation may take before it counts as hanging.",
)
@click.option("--checkpoints", is_flag=True, help="Compute under checkpoints, and kill all processes at random.")
@click.option("--verbose", "-v", is_flag=True, help="Print a line for each computation.")
def main(minutes: float, seed: int, limit_s: float, checkpoints: bool, verbose: bool) -> None:
    """Compute random things under tiny limits while workers are killed, disks are full and users press Ctrl-C.

    Every result is compared with that of Dask's synchronous scheduler. Errors that are right answers to what went
    wrong are counted; anything else ends the soak with the seed of the round that shows it: a wrong value, another
    error, a computation that hangs, and processes, files, descriptors or memory left behind.

    With `--checkpoints` each round is a process of its own, which is killed with all its workers, and begun again.
    """
    share_allocator()
    console = plain_console()
    tally = Tally(console.print if verbose else _silent)
    began_s = time.monotonic()
    until_s = began_s + minutes * 60
    failure: Failure | None = None
    with peak_memory(os.getpid()) as peak, np.errstate(all="ignore"):
        try:
            while time.monotonic() < until_s:
                if checkpoints:
                    checkpoint_round(seed + tally.rounds, tally, limit_s)
                else:
                    soak_round(seed + tally.rounds, tally, limit_s, until_s)
                check_growth(tally)
        except Failure as found:
            failure = found
    for line in tally.lines(peak.bytes, time.monotonic() - began_s):
        console.print(line, soft_wrap=True)
    if failure is not None:
        raise click.ClickException(f"{failure}\nrun it again with --seed {seed + tally.rounds}")


if __name__ == "__main__":
    main(prog_name="python -m tests.soak")
