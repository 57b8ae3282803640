"""Modules of the user's that are edited and loaded again between computations."""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import dask

from tests.cases.comparing import case, main

FOLDER = Path(tempfile.mkdtemp())
_texts = itertools.count()


def write(name: str, text: str) -> None:
    # No two texts have the same length: by that, and by the second, Python knows what is in its cache.
    FOLDER.joinpath(*name.split(".")).with_suffix(".py").write_text(f"{text}\n#{'-' * next(_texts)}\n")


def imported(name: str, text: str) -> ModuleType:
    write(name, text)
    importlib.invalidate_caches()
    if name in sys.modules:
        return importlib.reload(sys.modules[name])
    return importlib.import_module(name)


def answer(module: ModuleType) -> Any:
    return dask.delayed(module.function)(1).compute()


@case
def a_function() -> Any:
    values = []
    for step in range(3):
        values.append(answer(imported("plain_steps", f"def function(x): return x + {step}")))
    return values


@case
def what_a_function_calls() -> Any:
    values = []
    for step in range(2):
        imported("helper_steps", f"def help(x): return x + {step}")
        caller = sys.modules.get("caller_steps") or imported(
            "caller_steps", "import helper_steps\ndef function(x): return helper_steps.help(x)"
        )
        values.append(answer(caller))
    return values


@case
def names_taken_from_a_module_that_was_loaded_before() -> Any:
    values, text = [], "from first_steps import help\ndef function(x): return help(x)"
    for step in range(2):
        imported("first_steps", f"def help(x): return {step}")
        values.append(answer(imported("second_steps", text)))
    return values


@case
def a_module_that_is_removed_and_imported() -> Any:
    values = []
    for step in range(2):
        sys.modules.pop("removed_steps", None)
        values.append(answer(imported("removed_steps", f"def function(x): return {step}")))
    return values


@case
def a_class() -> Any:
    values = []
    for step in range(2):
        text = f"class Thing:\n    step = {step}\ndef function(x): return Thing(), Thing.step"
        module = imported("class_steps", text)
        thing, number = answer(module)
        values.append((type(thing) is module.Thing, number))
    return values


@case
def an_edit_that_autoreload_takes_over() -> Any:
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.run_cell("%reload_ext autoreload\n%autoreload 2")
    imported("help_auto", "def help(x): return x")
    module = imported("steps_auto", "from help_auto import help\ndef function(x): return help(x)")
    shell.run_cell("pass")
    values = [answer(module)]
    for step in range(2):
        write("help_auto", f"def help(x): return x + {10 + step}")
        # It compares times of files, which may be no finer than a second.
        file, ahead_s = FOLDER / "help_auto.py", next(_texts)
        os.utime(file, (file.stat().st_mtime + ahead_s,) * 2)
        shell.run_cell("pass")
        values.append(answer(module))
    shell.run_cell("%autoreload 0")
    return values


if __name__ == "__main__":
    sys.path.insert(0, str(FOLDER))
    main()
