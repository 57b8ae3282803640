"""Limits that `threadpoolctl` has set in the user's process, obeyed by workers.

They are upper bounds: a worker whose libraries use one thread each, as they do unless the user has said otherwise,
obeys them anyway.
"""

from __future__ import annotations

import os
import sys
from typing import Any

#: By these the libraries that `threadpoolctl` knows go when they are loaded.
_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
#: What knows the libraries of this process, and how many modules were imported when it looked for them.
_controller: tuple[Any, int] | None = None
#: How many threads each library of this process has by itself.
_own: dict[str, int] = {}


def in_force() -> dict[str, int] | None:
    """Return the number of threads of each kind of library here; None if nobody can have limited them."""
    if "threadpoolctl" not in sys.modules:
        return None
    limits: dict[str, int] = {}
    for library in _libraries():
        kind = library.internal_api
        threads = library.num_threads
        if threads:
            limits[kind] = min(threads, limits.get(kind, threads))
    return limits


def apply(limits: dict[str, int] | None) -> None:
    """Have the libraries here use no more threads than `in_force` has found elsewhere, or as many as they did.

    Parameters
    ----------
    limits : dict or None
        By the kind of library.
    """
    if not _own and (limits is None or all(os.environ.get(name) == "1" for name in _VARIABLES)):
        return
    for library in _libraries():
        own = _own.setdefault(library.filepath, library.num_threads or 0)
        if own:
            library.set_num_threads(min(own, (limits or {}).get(library.internal_api, own)))


def _libraries() -> list[Any]:
    global _controller
    from threadpoolctl import ThreadpoolController

    # To look for libraries takes milliseconds, and no library comes without a module.
    count = len(sys.modules)
    if _controller is None or _controller[1] != count:
        _controller = ThreadpoolController(), count
    libraries: list[Any] = _controller[0].lib_controllers
    return libraries


__all__ = ["apply", "in_force"]
