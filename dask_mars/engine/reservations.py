"""Bytes of an engine's store that are reserved for data from outside its graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dask_mars.engine.engine import Engine


class Reservation:
    """Bytes of a store that are reserved for data on their way."""

    # The engine grants them when they are free, or can be freed by spilling; chunks that workers can compute come
    # first.

    def __init__(
        self, engine: Engine, key: Hashable, size_bytes: int, answer: Callable[[Exception | None], None]
    ) -> None:
        self._engine = engine
        self._number = engine.reserve(key, size_bytes, answer)

    def release(self) -> None:
        """Release the bytes: the data are in the store, or will not come."""
        # An engine that has ended holds no memory.
        with contextlib.suppress(Exception):
            self._engine.release_reservation(self._number)
