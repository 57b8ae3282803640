"""Tells whether a signal finds a task in the user's code, and may end it there."""

from __future__ import annotations

import signal
import weakref
from collections.abc import Collection
from types import CodeType, FrameType

from dask_mars.graph.chunks import Operand
from dask_mars.protocol.locks import InterprocessLock

#: What the engine sends. Nobody else has a use for it, and where it has no handler, as in a process that is still
#: starting or that a task has started, nothing happens.
SIGNAL = signal.SIGURG
_RUN = Operand.run.__code__
#: A module that was imported halfway may never be imported again, and a lock may be held that nobody will release.
#: What is raised in a finalizer is lost, and the object may be anybody's.
_WHOLE_FILES = frozenset(
    {
        "<frozen importlib._bootstrap>",
        InterprocessLock.acquire.__code__.co_filename,
        weakref.finalize.__call__.__code__.co_filename,
    }
)
_FINALIZER = "__del__"


def is_in_task(frame: FrameType | None, caller: CodeType, whole: Collection[CodeType]) -> bool:
    """Say whether a frame belongs to a task, so that nothing of the worker's own is half done.

    Parameters
    ----------
    frame : frame, optional
        Where the main thread is.
    caller : code
        Of the function that runs operands. What it does before and after is not the task.
    whole : collection of code
        Of functions of the worker's own that tasks lead to.
    """
    called = None
    while frame is not None:
        code = frame.f_code
        if code is caller:
            return called is _RUN
        if code in whole:
            return False
        called = code
        frame = frame.f_back
    return False


def may_interrupt(frame: FrameType | None, caller: CodeType, whole: Collection[CodeType]) -> bool:
    """Say whether an exception that is raised in a frame would end the task, and nothing else.

    Parameters as for `is_in_task`.
    """
    inner = frame
    while inner is not None and inner.f_code is not caller:
        if inner.f_code.co_filename in _WHOLE_FILES or inner.f_code.co_name == _FINALIZER:
            return False
        inner = inner.f_back
    return is_in_task(frame, caller, whole)
