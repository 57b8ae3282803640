"""Policies of other packages: their errors disable the policy, but never harm an engine or a computation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from dask_mars.scheduler.assigner import Traversal
from dask_mars.scheduler.policies.base import GraphView, Policy, RankedPolicy

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")


class Guarded(RankedPolicy):
    """Asks another policy, and continues without it once it raises or returns nonsense."""

    # The order is settled when the graph is submitted, by the other policy's keys at that time.

    def __init__(
        self,
        make_policy: Callable[..., Policy],
        graph: GraphView,
        slots: Mapping[int, int],
        assignment: Traversal = "breadth-first",
    ) -> None:
        # A stand-in, until the other policy is made.
        self._policy: Policy | None = Policy(graph, slots, assignment)
        self._policy = self._asked(lambda _: make_policy(graph, slots, assignment), None)
        self.run_ahead = self._asked(lambda policy: bool(policy.run_ahead), True)
        self.lead = self._asked(lambda policy: None if policy.lead is None else int(policy.lead), None)
        super().__init__(graph, slots, assignment)

    def _asked(self, question: Callable[[Policy], Answer], otherwise: Answer) -> Answer:
        if self._policy is None:
            return otherwise
        try:
            return question(self._policy)
        except Exception:
            logger.warning("a scheduling policy has failed: this graph goes on without it", exc_info=True)
            self._policy = None
            return otherwise

    def sort_key(self, chunk: int) -> tuple[bool, int]:
        """Return the other policy's key; chunks without a key come last."""
        key = self._asked(lambda policy: int(policy.key_of(chunk)), None)
        return key is None, key or 0

    def on_ready(self, chunk: int, last: int | None) -> None:
        """Forward to the other policy."""
        self._asked(lambda policy: policy.on_ready(chunk, last), None)

    def on_last_consumer(self, consumers: list[int], dispatched: int) -> None:
        """Forward to the other policy."""
        self._asked(lambda policy: policy.on_last_consumer(consumers, dispatched), None)

    def workers_for(self, chunk: int) -> Sequence[int] | None:
        """Return the workers that the other policy names."""
        return self._asked(lambda policy: _numbers(policy.workers_for(chunk)), None)


def _numbers(workers: Any) -> Sequence[int] | None:
    return None if workers is None else [int(worker) for worker in workers]
