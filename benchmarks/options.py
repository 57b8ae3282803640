"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click

rounds = click.option("--rounds", default=3, type=click.IntRange(min=1), help="Fresh processes per figure.")
workers = click.option("--workers", default=2, type=click.IntRange(min=1), help="Workers or threads per peer.")
timeout = click.option(
    "--timeout",
    "timeout_s",
    default=600.0,
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="What one process may take. Repeats that would not fit are left out.",
)


def graphs(names: Iterable[str]) -> Callable[[Any], Any]:
    """Return the option by which a command is told which kinds of graph are meant."""
    return click.option(
        "--graph",
        "-g",
        "graphs",
        multiple=True,
        type=click.Choice(list(names)),
        help="Kind of graph. Default: all.",
    )
