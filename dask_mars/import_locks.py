"""Keeps forked processes from waiting for imports of threads that they do not have, and imports each module once.

A fork has the locks of modules that other threads import; a first computation imports for a tenth of a second.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from importlib import _bootstrap
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

#: Maximum seconds for which a fork waits for imports.
_LONGEST_S = 10.0
_POLL_S = 0.001
#: Packages of which computations import modules on their own, and those of Python that these import.
_PACKAGES = frozenset({"cloudpickle", "dask", "dask_mars", "numpy", "psutil"}) | sys.stdlib_module_names


def is_importing(module: object) -> bool:
    """Return whether a module's import has begun and not ended."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def is_loaded(name: str) -> bool:
    """Return whether a module has been imported."""
    module = sys.modules.get(name)
    return module is not None and not is_importing(module)


def _locked(*besides: int | None) -> list[str]:
    """Return the modules of these packages whose locks belong to none of these threads."""
    # The name is private to Python: without it, forks are as they were.
    locks: dict[str, Any] = dict(getattr(_bootstrap, "_module_locks", {}))
    ours = [name for name in locks if name.partition(".")[0] in _PACKAGES]
    return [name for name in ours if getattr(locks[name](), "owner", None) not in besides]


def others_import() -> bool:
    """Return whether another thread imports a module of these packages."""
    return bool(_locked(threading.get_ident(), None))


def _wait() -> None:
    """Let other threads end their imports before a fork."""
    until = time.monotonic() + _LONGEST_S
    while others_import() and time.monotonic() < until:
        time.sleep(_POLL_S)


def _forget() -> None:
    """Forget imports of other threads in a forked process: those that began after the wait, or took too long."""
    for name in _locked(threading.get_ident()):
        _bootstrap._module_locks.pop(name)  # type: ignore[attr-defined]
        if is_importing(sys.modules.get(name)):
            del sys.modules[name]


os.register_at_fork(before=_wait, after_in_child=_forget)


class _FoundAgain(MetaPathFinder, Loader):
    """Finds our modules that `sys.modules` has lost: `mock.patch.dict` removes those imported meanwhile."""

    # Others still refer to them, and a second copy would have other classes.

    def __init__(self, module: ModuleType | None = None) -> None:
        self._module = module

    def find_spec(self, name: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return a module's spec if its package has it, None for its first import and for a reload."""
        package, _, own_name = name.rpartition(".")
        if target is not None or package.partition(".")[0] != "dask_mars":
            return None
        module = getattr(sys.modules.get(package), "__dict__", {}).get(own_name)
        is_found = isinstance(module, ModuleType) and module.__name__ == name
        return ModuleSpec(name, _FoundAgain(module)) if is_found else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return the module."""
        assert self._module is not None
        self._spec = self._module.__spec__
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back."""
        module.__spec__ = self._spec


sys.meta_path.insert(0, _FoundAgain())
