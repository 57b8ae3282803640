"""A pytest plugin that puts one scheduler in the place of all of Dask's.

Dask's helper `assert_eq` asks for the synchronous scheduler by name, so that setting the configured scheduler
alone would test little. Collections note their default scheduler when imported, so the replacement comes first.
"""

from __future__ import annotations

import importlib
import os

from dask.base import named_schedulers

_MODULES = {"mars": "dask_mars", "threads": "dask.threaded"}


#: The getter that users hold, with all that belongs to it.
get = importlib.import_module(_MODULES[os.environ["DASK_SUITE_SCHEDULER"]]).get

for name in list(named_schedulers):
    named_schedulers[name] = get
