"""Analyses graphs: how deep each chunk stands, what waits for it, and how much comes after it.

Pure, and linear in the graph: every input of every chunk is looked at twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dask_mars.graph.ids import depths_of
from dask_mars.scheduler.events import GraphPlan


class Analysis(NamedTuple):
    """Figures by chunk.

    Attributes
    ----------
    depth : list of int
        Longest way from a chunk without inputs, in steps; 0 for those themselves.
    demand : list of int
        Depth of the deepest chunk that relies upon it, by way of others too; -1 where there is none.
    descendants : list of int
        How many chunks come after it, at most: one that is reached in two ways counts twice, as long as that is no
        more than there are. Where each chunk is an input of one other it is exact. To count without such doubles
        takes time that grows with the square of the graph.
    descendant_bytes : list of int
        What the results of those take, with the same reserve.
    """

    depth: list[int]
    demand: list[int]
    descendants: list[int]
    descendant_bytes: list[int]


def analyse(plan: GraphPlan, bytes_of: Callable[[int], int] | None = None) -> Analysis:
    """Look at a whole graph.

    Parameters
    ----------
    plan : GraphPlan
        The graph; each chunk's inputs have smaller ids than the chunk itself.
    bytes_of : callable, optional
        Returns the bytes of a chunk's result; by default they are taken from the declarations, and where there is
        none for 0.
    """
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
    # What comes after a chunk has a greater id, so that its own demand is known when it is passed on.
    for chunk in range(len(plan.inputs) - 1, -1, -1):
        deepest = max(depth[chunk], demand[chunk])
        for source in plan.inputs[chunk]:
            if demand[source] < deepest:
                demand[source] = deepest
    return depth, demand


def _sum_of_what_follows(plan: GraphPlan, weights: list[int]) -> list[int]:
    follows = [0] * len(weights)
    # All that can come after a chunk has a greater id. Without this bound the sums would double with each diamond
    # in a row, and become numbers with as many digits as the graph has chunks.
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
