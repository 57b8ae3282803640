"""Ends a worker process without clearing the modules of its template, whose pages that would copy."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import sys
import threading
from collections.abc import Mapping
from types import ModuleType


def end_process(modules: Mapping[str, ModuleType]) -> None:
    """End this process as the interpreter does at its end, but leave some modules, given by name, as they are."""
    # CPython's own names: without them the interpreter does all of this.
    shut_down, run_handlers = getattr(threading, "_shutdown", None), getattr(atexit, "_run_exitfuncs", None)
    if shut_down is None or run_handlers is None:
        return
    with contextlib.suppress(BaseException):
        shut_down()
    with contextlib.suppress(BaseException):
        run_handlers()
    _destroy_others(modules)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    # Libraries have exit handlers too. The GIL is held, so that no other thread runs meanwhile.
    ctypes.PyDLL(None).exit(0)


def _destroy_others(modules: Mapping[str, ModuleType]) -> None:
    """Destroy the objects of all other modules: destructors of the user's classes run, and files are flushed."""
    others = [name for name, module in sys.modules.items() if modules.get(name) is not module]
    popped = [sys.modules.pop(name) for name in others]
    spaces = [object.__getattribute__(module, "__dict__") for module in popped if isinstance(module, ModuleType)]
    popped.clear()
    # Destructors that import get an error, as at the end of the interpreter.
    sys.meta_path = None  # type: ignore[assignment]
    gc.collect()
    for space in spaces:
        space.clear()
