"""Every name of Dask's that its documentation does not promise, each with what happens when a release drops it.

*Needed* names are imported as usual; without one of them `UnknownDask` names the versions that work. Names *for
speed* and names *compared by identity* go through `optional`: a stand-in takes the place of a name that is gone.
Nothing equals a stand-in or is an instance of it, and a call of it raises `NameGone`. So the pass or front that
needs the name is left out, and what it would have read becomes plain tasks.

Start with `core` (tasks, expressions, getters); `arrays`, `bags` and `frames` load what they name.
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
    """A name of Dask's was called that this version does not have."""


class _Stand(type):
    """The type of stand-ins: classes, so that `isinstance` takes them."""

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise NameGone(f"Dask {dask.__version__} has no {cls.__qualname__}")

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Stand(f"{cls.__qualname__}.{name}", (), {})


def optional(module: str, *names: str) -> Any:
    """Return names of a module of Dask's, each with a stand-in if it is gone: one value, or a tuple."""
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
    """Return whether a value is the stand-in of a name that is gone."""
    return type(value) is _Stand


def warn_of_differences(error: BaseException | None = None) -> None:
    """Warn once per process of names that are gone, or of an error while Dask's expression was read."""
    global _warned
    if _warned or not (missing or error):
        return
    warnings.warn(DaskDiffers(dask.__version__, missing, error), stacklevel=2)
    # A filter that makes errors of these warnings raises each time.
    _warned = True
