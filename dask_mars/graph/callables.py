"""Identifies callables by their types.

Users' objects may have every attribute (mocks), raise any exception for one, or lie about their class. This module
runs none of their code.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType, WrapperDescriptorType
from typing import Any

_TOOLZ = frozenset({"cytoolz", "toolz"})
#: Kinds of callables that their path identifies completely: pickles, too, hold only the path. Other kinds, such as
#: partial functions, may have state.
_NAMED = (FunctionType, BuiltinFunctionType, type, MethodDescriptorType, WrapperDescriptorType)
# NumPy's own kinds of functions, by name, because this module must not import NumPy.
_NAMED_BY_NUMPY = frozenset({"ufunc", "_ArrayFunctionDispatcher"})


def called_by(function: Any) -> Any:
    """Return the innermost callable of partial functions, curried ones and methods."""
    while True:
        kind = type(function)
        if issubclass(kind, partial) or is_of_toolz(kind, "curry"):
            function = function.func
        elif kind is MethodType:
            function = function.__func__
        else:
            return function


def is_of_toolz(kind: type, name: str) -> bool:
    """Return whether a class is the one of toolz or cytoolz with this name."""
    return kind.__name__ == name and package_of(kind) in _TOOLZ


def is_parquet_reader(kind: type) -> bool:
    """Return whether a class is the one of Dask's readers of Parquet; Dask makes a reader for each partition."""
    return kind.__name__ == "ParquetFunctionWrapper" and package_of(kind) == "dask"


def is_named(function: Any) -> bool:
    """Return whether a callable is a function or a class, which its path identifies completely."""
    kind = type(function)
    return issubclass(kind, _NAMED) or (kind.__name__ in _NAMED_BY_NUMPY and package_of(kind) == "numpy")


def look_up(known: Mapping[Any, Any], function: Any, default: Any = None) -> Any:
    """Return the entry of a function or a class; hashing any other object could run code of the user's."""
    return known.get(function, default) if is_named(function) else default


def package_of(kind: type) -> str:
    """Return the package of a class, or "" if it has no valid module name."""
    module = kind.__module__
    return module.partition(".")[0] if type(module) is str else ""


def attribute(value: Any, name: str, default: Any = None) -> Any:
    """Return an attribute that an object really has, without its own ``__getattr__`` and ``__getattribute__``."""
    try:
        return object.__getattribute__(value, name)
    except Exception:
        return default


def module_of(function: Any) -> str:
    """Return the module of the innermost callable, or "" if it has none."""
    module = attribute(called_by(function), "__module__")
    return module if type(module) is str else ""


def is_of(function: Any, package: str, *names: str) -> bool:
    """Return whether a function has one of some qualified names, and its module's name begins with a package's."""
    return attribute(function, "__qualname__") in names and attribute(function, "__module__", "").startswith(
        package
    )


def full_name(function: Any) -> str:
    """Return module and qualified name of the innermost callable; for other objects, of their class."""
    named = called_by(function)
    name = attribute(named, "__qualname__")
    if type(name) is not str:
        named = type(named)
        name = named.__qualname__
    return f"{module_of(named)}.{name}"
