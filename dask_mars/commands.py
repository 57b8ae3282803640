"""Entry points of the command lines ``dask-mars-worker`` and ``dask mars``, be what they need installed or not."""

from __future__ import annotations

import sys

import click

from dask_mars.version import __version__


class _Group(click.Group):
    """Loads a command when it is asked for: `dask` looks at the group each time that it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return ["worker"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command."""
        return _worker() if cmd_name == "worker" else None


@click.group(name="mars", cls=_Group)
@click.version_option(__version__)
def group() -> None:
    """Command line tools of dask_mars."""


def _worker() -> click.Command:
    try:
        from dask_mars.cluster.cli import main
    except ModuleNotFoundError as error:
        if error.name != "distributed":
            raise
        raise click.ClickException(str(error)) from None
    command: click.Command = main
    return command


def worker() -> None:
    """Run ``dask-mars-worker``."""
    try:
        command = _worker()
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    command(prog_name="dask-mars-worker")


__all__ = ["group", "worker"]
