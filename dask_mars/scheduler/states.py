"""The states of a chunk and its legal moves: one table, for documentation and tests too."""

from __future__ import annotations

from enum import IntEnum


class State(IntEnum):
    """The state of one chunk's computation."""

    #: Some input is not computed yet.
    UNSCHEDULED = 0
    #: All inputs are computed; the chunk waits for a worker, or for the delay before a retry.
    READY = 1
    #: Handed to a worker, maybe behind inputs that the same worker has yet to compute.
    RUNNING = 2
    #: Computed; its data stay for their readers.
    FINISHED = 3
    #: Computed, and its data released.
    FREED = 4
    #: Failed for good, or an input did.
    FATAL = 5
    #: Handed to a worker, and cancelled.
    CANCELLING = 6
    #: Will not be computed.
    CANCELLED = 7


#: ``MOVES[state]`` holds the states that may follow it. Every other move is a bug of dask_mars.
MOVES: dict[State, frozenset[State]] = {
    State.UNSCHEDULED: frozenset({State.READY, State.RUNNING, State.FATAL, State.CANCELLED}),
    State.READY: frozenset({State.RUNNING, State.FATAL, State.CANCELLED}),
    State.RUNNING: frozenset({State.UNSCHEDULED, State.READY, State.FINISHED, State.FATAL, State.CANCELLING}),
    State.FINISHED: frozenset({State.FREED}),
    State.FREED: frozenset(),
    State.FATAL: frozenset(),
    State.CANCELLING: frozenset({State.CANCELLED}),
    State.CANCELLED: frozenset(),
}

#: States without further moves, except from FINISHED to FREED.
ENDED = frozenset({State.FINISHED, State.FREED, State.FATAL, State.CANCELLED})

# One byte per pair, indexed by ``from * len(State) + to``, which saves the hot path two hash look-ups.
LEGAL = bytes(target in MOVES[source] for source in State for target in State)
