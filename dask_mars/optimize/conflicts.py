"""What the layers of a high-level graph must not do: go in circles, or make the same key in different ways.

Dask loses layers that go in circles, and lets the last layer win that makes a key. Both are mistakes of whoever
made the graph, and what came of them would be an error that says nothing of its cause, or a wrong result.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
from dask._task_spec import Alias, DataNode, _identity_cast
from dask.base import tokenize
from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph

from dask_mars.graph import Key
from dask_mars.optimize.blockwise import lazy_blockwise
from dask_mars.optimize.compiler import Compiler
from dask_mars.optimize.programs import identity, make_dict, make_list, make_set, make_tuple

#: Objects of these types are told apart by their contents; of others we cannot be certain that they differ.
_KNOWN_BY_CONTENTS = (
    *(int, float, complex, str, bytes, slice, type(None), np.generic, np.ndarray),
    *(FunctionType, BuiltinFunctionType, type, np.ufunc, partial),
)

#: Steps that compute nothing.
_PLUMBING = (identity, make_dict, make_list, make_set, make_tuple, _identity_cast)


def in_circles(graph: HighLevelGraph) -> bool:
    """Say whether a layer depends on itself, be it by way of others."""
    waiting = {name: {d for d in needed if d in graph.layers} for name, needed in graph.dependencies.items()}
    dependents: dict[str, list[str]] = {}
    for name, needed in waiting.items():
        for dependency in needed:
            dependents.setdefault(dependency, []).append(name)
    ready = [name for name, needed in waiting.items() if not needed]
    for name in ready:
        for dependent in dependents.get(name, ()):
            waiting[dependent].discard(name)
            if not waiting[dependent]:
                ready.append(dependent)
    return len(ready) < len(waiting)


def is_symbolic(layer: Mapping[Key, Any]) -> bool:
    """Say whether a layer stands for blocks that have no tasks yet."""
    return isinstance(layer, Blockwise) and not layer.is_materialized()


def refuse_shared_keys(graph: HighLevelGraph, tasks: Mapping[Key, Any], size: int) -> None:
    """Refuse a graph if two of its layers make the same key in ways that certainly differ.

    Collections that `dask.optimize` has been at hold keys of other collections in another spelling, with tasks
    fused into each other. Such keys pass.

    Parameters
    ----------
    graph : HighLevelGraph
        As the user made it.
    tasks : mapping
        What its layers hold that are not symbolic, taken together.
    size : int
        How many keys each of those layers holds, added up.

    Raises
    ------
    ValueError
        Names the key and both layers.
    """
    if _may_share_keys(graph, tasks, size):
        _compare_shared_keys(graph, tasks)


def _may_share_keys(graph: HighLevelGraph, tasks: Mapping[Key, Any], size: int) -> bool:
    """Find out without a look at the blocks of symbolic layers: graphs that are as they should be cost little."""
    if len(tasks) != size:
        return True
    names = [layer.output for layer in graph.layers.values() if is_symbolic(layer)]
    known = set(names)
    if len(known) != len(names):
        return True
    return bool(known) and any(type(key) is tuple and key and key[0] in known for key in tasks)


def _compare_shared_keys(graph: HighLevelGraph, tasks: Mapping[Key, Any]) -> None:
    found: dict[Key, tuple[str, Any]] = {}
    #: A key among those found by what it begins with.
    by_name: dict[Any, tuple[Any, ...]] = {}
    symbolic = [(name, layer) for name, layer in graph.layers.items() if is_symbolic(layer)]
    compiler = Compiler(tasks, [lazy_blockwise(layer) for _, layer in symbolic])

    def note(key: Key, name: str, task: Any) -> None:
        first, known = found.setdefault(key, (name, task))
        if first != name and _certainly_differ(compiler, key, known, task):
            raise ValueError(f"Key {key!r} is made in different ways by two layers, {first!r} and {name!r}")

    for name, layer in graph.layers.items():
        for key, task in layer.items() if layer.is_materialized() else ():
            note(key, name, task)
            if type(key) is tuple and key:
                by_name.setdefault(key[0], key)
    for name, layer in symbolic:
        # The blocks of a layer are alike: one that is made elsewhere speaks for all.
        key = by_name.setdefault(layer.output, (layer.output, *[0] * len(layer.output_indices)))
        if len(key) == len(layer.output_indices) + 1:
            note(key, name, layer._cull({key[1:]})[key])


def _certainly_differ(compiler: Compiler, key: Key, one: Any, other: Any) -> bool:
    if one is other:
        return False
    first: Any = compiler.program_of(key, one)
    second: Any = compiler.program_of(key, other)
    if type(first) is not type(second):
        return not (_is_fused(first) or _is_fused(second))
    if isinstance(first, DataNode):
        return _differ(first.value, second.value)
    if isinstance(first, Alias):
        return bool(first.target != second.target)
    if _is_fused(first) or _is_fused(second):
        return False
    shapes = [[(codes, keywords) for _, codes, keywords in program.steps] for program in (first, second)]
    return (
        shapes[0] != shapes[1]
        or first.input_keys != second.input_keys
        or any(map(_differ, first.functions, second.functions))
        or any(map(_differ, first.literals, second.literals))
    )


def _is_fused(program: Any) -> bool:
    """Say whether a program does more than one thing, or has literals too large to be looked at here."""
    if isinstance(program, (DataNode, Alias)):
        return False
    large = any(type(key) is tuple and key and key[0] == "mars-literal" for key in program.input_keys)
    return large or sum(function not in _PLUMBING for function in program.functions) > 1


def _differ(one: Any, other: Any) -> bool:
    """Say whether two functions or literals certainly differ; some are made anew each time, and yet the same."""
    if one is other or not isinstance(one, _KNOWN_BY_CONTENTS) or not isinstance(other, _KNOWN_BY_CONTENTS):
        return False
    return bool(tokenize(one) != tokenize(other))
