"""Dask's own shuffles ("p2p"): their tasks run in threads of the agents, as on any Dask worker.

Dask's scheduler finds a shuffle by the key of its barrier, whose task must keep its class.
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
class GraphShuffles:
    """The shuffles of a graph."""

    #: The specification in each barrier's task, by the barrier's chunk.
    barriers: dict[int, Any] = field(default_factory=dict)
    #: For each chunk that sends data to shuffles, the barriers that wait for it.
    barriers_of: dict[int, list[int]] = field(default_factory=dict)
    #: For each barrier, the chunks with its shuffle's results, in the order of the graph.
    outputs: dict[int, list[int]] = field(default_factory=dict)

    def members(self) -> set[int]:
        """Return the barriers, and the chunks before and after them, which Dask must see unchanged."""
        return {
            *self.barriers,
            *self.barriers_of,
            *[chunk for chunks in self.outputs.values() for chunk in chunks],
        }

    def host_indices(self, count: int) -> dict[int, int]:
        """Return the host number of each output, as Dask distributes them."""
        return {
            chunk: count * place // len(chunks)
            for chunks in self.outputs.values()
            for place, chunk in enumerate(chunks)
        }


def find_shuffles(graph: ChunkGraph, chunks: Collection[int], name: str) -> GraphShuffles:
    """Find the shuffles of a graph, and give them ids of this computation, so that computations do not mix."""
    shuffles = GraphShuffles()
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
        # The task around it is the barrier for the scheduler.
        arguments = [_renamed(argument, ids) for argument in literal.args]
        return Task(literal.key, literal.func, *arguments, **literal.kwargs)
    return ids.get(literal, literal) if type(literal) is str else literal


def barrier_task(spec: Any, function: Any, *arguments: Any) -> P2PBarrierTask:
    """Return a barrier task of a shuffle for Dask."""
    return P2PBarrierTask(barrier_key(spec.id), function, *arguments, spec=spec)
