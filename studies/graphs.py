"""Chunk graphs without their computation: what is made of a collection, and how large the parts are."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import dask
import numpy as np
from dask._task_spec import DataNode, Task, TaskRef
from dask.order import order
from dask.utils import parse_bytes

from benchmarks.arrays import COLLECTIONS
from dask_mars.graph.chunks import ChunkGraph, DeclaredSizes
from dask_mars.observe import graphs
from dask_mars.optimize.prepare import prepare
from dask_mars.scheduler.events import ChunksFinished, GraphPlan
from dask_mars.scheduler.machine import Parameters
from dask_mars.scheduler.simulate import EqualSteps

_dask: Any = dask

#: What is no array is taken for one number.
SMALLEST_BYTES = 8

#: Views of less than this part of their memory are stored as copies, by dask_mars.
VIEW_SHARE = 64

#: Sequence of starts and ends: a chunk, and whether it ends.
Steps = list[tuple[int, bool]]
#: What a scheduler is called with.
Handed = tuple[Any, list[Any]]


def handed_over(*collections: Any) -> Handed:
    """Return what Dask hands a scheduler for collections.

    Parameters
    ----------
    *collections
        Dask collections, computed together.
    """
    return graphs.handed_over(collections, traverse=True, optimize_graph=True)


def scaled_workload(name: str, scale: float, growth: float = 1.0) -> Any:
    """Return the collection of an array workload, in the form that it has at full scale.

    Parameters
    ----------
    name
        A key of `COLLECTIONS`.
    scale, growth
        As there.
    """
    # By this size Dask decides in how many steps it makes chunks of others.
    chunk_bytes = parse_bytes(_dask.config.get("array.chunk-size"))
    with _dask.config.set({"array.chunk-size": max(round(chunk_bytes * scale**2), 1)}):
        return COLLECTIONS[name](scale, 1, growth)


@dataclass(frozen=True, slots=True)
class SizedGraph:
    """A chunk graph, and the bytes of each chunk's result.

    Attributes
    ----------
    graph : ChunkGraph
        The graph.
    sizes : list of int
        Bytes of each result.
    blocks : list of int
        For each result that is a view of another's memory the chunk of that, for all others the chunk itself.
    """

    graph: ChunkGraph
    sizes: list[int]
    blocks: list[int]

    def plan(self) -> GraphPlan:
        """Return what the state machine knows of the graph."""
        graph = self.graph
        return GraphPlan(
            inputs=graph.inputs,
            outputs=graph.outputs,
            operand_of=graph.operand_of,
            declared_bytes=DeclaredSizes(graph),
        )

    def simulate(self, num_workers: int, policy: str = "memory") -> SizedRun:
        """Let the state machine go through the graph, whose chunks all take equally long."""
        # With a limit, however far it is, the machine records sizes.
        parameters = Parameters(policy, num_workers=num_workers, store_limit=1 << 60, memory_limit=1 << 60)
        run = SizedRun(self, parameters)
        run.finish()
        return run

    def is_known(self, chunk: int) -> bool:
        """Say whether a chunk's value comes with the graph."""
        return self.graph.operand_of[chunk] < 0

    def computed(self) -> list[int]:
        """Return the chunks that are to be computed."""
        return [chunk for chunk, operand in enumerate(self.graph.operand_of) if operand >= 0]


class SizedRun(EqualSteps):
    """A computation of a graph with sizes."""

    def __init__(self, sized: SizedGraph, parameters: Parameters) -> None:
        super().__init__(sized.plan(), parameters)
        self._sized = sized
        #: Starts and ends.
        self.steps: Steps = []

    def begin(self, worker: int, chunk: int, restores: list[int]) -> float:
        """Note the start."""
        self.steps.append((chunk, False))
        return super().begin(worker, chunk, restores)

    def end(self, worker: int, chunk: int, duration_s: float) -> ChunksFinished:
        """Note the end, and report the size."""
        self.steps.append((chunk, True))
        size_bytes = self._sized.sizes[chunk]
        report = super().end(worker, chunk, duration_s)
        report.sizes = {chunk: size_bytes}
        report.fresh = {chunk: size_bytes if self._sized.blocks[chunk] == chunk else 0}
        return report


def sized_graph(*collections: Any, composed: bool = True) -> SizedGraph:
    """Return the chunk graph of collections with the true sizes of its results.

    To know these it is computed: what collections declare is not enough, since Dask's own layers declare nothing
    of the pieces that a rechunk or a slice is made of.

    Parameters
    ----------
    *collections
        Dask collections, computed together; small enough for all results to be in memory at once.
    composed
        Whether chains of chunks are merged, as in every computation.
    """
    dsk, keys = handed_over(*collections)
    return measured(prepare(dsk, keys, composed=composed))


def measured(graph: ChunkGraph) -> SizedGraph:
    """Compute a graph to find the sizes of its results.

    Parameters
    ----------
    graph
        Small enough for all results to be in memory at once.
    """
    values: list[Any] = []
    blocks: list[int] = []
    owners: dict[int, int] = {}
    for chunk, operand in enumerate(graph.operand_of):
        if operand < 0:
            value = graph.values[chunk]
        else:
            inputs = [values[source] for source in graph.inputs[chunk]]
            value = graph.operands[operand].run(inputs, graph.literals[chunk])
        values.append(value)
        owner = chunk
        if isinstance(value, np.ndarray):
            root = _root(value)
            owner = owners.setdefault(id(root), chunk)
            if value.nbytes * VIEW_SHARE < root.nbytes:
                owner = chunk
        blocks.append(owner)
    return SizedGraph(graph, list(map(_bytes_of, values)), blocks)


def dask_order(inputs: Sequence[tuple[int, ...]], known: Collection[int]) -> list[int]:
    """Return the number of each chunk in Dask's own order of execution.

    Parameters
    ----------
    inputs
        Of each chunk.
    known
        Chunks whose values come with the graph.
    """
    tasks = {
        chunk: DataNode(chunk, None) if chunk in known else Task(chunk, tuple, *map(TaskRef, sources))
        for chunk, sources in enumerate(inputs)
    }
    found = order(tasks)
    return [found[chunk] for chunk in range(len(inputs))]


def _root(array: Any) -> Any:
    """Return the array that owns an array's memory."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _bytes_of(value: Any) -> int:
    if isinstance(value, np.ndarray):
        # A broadcast array takes no more than what it was made of.
        return int(max(min(value.nbytes, _root(value).nbytes), SMALLEST_BYTES))
    if isinstance(value, dict):
        return sum(map(_bytes_of, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_bytes_of, value))
    return SMALLEST_BYTES
