"""Names of Dask's tasks, expressions and getters; Dask itself imports their modules."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import dask

from dask_mars.dask_api import is_gone, optional
from dask_mars.errors import UnknownDask

try:
    from dask._task_spec import (
        Alias,
        DataNode,
        Dict,
        GraphNode,
        List,
        Set,
        Task,
        TaskRef,
        Tuple,
        convert_legacy_graph,
        convert_legacy_task,
        parse_input,
    )
    from dask.base import named_schedulers
    from dask.callbacks import local_callbacks, unpack_callbacks
    from dask.local import get_sync, nested_get, start_state_from_dask
except ImportError as _error:
    raise UnknownDask(dask.__version__, str(_error)) from None

# For speed: expressions are read layer by layer; without these names they become plain tasks.
Expr, HLGExpr, HLGFinalizeCompute, _AnnotationsTombstone, _ExprSequence, _HLGExprSequence = optional(
    "dask._expr",
    "Expr",
    "HLGExpr",
    "HLGFinalizeCompute",
    "_AnnotationsTombstone",
    "_ExprSequence",
    "_HLGExprSequence",
)
# For speed: collections of several expressions, such as Xarray's datasets.
CompositeExpr = optional("dask._expr", "CompositeExpr")
# Compared by identity: wrappers of Dask's around tasks.
ProhibitReuse = optional("dask._expr", "ProhibitReuse")
_execute_subgraph = optional("dask._task_spec", "_execute_subgraph")
optimize_delayed = optional("dask.delayed", "optimize")
# Needed only for pictures and plans of collections.
collections_to_expr, unpack_collections = optional("dask.base", "collections_to_expr", "unpack_collections")
# For speed: Dask's import of distributed.
_distributed_available = optional("dask.base", "_distributed_available")

#: Copies of Dask's functions, each with its original, by the copy's id, or by module and qualified name if it is
#: made at each call. `expressions` fills it.
ORIGINALS: dict[int | tuple[str, str], tuple[Any, Callable[..., Any]]] = {}


def find_clients_where_imported() -> None:
    """Let Dask look for a current client only if the program has imported distributed, which has no others."""
    # Dask imports it, in more than 0.1 s, for each scheduler that has a name.
    if not is_gone(_distributed_available):
        dask.base._distributed_available = lambda: "distributed" in sys.modules and _distributed_available()


def original_of(function: Any) -> Any:
    """Return the function of Dask's that a function is a copy of; partial functions are made anew."""
    if type(function) is partial:
        parts = (function.func, *function.args, *function.keywords.values())
        if all(original_of(part) is part for part in parts):
            return function
        keywords = {name: original_of(value) for name, value in function.keywords.items()}
        return partial(original_of(function.func), *map(original_of, function.args), **keywords)
    known = ORIGINALS.get(id(function))
    if known is None and type(function) is FunctionType:
        known = ORIGINALS.get((function.__module__, function.__qualname__))
    return function if known is None else known[1]


def is_dask_future(value: Any) -> bool:
    """Return whether a value in a graph refers to a result elsewhere, as `_is_dask_future` of newer Dask does."""
    return isinstance(value, TaskRef) or bool(getattr(value, "__dask_future__", False))
