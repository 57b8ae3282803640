"""Options that several commands have."""

from __future__ import annotations

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
