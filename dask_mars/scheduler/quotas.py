"""Quotas: by how much each worker's memory may grow, and who waits for more.

A part of the state machine, without I/O. An event concerns the workers whose reservations it changes, and those
that wait for memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from dask_mars.scheduler.admission import Admission
from dask_mars.scheduler.bookkeeping import Graph
from dask_mars.scheduler.events import ChunksFinished, GrantQuota, Instruction, RefuseQuota, RenewWorkers
from dask_mars.scheduler.workforce import Workforce


class Growth(NamedTuple):
    """A worker's request for memory in the middle of a chunk, for which it waits."""

    graph: Graph
    chunk: int
    growth_bytes: int


class Quotas:
    """The quotas of all workers."""

    def __init__(
        self,
        admission: Admission,
        workforce: Workforce,
        graphs: Mapping[int, Graph],
        emit: Callable[[Instruction], None],
    ) -> None:
        self._admission = admission
        self._memory = admission.memory
        self._workforce = workforce
        self._graphs = graphs
        self._emit = emit
        #: Requests of workers that wait for memory in the middle of a chunk, longest wait first.
        self.growing: dict[int, Growth] = {}
        #: Whether workers have returned unused memory; None while the engine asks them to.
        self.is_renewed: bool | None = False
        #: Whether some operand has taken memory without asking.
        self._knows_private = False

    # -- learning ---------------------------------------------------------------------------------------------

    def learn_sizes(self, graph: Graph, event: ChunksFinished) -> None:
        """Record the bytes that operands and their results have taken in the store."""
        memory = self._memory
        for operand in graph.estimates.learn(event.chunks, event.fresh, event.peaks):
            # Chunks of these operands may be dispatched without a reservation.
            for chunk, worker in graph.holders.get(operand, {}).items():
                # Bytes granted meanwhile stay granted.
                required_bytes = max(graph.required_bytes(chunk), memory.reserved_for(graph.id, chunk))
                memory.raise_reserved(graph.id, chunk, required_bytes, worker)

    def learn_private(self, growths: Iterable[tuple[int, int, int]]) -> None:
        """Record bytes that chunks have taken without asking, and reserve as much for others of their operand."""
        memory = self._memory
        for id, chunk, growth_bytes in growths:
            graph = self._graphs.get(id)
            more_bytes = 0 if graph is None else graph.estimates.learn_private(chunk, growth_bytes)
            if graph is None or not more_bytes:
                continue
            self._knows_private = True
            for other, worker in graph.holders.get(graph.plan.operand_of[chunk], {}).items():
                memory.reserve(id, other, memory.reserved_for(id, other) + more_bytes, worker)

    def forget(self) -> None:
        """Record that a graph is forgotten."""
        self._knows_private = any(graph.estimates.knows_private for graph in self._graphs.values())

    # -- requests ---------------------------------------------------------------------------------------------

    def request(self, worker: int, graph: Graph, chunk: int, growth_bytes: int) -> None:
        """Record that a worker waits in the middle of a chunk for its memory to grow."""
        self.withdraw(worker)
        self.growing[worker] = growth = Growth(graph, chunk, growth_bytes)
        graph.estimates.learn_growth(chunk, growth_bytes)
        self._memory.awaited_bytes += self._more_for(worker, growth)

    def withdraw(self, worker: int) -> None:
        """Forget a worker's request, if it has one."""
        if self.growing.pop(worker, None) is not None:
            waiting = self.growing.items()
            self._memory.awaited_bytes = sum([self._more_for(other, growth) for other, growth in waiting])

    def withdraw_for(self, worker: int, graph: Graph, chunks: Iterable[int]) -> None:
        """Forget a worker's request if one of these chunks made it."""
        growth = self.growing.get(worker)
        if growth is not None and growth.graph is graph and growth.chunk in chunks:
            self.withdraw(worker)

    def missing_bytes(self, worker: int, growth: Growth) -> int:
        """Return how many bytes a worker's reservation lacks for its request."""
        return max(growth.growth_bytes - self._quota_bytes(worker), 0)

    def _more_for(self, worker: int, growth: Growth) -> int:
        """Return how many bytes have to be reserved in addition for a worker's request."""
        return max(self.missing_bytes(worker, growth) - self._memory.raised_by_worker.get(worker, 0), 0)

    def let_grow(self) -> None:
        """Grant the requests of waiting workers, make room for them, or refuse what can never fit."""
        memory = self._memory
        for worker, growth in list(self.growing.items()):
            missing_bytes = self.missing_bytes(worker, growth)
            if not missing_bytes or memory.has_room(missing_bytes):
                self._grow(worker, growth)
        if not self.growing:
            return
        self._admission.is_short = True
        missing_bytes = self.missing_bytes(*next(iter(self.growing.items())))
        if spilled_bytes := memory.missing_bytes(missing_bytes):
            self._admission.spill(spilled_bytes)
        if memory.spilling_bytes or self._may_free_memory():
            return
        # All workers wait for each other. One continues, and the others follow when it is done.
        room_bytes = memory.hard_limit_bytes - memory.stored_bytes - memory.admitted_bytes
        for worker, growth in self.growing.items():
            if self.missing_bytes(worker, growth) <= room_bytes:
                self._grow(worker, growth)
                return
        if self.are_renewed(is_strict=True):
            self._refuse_one()

    def _refuse_one(self) -> None:
        """Postpone the chunk that has waited least, if one may begin a second time; otherwise refuse the first."""
        growing = self.growing
        others = [worker for worker, waits in growing.items() if waits.graph.plan.is_repeatable(waits.chunk)]
        is_postponed = len(growing) > 1 and bool(others)
        worker = others[-1] if is_postponed else next(iter(growing))
        growth = growing[worker]
        self.withdraw(worker)
        self._emit(RefuseQuota(worker, growth.graph.id, growth.chunk, growth.growth_bytes, is_postponed))

    def _grow(self, worker: int, growth: Growth) -> None:
        graph, chunk, memory = growth.graph.id, growth.chunk, self._memory
        missing_bytes = self.missing_bytes(worker, growth)
        more_bytes = max(missing_bytes - memory.admit_raised(graph, chunk), 0)
        memory.reserve(graph, chunk, memory.reserved_for(graph, chunk) + more_bytes, worker)
        self.withdraw(worker)
        # The waiting worker needs a grant even if the number is unchanged.
        self._workforce.by_id[worker].granted_bytes = -1

    def _may_free_memory(self) -> bool:
        """Return whether memory will become free without further decisions."""
        graphs = self._graphs.values()
        if self._admission.reservations or any(graph.client.count or graph.results_pending for graph in graphs):
            return True
        return self._workforce.busy_count > len(self.growing)

    def are_renewed(self, is_strict: bool) -> bool:
        """Return whether workers have given back leftover memory; if unknown, have the engine renew them."""
        if self.is_renewed:
            self.is_renewed = False
            return True
        if self.is_renewed is False:
            self.is_renewed = None
            self._emit(RenewWorkers(is_strict))
        return False

    # -- grants -----------------------------------------------------------------------------------------------

    def expected_private_bytes(self, worker: int) -> int:
        """Return the bytes of the worker's reservation that cover unaccounted allocations."""
        record = self._workforce.by_id.get(worker)
        if not self._knows_private or record is None:
            return 0
        return sum([self._graphs[graph].estimates.private_bytes(chunk) for graph, chunk in record.dispatched])

    def _quota_bytes(self, worker: int) -> int:
        """Return by how much a worker's memory may grow."""
        # This excludes the reservation for unaccounted allocations, and bytes learned meanwhile, for which the
        # worker has to ask.
        memory = self._memory
        quota_bytes = memory.reserved_by_worker.get(worker, 0) - memory.raised_by_worker.get(worker, 0)
        return quota_bytes - self.expected_private_bytes(worker)

    def grant(self, slack_bytes: int) -> None:
        """Inform workers of changed quotas."""
        changed = sorted(self._memory.changed)
        self._memory.changed.clear()
        for id in changed:
            worker = self._workforce.by_id.get(id)
            growth_bytes = max(self._quota_bytes(id), 0)
            if worker is not None and growth_bytes != worker.granted_bytes:
                worker.granted_bytes = growth_bytes
                self._emit(GrantQuota(id, growth_bytes + slack_bytes))
