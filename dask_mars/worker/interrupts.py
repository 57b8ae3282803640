"""Decides whether a signal finds a task in the user's code, where it may be interrupted."""

from __future__ import annotations

import signal
import weakref
from collections.abc import Collection
from types import CodeType, FrameType

from dask_mars.graph.chunks import Operand
from dask_mars.protocol.locks import InterprocessLock

#: The engine's signal. It has no other use, and is ignored where it has no handler, as in a starting process or
#: one that a task started.
SIGNAL = signal.SIGURG
_RUN = Operand.run.__code__
#: A module imported halfway may never be importable again, and an interrupted lock may never be released.
#: Exceptions in a finalizer are lost, and the object may be anyone's.
_WHOLE_FILES = frozenset(
    {
        "<frozen importlib._bootstrap>",
        InterprocessLock.acquire.__code__.co_filename,
        weakref.finalize.__call__.__code__.co_filename,
    }
)
_FINALIZER = "__del__"


def is_in_task(frame: FrameType | None, caller: CodeType, whole: Collection[CodeType]) -> bool:
    """Return whether a frame belongs to a task, so that no operation of the worker's own is half done."""
    # `caller` is the function that runs operands: its own steps before and after are not the task. `whole` are the
    # worker's own functions that tasks call.
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
    """Return whether an exception raised in a frame would end the task, and nothing else."""
    # Parameters as for `is_in_task`.
    inner = frame
    while inner is not None and inner.f_code is not caller:
        if inner.f_code.co_filename in _WHOLE_FILES or inner.f_code.co_name == _FINALIZER:
            return False
        inner = inner.f_back
    return is_in_task(frame, caller, whole)
