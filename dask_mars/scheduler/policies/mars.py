"""Mars's policies: three rules of priority, initial workers by a search of the graph, others by input bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dask_mars.scheduler.analyzer import depths
from dask_mars.scheduler.assigner import Traversal, assign
from dask_mars.scheduler.policies.base import GraphView, RankedPolicy


class MarsPolicy(RankedPolicy):
    """The policy that Mars describes."""

    # *Which chunk*: deeper ones first, then chunks that deeper ones rely upon, then chunks with smaller results.
    # *Which worker*: the assigner's search divides chunks without inputs. Others are offered to the workers that
    # have made most bytes of their inputs; the first free one takes the chunk, and so the one with most free
    # resources.

    run_ahead = False

    def __init__(
        self, graph: GraphView, slots: Mapping[int, int], assignment: Traversal = "breadth-first"
    ) -> None:
        self._depth, self._demand = depths(graph.plan)
        super().__init__(graph, slots, assignment)
        self._initial = assign(graph.plan, slots, assignment) if slots else {}

    def sort_key(self, chunk: int) -> tuple[int, int, int]:
        """Return the three rules, in their order."""
        declared = self.graph.plan.declared_bytes
        size = 0 if declared is None else declared[chunk] or 0
        return -self._depth[chunk], -self._demand[chunk], size

    def workers_for(self, chunk: int) -> Sequence[int] | None:
        """Return the assigned worker, or the workers that have made most bytes of the inputs."""
        assigned = self._initial.get(chunk)
        if assigned is not None:
            return (assigned,)
        graph = self.graph
        made: dict[int, int] = {}
        for source in dict.fromkeys(graph.plan.inputs[chunk]):
            worker = graph.makers.get(source)
            if worker is not None and worker in self.slots:
                made[worker] = made.get(worker, 0) + graph.bytes_of(source)
        if not made:
            return None
        most = max(made.values())
        return [worker for worker, size in sorted(made.items()) if size == most]
