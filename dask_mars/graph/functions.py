"""Callables by number: four bytes stand for every function that another process can import.

An op id is the hash of a callable's full path. `FunctionRegistry` leads from the id to the path, and from its
first use in a process on to the callable. What has no path of its own (lambdas, closures, partial functions,
whatever is defined in ``__main__``) has no op id either, and has to travel by value.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from typing import Any

import mmh3
from cloudpickle.cloudpickle import list_registry_pickle_by_value

from dask_mars.graph.callables import is_named

#: Where to look for ufuncs, which need not know the module that they belong to.
_HOMES_OF_UFUNCS = ("numpy", "scipy.special")


def function_id_of(path: str) -> int:
    """Return the op id of a path: 32 bits without a sign, the same in every process.

    Parameters
    ----------
    path : str
        As `path_of` returns it. The hash is of the path with a dot in place of the colon.

    Examples
    --------
    >>> function_id_of("mars.tensor.random.core:TensorRandomOperand")
    574610788
    """
    return int(mmh3.hash(path.replace(":", "."), signed=False))


def path_of(function: Callable[..., Any]) -> str | None:
    """Return the path under which every process finds this very callable.

    Returns
    -------
    str or None
        ``"module:qualified.name"``, with a colon because a class may have the name of a module; None if another
        object is found there now, or if cloudpickle has been told to pickle the module by value.

    Examples
    --------
    >>> from collections import OrderedDict
    >>> path_of(OrderedDict.fromkeys), path_of(OrderedDict.move_to_end)
    (None, 'collections:OrderedDict.move_to_end')
    """
    if not is_named(function):
        return None
    for module, name in _names(function):
        try:
            found = _look_up(module, name)
        except Exception:
            # Modules and classes may answer for attributes in ways of their own.
            continue
        if found is function and module != "__main__" and not _is_pickled_by_value(module):
            return f"{module}:{name}"
    return None


def _names(function: Any) -> Iterable[tuple[str, str]]:
    """Yield module and qualified name of a callable, as far as it knows them."""
    name = getattr(function, "__qualname__", None) or function.__name__
    module = getattr(function, "__module__", None)
    if module is None and (owner := getattr(function, "__objclass__", None)) is not None:
        module = owner.__module__
    if module is not None:
        return ((module, name),)
    return [(home, name) for home in _HOMES_OF_UFUNCS] if type(function).__name__ == "ufunc" else ()


def _look_up(module: str, name: str) -> Any:
    """Return what a path leads to in this process, None if its module has not been imported."""
    found: Any = sys.modules.get(module)
    if found is not None:
        for part in name.split("."):
            found = getattr(found, part)
    return found


def _is_pickled_by_value(module: str) -> bool:
    """Say whether the user has registered a module, or a package around it, with cloudpickle."""
    registered = list_registry_pickle_by_value()
    if not registered:
        return False
    return any(module == name or module.startswith(name + ".") for name in registered)


class FunctionRegistry:
    """From op id to path, and from its first use to the callable.

    The process that sends operands fills one by asking for op ids, the process that receives them one by learning.
    """

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}
        #: The path until the callable was first used.
        self._callables: dict[int, str | Callable[..., Any]] = {}

    def function_id(self, function: Callable[..., Any]) -> int | None:
        """Return the op id of a callable; None if it has none, or if another path has it already.

        Whether the path still leads to this callable is looked up at each call: it may have been replaced, or its
        module loaded again.
        """
        path = path_of(function)
        if path is None:
            return None
        function_id = function_id_of(path)
        return function_id if self._paths.setdefault(function_id, path) == path else None

    def path(self, function_id: int) -> str:
        """Return the path behind an op id."""
        return self._paths[function_id]

    def learn(self, function_id: int, path: str) -> None:
        """Take in a path.

        Raises
        ------
        ValueError
            The op id stands for another path.
        """
        known = self._paths.setdefault(function_id, path)
        if known != path:
            raise ValueError(f"op id {function_id} cannot stand for {path}: it stands for {known}")
        self._callables.setdefault(function_id, path)

    def __getitem__(self, function_id: int) -> Callable[..., Any]:
        """Return the callable, importing its module if need be.

        Raises
        ------
        KeyError
            The op id was never learnt.
        ImportError, AttributeError
            The path leads nowhere in this process.
        """
        known = self._callables[function_id]
        module, _, name = self._paths[function_id].partition(":")
        if type(known) is str or sys.modules.get(module) is None:
            importlib.import_module(module)
        # A task may have loaded the module again since its first use, and then what it has now is meant.
        found: Callable[..., Any] = _look_up(module, name)
        if found is not known:
            self._callables[function_id] = found
        return found
