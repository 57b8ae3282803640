"""A pytest plugin that puts one scheduler in the place of all of Dask's.

Tests ask for the synchronous scheduler by name, as Dask's helper `assert_eq` does, or take what is configured, or
the default of a collection, which collections note when they are imported: the replacement comes before that.
It lies in a folder of its own, so that nothing else of ours is in the path of other libraries' tests.
"""

from __future__ import annotations

import importlib
import os

import dask
from dask.base import named_schedulers

_MODULES = {"mars": "dask_mars", "threads": "dask.threaded"}

#: The getter that users hold, with all that belongs to it.
get = importlib.import_module(_MODULES[os.environ["CLIENTS_SCHEDULER"]]).get

for name in list(named_schedulers):
    named_schedulers[name] = get
dask.config.set(scheduler=get)
