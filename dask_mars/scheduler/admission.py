"""Admits chunks to the store's memory, and spills objects to make room for them.

A part of the state machine, and pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from dask_mars.scheduler.bookkeeping import Graph
from dask_mars.scheduler.events import GrantReservation, Instruction, RefuseReservation, Spill
from dask_mars.scheduler.memory import RESERVATION, Memory
from dask_mars.scheduler.objects import Objects, StoredObject
from dask_mars.scheduler.parameters import Parameters
from dask_mars.scheduler.workforce import Workforce


class Blocked(NamedTuple):
    """The next chunk or reservation (graph None) that waits for memory."""

    graph: Graph | None
    id: int
    required_bytes: int


# Plain tuples: named ones take longer to make than all else that admits a chunk.
#: Estimated seconds of an operand's chunks, their bytes besides inputs, and whether these are known.
OperandCost = tuple[float, int, bool]
#: The bytes that a chunk needs to start, and whether no chunk of its operand was measured yet.
Demand = tuple[int, bool]


class Admission:
    """Admits chunks and reservations to the store."""

    def __init__(self, parameters: Parameters, workforce: Workforce, emit: Callable[[Instruction], None]) -> None:
        self._parameters = parameters
        self._workforce = workforce
        self._emit = emit
        self.memory = Memory(parameters.store_limit, parameters.memory_limit)
        self.objects = Objects()
        #: The next chunk or reservation, if it waits for memory.
        self.blocked: Blocked | None = None
        #: Reservations granted and not released.
        self.reservations: set[int] = set()
        #: Bytes of requested reservations that are not granted yet.
        self._requested: dict[int, int] = {}
        #: Whether something has waited for memory while the store holds map outputs.
        self.is_short = False

    # -- chunks -----------------------------------------------------------------------------------------------

    def cost(self, graph: Graph, chunk: int) -> OperandCost:
        """Return the cost of a chunk, which others of its operand share."""
        window_s, is_limited = self._parameters.window_s, self.memory.is_limited
        # An unrepeatable chunk is dispatched alone: at a worker's death it is clear which one may have begun.
        is_repeatable = graph.plan.is_repeatable(chunk)
        return (
            graph.estimates.duration_s(chunk, window_s) if is_repeatable else window_s,
            graph.taken_bytes(chunk) if is_limited else 0,
            not is_limited or graph.estimates.is_known(chunk),
        )

    def demand(self, graph: Graph, chunk: int, cost: OperandCost) -> Demand | None:
        """Return the bytes that a chunk needs to start, None if it needs none."""
        _, required_bytes, is_known = cost
        if graph.on_disk:
            required_bytes += graph.disk_bytes(chunk)
        if not is_known and self.memory.is_tight:
            # The first chunk of an operand gets a share of free memory; the others wait for its measurement.
            share_bytes = self.memory.free_bytes // len(self._workforce.by_id)
            return max(required_bytes, share_bytes), True
        return (required_bytes, False) if required_bytes else None

    def has_room(self, graph: Graph, chunk: int, demand: Demand) -> bool:
        """Return whether a chunk may start now."""
        result_limit = self._parameters.result_limit
        if result_limit is not None and graph.estimates.expected_bytes(chunk) > result_limit:
            return False
        return not _is_being_measured(graph, chunk, demand) and self.memory.admits(demand[0])

    def block(self, graph: Graph, chunk: int, demand: Demand) -> None:
        """Record that a chunk waits for memory, unless another one does."""
        if self.blocked is None and not _is_being_measured(graph, chunk, demand):
            self.blocked = Blocked(graph, chunk, demand[0])

    def reserve(self, graph: Graph, chunk: int, required_bytes: int, worker: int) -> None:
        """Reserve a chunk's bytes, without those that the store counts from now on."""
        if graph.on_disk:
            required_bytes = max(required_bytes - self._count_copies(graph, chunk), 0)
        self.memory.reserve(graph.id, chunk, required_bytes, worker)

    def _count_copies(self, graph: Graph, chunk: int) -> int:
        """Count a chunk's inputs from the user's process as stored, for other readers too; return their bytes."""
        copied_bytes = 0
        for source in graph.inputs(chunk):
            if source in graph.on_disk and (found := graph.objects[source]).is_copy:
                self.objects.moved_to_memory(found)
                copied_bytes += found.size_bytes
        self.memory.stored_bytes += copied_bytes
        return copied_bytes

    def is_certain(self, graph: Graph, chunk: int, limit_bytes: int) -> bool:
        """Return whether a chunk certainly needs more than `limit_bytes`."""
        # Declared sizes may be wrong, results may go to disk, and quotas refuse excess; only inputs have to be
        # read.
        if self._parameters.quota_slack_bytes is None:
            return True
        return graph.disk_bytes(chunk) > limit_bytes

    # -- reservations -----------------------------------------------------------------------------------------

    def request(self, reservation: int, size_bytes: int) -> None:
        """Record a request for bytes of the store from outside."""
        self._requested[reservation] = size_bytes

    def release(self, reservation: int) -> None:
        """Release a reservation, granted or not."""
        self._requested.pop(reservation, None)
        if reservation in self.reservations:
            self.reservations.remove(reservation)
            self.memory.release(RESERVATION, (reservation,))

    def grant_requested(self) -> None:
        """Grant requests in their order, up to the first without room."""
        if not self._requested:
            return
        for id, size_bytes in list(self._requested.items()):
            if self.blocked is not None:
                return
            if not self.memory.is_limited or self.memory.admits(size_bytes):
                self._grant(id)
            else:
                self.blocked = Blocked(None, id, size_bytes)

    def settle(self, blocked: Blocked, limit_bytes: int) -> None:
        """Grant a blocked reservation for which nothing else can make room, or refuse it."""
        self.blocked = None
        if blocked.required_bytes > limit_bytes:
            self._emit(RefuseReservation(blocked.id, self._requested.pop(blocked.id), limit_bytes))
        else:
            self._grant(blocked.id)

    def _grant(self, reservation: int) -> None:
        size_bytes = self._requested.pop(reservation)
        self.reservations.add(reservation)
        self.memory.reserve(RESERVATION, reservation, size_bytes)
        self._emit(GrantReservation(reservation))

    # -- spilling ---------------------------------------------------------------------------------------------

    def spill(self, missing_bytes: int, excluded: Collection[StoredObject] = ()) -> None:
        """Spill objects that are neither pinned nor excluded."""
        candidates = self.objects.spill_candidates()
        if chosen := self.memory.choose_to_spill(candidates, missing_bytes, excluded):
            self._emit(Spill(chosen))

    def spill_for(self, graph: Graph | None, chunk: int, required_bytes: int) -> None:
        """Spill objects to make room for a chunk that reads some of them, or for a reservation."""
        if missing_bytes := self.memory.missing_bytes(required_bytes):
            inputs = () if graph is None else graph.objects_of(graph.inputs(chunk))
            self.spill(missing_bytes, {found for found in inputs if not found.is_map_output})

    def spill_excess(self) -> None:
        """Spill what exceeds the limit, as results were larger than estimated."""
        if self.memory.is_limited and (missing_bytes := self.memory.missing_bytes(0)):
            self.spill(missing_bytes)

    def spill_ahead(self) -> None:
        """Spill map outputs while chunks compute, if memory is short: they never return to memory."""
        if not self.is_short:
            return
        candidates = self.objects.map_outputs()
        if not candidates:
            self.is_short = False
            return
        missing = self.memory.missing_ahead_bytes()
        if missing and (chosen := self.memory.choose_to_spill(candidates, missing)):
            self._emit(Spill(chosen))


def _is_being_measured(graph: Graph, chunk: int, demand: Demand) -> bool:
    """Return whether a chunk waits until the first chunk of its operand has run: other memory does not help it."""
    return demand[1] and bool(graph.holders.get(graph.plan.operand_of[chunk]))
