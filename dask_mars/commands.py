"""Entry points of the command lines ``dask-mars-worker``, ``dask-mars-web`` and ``dask mars``.

They exist even if their requirements are not installed.
"""

from __future__ import annotations

import importlib

import click

from dask_mars.version import __version__

#: Modules of the commands' functions, all of which are called `main`.
_COMMANDS = {
    "checkpoint": "dask_mars.checkpointing.cli",
    "web": "dask_mars.web.service.cli",
    "worker": "dask_mars.cluster.cli",
}


class _Group(click.Group):
    """Imports a command on use: `dask` inspects the group at each call."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command."""
        return _load(cmd_name) if cmd_name in _COMMANDS else None


@click.group(name="mars", cls=_Group)
@click.version_option(__version__)
def group() -> None:
    """Command line tools of dask_mars."""


def _load(name: str) -> click.Command:
    try:
        command: click.Command = importlib.import_module(_COMMANDS[name]).main
    except ModuleNotFoundError as error:
        return _missing(name, error)
    return command


def _missing(name: str, error: ModuleNotFoundError) -> click.Command:
    """Return a command that names the extra to install, for any arguments."""
    if error.name not in ("distributed", "tornado"):
        raise error
    text = str(error)

    @click.command(
        name=name,
        short_help=f"Not installed: {text}",
        add_help_option=False,
        context_settings={"ignore_unknown_options": True},
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def command(arguments: tuple[str, ...]) -> None:
        raise click.ClickException(text)

    return command


def worker() -> None:
    """Run ``dask-mars-worker``."""
    _load("worker")(prog_name="dask-mars-worker")


def web() -> None:
    """Run ``dask-mars-web``."""
    _load("web")(prog_name="dask-mars-web")
