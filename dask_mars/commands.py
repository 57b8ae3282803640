"""Entry points of the command lines ``dask-mars-worker``, ``dask-mars-web`` and ``dask mars``.

They exist even if their requirements are not installed.
"""

from __future__ import annotations

from collections.abc import Callable

import click

from dask_mars.version import __version__


class _Group(click.Group):
    """Imports a command on use: `dask` inspects the group at each call."""

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
        return _missing("worker", error)
    command: click.Command = main
    return command


def _web() -> click.Command:
    try:
        from dask_mars.web.service.cli import main
    except ModuleNotFoundError as error:
        return _missing("web", error)
    command: click.Command = main
    return command


def _checkpoint() -> click.Command:
    from dask_mars.checkpointing.cli import main

    command: click.Command = main
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


_COMMANDS: dict[str, Callable[[], click.Command]] = {"checkpoint": _checkpoint, "web": _web, "worker": _worker}


def _run(name: str) -> None:
    _COMMANDS[name]()(prog_name=f"dask-mars-{name}")


def worker() -> None:
    """Run ``dask-mars-worker``."""
    _run("worker")


def web() -> None:
    """Run ``dask-mars-web``."""
    _run("web")
