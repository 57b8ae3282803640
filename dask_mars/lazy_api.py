"""What Dask's calls come down to, before anything is loaded that they may not need.

Whoever imports dask_mars need not be about to compute: the nanny of an agent never is. Nor does a task that
computes on the spot need what the user's process does. So `dask_mars.client` comes late, and `dask.array` with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import dask

from dask_mars import process_role


def compute(*arguments: Any, **options: Any) -> Any:
    """Compute keys of a Dask graph, as `dask_mars.client.computation.compute` does."""
    from dask_mars.client import computation as client

    return client.compute(*arguments, **options)


def compute_on_the_spot(dsk: Any, keys: Any, **options: Any) -> Any:
    """Compute one task after the other, in this thread."""
    assert process_role.computes_on_the_spot()
    known = {name: options[name] for name in ("callbacks", "cache") if options.get(name) is not None}
    return partial(dask.local.get_sync, **known)(dsk, keys)


def persist(
    get: Callable[..., Any], collections: Iterable[Any], optimize_graph: bool, options: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Return collections whose chunks are computed, and stay where they are.

    Parameters
    ----------
    get : callable
        A scheduler that returns nodes in place of values.
    collections : iterable
        Dask collections.
    optimize_graph, options
        As Dask passes them on.
    """

    def keeping(dsk: Any, keys: Any, **options: Any) -> Any:
        # A function of its own: a scheduler that has `persist`, or belongs to what has it, would be asked again.
        return get(dsk, keys, **options)

    kept = dask.persist(*collections, traverse=False, optimize_graph=optimize_graph, scheduler=keeping, **options)
    return tuple(kept)


__all__ = ["compute", "compute_on_the_spot", "persist"]
