"""The graph's depth-first order, changed where that keeps fewer bytes in the store."""

from __future__ import annotations

from collections.abc import Mapping

from dask_mars.scheduler.assigner import Traversal
from dask_mars.scheduler.policies.base import GraphView, Policy
from dask_mars.scheduler.policies.compiling import mypyc_attr
from dask_mars.scheduler.states import State

# A plain integer: an IntEnum member costs a look-up and a comparison through its class on the hot path.
_READY = int(State.READY)
#: Maximum ratio of taken to freed bytes for a chunk that counts as freeing memory.
_TOLERANCE = 1.1
#: Maximum number of consumers to inspect, so that inspection costs less than running them.
_FEW = 8


@mypyc_attr(allow_interpreted_subclasses=True)
class MemoryPolicy(Policy):
    """Chunks in the graph's order, except that some follow their inputs at once."""

    # These are chunks that free as much memory as they take, and chunks that take none or are pieces of their
    # input, which might be spilled before their turn.

    def __init__(
        self, graph: GraphView, slots: Mapping[int, int], assignment: Traversal = "breadth-first"
    ) -> None:
        super().__init__(graph, slots, assignment)
        # Attributes of a protocol take longer to look up.
        self._inputs, self._objects = graph.plan.inputs, graph.plan.objects
        self._successors, self._is_output, self._estimates = graph.successors, graph.is_output, graph.estimates
        self._undispatched_inputs = graph.undispatched_inputs
        self._undispatched_consumers = graph.undispatched_consumers
        self._count = len(self._inputs)
        #: New places of chunks that were brought forward.
        self._places: dict[int, int] = {}

    def key_of(self, chunk: int) -> int:
        """Return the place of a chunk, with the chunk's id as tie-breaker."""
        place = self._places.get(chunk)
        if place is None:
            # Before chunks brought forward to the same place, which come before initial chunks.
            place = chunk - 1 if self._inputs[chunk] else chunk
        return place * self._count + chunk

    def chunk_of(self, key: int) -> int:
        """Return the chunk that a key belongs to."""
        return key % self._count

    def on_ready(self, chunk: int, last: int | None) -> None:
        """Decide the place of a chunk whose inputs are all computed or dispatched."""
        places = self._places
        # It follows its last input already, unless that was brought forward.
        if last == chunk - 1 and not places:
            return
        inputs = self._inputs[chunk]
        if inputs:
            behind = max([places.get(source, source) for source in inputs]) if places else max(inputs)
            if behind < self._present_place(chunk) and (
                self._frees_memory(chunk) or self._siblings_fit_input(chunk)
            ):
                places[chunk] = behind

    def _present_place(self, chunk: int) -> int:
        """Return the place before which a chunk can be brought forward."""
        # Most chunks stand directly behind an input anyway.
        return self._places.get(chunk, chunk - 1)

    def _siblings_fit_input(self, chunk: int) -> bool:
        """Return whether all consumers of a chunk's input together take no more memory than the input."""
        inputs = self._inputs[chunk]
        if len(inputs) > 1 or not (size := self.graph.bytes_of(inputs[0])):
            return False
        return self._estimates.expected_bytes(chunk) * len(self._successors[inputs[0]]) <= _TOLERANCE * size

    def _frees_memory(self, chunk: int, missing: int | None = None) -> bool:
        """Return whether running a chunk, after its missing input, frees about as much memory as it takes."""
        undispatched_consumers, is_output = self._undispatched_consumers, self._is_output
        expected_bytes = self._estimates.expected_bytes
        freed_bytes = 0
        for source in self._inputs[chunk]:
            # Persisted objects are not freed.
            if undispatched_consumers[source] == 1 and not is_output[source] and source not in self._objects:
                freed_bytes += self.graph.bytes_of(source)
        if not freed_bytes:
            return False
        need = expected_bytes(chunk)
        if missing is not None:
            others = self._successors[missing]
            if (
                len(others) <= _FEW
                and not is_output[missing]
                and all(self._undispatched_inputs[other] <= 1 for other in others)
            ):
                # Then all consumers of the missing input can run, after which it is freed, too.
                need = sum(map(expected_bytes, others))
            else:
                need += expected_bytes(missing)
        return _TOLERANCE * freed_bytes >= need

    def on_last_consumer(self, consumers: list[int], dispatched: int) -> None:
        """Bring the last remaining consumer of an input forward."""
        # If it lacks one input that can run, that input is brought forward instead. Queued chunks are queued
        # again; their old entries are skipped later.
        # There is none if the dispatched chunk reads the input twice.
        if not consumers:
            return
        graph = self.graph
        chunk = consumers[0]
        if graph.is_next(chunk):
            before = self.key_of(chunk)
            self.on_ready(chunk, None)
            if self.key_of(chunk) < before:
                graph.push(chunk)
        elif self._undispatched_inputs[chunk] == 1:
            missing = next(source for source in self._inputs[chunk] if graph.state[source] <= _READY)
            place = self._places.get(dispatched, dispatched)
            if (
                graph.is_next(missing)
                and place < self._present_place(missing)
                and self._frees_memory(chunk, missing)
            ):
                self._places[missing] = place
                graph.push(missing)
