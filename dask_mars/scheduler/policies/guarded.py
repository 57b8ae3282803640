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
        self._policy: Policy | None = None
        self._policy = self._asked(lambda: make_policy(graph, slots, assignment), None)
        if self._policy is not None:
            self.run_ahead = self._asked(lambda: bool(self._theirs.run_ahead), True)
        if self._policy is not None:
            self.lead = self._asked(lambda: _count(self._theirs.lead), None)
        super().__init__(graph, slots, assignment)

    @property
    def _theirs(self) -> Policy:
        assert self._policy is not None
        return self._policy

    def _asked(self, question: Callable[[], Answer], otherwise: Answer) -> Answer:
        try:
            return question()
        except Exception:
            logger.warning("a scheduling policy has failed: this graph goes on without it", exc_info=True)
            self._policy = None
            return otherwise

    def sort_key(self, chunk: int) -> tuple[bool, int]:
        """Return the other policy's key; chunks without a key come last."""
        key = None if self._policy is None else self._asked(lambda: int(self._theirs.key_of(chunk)), None)
        return key is None, key or 0

    def on_ready(self, chunk: int, last: int | None) -> None:
        """Forward to the other policy."""
        if self._policy is not None:
            self._asked(lambda: self._theirs.on_ready(chunk, last), None)

    def on_last_consumer(self, consumers: list[int], dispatched: int) -> None:
        """Forward to the other policy."""
        if self._policy is not None:
            self._asked(lambda: self._theirs.on_last_consumer(consumers, dispatched), None)

    def workers_for(self, chunk: int) -> Sequence[int] | None:
        """Return the workers that the other policy names."""
        if self._policy is None:
            return None
        return self._asked(lambda: _numbers(self._theirs.workers_for(chunk)), None)


def _count(value: Any) -> int | None:
    return None if value is None else int(value)


def _numbers(workers: Any) -> Sequence[int] | None:
    return None if workers is None else [int(worker) for worker in workers]
