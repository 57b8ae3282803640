"""How graphs are prepared for an engine, as the settings have it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from dask_mars import config
from dask_mars.graph.callables import module_of
from dask_mars.graph.chunks import Operand
from dask_mars.optimize.parts import RESIDENT_SHARE
from dask_mars.optimize.prepare import PrepareOptions
from dask_mars.optimize.remaking import Remaking

#: Consumers of initial chunks a worker from which on they compute these too: all workers have enough to do.
_FOLD_INITIAL = 32


def engine_options(workers: int, store_limit: Callable[[], int]) -> PrepareOptions:
    """Return what graphs are prepared for that an engine of this machine is to run.

    Parameters
    ----------
    workers : int
        How many it has.
    store_limit : callable
        Returns how many bytes of results it keeps in memory.
    """
    return PrepareOptions(
        fold_from(workers),
        remaking=remaking(),
        workers=workers,
        resident_bytes=lambda: store_limit() // RESIDENT_SHARE,
    )


def fold_from(slots: int) -> int:
    """Return how many chunks must be alike for initial chunks to be folded into them."""
    return _FOLD_INITIAL * slots


def remaking() -> Remaking | None:
    """Return what is known of random numbers that may be made again, None if they are not to be."""
    if config.get("expressions.evaluator") == "plain":
        return None
    return _remaking(bool(config.get("expressions.reductions")))


@cache
def _remaking(reductions: bool) -> Remaking:
    # They take Dask's arrays along, which are there already where there is something to ask.
    def is_source(operand: Operand) -> bool:
        return module_of(operand.functions[0]) == "dask.array.random"

    def make_ns(operand: Operand, literals: tuple[Any, ...]) -> float | None:
        from dask_mars.expressions.rewrite import make_ns

        return make_ns(operand, literals)

    def never_stored(operand: Operand) -> bool:
        from dask_mars.expressions.rewrite import never_stored

        return never_stored(operand, reductions)

    return Remaking(is_source, make_ns, never_stored)


__all__ = ["engine_options", "fold_from", "remaking"]
