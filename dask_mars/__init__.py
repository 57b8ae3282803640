"""dask_mars: a Dask scheduler with worker processes around a shared store.

Pass ``scheduler=dask_mars.get`` to Dask, or call ``dask.config.set(scheduler="mars")`` after this import.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dask_mars import config, errors
from dask_mars.dask_api.core import find_clients_where_imported, named_schedulers
from dask_mars.engine import early

if not hasattr(os, "fork"):
    raise errors.UnsupportedPlatform(sys.platform)

from dask_mars.runtimes import Runtime, close, get, runtime, submit
from dask_mars.version import __version__

if TYPE_CHECKING:
    from dask_mars.checkpointing.block import checkpoint
    from dask_mars.checkpointing.listing import checkpoints
    from dask_mars.client.handles import Computation
    from dask_mars.cluster.local import LocalMarsCluster
    from dask_mars.cluster.take_over import take_over
    from dask_mars.observe.drawing.visualize import visualize
    from dask_mars.observe.planning.plan import plan
    from dask_mars.web.client import connect

__all__ = [
    "Computation",
    "LocalMarsCluster",
    "Runtime",
    "__version__",
    "checkpoint",
    "checkpoints",
    "close",
    "connect",
    "get",
    "plan",
    "runtime",
    "submit",
    "take_over",
    "visualize",
]

config.load_defaults()
named_schedulers["mars"] = get
find_clients_where_imported()
if config.begins_at_import():
    early.begin_at_import()


#: Modules of names that most programs do not use, which skip these imports.
_MODULES = {
    "Computation": "client.handles",
    "LocalMarsCluster": "cluster.local",
    "checkpoint": "checkpointing.block",
    "checkpoints": "checkpointing.listing",
    "connect": "web.client",
    "plan": "observe.planning.plan",
    "take_over": "cluster.take_over",
    "visualize": "observe.drawing.visualize",
}


def __getattr__(name: str) -> Any:
    if name == "diagnostics":
        return import_module(f"{__name__}.{name}")
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
