"""Makes the name "mars" known to Dask in programs that do not import dask_mars.

Dask calls `register` while it is imported itself, as it does for all entry points of the group ``dask.sizeof``,
the only ones that it loads unasked. It has no schedulers yet at that moment. A module of its own, outside the
package: programs that do not compute with us must not wait for that, nor be stopped by anything in it.
"""

from __future__ import annotations

import sys
from typing import Any

NAME = "mars"


def get(dsk: Any, keys: Any, **options: Any) -> Any:
    """Compute keys of a Dask graph as `dask_mars.get` does, which this loads."""
    import dask_mars

    return dask_mars.get(dsk, keys, **options)


def persist(*arguments: Any, **options: Any) -> Any:
    """Persist collections as the scheduler's own `persist` does, which this loads."""
    import dask_mars

    return dask_mars.get.persist(*arguments, **options)  # type: ignore[attr-defined]


get.persist = persist  # type: ignore[attr-defined]


class _Waiting:
    """Looks at each import whether Dask knows schedulers by now, and finds no module."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Register the name if that is possible, and look no more."""
        if _register_now():
            # A new list: who is asked next is taken from the one that is being walked.
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]


def _register_now() -> bool:
    schedulers = getattr(sys.modules.get("dask.base"), "named_schedulers", None)
    if schedulers is None:
        return False
    schedulers.setdefault(NAME, get)
    return True


def register(sizeof: Any) -> None:
    """Have Dask know the name as soon as it can know any.

    Parameters
    ----------
    sizeof : object
        Dask's registry of functions that measure objects, which is left as it is.
    """
    if not _register_now():
        sys.meta_path.insert(0, _Waiting())
