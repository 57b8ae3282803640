"""Limits that `threadpoolctl` has set in the user's process, applied in workers.

They are upper bounds: a worker whose libraries use one thread each, as is the default, needs no change.
"""

from __future__ import annotations

import os
import sys
from typing import Any

#: Environment variables that set the initial threads of the libraries `threadpoolctl` knows.
_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
#: Controller of this process's libraries, and number of imported modules at its search.
_controller: tuple[Any, int] | None = None
#: Each library's own number of threads in this process.
_own: dict[str, int] = {}


def in_force() -> dict[str, int] | None:
    """Return the number of threads of each kind of library; None without `threadpoolctl`, which sets limits."""
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
    """Limit the threads of libraries as `in_force` has found elsewhere, or restore their own number."""
    if not _own and (limits is None or all(os.environ.get(name) == "1" for name in _VARIABLES)):
        return
    for library in _libraries():
        own = _own.setdefault(library.filepath, library.num_threads or 0)
        if own:
            library.set_num_threads(min(own, (limits or {}).get(library.internal_api, own)))


def _libraries() -> list[Any]:
    global _controller
    from threadpoolctl import ThreadpoolController

    # The search takes milliseconds, and libraries are loaded only by modules.
    count = len(sys.modules)
    if _controller is None or _controller[1] != count:
        _controller = ThreadpoolController(), count
    libraries: list[Any] = _controller[0].lib_controllers
    return libraries
