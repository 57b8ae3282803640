"""Room in an engine's store, asked for before what is to go there has come from elsewhere."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from dask_mars.engine.computation import RunHere
from dask_mars.graph.chunks import ChunkGraph
from dask_mars.scheduler.events import GraphPlan

if TYPE_CHECKING:
    from dask_mars.engine.loop import Engine


class Room:
    """Bytes of a store that are promised to something which is not there yet.

    To the engine this is an operand that the user's process computes. It waits until others have left memory, and
    behind operands that workers could compute.

    Parameters
    ----------
    engine : Engine
        Has the store.
    key : hashable
        What the engine calls it when it says what waits for what.
    size_bytes : int
        How much is wanted.
    answer : callable
        Called once by the engine's thread: with None when there is room, or with the reason why there never will
        be. Until `give_back` others do without these bytes.

    Raises
    ------
    EngineStopped
        The engine has ended.
    """

    def __init__(
        self, engine: Engine, key: Hashable, size_bytes: int, answer: Callable[[Exception | None], None]
    ) -> None:
        self._engine = engine
        graph = ChunkGraph(keys=[key], operand_of=[0], outputs=[0])
        plan = GraphPlan(
            [()],
            [0],
            [0],
            in_client=frozenset([0]),
            declared_bytes=lambda chunk: size_bytes,
            client_stores=True,
        )
        self._run = engine.prepare(graph, plan, False, False)
        self._run.inbox = _Inbox(answer)
        engine.submit(self._run)

    def give_back(self) -> None:
        """Leave the bytes to others: what was to come is in the store, or does not come."""
        # With an engine that has ended all its memory has gone.
        with contextlib.suppress(Exception):
            self._engine.cancel(self._run)


class _Inbox(queue.SimpleQueue[Any]):
    """Hands the first message on as an answer, in place of keeping it for a thread that waits."""

    def __init__(self, answer: Callable[[Exception | None], None]) -> None:
        self._answer: Callable[[Exception | None], None] | None = answer

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Answer, unless that is done already."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(None if type(item) is RunHere else item.error)


__all__ = ["Room"]
