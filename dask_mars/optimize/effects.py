"""Which tasks must not be begun a second time, because what they have done by then cannot be undone.

Tasks are tried again when a worker dies. That is right for all that only return something, and for all that write
a file of their own anew. A task that appends to what others read would leave some of its data there twice, and
nobody would notice.
"""

from __future__ import annotations

from typing import Any

from dask_mars.graph import Operand, Subprogram

#: Functions of Dask's that append: to the files of a shuffle, to a table of a database, to a CSV file.
_APPENDING = frozenset(
    {
        ("dask.bag.core", "partition"),
        ("dask.dataframe.dask_expr._shuffle", "DiskShuffle._shuffle_group"),
        ("dask.dataframe.io.sql", "_to_sql_chunk"),
        ("dask.dataframe.io.csv", "_write_csv"),
    }
)
#: What the last of these is told if it is to go on where another task has ended; else it begins its file anew.
_BEHIND = "depend_on"


def appends(operand: Operand) -> bool:
    """Say whether an operand calls a function that is known to append to what is there."""
    operands = [operand]
    while operands:
        current = operands.pop()
        for step in current.steps:
            function = current.functions[step.function]
            if isinstance(function, Subprogram):
                operands.append(function.operand)
            elif _path(function) in _APPENDING:
                return function.__name__ != "_write_csv" or _BEHIND in step.keywords
    return False


def _path(function: Any) -> tuple[Any, Any]:
    # A partial function is what it calls.
    function = getattr(function, "func", function)
    return getattr(function, "__module__", None), getattr(function, "__qualname__", None)
