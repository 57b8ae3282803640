"""Accounts for the store's memory: stored, reserved, being spilled.

Pure bookkeeping, and a part of the state machine. An operand is started when the bytes of its result, and of those
of its inputs that have to be read from disk, are free or can be made free. Results that are not needed for the
longest time go to disk first, since the schedule says when each is needed again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dask_mars.scheduler.objects import ObjectId, StoredObject

#: Of the limit: what is made free at least when something has to go to disk, so that it is not chunk by chunk.
_SHARE = 1 / 16
#: Of the limit: what is kept free of map outputs once something had to wait for memory. They are written while
#: others compute, and leave room for reducers: while one runs, all map outputs have to stay where they are.
_SHARE_AHEAD = 1 / 4
#: What stands for the graph where it is not a chunk that bytes are reserved for.
RESERVATION = -1


class Memory:
    """The bytes of one engine's store.

    Parameters
    ----------
    limit_bytes : int or None
        What the store may hold; without a limit nothing is counted.
    hard_limit_bytes : int
        What it may hold if nothing else helps: an operand whose result is larger than the limit runs alone.

    Attributes
    ----------
    stored_bytes : int
        What the store holds, as it was measured last.
    reserved_bytes : int
        What may come into it on account of operands in hand and of reservations.
    spilling_bytes : int
        What is being written to disk, and leaves it then.
    can_spill : bool
        Whether there is a disk to write to.
    """

    def __init__(self, limit_bytes: int | None, hard_limit_bytes: int) -> None:
        self.is_limited = limit_bytes is not None
        self.limit_bytes = limit_bytes or 0
        self.hard_limit_bytes = hard_limit_bytes
        self.stored_bytes = 0
        self.reserved_bytes = 0
        self.spilling_bytes = 0
        self.can_spill = True
        #: By graph and chunk, or `RESERVATION` and its number.
        self._reserved: dict[tuple[int, int], int] = {}
        #: Of chunks that a worker has in hand, which one; and what is reserved for each worker.
        self._worker_of: dict[tuple[int, int], int] = {}
        self.reserved_by_worker: dict[int, int] = {}
        #: Of what is reserved, what has become known only while chunks were in hand: it may not be free at all,
        #: and no worker has it for its quota.
        self._raised: dict[tuple[int, int], int] = {}
        self.raised_by_worker: dict[int, int] = {}
        self.raised_bytes = 0
        #: What workers wait for, besides what is reserved for them.
        self.awaited_bytes = 0

    @property
    def free_bytes(self) -> int:
        """What is neither stored nor reserved nor waited for."""
        taken_bytes = self.stored_bytes + self.reserved_bytes + self.awaited_bytes
        return max(self.limit_bytes - taken_bytes, 0)

    @property
    def is_tight(self) -> bool:
        """Whether less than half of what may be stored is free."""
        return self.is_limited and 2 * self.free_bytes < self.limit_bytes

    def admits(self, required_bytes: int) -> bool:
        """Tell whether so many bytes may be reserved now, for what is not begun yet."""
        return self.has_room(required_bytes + self.awaited_bytes + self.raised_bytes)

    def has_room(self, required_bytes: int) -> bool:
        """Tell whether so many bytes are free, or have become known of chunks in hand and are not taken yet."""
        return self.stored_bytes + self.admitted_bytes + required_bytes <= self.limit_bytes

    @property
    def admitted_bytes(self) -> int:
        """What is reserved, less what has become known only while chunks were in hand."""
        return self.reserved_bytes - self.raised_bytes

    def raise_reserved(self, number: int, chunk: int, required_bytes: int, worker: int) -> None:
        """Note that more has become known of a chunk that is in a worker's hands, whether it is free or not."""
        more = required_bytes - self._reserved.get((number, chunk), 0)
        self.reserve(number, chunk, required_bytes, worker)
        if more > 0:
            self._raised[number, chunk] = self._raised.get((number, chunk), 0) + more
            self.raised_bytes += more
            self.raised_by_worker[worker] = self.raised_by_worker.get(worker, 0) + more

    def admit_raised(self, number: int, chunk: int) -> int:
        """Note that all that is reserved for a chunk is its own now; return how much was not."""
        raised = self._raised.pop((number, chunk), 0)
        if raised:
            self.raised_bytes -= raised
            self.raised_by_worker[self._worker_of[number, chunk]] -= raised
        return raised

    def reserve(self, number: int, chunk: int, required_bytes: int, worker: int | None = None) -> None:
        """Note that a chunk is in a worker's hands, or that it takes less or more."""
        key = number, chunk
        more = required_bytes - self._reserved.get(key, 0)
        self.reserved_bytes += more
        self._reserved[key] = required_bytes
        if worker is None:
            worker = self._worker_of.get(key)
        else:
            self._worker_of[key] = worker
        if worker is not None:
            self.reserved_by_worker[worker] = self.reserved_by_worker.get(worker, 0) + more

    def release(self, number: int, chunks: Iterable[int]) -> None:
        """Note that chunks are in no worker's hands any more."""
        if self._reserved:
            for chunk in chunks:
                if self._raised:
                    self.admit_raised(number, chunk)
                released = self._reserved.pop((number, chunk), 0)
                self.reserved_bytes -= released
                worker = self._worker_of.pop((number, chunk), None)
                if worker is not None:
                    self.reserved_by_worker[worker] -= released

    def reserved_for(self, number: int, chunk: int) -> int:
        """Return the bytes that are reserved for a chunk."""
        return self._reserved.get((number, chunk), 0)

    def consume_reservation(self, number: int, chunk: int, size_bytes: int) -> None:
        """Note that so many bytes of those reserved for a chunk are in the store now, and counted there."""
        reserved = self._reserved.get((number, chunk))
        if reserved is not None:
            self.reserve(number, chunk, max(reserved - size_bytes, 0))

    def missing_bytes(self, required_bytes: int) -> int:
        """Return how many bytes have to leave memory, besides those on their way, for so many to be free."""
        wanted = self.stored_bytes + self.admitted_bytes + required_bytes - self.limit_bytes - self.spilling_bytes
        return max(wanted, int(self.limit_bytes * _SHARE)) if wanted > 0 else 0

    def missing_ahead_bytes(self) -> int:
        """Return how many bytes of map outputs have to leave memory before something waits for that."""
        return self.missing_bytes(int(self.limit_bytes * _SHARE_AHEAD))

    def choose_to_spill(
        self, objects: Iterable[StoredObject], missing_bytes: int, excluded: Collection[StoredObject]
    ) -> list[ObjectId]:
        """Choose what goes to disk.

        Parameters
        ----------
        objects : iterable of StoredObject
            Those that may go, the first ones first.
        missing_bytes : int
            How many bytes are to leave memory.
        excluded : collection of StoredObject
            Those that must not.

        Returns
        -------
        list of tuple of int
            Ids of objects, which are from now on being written.
        """
        chosen: list[ObjectId] = []
        for found in objects:
            if missing_bytes <= 0:
                break
            if found in excluded or not (self.can_spill or found.is_copy):
                continue
            found.is_spilling = True
            self.spilling_bytes += found.size_bytes
            missing_bytes -= found.size_bytes
            chosen.append(found.id)
        return chosen

    def spill_ended(self, size_bytes: int) -> None:
        """Note that so many bytes are not being written any more."""
        self.spilling_bytes -= size_bytes


__all__ = ["RESERVATION", "Memory"]
