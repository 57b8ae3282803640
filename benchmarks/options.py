"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click
from dask.utils import parse_bytes

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


def byte_size(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Return the bytes that a text like ``1 GiB`` stands for."""
    if value is None:
        return None
    try:
        size = int(parse_bytes(value))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if size < 1 << 20:
        raise click.BadParameter("it must be at least 1 MiB")
    return size


hosts = click.option("--hosts", default=2, type=click.IntRange(min=2, max=200), help="Hosts of a cluster.")
n_workers = click.option("--nworkers", "n_workers", default=2, type=click.IntRange(min=1), help="Of each host.")
host_memory = click.option(
    "--memory-limit",
    "limit_bytes",
    callback=byte_size,
    metavar="SIZE",
    help="Of each host's processes together.  [default: this machine's memory divided among the hosts]",
)
in_namespaces = click.option(
    "--namespaces",
    "in_namespaces",
    is_flag=True,
    help="Give each host a network namespace, and count what goes over its network. Needs the rights of root.",
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
