"""The queues of one graph: heaps of the keys of its READY chunks, and of chunks that can follow their inputs.

A part of the state machine, and pure. The policy decides on keys, and on the workers that a chunk is offered to.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Iterable

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
        #: By worker, the READY chunks offered to it; None if every worker may take any chunk.
        self.offers: dict[int, list[int]] | None = None
        if type(policy).workers_for is not Policy.workers_for:
            self.offers = {}
        #: READY chunks by their resources.
        self.restricted: dict[Resources, list[int]] = {}
        #: Whether workers take from more queues than one.
        self.is_divided = self.offers is not None or bool(plan.resources)
        #: By worker, chunks whose missing inputs are all dispatched to that worker.
        self.followers: dict[int, list[int]] = {}
        #: READY chunks in no queue, whose retry is delayed.
        self.delayed: set[int] = set()
        #: Dispatches in a row that passed a chunk without room.
        self.passes = 0
        self._policy = Prioritized(policy) if any(plan.priorities.values()) else policy
        self.on_ready: Callable[[int, int | None], None] = self._policy.on_ready
        #: Key of a queued chunk, smallest first; and chunk of a key.
        self.key_of: Callable[[int], int] = self._policy.key_of
        self.chunk_of: Callable[[int], int] = self._policy.chunk_of

    @property
    def policy(self) -> Policy:
        """Return the policy."""
        return self._policy

    def push(self, chunk: int) -> None:
        """Queue a READY chunk."""
        for queue in self._queues_of(chunk) if self.is_divided else (self.ready,):
            heapq.heappush(self.client if self._in_client[chunk] else queue, self.key_of(chunk))

    def _queues_of(self, chunk: int) -> list[list[int]]:
        """Return the queues of a chunk: by its resources, or by the workers it is offered to."""
        taken = self._resources.get(chunk)
        if taken is not None:
            return [self.restricted.setdefault(taken, [])]
        if self.offers is None or self._in_client[chunk]:
            return [self.ready]
        workers = self._policy.workers_for(chunk)
        return [self.offers.setdefault(worker, []) for worker in workers] if workers else [self.ready]

    def push_all(self, chunks: Iterable[int]) -> None:
        """Queue the first READY chunks."""
        if self.is_divided:
            for chunk in chunks:
                self.push(chunk)
            return
        for chunk in chunks:
            (self.client if self._in_client[chunk] else self.ready).append(self.key_of(chunk))
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

    def all(self) -> list[list[int]]:
        """Return all queues of READY chunks."""
        return [self.ready, self.client, *self._others()]

    def _others(self) -> Iterable[list[int]]:
        """Return the queues that are not open to every worker at all times."""
        return itertools.chain(self.restricted.values(), self.offers.values() if self.offers else ())

    @property
    def has_queued(self) -> bool:
        """Return whether a worker could be given a chunk."""
        return bool(self.ready or self.followers) or any(self._others())

    def next_keys(self, count: int) -> list[int]:
        """Return the keys of chunks that may be dispatched next, up to `count` of those open to all workers."""
        # The smallest `count` keys of a heap are among these.
        keys = heapq.nsmallest(count, self.ready[: 2**count - 1])
        for queue in self._others():
            keys += queue[:1]
        return keys

    def queue_for(self, worker: int, is_idle: bool, are_free: Callable[[Resources], bool]) -> list[int]:
        """Return the queue that a worker should take its next chunk from."""
        # Its head is the first of the chunks offered to the worker, offered to all, or with free resources. An
        # idle worker without offers takes from the worker with the most.
        offers = self.offers or {}
        candidates = [offers.get(worker, []), self.ready]
        candidates += [queue for taken, queue in self.restricted.items() if queue and are_free(taken)]
        for queue in candidates:
            self._drop_stale(queue)
        found = min(filter(None, candidates), default=self.ready)
        if found or not is_idle:
            return found
        others = sorted(offers.items(), key=lambda entry: (-len(entry[1]), entry[0]))
        for _, queue in others:
            self._drop_stale(queue)
        return next((queue for _, queue in others if queue), found)

    def _drop_stale(self, queue: list[int]) -> None:
        """Drop chunks from the head of a queue that other queues have given out."""
        while queue and not self.is_next(self.chunk_of(queue[0])):
            heapq.heappop(queue)
