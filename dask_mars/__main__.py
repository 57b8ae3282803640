"""``python -m dask_mars script.py args…``: run an unchanged script with dask_mars as its scheduler."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path

import click
import dask

import dask_mars


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-m", "module", is_flag=True, help="SCRIPT is the name of a module, as in `python -m`.")
@click.version_option(dask_mars.__version__, prog_name="dask_mars")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(module: bool, script: str, arguments: tuple[str, ...]) -> None:
    """Run SCRIPT with dask_mars as Dask's scheduler.

    The script and its arguments need no change: the scheduler is set in Dask's configuration, which a call's own
    `scheduler=` and a script's own configuration still override.

    `python -m dask_mars checkpoint DIRECTORY` shows the checkpoints in a directory, unless there is a script of
    that name here.
    """
    if script == "checkpoint" and not module and not Path(script).exists():
        from dask_mars.checkpointing.cli import main as checkpoint

        checkpoint(list(arguments), prog_name="python -m dask_mars checkpoint")
    # Options before the script are ours.
    if script.startswith("-"):
        raise click.NoSuchOption(script)
    dask.config.set(scheduler="mars")
    sys.argv = [script, *arguments]
    if module:
        sys.path.insert(0, "")
        if not _is_module(script):
            raise click.UsageError(f"there is no module {script}")
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        if not Path(script).exists():
            raise click.UsageError(f"there is no file {script}")
        if Path(script).is_dir() and not (Path(script) / "__main__.py").exists():
            raise click.UsageError(f"the directory {script} has no __main__.py to run")
        sys.path.insert(0, str(Path(script).resolve().parent))
        runpy.run_path(script, run_name="__main__")


def _is_module(name: str) -> bool:
    """Return whether a module can be found; this imports its parent packages."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError as error:
        # An import error of the user's package needs its traceback.
        if not f"{name}.".startswith(f"{error.name}."):
            raise
        return False
    except ValueError:
        return False


if __name__ == "__main__":
    main(prog_name="python -m dask_mars")
