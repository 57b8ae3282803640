"""``dask-mars-web``: a standing service, from the command line."""

from __future__ import annotations

import json
import logging
import sqlite3
import sys
from pathlib import Path

import click

from dask_mars import config
from dask_mars.version import __version__
from dask_mars.web import address as addresses
from dask_mars.web.service import front

_PATH = click.Path(path_type=Path)


@click.command(name="web")
@click.option(
    "--directory",
    type=_PATH,
    help="Where records, graphs and results are kept. [default: dask-mars.web.directory, which is "
    "~/.local/state/dask-mars]",
)
@click.option(
    "--socket", "socket_path", type=_PATH, help="The unix socket to listen at. [default: in the directory]"
)
@click.option("--port", type=click.IntRange(0, 65535), help="Listen at a port of 127.0.0.1 too; 0 for any.")
@click.option("--behind-proxy", is_flag=True, help="A proxy stands before the port, and encrypts.")
@click.option("--num-workers", type=click.IntRange(1), help="Worker processes. [default: dask-mars.num-workers]")
@click.option("--memory-limit", help='Bytes, a share, or text like "5GB". [default: dask-mars.memory-limit]')
@click.option(
    "--scheduler", help='Compute on the dask-mars-workers of a Dask scheduler, like "tcp://10.0.0.1:8786".'
)
@click.version_option(__version__)
def main(
    directory: Path | None,
    socket_path: Path | None,
    port: int | None,
    behind_proxy: bool,
    num_workers: int | None,
    memory_limit: str | None,
    scheduler: str | None,
) -> None:
    """Compute what users submit, keep the results, and show the progress.

    By default it listens only on a unix socket, to which only you can connect. On a port it requires a token,
    which is in connection.json in the directory.
    """
    if port is None and behind_proxy:
        raise click.UsageError("--behind-proxy is about a port: give --port")
    if scheduler is not None:
        _check_scheduler(scheduler)
    logging.basicConfig(format="%(message)s")
    directory = (addresses.directory() if directory is None else directory).absolute()
    socket_path = directory / addresses.SOCKET if socket_path is None else socket_path
    listening = front.Listening(socket_path, port, behind_proxy)
    runner = {"num_workers": num_workers, "memory_limit": config.as_number(memory_limit), "scheduler": scheduler}

    def ready(where: str) -> None:
        click.echo(f"dask_mars listens at {where}")
        if port is not None:
            file = directory / addresses.CONNECTION_FILE
            click.echo(f"its tokens are in {file}")
            # Other output than a terminal may be a log that others read.
            if sys.stdout.isatty():
                token = json.loads(file.read_text(encoding="utf-8"))["token"]
                click.echo(f"open {where}?token={token}")

    try:
        front.serve(directory, listening, runner, ready)
    except (OSError, RuntimeError, ValueError, sqlite3.Error) as error:
        raise click.ClickException(str(error)) from None


def _check_scheduler(address: str) -> None:
    """Refuse an invalid address of a scheduler, as `dask-mars-worker` does."""
    try:
        from dask_mars.cluster.cli import scheduler_address
    except ModuleNotFoundError as error:
        raise click.ClickException(str(error)) from None
    try:
        scheduler_address(address)
    except click.BadParameter as error:
        raise click.BadParameter(error.message, param_hint="--scheduler") from None
