"""Callables by number: four bytes stand for every function that another process can import.

A function id is the hash of a callable's full path. `FunctionRegistry` maps the id to the path, and from the first
use in a process to the callable. Callables without a path of their own (lambdas, closures, partial functions,
everything defined in ``__main__``) have no id, and travel by value.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from typing import Any

import mmh3
from cloudpickle.cloudpickle import list_registry_pickle_by_value

from dask_mars.graph.callables import is_named

#: Modules to search for ufuncs, which may not know their own module.
_HOMES_OF_UFUNCS = ("numpy", "scipy.special")


def function_id_of(path: str) -> int:
    """Return the function id of a path: 32 bits, unsigned, the same in every process."""
    return int(mmh3.hash(path.replace(":", "."), signed=False))


def path_of(function: Callable[..., Any]) -> str | None:
    """Return the path under which every process finds this very callable."""
    # It has a colon because a class may have the name of a module. None if the path now leads to another object,
    # or if cloudpickle pickles the module by value.
    if not is_named(function):
        return None
    for module, name in _names(function):
        try:
            found = _look_up(module, name)
        except Exception:
            # Modules and classes may compute attributes by code of their own.
            continue
        if found is function and module != "__main__" and not _is_pickled_by_value(module):
            return f"{module}:{name}"
    return None


def _names(function: Any) -> Iterable[tuple[str, str]]:
    """Yield possible modules and qualified names of a callable."""
    name = getattr(function, "__qualname__", None) or function.__name__
    module = getattr(function, "__module__", None)
    if module is None and (owner := getattr(function, "__objclass__", None)) is not None:
        module = owner.__module__
    if module is not None:
        return ((module, name),)
    return [(home, name) for home in _HOMES_OF_UFUNCS] if type(function).__name__ == "ufunc" else ()


def _look_up(module: str, name: str) -> Any:
    """Return the object at a path in this process, None if its module has not been imported."""
    found: Any = sys.modules.get(module)
    if found is not None:
        for part in name.split("."):
            found = getattr(found, part)
    return found


def _is_pickled_by_value(module: str) -> bool:
    """Return whether the user has registered a module, or a package around it, with cloudpickle."""
    registered = list_registry_pickle_by_value()
    if not registered:
        return False
    return any(module == name or module.startswith(name + ".") for name in registered)


class FunctionRegistry:
    """Maps function ids to paths, and from their first use to callables."""

    # The sender of operands fills its registry by asking for ids, the receiver fills its own by learning.

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}
        #: The path until the first use of the callable.
        self._callables: dict[int, str | Callable[..., Any]] = {}

    def function_id(self, function: Callable[..., Any]) -> int | None:
        """Return the function id of a callable; None if it has none, or if another path has the same id."""
        # Each call checks that the path still leads to this callable: it may have been replaced, or its module
        # reloaded.
        path = path_of(function)
        if path is None:
            return None
        function_id = function_id_of(path)
        return function_id if self._paths.setdefault(function_id, path) == path else None

    def path(self, function_id: int) -> str:
        """Return the path of a function id."""
        return self._paths[function_id]

    def learn(self, function_id: int, path: str) -> None:
        """Record a path; raise `ValueError` if its function id stands for another path."""
        known = self._paths.setdefault(function_id, path)
        if known != path:
            raise ValueError(f"op id {function_id} cannot stand for {path}: it stands for {known}")
        self._callables.setdefault(function_id, path)

    def __getitem__(self, function_id: int) -> Callable[..., Any]:
        """Return the callable, importing its module if need be."""
        known = self._callables[function_id]
        module, _, name = self._paths[function_id].partition(":")
        if type(known) is str or sys.modules.get(module) is None:
            importlib.import_module(module)
        # A task may have reloaded the module since the first use; its present function counts.
        found: Callable[..., Any] = _look_up(module, name)
        if found is not known:
            self._callables[function_id] = found
        return found
