"""Analyses graphs: each chunk's depth, its deepest dependent, and the number and size of its descendants.

Pure, and linear in the graph: it visits every input of every chunk twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dask_mars.graph.ids import depths_of
from dask_mars.scheduler.events import GraphPlan


class Analysis(NamedTuple):
    """Figures by chunk."""

    #: Longest distance from a chunk without inputs, in steps.
    depth: list[int]
    #: Depth of the deepest direct or indirect dependent; -1 without any.
    demand: list[int]
    #: Upper bound of the number of dependents: one that is reached in two ways counts twice, capped at the number
    #: of later chunks. Exact where each chunk has one consumer. An exact count takes quadratic time.
    descendants: list[int]
    #: Bytes of the results of the dependents, an upper bound of the same kind.
    descendant_bytes: list[int]


def analyse(plan: GraphPlan, bytes_of: Callable[[int], int] | None = None) -> Analysis:
    """Analyse a whole graph; by default a chunk has its declared size, or none."""
    sizes = list(map(bytes_of or _declared(plan), range(len(plan.inputs))))
    depth, demand = depths(plan)
    descendants = _sum_of_what_follows(plan, [1] * len(sizes))
    # Without declarations there is nothing to add up.
    descendant_bytes = _sum_of_what_follows(plan, sizes) if any(sizes) else [0] * len(sizes)
    return Analysis(depth, demand, descendants, descendant_bytes)


def _declared(plan: GraphPlan) -> Callable[[int], int]:
    declared_bytes = plan.declared_bytes
    if declared_bytes is None:
        return lambda chunk: 0
    return lambda chunk: declared_bytes[chunk] or 0


def depths(plan: GraphPlan) -> tuple[list[int], list[int]]:
    """Return `Analysis.depth` and `Analysis.demand` alone."""
    depth = depths_of(plan.inputs)
    demand = [-1] * len(plan.inputs)
    # Dependents have greater ids, so a chunk's own demand is known when it is passed on.
    for chunk in range(len(plan.inputs) - 1, -1, -1):
        deepest = max(depth[chunk], demand[chunk])
        for source in plan.inputs[chunk]:
            if demand[source] < deepest:
                demand[source] = deepest
    return depth, demand


def _sum_of_what_follows(plan: GraphPlan, weights: list[int]) -> list[int]:
    follows = [0] * len(weights)
    # All dependents of a chunk have greater ids. Without this bound the sums would double with each diamond in a
    # row, and have as many digits as the graph has chunks.
    bound = 0
    for chunk in range(len(weights) - 1, -1, -1):
        if follows[chunk] > bound:
            follows[chunk] = bound
        weight = weights[chunk]
        bound += weight
        inputs = plan.inputs[chunk]
        if inputs:
            weight += follows[chunk]
            for source in inputs if len(inputs) == 1 else set(inputs):
                follows[source] += weight
    return follows
