"""The role of the process: the user's, a worker, or an engine's thread. Nearly everything may ask."""

from __future__ import annotations

import os
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1

#: True in worker processes.
in_worker = False

_thread = threading.local()


def die_with_parent(parent: int) -> None:
    """Have the system end this process when the thread that has started it goes, however it goes.

    Parameters
    ----------
    parent : int
        Id of the process of that thread, which may have gone already.
    """
    if sys.platform == "linux":
        # Whoever imports dask_mars loads this module.
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def enter_engine() -> None:
    """Note that this thread is an engine's, or a worker of it."""
    _thread.is_engine = True


def computes_inline() -> bool:
    """Say whether a computation that is begun here has to run inline: in this thread, one task after the other.

    That is so in a task, whose worker is all the parallelism there is, and in an engine's threads, where objects
    of the user's are pickled: they would wait for themselves.
    """
    return in_worker or getattr(_thread, "is_engine", False)
