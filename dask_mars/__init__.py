"""dask_mars: a Dask scheduler with worker processes around a shared store.

Pass ``scheduler=dask_mars.get`` to Dask, or say ``dask.config.set(scheduler="mars")`` after this import.
"""

from __future__ import annotations

import os
import sys

from dask.base import named_schedulers

from dask_mars import config, errors

if not hasattr(os, "fork"):
    raise errors.UnsupportedPlatform(sys.platform)

from dask_mars.runtime import Runtime, close, get
from dask_mars.version import __version__

__all__ = ["Runtime", "__version__", "close", "get"]

config.load_defaults()
named_schedulers["mars"] = get
