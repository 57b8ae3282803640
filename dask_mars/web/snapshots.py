"""Shares the answers of a monitor among all viewers, and limits the frequency of its calls."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

from dask_mars.web.api import Problem
from dask_mars.web.monitor import Json, Monitor

#: Poll interval for news while a request waits, in seconds.
_LOOK_S = 0.05
#: Lifetime of an answer as a multiple of its duration, which limits the processor time for viewers, and its bounds
#: in seconds.
_COSTS, _SHORTEST_S, _LONGEST_S = 20.0, 0.05, 2.0
#: Maximum number of cached answers.
_KEPT = 64
#: Maximum number of waiting requests.
MOST_WAITING = 400


@dataclass(slots=True)
class _Kept:
    """An answer, or the running call for it."""

    answer: asyncio.Task[Any]
    begun: float
    good_until: float = 0.0

    async def get(self) -> Any:
        """Return the answer once it is there."""
        # A cancelled request must not cancel the answer for others.
        return await asyncio.shield(self.answer)


class Snapshots:
    """The answers of a monitor, shared by all requests of an event loop."""

    def __init__(self, monitor: Monitor, executor: Executor | None = None) -> None:
        self.monitor = monitor
        self._executor = executor
        #: Answers by question, the latest last.
        self._kept: dict[tuple[Any, ...], _Kept] = {}
        self._waiting = 0
        #: Set, and replaced, when there is news.
        self._news: asyncio.Event | None = None
        self._news_at = 0.0
        self._looking: asyncio.Task[None] | None = None

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the monitor's executor."""
        if self._executor is None:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)

    async def ask(self, name: str, *arguments: Any) -> Any:
        """Return the result of a monitor's method, or a recent one."""
        return await self._asked((name, *arguments)).get()

    def _asked(self, question: tuple[Any, ...]) -> _Kept:
        kept = self._kept.get(question)
        if kept is None or (kept.answer.done() and time.monotonic() >= kept.good_until):
            self._kept.pop(question, None)
            while len(self._kept) >= _KEPT:
                del self._kept[next(iter(self._kept))]
            name, *arguments = question
            asking = asyncio.ensure_future(self.call(getattr(self.monitor, name), *arguments))
            kept = self._kept[question] = _Kept(asking, time.monotonic())
            asking.add_done_callback(partial(_answered, kept))
        return kept

    def forget(self) -> None:
        """Drop all answers after a change, so that the next requests call the monitor."""
        self._kept.clear()
        self._wake()

    async def poll(self, known: int | None, wait_s: float, name: str, *arguments: Any) -> Json:
        """Return a method's result once its revision differs from the known one, or at the end of the wait."""
        # A revision that is behind is of another time: of a server that has been started anew, say.
        deadline = time.monotonic() + wait_s
        kept = self._asked((name, *arguments))
        answer: Json = await kept.get()
        if answer["revision"] != known or not wait_s:
            return answer
        if self._waiting >= MOST_WAITING:
            raise Problem(503, "too many requests wait for news", {"Retry-After": "1"})
        self._waiting += 1
        try:
            if self._looking is None:
                self._looking = asyncio.ensure_future(self._look())
            while answer["revision"] == known:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    break
                if self._news_at > kept.begun:
                    # There is news that the answer may lack.
                    await asyncio.sleep(min(max(kept.good_until - time.monotonic(), 0.0), left_s))
                else:
                    await self._wait_for_news(left_s)
                kept = self._asked((name, *arguments))
                answer = await kept.get()
        finally:
            self._waiting -= 1
        return answer

    async def _wait_for_news(self, most_s: float) -> None:
        if self._news is None:
            self._news = asyncio.Event()
        # Not `wait_for`: in Python 3.11 it can miss a cancellation that coincides with the event.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await self._news.wait()

    async def _look(self) -> None:
        """Wake waiting requests when there is news, while there are any."""
        known = None
        try:
            while self._waiting:
                revision = await self.call(self.monitor.revision)
                if revision != known:
                    known = revision
                    self._wake()
                await asyncio.sleep(_LOOK_S)
        finally:
            self._looking = None

    def _wake(self) -> None:
        self._news_at = time.monotonic()
        if self._news is not None:
            self._news.set()
            self._news = None


def _answered(kept: _Kept, answer: asyncio.Task[Any]) -> None:
    """Set the lifetime of an answer."""
    now = time.monotonic()
    kept.good_until = now + min(max(_COSTS * (now - kept.begun), _SHORTEST_S), _LONGEST_S)
    if not answer.cancelled():
        # Without any waiting request asyncio would complain about the unread exception.
        answer.exception()
