"""Dask's shuffles between workers ("p2p"): their tasks run in threads of the agents, as on any worker of Dask's.

Dask's scheduler finds a shuffle by the key of its barrier, and has to know that task for what it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from dask_mars.cluster.distributed_api import P2PBarrierTask, ShuffleId, barrier_key
from dask_mars.dask_api.core import Task
from dask_mars.graph.chunks import ChunkGraph


@dataclass(slots=True)
class Shuffles:
    """The shuffles of a graph.

    Attributes
    ----------
    barriers : dict
        What each barrier's task tells Dask's scheduler, by the barrier's chunk.
    barriers_of : dict
        Of each chunk that gives data to shuffles, the barriers that wait for it.
    outputs : dict
        Of each barrier, the chunks that get their data from its shuffle, in the order of the graph.
    """

    barriers: dict[int, Any] = field(default_factory=dict)
    barriers_of: dict[int, list[int]] = field(default_factory=dict)
    outputs: dict[int, list[int]] = field(default_factory=dict)

    def members(self) -> set[int]:
        """Return the barriers, and all chunks before and behind them that Dask has to see as they are."""
        return {
            *self.barriers,
            *self.barriers_of,
            *[chunk for chunks in self.outputs.values() for chunk in chunks],
        }

    def host_numbers(self, count: int) -> dict[int, int]:
        """Return the number of a host for each output, as Dask deals them out."""
        return {
            chunk: count * place // len(chunks)
            for chunks in self.outputs.values()
            for place, chunk in enumerate(chunks)
        }


def find_shuffles(graph: ChunkGraph, chunks: Collection[int], name: str) -> Shuffles:
    """Find the shuffles of a graph, and give them ids of their own: a computation is not to meddle with another.

    Parameters
    ----------
    graph : ChunkGraph
        Its literals are changed.
    chunks : collection of int
        Those that need a worker of Dask's.
    name : str
        Of the computation, a part of the ids.
    """
    shuffles = Shuffles()
    ids: dict[str, str] = {}
    for chunk in sorted(chunks):
        literals = graph.literals[chunk]
        if literals and isinstance(literals[0], P2PBarrierTask):
            spec = literals[0].spec
            ids[spec.id] = f"{spec.id}-{name}"
            shuffles.barriers[chunk] = dataclasses.replace(spec, id=ShuffleId(ids[spec.id]))
            shuffles.outputs[chunk] = []
            for source in graph.inputs[chunk]:
                shuffles.barriers_of.setdefault(source, []).append(chunk)
    for chunk in sorted(chunks) if ids else ():
        graph.literals[chunk] = tuple([_renamed(literal, ids) for literal in graph.literals[chunk]])
        for source in graph.inputs[chunk]:
            if source in shuffles.barriers:
                shuffles.outputs[source].append(chunk)
    return shuffles


def _renamed(literal: Any, ids: dict[str, str]) -> Any:
    if isinstance(literal, P2PBarrierTask):
        # What the scheduler has to know is told by the task around it.
        arguments = [_renamed(argument, ids) for argument in literal.args]
        return Task(literal.key, literal.func, *arguments, **literal.kwargs)
    return ids.get(literal, literal) if type(literal) is str else literal


def barrier_task(spec: Any, function: Any, *arguments: Any) -> P2PBarrierTask:
    """Return a task for Dask that is the barrier of a shuffle."""
    return P2PBarrierTask(barrier_key(spec.id), function, *arguments, spec=spec)


__all__ = ["Shuffles", "barrier_task", "find_shuffles"]
