"""The command line: ``python -m studies``."""

from __future__ import annotations

import click

from benchmarks import options
from studies.checkpoint import checkpoint
from studies.idle import idle
from studies.operands import operands
from studies.ordering import ordering
from studies.placement import placement
from studies.plans import plans
from studies.policies import policies
from studies.preparation import preparation
from studies.profiling import profile
from studies.store import store


@click.group(context_settings=options.SETTINGS)
def main() -> None:
    """Look at one part of dask_mars: its order, its store, its checkpoints, where time goes."""


for command in (
    checkpoint,
    idle,
    operands,
    ordering,
    placement,
    plans,
    policies,
    preparation,
    profile,
    store,
):
    main.add_command(command)


if __name__ == "__main__":
    main(prog_name="python -m studies")
