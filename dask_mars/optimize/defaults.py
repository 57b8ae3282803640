"""The options of `prepare` for an engine, from the settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from dask_mars import config
from dask_mars.graph.callables import module_of
from dask_mars.graph.chunks import Operand
from dask_mars.optimize.fronts.parts import RESIDENT_SHARE
from dask_mars.optimize.passes.edit import Limits, RecomputeRules
from dask_mars.optimize.prepare import PrepareOptions

#: Minimum number of equal consumers per worker into which initial chunks are folded.
CONSUMERS_PER_WORKER = 32


def engine_options(workers: int, store_limit: Callable[[], int]) -> PrepareOptions:
    """Return the options for graphs that an engine of this machine runs."""
    return PrepareOptions(limits_for(workers, lambda: store_limit() // RESIDENT_SHARE))


def limits_for(workers: int, resident_bytes: Callable[[], int] | None = None) -> Limits:
    """Return the limits of passes for a number of workers."""
    return Limits(workers, resident_bytes, recompute_rules(), consumers_per_worker=CONSUMERS_PER_WORKER)


def recompute_rules() -> RecomputeRules:
    """Return the functions that describe random numbers for recomputation."""
    return _recompute_rules(bool(config.get("expressions.reductions")))


@cache
def _recompute_rules(reductions: bool) -> RecomputeRules:
    # These modules import Dask's arrays, which graphs of random numbers have imported already.
    def is_source(operand: Operand) -> bool:
        return module_of(operand.functions[0]) == "dask.array.random"

    def make_ns(operand: Operand, literals: tuple[Any, ...]) -> float | None:
        from dask_mars.expressions.rewrite import make_ns

        return make_ns(operand, literals)

    def never_stored(operand: Operand) -> bool:
        from dask_mars.expressions.rewrite import never_stored

        return never_stored(operand, reductions)

    return RecomputeRules(is_source, make_ns, never_stored)
