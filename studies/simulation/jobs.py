"""The benchmark graphs as jobs for simulated clusters."""

from __future__ import annotations

import math
import random
from typing import Any

from dask_mars.graph.chunks import ChunkGraph
from dask_mars.optimize.prepare import prepare
from studies.graphs import handed_over, measured, scaled_workload
from studies.simulation.cluster import Job

#: How much each graph grows so that it begins with some thousands of chunks, and 1,000 workers have work.
GROWTH: dict[str, float] = {
    "random-sum": 7,
    "elementwise": 10,
    "transcendental": 12,
    "standardise": 8,
    "shifted-difference": 8,
    "matmul": 5,
    "rechunk": 5,
    "overlap": 8,
    "svd": 50,
}

#: Linear scale at which graphs are computed to know the sizes of their results.
_SMALL = 0.02

#: What a chunk takes besides its bytes, and how many bytes a second are read and written.
OVERHEAD_S = 1e-3
BYTES_PER_S = 2e9


def job_of(name: str, growth: float, seed: int) -> Job:
    """Make a job of one of the array workloads.

    Parameters
    ----------
    name
        A key of `COLLECTIONS`.
    growth
        What shapes are multiplied by.
    seed
        Chunks take up to a fifth more or less than their bytes say, by chance.
    """
    dsk, keys = handed_over(scaled_workload(name, _SMALL, growth))
    graph, parts = prepare(dsk, keys), prepare(dsk, keys, composed=False)
    sizes = _full_sizes(name, growth, parts)
    chance = random.Random(seed)
    durations_s = [
        (OVERHEAD_S + work / BYTES_PER_S) * chance.uniform(0.8, 1.2) for work in _work_bytes(graph, parts, sizes)
    ]
    computed = [operand >= 0 for operand in graph.operand_of]
    return Job(
        inputs=[tuple(source for source in dict.fromkeys(inputs) if computed[source]) for inputs in graph.inputs],
        sizes=[sizes[parts.ids[key]] for key in graph.keys],
        durations_s=durations_s,
        groups=_numbers([graph.layer_of(chunk) for chunk in range(len(graph))]),
        absent=frozenset(chunk for chunk, there in enumerate(computed) if not there),
    )


def _full_sizes(name: str, growth: float, parts: ChunkGraph) -> list[int]:
    """Return the bytes that results of a graph have at full scale, from how they grow at small ones."""
    small = measured(parts).sizes
    dsk, keys = handed_over(scaled_workload(name, 2 * _SMALL, growth))
    larger = prepare(dsk, keys, composed=False)
    if larger.inputs != parts.inputs:
        raise ValueError(f"the graph of {name} changes its form with its scale")
    # Areas grow fourfold when sides double, edges twofold, and single numbers not at all.
    powers = [round(math.log2(more / less)) for less, more in zip(small, measured(larger).sizes, strict=True)]
    return [round(size * (1 / _SMALL) ** power) for size, power in zip(small, powers, strict=True)]


def _numbers(names: list[str]) -> list[int]:
    numbers: dict[str, int] = {}
    return [numbers.setdefault(name, len(numbers)) for name in names]


def _work_bytes(graph: ChunkGraph, parts: ChunkGraph, sizes: list[int]) -> list[int]:
    """Return what each chunk reads and writes, those of the chunks included that were merged into it.

    Parameters
    ----------
    graph
        The graph as it runs.
    parts
        The same graph before chains were merged.
    sizes
        Bytes of its results.
    """
    ends: dict[Any, int] = {key: chunk for chunk, key in enumerate(graph.keys)}
    work = []
    for key in graph.keys:
        total = 0
        stack = [parts.ids[key]]
        while stack:
            part = stack.pop()
            total += sizes[part]
            for source in parts.inputs[part]:
                total += sizes[source]
                if parts.keys[source] not in ends:
                    stack.append(source)
        work.append(total)
    return work
