"""Calls in other threads, of which tests take the result or the exception."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from dask_mars import Runtime
from dask_mars.errors import Cancelled


def in_background(function: Callable[..., Any], *args: Any, **options: Any) -> Future[Any]:
    """Call a function in a thread of its own; its future also gets exceptions such as KeyboardInterrupt."""
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(function(*args, **options))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run).start()
    return outcome


class Background:
    """A graph that is computed in a thread of its own."""

    def __init__(self, runtime: Runtime, graph: dict[str, Any], key: str) -> None:
        self.runtime, self.key = runtime, key
        self.outcome: Any = None
        self._thread = threading.Thread(target=self._compute, args=(graph,))
        self._thread.start()

    def _compute(self, graph: dict[str, Any]) -> None:
        try:
            self.outcome = self.runtime.get(graph, self.key)
        except BaseException as error:
            self.outcome = error

    @property
    def graph_id(self) -> int | None:
        return next((n for n, run in [*self.runtime.engine()._runs.items()] if self.key in run.graph.ids), None)

    def is_at(self, step: str, key: str | None = None) -> bool:
        workers = self.runtime.state()["workers"]
        return [(worker["running"], worker["step"]) for worker in workers] == [(key or self.key, step)]

    def cancel(self) -> None:
        assert self.runtime.cancel(self.graph_id)
        self.end()
        assert isinstance(self.outcome, Cancelled)

    def end(self) -> Any:
        self._thread.join(100)
        assert not self._thread.is_alive()
        return self.outcome
