"""Completes cloudpickle's classes by value: slots, qualified names, members of enumerations.

A class that returns to its process becomes the original, unchanged by the copy: methods of a copy refer to copies
of the global variables.
"""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable, Mapping
from typing import Any

#: Classes that were sent or received, by cloudpickle's identifiers.
_travelled: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()
#: Whether each of these is this process's own, rather than read from a pickle.
_is_own: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()
#: Attributes of members of enumerations that Python sets itself.
_MEMBER_NAMES = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_"})


def complete_reduction(kind: type, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return how to send a class by value, given cloudpickle's reduction."""
    build, arguments, (attributes, slots), *_, set_state = reduced
    members: dict[str, dict[str, Any]] = {}
    if isinstance(kind, enum.EnumType):
        # cloudpickle does not treat aliases and combined flags as members, and no class lets attributes replace
        # them.
        named: Mapping[str, Any] = kind.__members__
        arguments = (*arguments[:3], {name: member.value for name, member in named.items()}, *arguments[4:])
        attributes = {name: value for name, value in attributes.items() if name not in named}
        members = {name: _attributes_of(member) for name, member in named.items()}
    else:
        # Objects of a class without its slots are incompatible with the original.
        own = {"__slots__": vars(kind)["__slots__"]} if "__slots__" in vars(kind) else {}
        arguments = (*arguments[:3], {**arguments[3], "__qualname__": kind.__qualname__, **own}, *arguments[4:])
    identifier = arguments[-2]
    _travelled[identifier] = kind
    _is_own.setdefault(kind, True)
    state = set_state, (attributes, slots), members
    return _class_again, (build, identifier, arguments), state, None, None, _set_state


def _class_again(build: Callable[..., type], identifier: str, arguments: tuple[Any, ...]) -> type:
    """Return the class with an identifier, or build it, which may register it with a base class."""
    kind = _travelled.get(identifier)
    if kind is None:
        kind = _travelled[identifier] = _built(build, *arguments)
    return kind


def _built(build: Callable[..., type], first: Any, second: Any, bases: Any, *others: Any) -> type:
    """Build a class, without calling ``__init_subclass__`` of copied base classes: the pickle has its effects."""
    above = dict.fromkeys(base for below in bases for base in below.__mro__) if isinstance(bases, tuple) else ()
    copies = [kind for kind in above if "__init_subclass__" in vars(kind) and _is_own.get(kind) is False]
    functions = [vars(kind)["__init_subclass__"] for kind in copies]
    for kind in copies:
        type.__setattr__(kind, "__init_subclass__", classmethod(lambda cls, **_: None))
    try:
        return build(first, second, bases, *others)
    finally:
        for kind, function in zip(copies, functions, strict=True):
            type.__setattr__(kind, "__init_subclass__", function)


def _attributes_of(member: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(member).items() if name not in _MEMBER_NAMES}


def _set_state(kind: Any, state: tuple[Callable[[Any, Any], None], Any, dict[str, dict[str, Any]]]) -> None:
    """Set the attributes of a class from a pickle, unless it is this process's own."""
    if _is_own.setdefault(kind, False):
        return
    set_state, attributes, members = state
    set_state(kind, attributes)
    for name, values in members.items():
        vars(kind[name]).update(values)
