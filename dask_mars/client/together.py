"""Calls in threads that wait for each other's results."""

from __future__ import annotations

import contextvars
import heapq
import itertools
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

Call = Callable[[], Any]
Key = int | str


class Together:
    """Calls functions in threads, each after the calls that it needs, in the order of their addition."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._numbers = itertools.count()
        #: Of each call that has not returned: its place in the order, and the number of calls it still needs.
        self._places: dict[Key, int] = {}
        self._missing: dict[Key, int] = {}
        self._starts: dict[Key, Callable[[], Call | None]] = {}
        self._followers: dict[Key, list[Key]] = {}
        #: Heap of the calls that need no other: place and key.
        self._ready: list[tuple[int, Key]] = []
        self._running: dict[Future[Any], Key] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._places

    def __bool__(self) -> bool:
        return bool(self._places)

    def add(self, key: Key, needs: Collection[Key], start: Callable[[], Call | None]) -> None:
        """Add a call, or more needs of a call that was added before."""
        # `step` calls `start` in its own thread. `start` returns the call, or None after it has added more needs.
        self._places.setdefault(key, next(self._numbers))
        pending = [other for other in dict.fromkeys(needs) if other in self._places]
        self._missing[key], self._starts[key] = len(pending), start
        for other in pending:
            self._followers.setdefault(other, []).append(key)
        if not pending:
            heapq.heappush(self._ready, (self._places[key], key))

    def step(self, timeout_s: float | None = None) -> list[tuple[Key, Any]]:
        """Start the calls that can start, wait for some to return, and return their keys and results."""
        while self._ready and len(self._running) < self._threads:
            _, key = heapq.heappop(self._ready)
            if (call := self._starts.pop(key)()) is not None:
                self._pool = self._pool or ThreadPoolExecutor(self._threads, thread_name_prefix="dask-mars-client")
                # As in Dask's threads, tasks find the context variables of the caller.
                self._running[self._pool.submit(contextvars.copy_context().run, call)] = key
        ended = []
        for future in wait(self._running, timeout_s, FIRST_COMPLETED).done:
            key = self._running.pop(future)
            ended.append((key, future.result()))
            del self._places[key], self._missing[key]
            for follower in self._followers.pop(key, ()):
                self._missing[follower] -= 1
                if not self._missing[follower]:
                    heapq.heappush(self._ready, (self._places[follower], follower))
        return ended

    def close(self) -> None:
        """Start no more calls; running ones go on, as under Dask's threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=all(future.done() for future in self._running), cancel_futures=True)
