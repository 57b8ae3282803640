"""NumPy for modules whose graphs may have no arrays: the first use of one of its functions imports it.

Until then no value is an instance of NumPy's types, or equal to one of its functions. These modules use NumPy only
in functions, never at their import.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dask_mars.import_locks import is_loaded

#: Names for type checks, which need no NumPy: before its import no value has these types.
_RECOGNISED = frozenset(
    {"broadcast_to", "dtype", "generic", "ma", "memmap", "ndarray", "random", "transpose", "ufunc"}
)


class _Absent(type):
    """Makes stand-ins of NumPy's types and modules, which have no instances; a call imports NumPy."""

    def __call__(cls, *args: Any, **keywords: Any) -> Any:
        found: Any = import_module("numpy")
        for part in cls.__name__.split("."):
            found = getattr(found, part)
        return found(*args, **keywords)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(f"{cls.__name__}.{name}", (), {})


_waiting: list[Callable[[Any], None]] = []


def once_loaded(function: Callable[[Any], None]) -> Callable[[Any], None]:
    """Register a function to call with NumPy, perhaps repeatedly, before more of its names are used."""
    _waiting.append(function)
    if is_loaded("numpy"):
        function(import_module("numpy"))
    return function


class _NumPy:
    """Looks names of NumPy up at their first use."""

    def __getattr__(self, name: str) -> Any:
        if name in _RECOGNISED and not is_loaded("numpy"):
            return _Absent(name, (), {})
        numpy = import_module("numpy")
        for function in _waiting:
            function(numpy)
        vars(self)[name] = found = getattr(numpy, name)
        return found


if TYPE_CHECKING:
    import numpy as np
else:
    np = _NumPy()

__all__ = ["np", "once_loaded"]
