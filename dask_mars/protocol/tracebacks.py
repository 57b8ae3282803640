"""Tracebacks as plain values that travel, with the columns by which Python marks what failed in a line.

tblib's have line numbers alone: the marks below them are those of a line of its own.
"""

from __future__ import annotations

import ast
import copyreg
import itertools
from collections.abc import Callable
from types import CodeType, TracebackType
from typing import Any, NamedTuple

#: What frames made here know of their modules.
_GLOBALS = ("__name__", "__file__")


class Frame(NamedTuple):
    """Where a traceback has been: lines and columns as in `codeobject.co_positions`, any of which may be None."""

    file: str
    function: str
    line: int
    end_line: int | None
    column: int | None
    end_column: int | None
    module: dict[str, Any]


class _Raised(Exception):
    pass


def install() -> None:
    """Have tracebacks that this process pickles keep columns."""
    copyreg.pickle(TracebackType, _reduce)


def frames_of(traceback: TracebackType | None) -> list[Frame]:
    """Return what there is to tell of a traceback."""
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
    """Return a traceback that reads like the one whose frames are given."""
    traceback = None
    for frame in reversed(frames):
        traceback = _prepended(Frame._make(frame), traceback)
    return traceback


def _reduce(traceback: TracebackType) -> tuple[Callable[..., Any], tuple[list[tuple[Any, ...]]]]:
    return traceback_of, ([tuple(frame) for frame in frames_of(traceback)],)


def _position(code: CodeType, instruction: int) -> tuple[int | None, int | None, int | None, int | None]:
    nothing = (None, None, None, None)
    return next(itertools.islice(code.co_positions(), max(instruction, 0) // 2, None), nothing)


def _prepended(frame: Frame, rest: TracebackType | None) -> TracebackType | None:
    """Return a traceback that begins with a frame."""
    try:
        exec(_raising(frame), {**frame.module, "raised": _Raised})
    except _Raised as error:
        made = error.__traceback__ and error.__traceback__.tb_next
        assert made is not None
        return TracebackType(rest, made.tb_frame, made.tb_lasti, frame.line)
    return None


def _raising(frame: Frame) -> CodeType:
    """Return code that raises where a frame has been."""
    line = max(frame.line, 1)
    known = frame.end_line is not None and frame.column is not None and frame.end_column is not None
    place: dict[str, Any] = {
        "lineno": line,
        "end_lineno": max(frame.end_line or line, line),
        # Of a negative column Python makes none, and marks nothing.
        "col_offset": frame.column if known else -1,
        "end_col_offset": frame.end_column if known else -1,
    }
    tree = ast.Module([ast.Raise(ast.Name("raised", ast.Load(), **place), None, **place)], [])
    return compile(tree, frame.file, "exec").replace(co_name=frame.function, co_qualname=frame.function)


__all__ = ["Frame", "frames_of", "install", "traceback_of"]
