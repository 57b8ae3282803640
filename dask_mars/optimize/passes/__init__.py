"""Passes over a chunk graph, each a function of a `GraphEdit` and `Limits` that changes the graph in place.

Any subset of them, in any order, leaves the values of the user's keys as they are. Begin with `edit`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from dask_mars.graph.chunks import ChunkGraph
from dask_mars.optimize.passes.common_inputs import fuse_common_inputs
from dask_mars.optimize.passes.compose import compose
from dask_mars.optimize.passes.edit import GraphEdit, Limits
from dask_mars.optimize.passes.folding import fold_initial, fold_into_fused
from dask_mars.optimize.passes.mirror import mirror_products
from dask_mars.optimize.passes.recompute import recompute
from dask_mars.optimize.passes.reductions import fuse_reductions
from dask_mars.optimize.passes.views import fold_views

Pass = Callable[[GraphEdit, Limits], None]
#: Called after each pass with its name, and the chunks before and after it.
OnPass = Callable[[str, int, int], None]

PASSES: tuple[Pass, ...] = (
    compose,
    fold_views,
    mirror_products,
    fuse_common_inputs,
    fuse_reductions,
    fold_into_fused,
    recompute,
    fold_initial,
)


def run_passes(
    graph: ChunkGraph,
    limits: Limits,
    fixed: Collection[int] = (),
    passes: Sequence[Pass] = PASSES,
    on_pass: OnPass = lambda name, before, after: None,
    fuses_slices: bool = True,
) -> ChunkGraph:
    """Return the graph after some passes; `fixed` chunks stay as they are."""
    edit = GraphEdit(graph, fixed, fuses_slices)
    for each in passes:
        before = len(edit)
        each(edit, limits)
        on_pass(each.__name__, before, len(edit))
    return edit.finish()


__all__ = ["PASSES", "GraphEdit", "Limits", "OnPass", "Pass", "run_passes"]
