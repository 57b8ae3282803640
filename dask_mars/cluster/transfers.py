"""Moves results from other hosts into an agent's store, within its memory.

Dask fetches the inputs of a subtask as soon as the agent has the subtask. Here a fetch waits for room in the
store, as operands do for their results, and its values go into the store before Dask sees them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import UserDict
from collections.abc import AsyncIterator, Collection, MutableMapping
from concurrent.futures import Future
from typing import Any

from dask.sizeof import sizeof

from dask_mars.cluster.stored_result import StoredResult
from dask_mars.engine.engine import Engine

logger = logging.getLogger(__name__)

#: Size from which results of other hosts go into the store, in bytes.
_LEAST_BYTES = 1 << 16


class Results(UserDict[Any, Any]):
    """Results on an agent by key; those that are large and not in the store are counted."""

    def __init__(self) -> None:
        super().__init__()
        #: Bytes of each large result that could go into the store, oldest first, and their sum.
        self.movable: dict[Any, int] = {}
        self.movable_bytes = 0

    def __setitem__(self, key: Any, value: Any) -> None:
        self.keep(key)
        super().__setitem__(key, value)
        # Objects may fail to tell their size.
        with contextlib.suppress(Exception):
            if not isinstance(value, StoredResult) and (size_bytes := sizeof(value)) >= _LEAST_BYTES:
                self.movable[key] = size_bytes
                self.movable_bytes += size_bytes

    def __delitem__(self, key: Any) -> None:
        self.keep(key)
        super().__delitem__(key)

    def keep(self, key: Any) -> None:
        """Count a result no longer: it goes, or cannot be stored."""
        self.movable_bytes -= self.movable.pop(key, 0)


class Transfers:
    """Puts results of other hosts, and those of foreign tasks, into the store of an agent."""

    def __init__(self, data: MutableMapping[Any, Any]) -> None:
        #: The agent's engine. Without one values stay as they are.
        self.engine: Engine | None = None
        self._data = data
        #: Results on their way into the store, by key and identity.
        self._arriving: dict[Any, asyncio.Future[None]] = {}

    @contextlib.asynccontextmanager
    async def reserve(self, name: str, size_bytes: int) -> AsyncIterator[None]:
        """Reserve room in the store for the block."""
        # If there can never be enough, continue without: the reader of the values will report it.
        engine = self.engine
        if engine is None or size_bytes < _LEAST_BYTES:
            yield
            return
        answer: Future[Exception | None] = Future()
        # The engine answers also if the wait is cancelled.
        answer.set_running_or_notify_cancel()
        reservation = None
        try:
            reservation = engine.reserve(name, size_bytes, answer.set_result)
            error = await asyncio.wrap_future(answer)
        except Exception as stopped:
            error = stopped
        except BaseException:
            if reservation is not None:
                engine.release_reservation(reservation)
            raise
        if error is not None:
            logger.debug("no room for %s: %s", name, error)
        try:
            yield
        finally:
            if reservation is not None:
                engine.release_reservation(reservation)

    async def put(self, values: dict[Any, Any], keys: Collection[Any]) -> None:
        """Put the large values under some keys of a mapping into the store."""
        await asyncio.to_thread(self._put, values, keys)

    def _put(self, values: dict[Any, Any], keys: Collection[Any]) -> None:
        engine = self.engine
        for key in keys:
            value = values.get(key)
            if engine is None or isinstance(value, StoredResult) or sizeof(value) < _LEAST_BYTES:
                continue
            items = value if type(value) is list else [value]
            try:
                values[key] = StoredResult(engine.put("arrived", items), bare=items is not value)
            except Exception as error:
                # The value can be used as it is.
                logger.debug("%r stays where it is: %s", key, error)

    async def make_room(self, limit_bytes: int) -> None:
        """Put the oldest results of foreign tasks into the store while they take more than a limit."""
        data = self._data
        while isinstance(data, Results) and data.movable_bytes > limit_bytes and self.engine is not None:
            key = next(iter(data.movable))
            value = data[key]
            await self.move_to_store(key)
            if data.get(key) is value:
                # It cannot be pickled, or there can never be room.
                data.keep(key)

    async def move_to_store(self, key: Any) -> None:
        """Put a result in the agent's own memory into the store, if it is large."""
        value = self._data.get(key)
        if value is None or isinstance(value, StoredResult):
            return
        # Dask may drop the key and fetch it again meanwhile.
        which = key, id(value)
        taking = self._arriving.get(which)
        if taking is None:
            taking = self._arriving[which] = asyncio.ensure_future(self._move_to_store(key, value))
            taking.add_done_callback(lambda _: self._arriving.pop(which))
        await taking

    async def _move_to_store(self, key: Any, value: Any) -> None:
        values = {key: value}
        async with self.reserve(str(key), sizeof(value)):
            await self.put(values, values.keys())
        if self._data.get(key) is value:
            self._data[key] = values[key]


class BytesSemaphore:
    """A semaphore over bytes; one holder alone may have any amount."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._taken_bytes = 0
        #: Set when a holder has released its bytes.
        self._freed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def acquire(self, size_bytes: int) -> AsyncIterator[None]:
        """Hold some bytes during the block."""
        if not size_bytes:
            yield
            return
        while self._taken_bytes and self._taken_bytes + size_bytes > self._limit_bytes:
            self._freed.clear()
            await self._freed.wait()
        self._taken_bytes += size_bytes
        try:
            yield
        finally:
            self._taken_bytes -= size_bytes
            self._freed.set()
