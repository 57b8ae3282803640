"""The interface of scheduling policies, and the simplest one: the graph's own order, and any worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dask_mars.scheduler.assigner import Traversal
from dask_mars.scheduler.estimates import Estimates
from dask_mars.scheduler.events import GraphPlan


class GraphView(Protocol):
    """What a policy may look at: a graph's bookkeeping. Lists are indexed by chunk.

    Attributes
    ----------
    plan : GraphPlan
        What is computed: inputs, operands, outputs, the user's priorities, declared bytes.
    state : bytearray
        State of each chunk, as in `states.State`.
    successors : list of list of int
        Chunks that have each chunk as an input.
    undispatched_inputs, undispatched_consumers : list of int
        How many of a chunk's inputs, and of its successors, nobody has in hand or has computed.
    is_output : bytearray
        Whether the user wants a chunk.
    estimates : Estimates
        Bytes that chunks are thought to take.
    makers : dict
        Worker that has computed each finished chunk; filled for policies that have `workers_for`.
    """

    plan: GraphPlan
    state: bytearray
    successors: list[list[int]]
    undispatched_inputs: list[int]
    undispatched_consumers: list[int]
    is_output: bytearray
    estimates: Estimates
    makers: dict[int, int]

    def bytes_of(self, chunk: int) -> int:
        """Return the bytes that a chunk takes, or is thought to take once it is computed."""

    def is_next(self, chunk: int) -> bool:
        """Say whether a chunk is READY and may be handed out."""

    def push(self, chunk: int) -> None:
        """Queue a READY chunk, again if its key has changed."""


class Policy:
    """Decides in which order a graph's READY chunks run, and which workers they are offered to.

    There is one for each graph. A policy of your own derives from this class, or from `RankedPolicy`, and changes
    what it has to. It must be pure: no clock, no chance, no I/O, so that equal events give equal decisions.

    Parameters
    ----------
    graph : GraphView
        What is known of the graph. To be read, not to be changed.
    slots : mapping
        How many chunks each worker computes at the same time, by the worker's number: those that there will be.
    assignment : {"breadth-first", "depth-first"}, optional
        How the graph is searched when its initial chunks are divided among workers, if the policy does that.

    Attributes
    ----------
    run_ahead : bool
        Whether chunks may stand in a worker's queue behind the inputs that they wait for. Without it they are
        handed out when they are READY, which costs a message for each step of a chain.
    """

    run_ahead = True

    def __init__(
        self, graph: GraphView, slots: Mapping[int, int], assignment: Traversal = "breadth-first"
    ) -> None:
        self.graph = graph
        self.slots = slots
        self.assignment = assignment

    def key_of(self, chunk: int) -> int:
        """Return the key under which a chunk is queued: of those that are READY the one with the least is next."""
        return chunk

    def chunk_of(self, key: int) -> int:
        """Return the chunk that a key belongs to."""
        return key

    def on_ready(self, chunk: int, last: int | None) -> None:
        """Take note that a chunk is about to be queued; its key may change here.

        Parameters
        ----------
        chunk : int
            All of its inputs are computed, or in the hands of the worker that it follows.
        last : int or None
            The input that was the last to be so.
        """

    def on_last_consumer(self, consumers: list[int], dispatched: int) -> None:
        """Take note that an input needs one more consumer only, now that another was handed out.

        Parameters
        ----------
        consumers : list of int
            The consumer that is left, if it has not been handed out in other ways.
        dispatched : int
            The one that was handed out.
        """

    def workers_for(self, chunk: int) -> Sequence[int] | None:
        """Return the workers that a READY chunk is offered to, None for all.

        The first of them that is free gets it. A worker that is offered nothing else, and has nothing to do, may
        get it as well.
        """
        return None


class RankedPolicy(Policy):
    """A policy whose order is settled when a graph is submitted: by `sort_key`, then by the graph's own order."""

    def __init__(
        self, graph: GraphView, slots: Mapping[int, int], assignment: Traversal = "breadth-first"
    ) -> None:
        super().__init__(graph, slots, assignment)
        self._order = sorted(range(len(graph.plan.inputs)), key=lambda chunk: (self.sort_key(chunk), chunk))
        self._rank = [0] * len(self._order)
        for position, chunk in enumerate(self._order):
            self._rank[chunk] = position

    def sort_key(self, chunk: int) -> Any:
        """Return what chunks are sorted by; the least runs first."""
        return chunk

    def key_of(self, chunk: int) -> int:
        """Return a chunk's place in the order."""
        return self._rank[chunk]

    def chunk_of(self, key: int) -> int:
        """Return the chunk that is at a place."""
        return self._order[key]


class Prioritized(RankedPolicy):
    """Another policy's order among chunks to which the user has given the same priority.

    What comes before others is offered to all workers: were it to wait for some of them, the others would go on
    with what comes after it.

    Parameters
    ----------
    policy : Policy
        The other one.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.run_ahead = policy.run_ahead
        self._priorities = policy.graph.plan.priorities
        # What comes with the graph is not computed, and has no priority.
        operands = enumerate(policy.graph.plan.operand_of)
        computed = [self._priorities.get(chunk, 0.0) for chunk, operand in operands if operand >= 0]
        self._lowest = min(computed, default=0.0)
        super().__init__(policy.graph, policy.slots, policy.assignment)

    def sort_key(self, chunk: int) -> tuple[float, int]:
        """Return the user's priority, the highest first, and the other policy's key."""
        return -self._priorities.get(chunk, 0.0), self._policy.key_of(chunk)

    def workers_for(self, chunk: int) -> Sequence[int] | None:
        """Return all for what comes before others, and what the other policy says for the rest."""
        if self._priorities.get(chunk, 0.0) > self._lowest:
            return None
        return self._policy.workers_for(chunk)


__all__ = ["GraphView", "Policy", "Prioritized", "RankedPolicy"]
