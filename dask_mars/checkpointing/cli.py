"""The command line ``python -m dask_mars checkpoint``, and ``dask mars checkpoint``."""

from __future__ import annotations

from pathlib import Path

import click

from dask_mars.checkpointing.listing import checkpoints
from dask_mars.errors import CheckpointError


@click.command(name="checkpoint")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option(
    "--remove", "ids", multiple=True, metavar="ID", help="Remove the one with this id, or with its beginning."
)
@click.option("--remove-all", is_flag=True, help="Remove all that no process uses.")
def main(directory: Path, ids: tuple[str, ...], remove_all: bool) -> None:
    """List the checkpoints in DIRECTORY, and the work that each saves; remove some on request."""
    try:
        found = checkpoints(directory)
        for id in ids:
            matching = [each for each in found if each.id.startswith(id)]
            if len(matching) != 1:
                raise click.UsageError(f"{len(matching) or 'no'} checkpoints have an id that begins with {id!r}")
            matching[0].remove()
        if remove_all:
            found.remove()
        click.echo(repr(checkpoints(directory) if ids else found))
    except CheckpointError as error:
        raise click.ClickException(str(error)) from None
