"""Feeds the events of a log to a new state machine: ``python -m dask_mars.scheduler.replay LOG``.

Equal events give equal instructions. A user's log thus shows what their scheduler decided and why.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TextIO

import click

from dask_mars.scheduler.log import LogError, as_plain, read
from dask_mars.scheduler.machine import Machine
from dask_mars.scheduler.policies.plugins import load_policy


@dataclass(slots=True)
class Replay:
    """The outcome of replaying a log."""

    machine: Machine
    events: Counter[str] = field(default_factory=Counter)
    instructions: Counter[str] = field(default_factory=Counter)
    #: The first event with other instructions than in the log; None if there is none.
    difference: Difference | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """An event with other instructions than in the log."""

    line: int
    event: Any
    #: The instructions in the log, and those of the machine, in JSON's types.
    logged: list[Any]
    found: list[Any]


def replay(lines: Iterable[str], validate: bool = False) -> Replay:
    """Feed the events of a log to a new state machine, up to the first difference."""
    # `validate` checks all invariants after each event, which takes much longer. Raises `LogError` and
    # `AssertionError`.
    parameters, entries = read(lines)
    try:
        load_policy(parameters.policy)
    except ValueError as error:
        raise LogError(str(error)) from error
    outcome = Replay(Machine(parameters))
    for number, entry in enumerate(entries, 2):
        instructions = outcome.machine.handle(entry.event, entry.now_s)
        outcome.events[type(entry.event).__name__] += 1
        outcome.instructions.update(type(instruction).__name__ for instruction in instructions)
        # Through JSON, as the logged ones: JSON has no tuples.
        found = json.loads(json.dumps([as_plain(instruction) for instruction in instructions]))
        if found != entry.instructions:
            outcome.difference = Difference(number, entry.event, entry.instructions, found)
            return outcome
        if validate:
            outcome.machine.validate()
    return outcome


@click.command()
@click.argument("log", type=click.File("r", encoding="utf-8"))
@click.option("--validate", is_flag=True, help="Check all invariants after each event.")
def main(log: TextIO, validate: bool) -> None:
    """Feed the events of LOG to a new state machine, and say whether it gives the same instructions.

    Logs are written where the setting dask-mars.scheduler-log says.
    """
    try:
        outcome = replay(log, validate)
    except LogError as error:
        raise click.ClickException(str(error)) from error
    for title, counts in (("events", outcome.events), ("instructions", outcome.instructions)):
        listed = ", ".join(f"{count} {name}" for name, count in counts.most_common())
        click.echo(f"{counts.total()} {title}: {listed}")
    if outcome.machine.graphs:
        click.echo(f"graphs that have not come to their end: {outcome.machine.graphs}")
    difference = outcome.difference
    if difference is None:
        click.echo("the same instructions")
        return
    click.echo(f"line {difference.line}: {difference.event}")
    click.echo(f"in the log: {json.dumps(difference.logged)}")
    click.echo(f"now:        {json.dumps(difference.found)}")
    raise SystemExit(1)


if __name__ == "__main__":
    main()
