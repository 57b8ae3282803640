"""Finds effects of tasks that matter on several hosts: locks, shuffle files, use of `distributed`.

Locks must hold on all hosts, files may be on one only, and some code needs a worker of `dask.distributed`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from dask.utils import SerializableLock

from dask_mars.graph.callables import attribute
from dask_mars.graph.chunks import Operand
from dask_mars.optimize.known import unfolded

#: Containers that functions refer to are not searched: a module's registries would lead to everything.
_CONTAINERS = frozenset({list, tuple, set, frozenset, dict})
#: Types of literals without effects.
_PLAIN: frozenset[type] = frozenset({int, float, str, bool, bytes, slice, type(None), complex, type})


def locks_of(values: Iterable[Any]) -> frozenset[str]:
    """Return the tokens of Dask's locks among values."""
    return frozenset([str(value.token) for value in values if issubclass(type(value), SerializableLock)])


def need_distributed(values: Iterable[Any]) -> bool:
    """Return whether some value belongs to `dask.distributed`, or is a function that imports it."""
    return any(_is_of_distributed(value) or _imports_distributed(value) for value in values)


def callables_of(operand: Operand) -> list[Any]:
    """Return the functions of an operand, the values they hold, and the values visible in them."""
    return list(_visible(unfolded(operand.functions), set()))


class EffectScanner:
    """Finds literals that may have effects; it remembers types without any."""

    def __init__(self) -> None:
        self._plain: set[type] = set(_PLAIN)
        #: Values visible in callables, by the callables' ids.
        self._callables: dict[int, list[Any]] = {}

    def with_effects(self, literals: tuple[Any, ...]) -> list[Any]:
        """Return a chunk's literals that may have effects, and the values visible in them."""
        plain = self._plain
        if plain.issuperset(map(type, literals)):
            return []
        found: list[Any] = []
        for literal in literals:
            kind = type(literal)
            # Shapes and indices are sequences of numbers.
            if kind in plain or ((kind is tuple or kind is list) and plain.issuperset(map(type, literal))):
                continue
            if callable(literal):
                visible = self._callables.get(id(literal))
                if visible is None:
                    visible = self._callables[id(literal)] = list(_visible((literal,), set()))
                found += visible
            else:
                found += _visible((literal,), set())
        for value in found:
            if not (callable(value) or issubclass(type(value), SerializableLock) or _is_of_distributed(value)):
                plain.add(type(value))
        return [value for value in found if type(value) not in plain]


def _visible(values: Iterable[Any], seen: set[CodeType]) -> Iterator[Any]:
    """Yield values that are not plain, and those in containers, functions and combined locks."""
    for value in values:
        kind = type(value)
        if kind in _PLAIN:
            continue
        if kind in (list, tuple, set, frozenset):
            yield from _visible(value, seen)
        elif kind is dict:
            yield from _visible(value.values(), seen)
        elif kind is partial:
            yield from _visible((value.func, *value.args, *value.keywords.values()), seen)
        elif kind is MethodType:
            yield from _visible((value.__func__, value.__self__), seen)
        elif kind is FunctionType:
            yield value
            yield from _visible_in_function(value, seen)
        elif kind.__name__ == "CombinedLock":
            # Xarray's.
            yield from _visible(tuple(getattr(value, "locks", ())), seen)
        else:
            yield value


def _visible_in_function(function: FunctionType, seen: set[CodeType]) -> Iterator[Any]:
    """Yield the values that a function refers to by name, also through functions of the same module."""
    if function.__code__ in seen:
        return
    seen.add(function.__code__)
    surroundings = function.__globals__
    found = [surroundings[name] for name in _names_in(function.__code__) if name in surroundings]
    for cell in function.__closure__ or ():
        # A cell may still be empty.
        with contextlib.suppress(ValueError):
            found.append(cell.cell_contents)
    for value in found:
        if type(value) is FunctionType and value.__globals__ is not surroundings:
            # Functions of libraries would lead to everything.
            yield value
        elif type(value) not in _CONTAINERS:
            yield from _visible((value,), seen)


def _imports_distributed(value: Any) -> bool:
    return type(value) is FunctionType and any(map(_belongs, _names_in(value.__code__)))


def _names_in(code: CodeType) -> set[str]:
    """Return the names that code uses, nested functions included."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_in(constant)
    return names


def _is_of_distributed(value: Any) -> bool:
    if issubclass(type(value), ModuleType):
        return _belongs(value.__name__)
    module = attribute(value, "__module__")
    return type(module) is str and _belongs(module)


def _belongs(module: str) -> bool:
    return module.split(".", 1)[0] == "distributed" or module == "dask.distributed"
