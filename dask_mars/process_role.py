"""The role of the process: the user's, a worker, or an engine's thread. Nearly everything may ask."""

from __future__ import annotations

import threading

#: True in worker processes.
in_worker = False

_thread = threading.local()


def enter_engine() -> None:
    """Note that this thread is an engine's, or a worker of it."""
    _thread.is_engine = True


def computes_inline() -> bool:
    """Say whether a computation that is begun here has to run inline: in this thread, one task after the other.

    That is so in a task, whose worker is all the parallelism there is, and in an engine's threads, where objects
    of the user's are pickled: they would wait for themselves.
    """
    return in_worker or getattr(_thread, "is_engine", False)
