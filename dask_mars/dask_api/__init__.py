"""All private names of Dask that we use, each with the consequence of its removal in a release.

*Needed* names are imported as usual; without one of them `UnknownDask` names the versions that work. Names *for
speed* and names *compared by identity* are imported by `optional`: a stand-in replaces a missing name. Nothing
equals a stand-in or is an instance of it, and a call of it raises `NameGone`. So the pass or front that needs the
name is skipped, and its input becomes plain tasks.

Start with `core` (tasks, expressions, getters); `arrays`, `bags` and `frames` import the collections that they
name, `loaded` none.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import dask

from dask_mars.errors import DaskDiffers

#: Names that this Dask does not have, with their modules.
missing: list[str] = []
_warned = False


class NameGone(AttributeError):
    """A private name of Dask was called that this version does not have."""


class _Stand(type):
    """The type of stand-ins, which are classes, because `isinstance` needs classes."""

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise NameGone(f"Dask {dask.__version__} has no {cls.__qualname__}")

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Stand(f"{cls.__qualname__}.{name}", (), {})


#: Stands for names of modules that the program has not imported.
Gone = _Stand("Gone", (), {})


def optional(module: str, *names: str) -> Any:
    """Return names of a Dask module, with stand-ins for missing ones: one value, or a tuple."""
    found = []
    for name in names:
        try:
            value: Any = importlib.import_module(module)
            for part in name.split("."):
                value = getattr(value, part)
        except (ImportError, AttributeError):
            missing.append(f"{module}.{name}")
            value = _Stand(f"{module}.{name}", (), {})
        found.append(value)
    return found[0] if len(names) == 1 else tuple(found)


def is_gone(value: Any) -> bool:
    """Return whether a value is the stand-in of a missing name."""
    return type(value) is _Stand


def warn_of_differences(error: BaseException | None = None) -> None:
    """Warn once per process of missing names, or of an error in reading Dask's expression."""
    global _warned
    if _warned or not (missing or error):
        return
    warnings.warn(DaskDiffers(dask.__version__, tuple(missing), error), stacklevel=2)
    # With a filter that turns the warning into an error, each call raises.
    _warned = True
