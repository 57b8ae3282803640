"""The module ``__main__`` in workers: functions and classes of the user's script are found there by name.

Pickles that tasks write and read themselves (`pickle.dump`, `joblib`, `multiprocessing`) look names up.
"""

from __future__ import annotations

import builtins
import sys
import uuid
import weakref
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NamedTuple

#: Token of each function and class of a ``__main__`` that this process has sent or received.
_tokens: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
#: Objects of this process's own ``__main__``, by token.
_own: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
#: The worker's ``__main__``, None in other processes, and its names of the current graph.
_module: ModuleType | None = None
_shown: dict[str, Any] = {}


class MainOrigin(NamedTuple):
    """The origin of a ``__main__``: its file, and its module's name if it was run by that.

    New processes of `multiprocessing` import the script by these.
    """

    file: str | None
    name: str | None


def main_origin() -> MainOrigin:
    """Return the origin of this process's ``__main__``."""
    module = sys.modules.get("__main__")
    spec = getattr(module, "__spec__", None)
    return MainOrigin(getattr(module, "__file__", None), getattr(spec, "name", None))


def take_over(origin: MainOrigin) -> None:
    """Give this worker a ``__main__`` like the user's, without definitions."""
    global _module
    _module = ModuleType("__main__")
    vars(_module)["__builtins__"] = builtins
    if origin.file is not None:
        _module.__file__ = origin.file
    if origin.name is not None:
        _module.__spec__ = ModuleSpec(origin.name, None, origin=origin.file)
    # multiprocessing uses the second name for the parent's script.
    sys.modules["__main__"] = sys.modules["__mp_main__"] = _module


def show(names: dict[str, Any]) -> None:
    """Set the names in a worker's ``__main__``, in place of the last ones; later arrivals go to the same dict."""
    global _shown
    if _module is None or names is _shown:
        return
    attributes = vars(_module)
    for name, value in _shown.items():
        if attributes.get(name) is value:
            del attributes[name]
    attributes.update(names)
    _shown = names


def reduce_named(value: Any, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a reduction of a function or class that also restores its name in ``__main__``.

    Parameters
    ----------
    value : function or type
        Function or class that travels by value.
    reduced : tuple
        Reduction by cloudpickle.
    """
    token = _tokens.get(value)
    name = value.__name__
    if token is None:
        main = sys.modules.get("__main__")
        if main is None or value.__module__ != "__main__" or vars(main).get(name) is not value:
            return reduced
        token = _tokens[value] = uuid.uuid4().hex
        _own[token] = value
    make, arguments, state, items, pairs, set_state = reduced
    return _make_named, (token, name, make, arguments), (name, set_state, state), items, pairs, _complete_named


def _make_named(token: str, name: str, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Return the object of a token, if it is this process's own or known in the current graph; else build it."""
    for known in (_own.get(token), _shown.get(name)):
        if known is not None and _tokens.get(known) == token:
            return known
    made = make(*arguments)
    _tokens[made] = token
    return made


def _complete_named(value: Any, state: tuple[str, Callable[[Any, Any], Any], Any]) -> None:
    name, set_state, own_state = state
    # The received state may be older than the user's own.
    if _own.get(_tokens[value]) is value or _shown.get(name) is value:
        return
    set_state(value, own_state)
    if _module is not None:
        _shown[name] = vars(_module)[name] = value


__all__ = ["MainOrigin", "main_origin", "reduce_named", "show", "take_over"]
