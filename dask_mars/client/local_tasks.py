"""Runs tasks in the user's process: what stores into its objects, puts results together or cannot be pickled."""

from __future__ import annotations

from typing import Any

from dask_mars.graph.chunks import ChunkGraph
from dask_mars.protocol.locks import interprocess


def run_chunk(graph: ChunkGraph, chunk: int, inputs: list[Any]) -> Any:
    """Run the operand of a chunk in this process.

    Parameters
    ----------
    graph : ChunkGraph
        The graph.
    chunk : int
        Which of it.
    inputs : list
        The values of its inputs; the list is emptied, so that nothing but the operand refers to them.
    """
    return graph.operands[graph.operand_of[chunk]].run(inputs, local_literals(graph, chunk))


def local_literals(graph: ChunkGraph, chunk: int) -> tuple[Any, ...]:
    """Return the literals of a chunk for this process: locks among them hold for workers as well."""
    return tuple([interprocess(literal) for literal in graph.literals[chunk]])


def raised_by(graph: ChunkGraph, chunk: int, id: bytes | None = None) -> str:
    """Return the note that an exception gets about where it comes from.

    Parameters
    ----------
    graph : ChunkGraph
        The graph.
    chunk : int
        Which of it.
    id : bytes, optional
        The chunk's id, if an engine computes the graph.
    """
    named = "" if id is None else f" [{id.hex()}]"
    return f"dask_mars: raised by task {graph.keys[chunk]!r}{named} of layer {graph.layer_of(chunk)!r}"


__all__ = ["local_literals", "raised_by", "run_chunk"]
