"""Settings that the user has made in zarr's configuration, obeyed by workers.

Zarr keeps settings in its own module, and reads variables of the environment when it is imported and whenever it
is asked to. Settings travel as such variables, so they reach workers which have not imported zarr yet.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

#: Variables of the environment that zarr reads begin with it.
PREFIX = "ZARR_"
_MODULE = "zarr.core.config"
#: What is the same after a way through a variable.
_LITERALS = (str, int, float, bool, type(None))


def in_force() -> dict[str, str]:
    """Return the variables that say what differs here from zarr's defaults; empty without zarr."""
    module = sys.modules.get(_MODULE)
    if module is None:
        return {}
    try:
        (defaults,) = module.config.defaults
        settings = module.config.config
        # This is asked at each call, and few users set anything.
        return {} if settings == defaults else dict(_differences(settings, defaults, PREFIX))
    except (AttributeError, ValueError):
        # An older zarr, or one that is being imported by another thread.
        return {}


def read_again() -> None:
    """Have zarr take over what the environment says now, if it is here."""
    module = sys.modules.get(_MODULE)
    if module is not None and hasattr(module, "config"):
        module.config.refresh()


def _differences(
    settings: Mapping[str, Any], defaults: Mapping[str, Any], prefix: str
) -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        default = defaults.get(key)
        name = f"{prefix}{key.upper()}"
        if isinstance(value, Mapping):
            yield from _differences(value, default if isinstance(default, Mapping) else {}, f"{name}__")
        elif value != default and isinstance(value, _LITERALS):
            yield name, repr(value)


__all__ = ["PREFIX", "in_force", "read_again"]
