"""Entry points of the command lines ``dask-mars-worker``, ``dask-mars-web`` and ``dask mars``.

They are there whether or not what they need is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from dask_mars.version import __version__


class _Group(click.Group):
    """Loads a command when it is asked for: `dask` looks at the group each time that it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command."""
        load = _COMMANDS.get(cmd_name)
        return None if load is None else load()


@click.group(name="mars", cls=_Group)
@click.version_option(__version__)
def group() -> None:
    """Command line tools of dask_mars."""


def _worker() -> click.Command:
    try:
        from dask_mars.cluster.cli import main
    except ModuleNotFoundError as error:
        raise _missing(error, "distributed") from None
    command: click.Command = main
    return command


def _web() -> click.Command:
    try:
        from dask_mars.web.service.cli import main
    except ModuleNotFoundError as error:
        raise _missing(error, "tornado") from None
    command: click.Command = main
    return command


def _checkpoint() -> click.Command:
    from dask_mars.checkpointing.cli import main

    command: click.Command = main
    return command


def _missing(error: ModuleNotFoundError, package: str) -> Exception:
    """Return what to raise where something could not be imported: a message, if it is an optional package."""
    return click.ClickException(str(error)) if error.name == package else error


_COMMANDS: dict[str, Callable[[], click.Command]] = {"checkpoint": _checkpoint, "web": _web, "worker": _worker}


def _run(name: str) -> None:
    try:
        command = _COMMANDS[name]()
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    command(prog_name=f"dask-mars-{name}")


def worker() -> None:
    """Run ``dask-mars-worker``."""
    _run("worker")


def web() -> None:
    """Run ``dask-mars-web``."""
    _run("web")


__all__ = ["group", "web", "worker"]
