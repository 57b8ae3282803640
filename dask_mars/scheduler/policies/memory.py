"""The default policy: the graph's depth-first order, changed where that keeps fewer bytes in the store."""

from __future__ import annotations

from collections.abc import Mapping

from dask_mars.scheduler.assigner import Traversal
from dask_mars.scheduler.policies.base import GraphView, Policy
from dask_mars.scheduler.states import State

# A plain integer: an IntEnum member costs a look-up and a comparison through its class on the hot path.
_READY = int(State.READY)
#: By how much a chunk that frees memory may take more than it frees.
_TOLERANCE = 1.1
#: How many consumers of a chunk are looked at, so that looking costs no more than running them.
_FEW = 8


class MemoryPolicy(Policy):
    """Chunks in the graph's order, but some come right behind their inputs.

    Those are chunks that free as much memory as they take, and those that take none or are pieces of their input,
    which would have to be read from disk later.
    """

    def __init__(
        self, graph: GraphView, slots: Mapping[int, int], assignment: Traversal = "breadth-first"
    ) -> None:
        super().__init__(graph, slots, assignment)
        self._inputs = graph.plan.inputs
        self._count = len(self._inputs)
        #: Where chunks come that were brought forward.
        self._places: dict[int, int] = {}

    def key_of(self, chunk: int) -> int:
        """Return the place of a chunk, and the chunk itself among those that have the same."""
        place = self._places.get(chunk)
        if place is None:
            # Before what was brought forward to the same place, and that before what begins something new.
            place = chunk - 1 if self._inputs[chunk] else chunk
        return place * self._count + chunk

    def chunk_of(self, key: int) -> int:
        """Return the chunk that a key belongs to."""
        return key % self._count

    def on_ready(self, chunk: int, last: int | None) -> None:
        """Settle where a chunk comes whose inputs are all there, or in hand."""
        places = self._places
        # Right behind its last input it is already, unless that was brought forward.
        if last == chunk - 1 and not places:
            return
        inputs = self._inputs[chunk]
        if inputs:
            behind = max([places.get(source, source) for source in inputs]) if places else max(inputs)
            # Most come there anyway.
            if behind < chunk - 1 and (self._frees_memory(chunk) or self._siblings_fit_input(chunk)):
                places[chunk] = behind

    def _siblings_fit_input(self, chunk: int) -> bool:
        """Say whether a chunk and all others that are made of its input take no more memory than that has."""
        graph = self.graph
        inputs = graph.plan.inputs[chunk]
        size = graph.bytes_of(inputs[0])
        if len(inputs) > 1 or not size:
            return False
        return graph.estimates.expected_bytes(chunk) * len(graph.successors[inputs[0]]) <= _TOLERANCE * size

    def _frees_memory(self, chunk: int, missing: int | None = None) -> bool:
        """Say whether hardly more memory is needed once a chunk, and an input that it lacks, was computed."""
        graph = self.graph
        undispatched_consumers, is_output = graph.undispatched_consumers, graph.is_output
        expected_bytes = graph.estimates.expected_bytes
        last = [
            source
            for source in graph.plan.inputs[chunk]
            # What is persisted stays.
            if undispatched_consumers[source] == 1 and not is_output[source] and source not in graph.plan.objects
        ]
        freed_bytes = sum(map(graph.bytes_of, last))
        if not freed_bytes:
            return False
        need = expected_bytes(chunk)
        if missing is not None:
            others = graph.successors[missing]
            if (
                len(others) <= _FEW
                and not is_output[missing]
                and all(graph.undispatched_inputs[other] <= 1 for other in others)
            ):
                # They can all follow, and then the input that was missing is gone too.
                need = sum(map(expected_bytes, others))
            else:
                need += expected_bytes(missing)
        return _TOLERANCE * freed_bytes >= need

    def on_last_consumer(self, consumers: list[int], dispatched: int) -> None:
        """Bring the chunk forward that is the last to need an input.

        If all that it lacks is one input, and that can be computed, that one is brought forward for it. What was
        queued already is queued again; what is left of it is passed over when its turn comes.
        """
        # There is none if the other needs the input twice.
        if not consumers:
            return
        graph = self.graph
        chunk = consumers[0]
        if graph.is_next(chunk):
            before = self.key_of(chunk)
            self.on_ready(chunk, None)
            if self.key_of(chunk) < before:
                graph.push(chunk)
        elif graph.undispatched_inputs[chunk] == 1:
            missing = next(source for source in graph.plan.inputs[chunk] if graph.state[source] <= _READY)
            place = self._places.get(dispatched, dispatched)
            if graph.is_next(missing) and place < missing - 1 and self._frees_memory(chunk, missing):
                self._places[missing] = place
                graph.push(missing)


__all__ = ["MemoryPolicy"]
