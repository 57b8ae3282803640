"""Compiles the state machine by mypyc, all of its modules or none: ``python compile_scheduler.py DIRECTORY``.

DIRECTORY contains the package, and gets the libraries. It needs mypy, setuptools and a C compiler.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from mypyc.build import mypycify
from setuptools import Distribution
from setuptools.command.build_ext import build_ext

PACKAGE = Path("dask_mars", "scheduler")
#: The modules that handle each event, but for `machine`, whose methods tests replace.
MODULES = [
    "admission",
    "bookkeeping",
    "dispatch",
    "estimates",
    "handlers",
    "memory",
    "objects",
    "queues",
    "quotas",
    "recall",
    "workforce",
    "policies/base",
    "policies/compiling",
    "policies/mars",
    "policies/memory",
]
#: Other modules are not read: `make lint` checks types.
OPTIONS = ["--follow-imports=skip", "--ignore-missing-imports", f"--cache-dir={os.devnull}"]


def compile_scheduler(into: Path) -> None:
    """Compile in a temporary directory, and copy the libraries when all are there."""
    source, into = Path(__file__).parent.resolve() / PACKAGE, into.resolve()
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        shutil.copytree(source, PACKAGE, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        # Without it, mypy takes `scheduler` for the outermost package.
        PACKAGE.with_name("__init__.py").touch()
        # More optimization takes twice as long and gains nothing.
        extensions = mypycify(
            [*OPTIONS, *[str(PACKAGE / f"{name}.py") for name in MODULES]],
            opt_level="1",
            debug_level="0",
            group_name="dask_mars.scheduler._compiled",
        )
        command = build_ext(Distribution({"ext_modules": extensions}))
        command.build_lib = command.build_temp = "built"
        command.ensure_finalized()
        command.run()
        for library in Path("built").rglob("*.so"):
            shutil.copy(library, into / library.relative_to("built"))
        os.chdir(source)


if __name__ == "__main__":
    compile_scheduler(Path(sys.argv[1]))
