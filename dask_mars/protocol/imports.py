"""Reports modules after their import, by a task or by a worker."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class ImportWatch(MetaPathFinder):
    """Calls a function with the name of each awaited module after its import."""

    # It finds no modules itself: at the front of `sys.meta_path`, it lets their loaders call the function.

    def __init__(self, arrived: Callable[[str], None]) -> None:
        self._arrived = arrived
        self._names: set[str] = set()

    def wait_for(self, name: str) -> None:
        """Wait for a module that has not been imported."""
        self._names.add(name)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of an awaited module from the other finders."""
        if fullname not in self._names:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                self._prepare(spec)
                return spec
        return None

    def _prepare(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        if not hasattr(loader, "exec_module") or isinstance(loader, type):
            # The loader is shared with other modules.
            return
        execute = loader.exec_module

        def execute_and_tell(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            self._names.discard(spec.name)
            self._arrived(spec.name)

        loader.exec_module = execute_and_tell
