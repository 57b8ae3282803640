"""Identity of functions and classes that travel by value, and the parts of classes that cloudpickle leaves out.

A class that returns to its process becomes the original, unchanged by the copy: methods of a copy refer to copies
of the global variables. Workers have those of ``__main__`` in their own, by name.
"""

from __future__ import annotations

import enum
import sys
import uuid
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dask_mars.protocol import main_module


class Identity(NamedTuple):
    """A token of a function or class, and its name in ``__main__``, if it has one."""

    token: str
    name: str | None


#: Identities of classes, and of functions in ``__main__``, that this process has sent or received.
_identities: weakref.WeakKeyDictionary[Any, Identity] = weakref.WeakKeyDictionary()
#: Definitions of this process and received classes, by token. Functions are not reused.
_known: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
#: Classes and functions that were received, not defined in this process.
_received: weakref.WeakSet[Any] = weakref.WeakSet()
#: Attributes of members of enumerations that Python sets itself.
_MEMBER_NAMES = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_"})


def reduce_named(value: Any, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return how to send a function or class by value, given cloudpickle's reduction."""
    make, arguments, state, items, pairs, set_state = reduced
    identity = _identities.get(value)
    if isinstance(value, type):
        token, arguments, state = arguments[-2], *_complete_class(value, arguments, state)
        make, arguments, set_state, state = _build, (make, *arguments), _set_class, (set_state, *state)
    elif identity is None and not _is_in_main(value):
        return reduced
    else:
        token = uuid.uuid4().hex
    if identity is None:
        identity = _identities[value] = Identity(token, value.__name__ if _is_in_main(value) else None)
        _known[identity.token] = value
    return _again, (identity, make, arguments), (set_state, state), items, pairs, _complete


def _is_in_main(value: Any) -> bool:
    main = sys.modules.get("__main__")
    return main is not None and value.__module__ == "__main__" and vars(main).get(value.__name__) is value


def _again(identity: Identity, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Return the known object of an identity, or make it."""
    for known in (_known.get(identity.token), main_module.shown(identity.name)):
        if known is not None and _identities.get(known) == identity:
            return known
    made = make(*arguments)
    _identities[made] = identity
    _received.add(made)
    if isinstance(made, type):
        _known[identity.token] = made
    return made


def _complete(value: Any, state: tuple[Callable[[Any, Any], Any], Any]) -> None:
    """Set the state of a rebuilt function or class; the received state may be older than the original's."""
    name = _identities[value].name
    if value not in _received or main_module.shown(name) is value:
        return
    set_state, own_state = state
    set_state(value, own_state)
    main_module.add(name, value)


def _complete_class(
    kind: type, arguments: tuple[Any, ...], state: tuple[dict[str, Any], Any]
) -> tuple[tuple[Any, ...], tuple[Any, dict[str, dict[str, Any]]]]:
    """Add slots, qualified name and members of enumerations to the arguments and the state of a class."""
    attributes, slots = state
    if not isinstance(kind, enum.EnumType):
        # Objects of a class without its slots are incompatible with the original.
        own = {"__slots__": vars(kind)["__slots__"]} if "__slots__" in vars(kind) else {}
        namespace = {**arguments[3], "__qualname__": kind.__qualname__, **own}
        return (*arguments[:3], namespace, *arguments[4:]), ((attributes, slots), {})
    # cloudpickle does not treat aliases and combined flags as members, and no class lets attributes replace them.
    named: Mapping[str, Any] = kind.__members__
    arguments = (*arguments[:3], {name: member.value for name, member in named.items()}, *arguments[4:])
    attributes = {name: value for name, value in attributes.items() if name not in named}
    members = {
        name: {key: value for key, value in vars(member).items() if key not in _MEMBER_NAMES}
        for name, member in named.items()
    }
    return arguments, ((attributes, slots), members)


def _build(build: Callable[..., type], first: Any, second: Any, bases: Any, *others: Any) -> type:
    """Build a class, without calling ``__init_subclass__`` of copied base classes: the pickle has its effects."""
    above = dict.fromkeys(base for below in bases for base in below.__mro__) if isinstance(bases, tuple) else ()
    copies = [kind for kind in above if "__init_subclass__" in vars(kind) and kind in _received]
    functions = [vars(kind)["__init_subclass__"] for kind in copies]
    for kind in copies:
        type.__setattr__(kind, "__init_subclass__", classmethod(lambda cls, **_: None))
    try:
        return build(first, second, bases, *others)
    finally:
        for kind, function in zip(copies, functions, strict=True):
            type.__setattr__(kind, "__init_subclass__", function)


def _set_class(kind: Any, state: tuple[Callable[[Any, Any], None], Any, dict[str, dict[str, Any]]]) -> None:
    set_state, attributes, members = state
    set_state(kind, attributes)
    for name, values in members.items():
        vars(kind[name]).update(values)
