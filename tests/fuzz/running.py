"""Programs computed a second time, by the scheduler under test, and compared with what is expected."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any
from unittest import mock

import dask
import dask.tokenize
import numpy as np
import pandas as pd
from dask._task_spec import convert_legacy_graph
from dask.local import nested_get

from dask_mars.errors import RequestTooLarge, StoreFull, WorkerDied, WorkerOverLimit
from tests.fuzz import material
from tests.fuzz.compare import difference
from tests.fuzz.programs import Program, Raised, Step, new_namespace

_DELAYED = re.compile(r"\bd\d+\b|to_delayed")


@dataclass(frozen=True)
class Difference:
    """What is not as it should be."""

    #: Which statement shows it.
    step: int
    #: What was found, and what was expected.
    text: str


@dataclass(frozen=True)
class Excused:
    """A right answer to a worker's death or to a limit too small: the program ends there."""

    name: str


@dataclass(frozen=True)
class Excuses:
    """Which errors are right answers."""

    small: bool = False
    kills: bool = False

    def hold_for(self, error: BaseException) -> bool:
        """Return whether an error is excused."""
        if isinstance(error, WorkerDied):
            # Only what appends to files is not begun again.
            return self.kills and not error.repeatable
        # Arrays of Python's objects, results of this process among them, may take more than a small limit has.
        return self.small and isinstance(error, RequestTooLarge | StoreFull | WorkerOverLimit)


def is_unsteady(program: Program) -> bool:
    """Return whether Dask's own scheduler gives other results each time, so that nothing can be said."""
    # Dask's optimiser walks through sets of names, and collections of both kinds that are computed together come
    # out as these have it. So each run has other names.
    return any(isinstance(_with_other_names(program), Difference) for _ in range(8))


def _with_other_names(program: Program) -> Difference | Excused | None:
    salt = os.urandom(8).hex()

    original = dask.tokenize._tokenize

    def salted(*arguments: object, **options: object) -> str:
        text = salt + original(*arguments, **options)
        return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()

    with mock.patch("dask.tokenize._tokenize", salted):
        return run(program, "synchronous")


def run(
    program: Program, scheduler: Any, shared: bool = False, excuses: Excuses | None = None
) -> Difference | Excused | None:
    """Carry out a program and compare."""
    excuses = excuses or Excuses()
    namespace = new_namespace()
    if shared:
        namespace.update(program.kept)
    with program.configured(scheduler):
        for number, step in enumerate(program.steps):
            if shared and not step.computes:
                continue
            try:
                ours = step.run(namespace)
            except Exception as error:
                if excuses.hold_for(error):
                    return Excused(type(error).__name__)
                ours = Raised.by(error)
            text = _judged(step, ours, program.cloned)
            if text and isinstance(ours, Raised) and isinstance(step.expected, Raised):
                # Where several tasks fail, any of them may be the first.
                text = "" if ours in failures(step, namespace) else text
            if text:
                return Difference(number, f"{step.source}\n    {text}")
            # What is delayed is the persisted value itself, under Dask's own schedulers too.
            if step.computes and not _DELAYED.search(step.source):
                spoil(ours)
    return None


def _judged(step: Step, ours: Any, cloned: bool) -> str:
    if isinstance(step.expected, Raised) and step.expected.of_dask:
        # Which of the tasks that are missing is missed first is left to chance.
        return ""
    if isinstance(ours, Raised) and ours.of_dask and cloned:
        return ""
    if isinstance(step.expected, Raised) and "read-only" in step.expected.message and not isinstance(ours, Raised):
        # What pandas or a broadcast makes read-only may be written to after it has been to another process.
        return ""
    if isinstance(ours, Raised) or isinstance(step.expected, Raised):
        same = type(ours) is type(step.expected) and ours == step.expected
        return "" if same else f"{ours!r:.1500} instead of {step.expected!r:.1500}"
    return difference(ours, step.expected, step.rounded)


def failures(step: Step, namespace: dict[str, Any]) -> list[Raised]:
    """Return the exceptions of all tasks that fail, whichever is the first."""
    raised: list[Raised] = []

    def get(dsk: Any, keys: Any, **options: Any) -> Any:
        graph = convert_legacy_graph(dsk.__dask_graph__() if hasattr(dsk, "__dask_graph__") else dict(dsk))
        values: dict[Any, Any] = {}
        for key in TopologicalSorter({key: node.dependencies for key, node in graph.items()}).static_order():
            if all(needed in values for needed in graph[key].dependencies):
                try:
                    values[key] = graph[key](values)
                except Exception as error:
                    raised.append(Raised.by(error))
        return nested_get(keys, values)

    with dask.config.set(scheduler=get), contextlib.suppress(Exception):
        step.run(namespace)
    return raised


def spoil(result: Any) -> None:
    """Write into the arrays of a result: it is the user's, and nothing else may change by that."""
    if isinstance(result, list | tuple):
        for part in result:
            spoil(part)
    elif isinstance(result, dict):
        spoil(list(result.values()))
    elif isinstance(result, pd.DataFrame | pd.Series):
        column = result.iloc[:, 0] if result.ndim == 2 and result.shape[1] else result
        if len(result) and column.ndim == 1 and isinstance(column.dtype, np.dtype) and column.dtype.kind in "iuf":
            # With what is there already: it has to be possible.
            result.iloc[(0, 0) if result.ndim == 2 else 0] = column.iloc[0]
    elif result is np.ma.masked:
        # There is one in the whole process.
        pass
    elif isinstance(result, np.ndarray) and result.flags.writeable and result.dtype.kind in "biufc":
        # What the program was given itself is another matter: under any scheduler a result may be a view of it.
        shared = any(np.may_share_memory(result, array) for array in material.given)
        result[...] = result if shared else 77


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Have nothing said of divisions by zero and the like: random data are full of them."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield
