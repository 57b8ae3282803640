"""The interface of scheduling policies, and the simplest one: the graph's own order, and any worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dask_mars.scheduler.assigner import Traversal
from dask_mars.scheduler.estimates import Estimates
from dask_mars.scheduler.events import GraphPlan
from dask_mars.scheduler.policies.compiling import mypyc_attr


class GraphView(Protocol):
    """A policy's view of a graph's bookkeeping. Lists are indexed by chunk.

    Attributes
    ----------
    plan : GraphPlan
        Inputs, operands, outputs, the user's priorities, declared bytes.
    state : bytearray
        State of each chunk, as in `states.State`.
    successors : list of list of int
        Chunks that have each chunk as an input.
    undispatched_inputs, undispatched_consumers : list of int
        Number of a chunk's inputs, and of its successors, that are neither dispatched nor computed.
    is_output : bytearray
        Whether a chunk is a result for the user.
    estimates : Estimates
        Estimated bytes of chunks.
    makers : dict
        Worker that computed each finished chunk whose result is in the store; filled for policies that override
        `workers_for`.
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
        """Return a chunk's size in bytes, estimated before it is computed."""

    def is_next(self, chunk: int) -> bool:
        """Return whether a chunk is READY and may be dispatched."""

    def push(self, chunk: int) -> None:
        """Queue a READY chunk, again if its key has changed."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Policy:
    """Decides the order of a graph's READY chunks, and the workers they are offered to.

    Each graph has a policy of its own. Custom policies derive from this class or from `RankedPolicy`, and override
    methods. A policy must be pure: no clock, no random numbers, no I/O, so that equal events give equal decisions.

    Parameters
    ----------
    graph : GraphView
        The graph; read-only.
    slots : mapping
        Number of chunks that each worker computes at the same time, by the numbers of all workers to come.
    assignment : {"breadth-first", "depth-first"}, optional
        Search order for dividing initial chunks among workers, if the policy does that.

    Attributes
    ----------
    run_ahead : bool
        Whether chunks may stand in a worker's queue behind their inputs. Otherwise they are dispatched when they
        are READY, which costs a message for each step of a chain.
    lead : int or None
        Maximum number of places by which a chunk that is offered to others precedes the one that a worker takes.
        With None a worker takes from others only if it is idle and has no offers.
    places_initial : bool
        Whether `workers_for` is asked for the chunks that are READY when a graph is submitted.
    """

    run_ahead = True
    lead: int | None = None
    places_initial = True

    def __init__(
        self, graph: GraphView, slots: Mapping[int, int], assignment: Traversal = "breadth-first"
    ) -> None:
        self.graph = graph
        self.slots = slots
        self.assignment = assignment

    def key_of(self, chunk: int) -> int:
        """Return the key under which a READY chunk is queued; the smallest key is next."""
        return chunk

    def chunk_of(self, key: int) -> int:
        """Return the chunk that a key belongs to."""
        return key

    def place_of(self, key: int) -> int:
        """Return the place of a key in the order, to compare with `lead`."""
        return key

    def on_ready(self, chunk: int, last: int | None) -> None:
        """React to a chunk that is about to be queued; its key may change here.

        Parameters
        ----------
        chunk : int
            All of its inputs are computed, or dispatched to the worker that it follows.
        last : int or None
            The input that was completed last.
        """

    def on_last_consumer(self, consumers: list[int], dispatched: int) -> None:
        """React to an input that needs only one more consumer after a dispatch.

        Parameters
        ----------
        consumers : list of int
            The remaining consumer, unless it has been dispatched meanwhile.
        dispatched : int
            The consumer just dispatched.
        """

    def workers_for(self, chunk: int) -> Sequence[int] | None:
        """Return the workers that a READY chunk is offered to, None for all.

        The first free one of them takes it. Other workers may take it, too, as `lead` says.
        """
        return None


@mypyc_attr(allow_interpreted_subclasses=True)
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
        """Return the sort key of a chunk; the smallest runs first."""
        return chunk

    def key_of(self, chunk: int) -> int:
        """Return a chunk's rank in the order."""
        return self._rank[chunk]

    def chunk_of(self, key: int) -> int:
        """Return the chunk of a rank."""
        return self._order[key]


@mypyc_attr(allow_interpreted_subclasses=True)
class Prioritized(RankedPolicy):
    """Another policy's order among chunks to which the user has given the same priority.

    Chunks above the lowest priority are offered to all workers; otherwise other workers would run lower-priority
    chunks first.

    Parameters
    ----------
    policy : Policy
        The other policy.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.run_ahead, self.lead = policy.run_ahead, policy.lead
        self.places_initial = policy.places_initial
        self._priorities = policy.graph.plan.priorities
        # Chunks with known values are not computed, and have no priority.
        operands = enumerate(policy.graph.plan.operand_of)
        computed = [self._priorities.get(chunk, 0.0) for chunk, operand in operands if operand >= 0]
        self._lowest = min(computed, default=0.0)
        super().__init__(policy.graph, policy.slots, policy.assignment)

    def sort_key(self, chunk: int) -> tuple[float, int]:
        """Return the user's priority, the highest first, and the other policy's key."""
        return -self._priorities.get(chunk, 0.0), self._policy.key_of(chunk)

    def workers_for(self, chunk: int) -> Sequence[int] | None:
        """Return None above the lowest priority, and the other policy's choice for the rest."""
        if self._priorities.get(chunk, 0.0) > self._lowest:
            return None
        return self._policy.workers_for(chunk)
