"""Runs the cases of a script under dask_mars and then under Dask's threads, and prints what differs.

A case script runs alone, or several run one after the other in one process, each with a new runtime:
`python -m tests.cases threads SCRIPT...`.
"""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

import dask

from tests.fuzz.compare import difference

_CASES: list[Callable[[], Any]] = []


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    """Register a function without parameters; what it returns, raises, warns and prints is compared."""
    _CASES.append(function)
    return function


@dataclass
class Outcome:
    """What one call of a case did."""

    value: Any
    error: BaseException | None
    warned: list[tuple[str, str]]
    printed: str


def _outcome(function: Callable[[], Any], scheduler: str) -> Outcome:
    value, error, out = None, None, io.StringIO()
    with (
        dask.config.set(scheduler=scheduler),
        warnings.catch_warnings(record=True) as caught,
        redirect_stdout(out),
        redirect_stderr(out),
    ):
        warnings.simplefilter("always")
        try:
            value = function()
        except (Exception, KeyboardInterrupt) as raised:
            error = raised
    warned = sorted({(entry.category.__qualname__, str(entry.message)) for entry in caught})
    return Outcome(value, error, warned, "".join(sorted(out.getvalue().splitlines(keepends=True))))


def _described(error: BaseException | None) -> str:
    return "no error" if error is None else f"{type(error).__module__}.{type(error).__qualname__}: {error}"


def _differences(ours: Outcome, threads: Outcome) -> list[str]:
    found = []
    if _described(ours.error) != _described(threads.error):
        found.append(f"{_described(ours.error)} instead of {_described(threads.error)}")
    elif type(ours.error) is not type(threads.error):
        found.append("the error is of another class of the same name")
    elif text := difference(ours.value, threads.value):
        found.append(text)
    if ours.warned != threads.warned:
        found.append(f"warned {ours.warned} instead of {threads.warned}")
    if ours.printed != threads.printed:
        found.append(f"printed {ours.printed!r} instead of {threads.printed!r}")
    return found


def main() -> None:
    """Run all cases; the argument is `threads` or `processes`, where the first run starts."""
    starts = {"threads": True, "processes": False}
    dask.config.set({"dask-mars.start-in-threads": starts[sys.argv[1]]})
    # Not in turns: the first runs are those of a program that has computed nothing yet.
    # The second run after threads have begun is mostly one of processes.
    schedulers = ["mars", "mars", "threads"] if sys.argv[1] == "threads" else ["mars", "threads"]
    *ours, theirs = [[_outcome(function, name) for function in _CASES] for name in schedulers]
    failed = 0
    for number, run in enumerate(ours, 1):
        for function, outcome, threads in zip(_CASES, run, theirs, strict=True):
            for text in _differences(outcome, threads):
                failed += 1
                print(f"{function.__name__}, run {number}: {text}")
    print(f"{len(_CASES)} cases, {failed} differences")
    _CASES.clear()
    if failed:
        sys.exit(1)
