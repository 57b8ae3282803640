"""Imports libraries in the template's fork, from which workers are forked."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from dask_mars.protocol.libraries import QUIET

#: Descriptors of this process before it imports libraries.
_descriptors: set[str] = set()


def silence() -> None:
    """Send the output of imports nowhere, and record which files are open."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(null, stream)
    os.close(null)
    _descriptors.update(_open_descriptors())


def load(libraries: Mapping[str, str]) -> None:
    """Import libraries, given their files; end this process if one of them is elsewhere here."""
    before = {name: os.environ.get(name) for name in QUIET}
    os.environ.update(QUIET)
    gc.disable()
    for name, origin in libraries.items():
        # A task that needs the module raises the error again.
        with contextlib.suppress(BaseException):
            spec = importlib.util.find_spec(name)
            if spec is None or spec.origin != origin:
                os._exit(1)
            importlib.import_module(name)
    gc.enable()
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    # Forks would print again what is left in buffers.
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    gc.collect()
    gc.freeze()


def has_shared_state() -> bool:
    """Return whether imports have opened files, or made semaphores, which forks would share."""
    return _open_descriptors() != _descriptors or "/dev/shm/" in Path("/proc/self/maps").read_text()


def _open_descriptors() -> set[str]:
    # The one of the listing itself is the same each time.
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208
