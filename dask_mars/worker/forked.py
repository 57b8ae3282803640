"""Turns a process that a task has forked into an ordinary one, which ends with its task."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
import warnings
from typing import NoReturn

_plain_showwarning = warnings.showwarning


def restore_streams() -> None:
    """Restore printing and warnings to those of a process that is not a worker."""
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    warnings.showwarning = _plain_showwarning


def exit_process(error: BaseException | None) -> NoReturn:
    """End this process as the interpreter ends a script, without exit handlers, which are the worker's."""
    code = 0
    # Errors of printing or flushing, for example to a closed stream, must not lead back to the worker's loop.
    with contextlib.suppress(BaseException):
        if isinstance(error, SystemExit):
            code = _exit_code(error.code)
        elif error is not None:
            code = 1
            # The first frame is the worker's.
            frames = error.__traceback__ and error.__traceback__.tb_next
            traceback.print_exception(error.with_traceback(frames))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(code)


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1
