"""Accounts for the store's memory: stored, reserved, being spilled.

Pure bookkeeping, and a part of the state machine. An operand starts when the bytes of its result and of its inputs
on disk are free or can be made free. Results that are needed last are spilled first, since the schedule shows when
each is needed again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dask_mars.scheduler.objects import ObjectId, StoredObject

#: Minimum fraction of the limit to free per spill, so that spills do not go chunk by chunk.
_SHARE = 1 / 16
#: Fraction of the limit to keep free of map outputs once something has waited for memory. Spilled early they leave
#: room for reducers, which pin all map outputs while they run.
_SHARE_AHEAD = 1 / 4
#: Graph id of reservations, which belong to no chunk.
RESERVATION = -1


class Memory:
    """The bytes of one engine's store."""

    def __init__(self, limit_bytes: int | None, hard_limit_bytes: int) -> None:
        self.is_limited = limit_bytes is not None
        self.limit_bytes = limit_bytes or 0
        self.hard_limit_bytes = hard_limit_bytes
        self.stored_bytes = 0
        #: Bytes that dispatched operands and reservations may add.
        self.reserved_bytes = 0
        #: Bytes being written to disk, which will leave the store.
        self.spilling_bytes = 0
        self.can_spill = True
        #: By graph and chunk, or `RESERVATION` and its id.
        self._reserved: dict[tuple[int, int], int] = {}
        #: The worker of each dispatched chunk; and bytes reserved for each worker.
        self._worker_of: dict[tuple[int, int], int] = {}
        self.reserved_by_worker: dict[int, int] = {}
        #: The part of reservations that was learned after the dispatch of their chunks: it may not be free, and is
        #: in no worker's quota.
        self._raised: dict[tuple[int, int], int] = {}
        self.raised_by_worker: dict[int, int] = {}
        self.raised_bytes = 0
        #: Workers whose reservations have changed since quotas were granted.
        self.changed: set[int] = set()
        #: Bytes that workers wait for, besides their reservations.
        self.awaited_bytes = 0

    @property
    def free_bytes(self) -> int:
        """Return the bytes that are neither stored nor reserved nor waited for."""
        taken_bytes = self.stored_bytes + self.reserved_bytes + self.awaited_bytes
        return max(self.limit_bytes - taken_bytes, 0)

    @property
    def is_tight(self) -> bool:
        """Return whether less than half of the limit is free."""
        return self.is_limited and 2 * self.free_bytes < self.limit_bytes

    def admits(self, required_bytes: int) -> bool:
        """Return whether `required_bytes` may be reserved now for a new chunk."""
        return self.stored_bytes + self.reserved_bytes + self.awaited_bytes + required_bytes <= self.limit_bytes

    def has_room(self, required_bytes: int) -> bool:
        """Return whether `required_bytes` are free, counting raised reservations as free."""
        return self.stored_bytes + self.admitted_bytes + required_bytes <= self.limit_bytes

    @property
    def admitted_bytes(self) -> int:
        """Return the reserved bytes, without those learned while chunks were dispatched."""
        return self.reserved_bytes - self.raised_bytes

    def raise_reserved(self, graph: int, chunk: int, required_bytes: int, worker: int) -> None:
        """Raise the reservation of a dispatched chunk to newly learned bytes, free or not."""
        more = required_bytes - self._reserved.get((graph, chunk), 0)
        self.reserve(graph, chunk, required_bytes, worker)
        if more > 0:
            self._raised[graph, chunk] = self._raised.get((graph, chunk), 0) + more
            self.raised_bytes += more
            self.raised_by_worker[worker] = self.raised_by_worker.get(worker, 0) + more

    def admit_raised(self, graph: int, chunk: int) -> int:
        """Turn the raised part of a chunk's reservation into a normal one; return its bytes."""
        raised = self._raised.pop((graph, chunk), 0)
        if raised:
            self.raised_bytes -= raised
            worker = self._worker_of[graph, chunk]
            self.raised_by_worker[worker] -= raised
            self.changed.add(worker)
        return raised

    def reserve(self, graph: int, chunk: int, required_bytes: int, worker: int | None = None) -> None:
        """Set the reservation of a chunk."""
        key = graph, chunk
        more = required_bytes - self._reserved.get(key, 0)
        self.reserved_bytes += more
        self._reserved[key] = required_bytes
        if worker is None:
            worker = self._worker_of.get(key)
        else:
            self._worker_of[key] = worker
        if worker is not None:
            self.reserved_by_worker[worker] = self.reserved_by_worker.get(worker, 0) + more
            self.changed.add(worker)

    def release(self, graph: int, chunks: Iterable[int]) -> None:
        """Release the reservations of chunks."""
        if self._reserved:
            for chunk in chunks:
                if self._raised:
                    self.admit_raised(graph, chunk)
                key = graph, chunk
                released = self._reserved.pop(key, 0)
                self.reserved_bytes -= released
                worker = self._worker_of.pop(key, None)
                if worker is not None:
                    self.reserved_by_worker[worker] -= released
                    self.changed.add(worker)

    def reserved_for(self, graph: int, chunk: int) -> int:
        """Return the bytes that are reserved for a chunk."""
        return self._reserved.get((graph, chunk), 0)

    def consume_reservation(self, graph: int, chunk: int, size_bytes: int) -> None:
        """Reduce a chunk's reservation by bytes that the store counts from now on."""
        reserved = self._reserved.get((graph, chunk))
        if reserved is not None:
            self.reserve(graph, chunk, max(reserved - size_bytes, 0))

    def missing_bytes(self, required_bytes: int) -> int:
        """Return how many more bytes have to be spilled so that `required_bytes` are free."""
        wanted = self.stored_bytes + self.admitted_bytes + required_bytes - self.limit_bytes - self.spilling_bytes
        return max(wanted, int(self.limit_bytes * _SHARE)) if wanted > 0 else 0

    def missing_ahead_bytes(self) -> int:
        """Return how many bytes of map outputs to spill before something waits for memory."""
        return self.missing_bytes(int(self.limit_bytes * _SHARE_AHEAD))

    def choose_to_spill(
        self, objects: Iterable[StoredObject], missing_bytes: int, excluded: Collection[StoredObject] = ()
    ) -> list[ObjectId]:
        """Choose objects to spill that are not pinned, in the given order, and mark them; return their ids."""
        chosen: list[ObjectId] = []
        for found in objects:
            if missing_bytes <= 0:
                break
            if found in excluded or not (self.can_spill or found.is_copy) or found.is_pinned:
                continue
            found.is_spilling = True
            self.spilling_bytes += found.size_bytes
            missing_bytes -= found.size_bytes
            chosen.append(found.id)
        return chosen

    def spill_ended(self, size_bytes: int) -> None:
        """Record the end of a write to disk."""
        self.spilling_bytes -= size_bytes
