"""The module ``__main__`` in workers: functions and classes of the user's script are found there by name.

Pickles that tasks write and read themselves (`pickle.dump`, `joblib`, `multiprocessing`) look names up.
"""

from __future__ import annotations

import builtins
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NamedTuple

#: The worker's ``__main__``, None in other processes, and its names of the current graph.
_module: ModuleType | None = None
_shown: dict[str, Any] = {}


class MainOrigin(NamedTuple):
    """The origin of a ``__main__``: its file, and its module's name if it was run by that."""

    # New processes of `multiprocessing` import the script by these.

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


def shown(name: str | None) -> Any:
    """Return a function or class that a name stands for in the current graph, or None."""
    return None if name is None else _shown.get(name)


def add(name: str | None, value: Any) -> None:
    """Add a function or class that has arrived to a worker's ``__main__``."""
    if _module is not None and name is not None:
        _shown[name] = vars(_module)[name] = value
