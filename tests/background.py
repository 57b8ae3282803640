"""Calls in other threads, of which tests take the result or the exception."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


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
