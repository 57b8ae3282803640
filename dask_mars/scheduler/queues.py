"""The queues of one graph: heaps of the keys of its READY chunks, and of chunks that can follow their inputs.

A part of the state machine, and pure. The policy decides on keys, and on the workers that a chunk is offered to.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Sequence

from dask_mars.scheduler.events import GraphPlan, Resources
from dask_mars.scheduler.policies import Policy, Prioritized
from dask_mars.scheduler.states import State

_READY = int(State.READY)


class Queues:
    """The queues of one graph."""

    def __init__(self, plan: GraphPlan, state: bytearray, in_client: bytearray, policy: Policy) -> None:
        self._state = state
        self._in_client = in_client
        self._resources = plan.resources
        #: READY chunks for all workers, and for the user's process.
        self.ready: list[int] = []
        self.client: list[int] = []
        #: By worker, the READY chunks offered to it; all of these are in `offered`, too.
        self.offers: dict[int, list[int]] = {}
        self.offered: list[int] = []
        #: Whether the policy chooses workers.
        self.chooses_workers = type(policy).workers_for is not Policy.workers_for
        #: READY chunks by their resources.
        self.restricted: dict[Resources, list[int]] = {}
        #: By worker, chunks whose missing inputs are all dispatched to that worker.
        self.followers: dict[int, list[int]] = {}
        #: READY chunks in no queue, whose retry is delayed.
        self.delayed: set[int] = set()
        #: Dispatches in a row that passed a chunk without room.
        self.passes = 0
        #: Workers of the chunks that are offered to several, until one has taken it; and the new ones of these.
        self.shared_offers: dict[int, Sequence[int]] = {}
        self.new_offers: list[int] = []
        self.policy = Prioritized(policy) if any(plan.priorities.values()) else policy
        self.on_ready: Callable[[int, int | None], None] = self.policy.on_ready
        #: Key of a queued chunk, smallest first; and chunk of a key.
        self.key_of: Callable[[int], int] = self.policy.key_of
        self.chunk_of: Callable[[int], int] = self.policy.chunk_of

    @property
    def is_divided(self) -> bool:
        """Return whether workers take from more queues than one."""
        return bool(self.offered or self._resources)

    def push(self, chunk: int) -> None:
        """Queue a READY chunk."""
        key = self.key_of(chunk)
        if self._in_client[chunk]:
            heapq.heappush(self.client, key)
        elif self._resources and (taken := self._resources.get(chunk)) is not None:
            heapq.heappush(self.restricted.setdefault(taken, []), key)
        elif self.chooses_workers and (workers := self.policy.workers_for(chunk)):
            for worker in workers:
                heapq.heappush(self.offers.setdefault(worker, []), key)
            heapq.heappush(self.offered, key)
            if len(workers) > 1:
                self.shared_offers[chunk] = workers
                self.new_offers.append(chunk)
        else:
            heapq.heappush(self.ready, key)

    def push_all(self, chunks: Iterable[int]) -> None:
        """Queue the first READY chunks."""
        policy, restricted, in_client, key_of = self.policy, self._resources, self._in_client, self.key_of
        workers_for = policy.workers_for if self.chooses_workers and policy.places_initial else None
        for chunk in chunks:
            if in_client[chunk]:
                self.client.append(key_of(chunk))
            elif chunk in restricted or (workers_for is not None and workers_for(chunk)):
                self.push(chunk)
            else:
                self.ready.append(key_of(chunk))
        heapq.heapify(self.ready)
        heapq.heapify(self.client)

    def is_next(self, chunk: int) -> bool:
        """Return whether a queued chunk may be dispatched now."""
        return self._state[chunk] == _READY and chunk not in self.delayed

    def withdraw(self, chunks: Collection[int]) -> list[int]:
        """Remove chunks from their queues out of turn; return those that were queued."""
        queued = set()
        for queue in self.all():
            found = [chunk for key in queue if (chunk := self.chunk_of(key)) in chunks]
            if found:
                queued.update(found)
                queue[:] = [key for key in queue if self.chunk_of(key) not in chunks]
                heapq.heapify(queue)
        return sorted(queued)

    def clear(self) -> None:
        """Empty all queues."""
        for queue in self.all():
            queue.clear()
        self.followers.clear()
        self.shared_offers.clear()
        self.new_offers.clear()

    def all(self) -> list[list[int]]:
        """Return all queues of READY chunks."""
        return [self.ready, self.client, self.offered, *self.restricted.values(), *self.offers.values()]

    @property
    def has_queued(self) -> bool:
        """Return whether a worker could be given a chunk."""
        # A chunk that was taken from the offers of one worker is still among all that were offered.
        if self.offered:
            self._drop_stale(self.offered)
        return bool(self.ready or self.followers or self.offered or any(self.restricted.values()))

    @property
    def queued_count(self) -> int:
        """Return the number of READY chunks for workers; it may count some that have been taken from offers."""
        return len(self.ready) + len(self.offered) + sum(map(len, self.restricted.values()))

    def queue_for(self, worker: int, is_idle: bool, are_free: Callable[[Resources], bool]) -> list[int]:
        """Return the queue that a worker should take its next chunk from."""
        # Its head is the first of the chunks offered to the worker, offered to all, or with free resources; or the
        # first of those offered to others, where the worker has none or the policy's lead is exceeded.
        found = self.ready
        self._drop_stale(found)
        candidates = [self.offers[worker]] if worker in self.offers else []
        if self.restricted:
            candidates += [queue for taken, queue in self.restricted.items() if queue and are_free(taken)]
        for queue in candidates:
            self._drop_stale(queue)
            if queue and (not found or queue < found):
                found = queue
        offered, lead = self.offered, self.policy.lead
        self._drop_stale(offered)
        if not offered:
            return found
        if not found:
            return offered if is_idle or lead is not None else found
        place_of = self.policy.place_of
        is_exceeded = lead is not None and place_of(found[0]) - place_of(offered[0]) > lead
        return offered if is_exceeded else found

    def offered_to(self, chunk: int) -> list[int]:
        """Return the workers that a READY chunk is offered to; none if it is for all."""
        key = self.key_of(chunk)
        return sorted(worker for worker, queue in self.offers.items() if key in queue)

    def _drop_stale(self, queue: list[int]) -> None:
        """Drop chunks from the head of a queue that other queues have given out."""
        state, delayed, chunk_of = self._state, self.delayed, self.chunk_of
        while queue:
            chunk = chunk_of(queue[0])
            if state[chunk] == _READY and chunk not in delayed:
                return
            heapq.heappop(queue)
