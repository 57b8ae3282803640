"""Mars's policies: the default, which puts what frees memory before Mars's rules, and the rules to the letter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dask_mars.graph.ids import depths_of
from dask_mars.scheduler.assigner import Traversal, assign
from dask_mars.scheduler.events import GraphPlan
from dask_mars.scheduler.policies.base import GraphView, RankedPolicy
from dask_mars.scheduler.policies.compiling import mypyc_attr
from dask_mars.scheduler.policies.memory import MemoryPolicy

#: Maximum number of chunks in the order that a worker leaves to the workers that they are offered to.
_LEAD = 4
#: Bytes of a result from which on it counts which worker has made it.
_LARGE_BYTES = 64 << 10
#: Number of magnitudes of sizes, by powers of two.
_SIZES = 64


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


@mypyc_attr(allow_interpreted_subclasses=True)
class MarsPolicy(MemoryPolicy):
    """Mars's three rules, behind what frees memory; a tie goes by the graph's depth-first order."""

    # *Which chunk*: those that free as much memory as they take follow their inputs. Among several such consumers
    # of one input the deeper one is first, then the one that deeper chunks rely upon, then the one with the
    # smaller result. Of all others the deepest, and those that the deepest rely upon, come first.
    # *Which worker*: chunks without inputs are offered to the worker of their region, which the assigner's search
    # finds; others to the workers that have made most of the bytes of their inputs, if these are large.

    def __init__(
        self, graph: GraphView, slots: Mapping[int, int], assignment: Traversal = "breadth-first"
    ) -> None:
        super().__init__(graph, slots, assignment)
        self.lead = min(len(slots), _LEAD)
        self._regions: Mapping[int, int] = {}
        self._depth: Sequence[int] = ()
        self._demand: Sequence[int] = ()
        self._keys: Sequence[int] = range(self._count)
        self._unit = 1
        self._declared = graph.plan.declared_bytes
        # Without inputs no rule distinguishes chunks, and nothing follows from where they run.
        if any(self._inputs):
            self._apply_rules(assignment)
        self.places_initial = bool(self._regions)

    def _apply_rules(self, assignment: Traversal) -> None:
        plan, count = self.graph.plan, self._count
        self._depth, self._demand = depths(plan)
        self._deepest = deepest = max(self._depth)
        reach = [own if own > other else other for own, other in zip(self._depth, self._demand, strict=True)]
        if min(reach) < deepest:
            #: Keys of chunks that free no memory.
            self._keys = [(deepest - far) * count + chunk for chunk, far in enumerate(reach)]
        #: Difference between the keys of two places next to each other; keys of one place differ by less.
        self._unit = (deepest + 1) * (deepest + 2) * _SIZES * count
        if len(self.slots) > 1 and self._begins_large():
            self._regions = assign(plan, self.slots, assignment)

    def _begins_large(self) -> bool:
        """Return whether an operand without inputs declares large results."""
        plan = self.graph.plan
        declared = plan.declared_bytes
        if declared is None:
            return False
        # Declared sizes are computed on request: one stands for all of its operand.
        first: dict[int, int] = {}
        for chunk, operand in enumerate(plan.operand_of):
            if operand >= 0 and operand not in first and not plan.inputs[chunk]:
                first[operand] = chunk
        return any((declared[chunk] or 0) >= _LARGE_BYTES for chunk in first.values())

    def _declared_size(self, chunk: int) -> int:
        """Return the magnitude of a chunk's declared size, 0 where it is alone with its inputs' place."""
        declared, successors = self._declared, self._successors
        if declared is not None:
            for source in self._inputs[chunk]:
                if len(successors[source]) != 1:
                    return min((declared[chunk] or 0).bit_length(), _SIZES - 1)
        return 0

    def key_of(self, chunk: int) -> int:
        """Return the place of a chunk, and its rank by Mars's rules among those with the same place."""
        place = self._places.get(chunk)
        if place is None:
            # Behind those that free memory, whose keys are negative.
            return self._keys[chunk]
        count, deepest = self._count, self._deepest
        rank = (deepest - self._depth[chunk]) * (deepest + 2) + deepest - self._demand[chunk]
        return (place - count) * self._unit + (rank * _SIZES + self._declared_size(chunk)) * count + chunk

    def place_of(self, key: int) -> int:
        """Return the place of a key."""
        return key if key >= 0 else key // self._unit

    def _present_place(self, chunk: int) -> int:
        return self._places.get(chunk, self._count)

    def workers_for(self, chunk: int) -> Sequence[int] | None:
        """Return the worker of a chunk's region, or the workers that have made most bytes of its large inputs."""
        if not self._inputs[chunk]:
            region = self._regions.get(chunk)
            return None if region is None else (region,)
        return _makers(self.graph, chunk, self.slots, _LARGE_BYTES, share=0.5)


def _makers(
    graph: GraphView, chunk: int, slots: Mapping[int, int], least_bytes: int, share: float
) -> list[int] | None:
    """Return the workers that made at least a share of what the main maker of a chunk's inputs made."""
    made: dict[int, int] = {}
    makers = graph.makers
    for source in dict.fromkeys(graph.plan.inputs[chunk]):
        worker = makers.get(source)
        if worker is not None and worker in slots and (size := graph.bytes_of(source)) >= least_bytes:
            made[worker] = made.get(worker, 0) + size
    if not made:
        return None
    least = share * max(made.values())
    return [worker for worker, size in sorted(made.items()) if size >= least]


@mypyc_attr(allow_interpreted_subclasses=True)
class StrictMarsPolicy(RankedPolicy):
    """Mars's rules to the letter."""

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
        return _makers(self.graph, chunk, self.slots, least_bytes=0, share=1.0)
