"""Bytes of an engine's store, reserved before what is to go there has come from elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dask_mars.engine.loop import Engine


class Reservation:
    """Bytes of a store that are reserved for something which is not there yet.

    The engine grants them when they are free, or can be made free by spilling; what workers could compute comes
    first.

    Parameters
    ----------
    engine : Engine
        Has the store.
    key : hashable
        What the engine calls it when it says what waits for what.
    size_bytes : int
        How much is wanted.
    answer : callable
        Called once by the engine's thread: with None when the bytes are there, or with the reason why they never
        will be. Until `release` others do without these bytes.

    Raises
    ------
    EngineStopped
        The engine has ended.
    """

    def __init__(
        self, engine: Engine, key: Hashable, size_bytes: int, answer: Callable[[Exception | None], None]
    ) -> None:
        self._engine = engine
        self._number = engine.reserve(key, size_bytes, answer)

    def release(self) -> None:
        """Leave the bytes to others: what was to come is in the store, or does not come."""
        # With an engine that has ended all its memory has gone.
        with contextlib.suppress(Exception):
            self._engine.release_reservation(self._number)


__all__ = ["Reservation"]
