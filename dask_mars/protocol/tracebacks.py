"""Tracebacks as plain values, with the columns by which Python marks the failing part of a line.

tblib's tracebacks have only line numbers, so that the marks would be wrong.
"""

from __future__ import annotations

import ast
import contextlib
import copyreg
import itertools
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any, NamedTuple

#: Names in frames' modules that are kept.
_GLOBALS = ("__name__", "__file__")
#: Attribute of exceptions that carry their frames.
_CARRIED = "_dask_mars_frames"
_NO_ARGUMENTS = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])


class Frame(NamedTuple):
    """A position of a traceback: lines and columns as in `codeobject.co_positions`, any of which may be None."""

    file: str
    function: str
    line: int
    end_line: int | None
    column: int | None
    end_column: int | None
    module: dict[str, Any]


def install() -> None:
    """Pickle tracebacks of this process with columns."""
    copyreg.pickle(TracebackType, _reduce)


def carry(error: BaseException) -> None:
    """Attach frames to an exception and its chain, for pickling by others."""
    # Dask pickles tracebacks by tblib, which drops columns, and for clients that need not have this package.
    for each in chain(error):
        with contextlib.suppress(AttributeError):
            vars(each)[_CARRIED] = [tuple(frame) for frame in frames_of(each.__traceback__)]


def forget(error: BaseException, whole: bool = False) -> None:
    """Remove an exception's frames, and with `whole` its chain; its class may forbid setting attributes."""
    error.with_traceback(None)
    if whole:
        BaseException.__setattr__(error, "__context__", None)
        BaseException.__setattr__(error, "__cause__", None)


def add_note(error: BaseException, text: str) -> None:
    """Add a note to an exception, whose class may forbid setting attributes."""
    notes = vars(error).setdefault("__notes__", [])
    if type(notes) is list:
        notes.append(text)


def restore(error: BaseException) -> None:
    """Restore the tracebacks that an exception and its chain carry."""
    for each in chain(error):
        frames = getattr(each, "__dict__", {}).pop(_CARRIED, None)
        if frames:
            each.with_traceback(traceback_of(frames))


def chain(error: BaseException) -> list[BaseException]:
    """Return an exception, its causes, contexts and group members."""
    found: dict[int, BaseException] = {}
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in found:
            found[id(each)] = each
            waiting += [each.__cause__, each.__context__]
            waiting += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
    return list(found.values())


def frames_of(traceback: TracebackType | None) -> list[Frame]:
    """Return the positions of a traceback."""
    frames = []
    while traceback is not None:
        code, module = traceback.tb_frame.f_code, traceback.tb_frame.f_globals
        line, end_line, column, end_column = _position(code, traceback.tb_lasti)
        if line != traceback.tb_lineno:
            line, end_line, column, end_column = traceback.tb_lineno, None, None, None
        known = {name: module[name] for name in _GLOBALS if isinstance(module.get(name), str)}
        frames.append(
            Frame(code.co_filename, code.co_name, line or code.co_firstlineno, end_line, column, end_column, known)
        )
        traceback = traceback.tb_next
    return frames


def traceback_of(frames: list[tuple[Any, ...]]) -> TracebackType | None:
    """Return a traceback that prints like the one with the given frames."""
    traceback = None
    for frame in reversed(frames):
        told = Frame._make(frame)
        made, instruction = _frame_at(told)
        traceback = TracebackType(traceback, made, instruction, told.line)
    return traceback


def _reduce(traceback: TracebackType) -> tuple[Callable[..., Any], tuple[list[tuple[Any, ...]]]]:
    return traceback_of, ([tuple(frame) for frame in frames_of(traceback)],)


def _position(code: CodeType, instruction: int) -> tuple[int | None, int | None, int | None, int | None]:
    nothing = (None, None, None, None)
    return next(itertools.islice(code.co_positions(), max(instruction, 0) // 2, None), nothing)


def _frame_at(frame: Frame) -> tuple[FrameType, int]:
    """Return a frame and an instruction at a given position."""
    # The frame is a generator's that never starts, without callers and variables to keep alive.
    line = max(frame.line, 1)
    known = frame.end_line is not None and frame.column is not None and frame.end_column is not None
    place: dict[str, Any] = {
        "lineno": line,
        "end_lineno": max(frame.end_line or line, line),
        # Python treats a negative column as none, and marks nothing.
        "col_offset": frame.column if known else -1,
        "end_col_offset": frame.end_column if known else -1,
    }
    value = ast.Constant(None, **place)
    tree = ast.Expression(ast.Lambda(_NO_ARGUMENTS, ast.Yield(value, **place), **place))
    module = compile(tree, frame.file, "eval")
    code = next(part for part in module.co_consts if isinstance(part, CodeType))
    code = code.replace(co_name=frame.function, co_qualname=frame.function)
    lines = (line, place["end_lineno"])
    found = (index for index, position in enumerate(code.co_positions()) if position[:2] == lines)
    # The last match is in the body; a generator's preamble has the same position.
    instruction = 2 * max(found, default=0)
    return FunctionType(code, dict(frame.module))().gi_frame, instruction
