"""A cluster in simulated time: workers with slots, links with a bandwidth, and chunks that take time and bytes.

A policy says where a chunk goes as soon as its inputs are computed. From then on its worker fetches what it has
not, over links that carry one result after the other, and computes what is complete in the order of priority.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

_ARRIVED, _ENDED = 0, 1


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal workers, each on a host of its own.

    Attributes
    ----------
    workers : int
        How many.
    slots : int
        Chunks that each computes at the same time.
    bandwidth : float
        Bytes a second that go into a host, and out of it.
    latency_s : float
        What a transfer takes besides.
    """

    workers: int
    slots: int = 4
    bandwidth: float = 1.25e9
    latency_s: float = 1e-3


@dataclass(frozen=True, slots=True)
class Job:
    """A graph to run; sequences are indexed by chunk, and inputs have smaller ids.

    Attributes
    ----------
    inputs : sequence of tuple of int
        Distinct inputs that have to be computed; values that come with the graph are everywhere.
    sizes, durations_s : sequence
        Bytes of each result, and seconds that it takes to compute.
    groups : sequence of int
        What kind of operation each chunk is.
    absent : frozenset of int
        Chunks that are not computed.
    """

    inputs: Sequence[tuple[int, ...]]
    sizes: Sequence[int]
    durations_s: Sequence[float]
    groups: Sequence[int]
    absent: frozenset[int] = frozenset()


class Policy(Protocol):
    """Who computes what."""

    def priorities(self) -> Sequence[int]:
        """Return a number for each chunk; workers compute those with small numbers first."""

    def choose(self, chunk: int, now: Simulation) -> int | None:
        """Return the worker for a chunk whose inputs are there, or None to be asked again when a slot is free."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a simulation.

    Attributes
    ----------
    makespan_s : float
        When the last chunk ended.
    moved_bytes : int
        Bytes that went from host to host.
    balance : float
        Most chunks that a worker has computed, over the mean.
    """

    makespan_s: float
    moved_bytes: int
    balance: float


class Simulation:
    """One run of a job; policies read its attributes.

    Parameters
    ----------
    job, cluster, policy
        What runs, where, and who decides.
    stealing
        Whether a worker with nothing to do takes complete chunks from the one with the most work in its queue, if
        with their inputs to be fetched it would have done them long before that queue is done.

    Attributes
    ----------
    holders : list of list of int
        Workers that have each result.
    occupancy_s : list of float
        Work of each worker, queued or running.
    given : list of int
        How many chunks each worker has, queued or running.
    stored_bytes : list of int
        What each worker holds of results.
    """

    def __init__(self, job: Job, cluster: Cluster, policy: Policy, stealing: bool = True) -> None:
        count, workers = len(job.inputs), cluster.workers
        self.job, self.cluster = job, cluster
        self._policy, self._priorities, self._stealing = policy, policy.priorities(), stealing
        self.holders: list[list[int]] = [[] for _ in range(count)]
        self.occupancy_s = [0.0] * workers
        self.given = [0] * workers
        self.stored_bytes = [0] * workers
        self._now_s = 0.0
        self._events: list[tuple[float, int, int, int]] = []
        self._free_slots = [cluster.slots] * workers
        self._queues: list[list[tuple[int, int]]] = [[] for _ in range(workers)]
        self._queued_s = [0.0] * workers
        self._backlog: set[int] = set()
        self._idle = set(range(workers))
        self._unplaced: list[tuple[int, int]] = []
        self._link_in_s, self._link_out_s = [0.0] * workers, [0.0] * workers
        # What waits for a result that is on its way to a worker.
        self._expecting: dict[tuple[int, int], list[int]] = {}
        self._missing = [0] * count
        self._waiting = [len(inputs) for inputs in job.inputs]
        self._consumers: list[list[int]] = [[] for _ in range(count)]
        for chunk, inputs in enumerate(job.inputs):
            for source in inputs:
                self._consumers[source].append(chunk)
        self._uses = [len(consumers) for consumers in self._consumers]
        self._computed = [0] * workers
        self._moved_bytes = 0

    def run(self) -> Outcome:
        """Run the job to its end."""
        absent = self.job.absent
        self._make_ready([chunk for chunk, count in enumerate(self._waiting) if not count and chunk not in absent])
        while self._events:
            self._now_s, kind, worker, chunk = heapq.heappop(self._events)
            if kind == _ENDED:
                self._ended(worker, chunk)
            else:
                self._arrived(worker, chunk)
            self._place_waiting()
            if self._stealing:
                self._steal()
        computed = sum(self._computed)
        assert computed == len(self.job.inputs) - len(absent), "chunks were left over"
        return Outcome(
            self._now_s, self._moved_bytes, max(self._computed) * self.cluster.workers / max(computed, 1)
        )

    def transfer_s(self, chunk: int, worker: int) -> float:
        """Return how long a worker would take to fetch what it has not of a chunk's inputs, on an idle network."""
        missing = [source for source in self.job.inputs[chunk] if worker not in self.holders[source]]
        if not missing:
            return 0.0
        return self.cluster.latency_s + sum(self.job.sizes[source] for source in missing) / self.cluster.bandwidth

    # -- what happens -----------------------------------------------------------------------------------------

    def _push_event(self, due_s: float, kind: int, worker: int, chunk: int) -> None:
        # What falls together happens in the order of workers and chunks, so that runs are the same each time.
        heapq.heappush(self._events, (due_s, kind, worker, chunk))

    def _ended(self, worker: int, chunk: int) -> None:
        duration_s = self.job.durations_s[chunk]
        self.occupancy_s[worker] -= duration_s
        self.given[worker] -= 1
        self._free_slots[worker] += 1
        self._computed[worker] += 1
        self._keep(worker, chunk)
        for source in self.job.inputs[chunk]:
            self._uses[source] -= 1
            if not self._uses[source]:
                self._drop(source)
        ready = []
        for consumer in self._consumers[chunk]:
            self._waiting[consumer] -= 1
            if not self._waiting[consumer]:
                ready.append(consumer)
        self._start(worker)
        self._make_ready(ready)

    def _arrived(self, worker: int, source: int) -> None:
        self._keep(worker, source)
        for chunk in self._expecting.pop((worker, source)):
            self._missing[chunk] -= 1
            if not self._missing[chunk]:
                self._enqueue(worker, chunk)

    def _keep(self, worker: int, chunk: int) -> None:
        self.holders[chunk].append(worker)
        self.stored_bytes[worker] += self.job.sizes[chunk]

    def _drop(self, chunk: int) -> None:
        for worker in self.holders[chunk]:
            self.stored_bytes[worker] -= self.job.sizes[chunk]
        self.holders[chunk] = []

    # -- who gets what ----------------------------------------------------------------------------------------

    def _make_ready(self, chunks: list[int]) -> None:
        for chunk in sorted(chunks, key=self._priorities.__getitem__):
            worker = self._policy.choose(chunk, self)
            if worker is None:
                heapq.heappush(self._unplaced, (self._priorities[chunk], chunk))
            else:
                self._place(chunk, worker)

    def _place_waiting(self) -> None:
        while self._unplaced:
            worker = self._policy.choose(self._unplaced[0][1], self)
            if worker is None:
                return
            self._place(heapq.heappop(self._unplaced)[1], worker)

    def _place(self, chunk: int, worker: int) -> None:
        self.given[worker] += 1
        self.occupancy_s[worker] += self.job.durations_s[chunk]
        missing = [source for source in self.job.inputs[chunk] if worker not in self.holders[source]]
        self._missing[chunk] = len(missing)
        for source in missing:
            expecting = self._expecting.get((worker, source))
            if expecting is None:
                self._expecting[worker, source] = [chunk]
                self._send(source, worker)
            else:
                expecting.append(chunk)
        if not missing:
            self._enqueue(worker, chunk)

    def _send(self, chunk: int, worker: int) -> None:
        """Move a result over the links of a worker that has it and of the one that needs it."""
        out, into = self._link_out_s, self._link_in_s
        sender = min(self.holders[chunk], key=lambda holder: (out[holder], holder))
        took_s = self.job.sizes[chunk] / self.cluster.bandwidth
        leaves_s = max(self._now_s, out[sender])
        out[sender] = leaves_s + took_s
        into[worker] = max(leaves_s, into[worker]) + took_s
        self._moved_bytes += self.job.sizes[chunk]
        self._push_event(into[worker] + self.cluster.latency_s, _ARRIVED, worker, chunk)

    def _enqueue(self, worker: int, chunk: int) -> None:
        heapq.heappush(self._queues[worker], (self._priorities[chunk], chunk))
        self._queued_s[worker] += self.job.durations_s[chunk]
        self._start(worker)

    def _start(self, worker: int) -> None:
        queue = self._queues[worker]
        while queue and self._free_slots[worker]:
            chunk = heapq.heappop(queue)[1]
            self._queued_s[worker] -= self.job.durations_s[chunk]
            self._free_slots[worker] -= 1
            self._push_event(self._now_s + self.job.durations_s[chunk], _ENDED, worker, chunk)
        (self._backlog.add if queue else self._backlog.discard)(worker)
        (self._idle.discard if self.given[worker] else self._idle.add)(worker)

    # -- stealing ---------------------------------------------------------------------------------------------

    def _steal(self) -> None:
        while self._idle and self._backlog:
            victim = max(self._backlog, key=lambda worker: (self._queued_s[worker], -worker))
            thief = min(self._idle)
            queue = self._queues[victim]
            # The last in the queue is what its worker would come to last.
            entry = max(queue)
            chunk = entry[1]
            duration_s = self.job.durations_s[chunk]
            # What Dask's work stealing asks for.
            if 1.5 * (self.transfer_s(chunk, thief) + duration_s) > self._queued_s[victim] / self.cluster.slots:
                return
            queue.remove(entry)
            heapq.heapify(queue)
            self._queued_s[victim] -= duration_s
            self.occupancy_s[victim] -= duration_s
            self.given[victim] -= 1
            self._start(victim)
            self._idle.discard(thief)
            self._place(chunk, thief)
