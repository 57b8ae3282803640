"""The options of `prepare` for an engine, from the settings."""

from __future__ import annotations

from collections.abc import Callable

from dask_mars.optimize.fronts.parts import RESIDENT_SHARE
from dask_mars.optimize.passes.edit import Limits
from dask_mars.optimize.prepare import PrepareOptions

#: Minimum number of equal consumers per worker into which initial chunks are folded.
CONSUMERS_PER_WORKER = 32


def engine_options(workers: int, store_limit: Callable[[], int]) -> PrepareOptions:
    """Return the options for graphs that an engine of this machine runs."""
    return PrepareOptions(limits_for(workers, lambda: store_limit() // RESIDENT_SHARE))


def limits_for(workers: int, resident_bytes: Callable[[], int] | None = None) -> Limits:
    """Return the limits of passes for a number of workers."""
    return Limits(workers, resident_bytes, recomputes=True, consumers_per_worker=CONSUMERS_PER_WORKER)
