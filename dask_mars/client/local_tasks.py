"""Tasks in the user's process: stores into its objects, assembly, and values that cannot be pickled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dask_mars.graph.callables import module_of
from dask_mars.graph.chunks import ChunkGraph
from dask_mars.labels import function_label, label_of
from dask_mars.protocol.locks import interprocess

#: Maximum number of functions of an operand that an error message names.
_MOST_NAMES = 6


def run_chunk(graph: ChunkGraph, chunk: int, inputs: list[Any]) -> Any:
    """Run the operand of a chunk in this process, and empty `inputs`, so that only the operand refers to them."""
    return graph.operands[graph.operand_of[chunk]].run(inputs, local_literals(graph, chunk))


def local_literals(graph: ChunkGraph, chunk: int) -> tuple[Any, ...]:
    """Return the literals of a chunk for this process, with locks that also hold for workers."""
    return tuple([interprocess(literal) for literal in graph.literals[chunk]])


def raised_by(graph: ChunkGraph, chunk: int, id: bytes | None = None) -> str:
    """Return the note for an exception that names its task."""
    named = "" if id is None else f" [{id.hex()}]"
    layer = label_of(str(graph.layer_of(chunk)))
    functions = _names(graph.operands[graph.operand_of[chunk]].functions)
    does = "" if functions in ([], [layer]) else f", which does {', '.join(functions)}"
    return f"dask_mars: raised by task {graph.keys[chunk]!r}{named} of layer {layer!r}{does}"


def _names(functions: Sequence[Callable[..., Any]]) -> list[str]:
    """Return the names of an operand's functions, without private ones and those of dask_mars."""
    names = []
    for function in functions:
        if module_of(function).partition(".")[0] == "dask_mars":
            continue
        name = function_label(function)
        name = type(function).__name__ if name.startswith("<") else name
        if not name.startswith("_") and name not in names:
            names.append(name)
    return names if len(names) <= _MOST_NAMES else [*names[:_MOST_NAMES], "..."]
