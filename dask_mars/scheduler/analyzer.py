"""Analyses graphs: each chunk's depth, and that of its deepest dependent.

Pure, and linear in the graph: it visits every input of every chunk twice.
"""

from __future__ import annotations

from dask_mars.graph.ids import depths_of
from dask_mars.scheduler.events import GraphPlan


def depths(plan: GraphPlan) -> tuple[list[int], list[int]]:
    """Return each chunk's depth, and the depth of its deepest direct or indirect dependent, -1 without any."""
    inputs = plan.inputs
    depth = depths_of(inputs)
    demand = [-1] * len(inputs)
    # Dependents have greater ids, so a chunk's entry is final before its inputs inherit it.
    for chunk in range(len(inputs) - 1, -1, -1):
        sources = inputs[chunk]
        if sources:
            deepest, own = demand[chunk], depth[chunk]
            if own > deepest:
                deepest = own
            for source in sources:
                if demand[source] < deepest:
                    demand[source] = deepest
    return depth, demand
