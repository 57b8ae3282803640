"""The role of the process: the user's, a worker, or an engine's thread. Without imports, for use by any module."""

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
    """Let the system end this process when the thread that has started it ends."""
    if sys.platform == "linux":
        # Every import of dask_mars loads this module.
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def enter_engine() -> None:
    """Mark this thread as an engine's, or a worker of one."""
    _thread.is_engine = True


def computes_inline() -> bool:
    """Return whether a computation in this thread must run inline."""
    # In a task the worker is busy with the task itself, and in an engine's thread, which pickles the user's
    # objects, it would wait for itself.
    return in_worker or getattr(_thread, "is_engine", False)
