"""Shuffles through the store on several hosts: each host gets the parts of a map output for its own reducers.

A *selection* is a chunk with the parts of a map output for the reducers of one host. It is computed on the map
output's host, and travels in its place. Reducers on that host read the map output itself.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from dask_mars.cluster.partition.subtasks import NO_HOST
from dask_mars.graph.chunks import ChunkGraph, Operand, Step
from dask_mars.worker.shuffle import MAPS, REDUCES, select


@dataclass(slots=True)
class Selections:
    """The reducers of a graph and their selections."""

    host_of: dict[int, int] = field(default_factory=dict)
    #: Map outputs that each reducer reads, as if all were on its host.
    inputs: dict[int, tuple[int, ...]] = field(default_factory=dict)
    #: The selection for each map output and host.
    chunks: dict[tuple[int, int], int] = field(default_factory=dict)

    def route(self, graph: ChunkGraph, placed: list[int]) -> None:
        """Let each reducer read map outputs of its own host, and selections of others."""
        needed = set()
        for reducer, inputs in self.inputs.items():
            here, routed = placed[reducer], []
            for source in inputs:
                selection = self.chunks.get((source, here))
                if selection is not None and placed[source] != here:
                    needed.add(selection)
                    source = selection
                routed.append(source)
            graph.inputs[reducer] = tuple(routed)
        for selection in self.chunks.values():
            if selection not in needed:
                placed[selection] = NO_HOST


def with_selections(
    graph: ChunkGraph, slots: Sequence[int], fixed: Collection[int] = ()
) -> tuple[ChunkGraph, Selections, Sequence[int]]:
    """Add a selection for each map output and each host with reducers of it."""
    # The new graph reads no selection before `Selections.route`. Also return the new number of each chunk.
    reads = _reads_of_reducers(graph, fixed)
    if len(slots) < 2 or not reads:
        return graph, Selections(), range(len(graph))
    host_of = _hosts_of_reducers(reads, slots)
    parts: dict[int, dict[int, set[int]]] = {}
    for chunk, reducer_of in reads.items():
        for source, reducer in reducer_of.items():
            parts.setdefault(source, {}).setdefault(host_of[chunk], set()).add(reducer)
    found, new, chunks = _rebuilt(graph, parts)
    placed = {new[chunk]: host for chunk, host in host_of.items()}
    return found, Selections(placed, {chunk: found.inputs[chunk] for chunk in placed}, chunks), new


def _reads_of_reducers(graph: ChunkGraph, fixed: Collection[int]) -> dict[int, dict[int, int]]:
    """Return the map outputs that each reducer reads a part of, with the part's reducer."""
    maps = {
        operand_id
        for operand_id, operand in enumerate(graph.operands)
        if id(operand.functions[operand.steps[-1].function]) in MAPS
    }
    reduces = {id: steps for id, operand in enumerate(graph.operands) if (steps := _reducing_steps(operand))}
    reads: dict[int, dict[int, int]] = {}
    for chunk, operand in enumerate(graph.operand_of) if maps and reduces else ():
        if operand not in reduces or chunk in fixed:
            continue
        reducer_of: dict[int, int] = {}
        for place, slots in reduces[operand]:
            reducer = graph.literals[chunk][place]
            for slot in slots:
                source = graph.inputs[chunk][slot]
                if graph.operand_of[source] in maps:
                    # A map output that is read for two parts is read as a whole.
                    reducer_of[source] = reducer if reducer_of.get(source, reducer) == reducer else -1
        reads[chunk] = {source: reducer for source, reducer in reducer_of.items() if reducer >= 0}
    return {chunk: reducer_of for chunk, reducer_of in reads.items() if reducer_of}


def _reducing_steps(operand: Operand) -> list[tuple[int, list[int]]]:
    """Return, for each reducing step, the literal with its reducer and the inputs that it reads."""
    found = []
    count = operand.input_count
    for step in operand.steps:
        place = REDUCES.get(id(operand.functions[step.function]))
        if place is not None:
            literal = step.slots[place] - count
            if 0 <= literal < operand.literal_count:
                found.append((literal, [slot for slot in step.slots if slot < count]))
    return found


def _hosts_of_reducers(reads: Mapping[int, Mapping[int, int]], slots: Sequence[int]) -> dict[int, int]:
    """Divide the reducers of each shuffle among hosts: neighbours together, in proportion to slots."""
    shuffles: dict[int, list[tuple[int, int]]] = {}
    for chunk, reducer_of in reads.items():
        # The first map output identifies the shuffle.
        first = min(reducer_of)
        shuffles.setdefault(first, []).append((reducer_of[first], chunk))
    ends = list(accumulate(slots))
    host_of = {}
    for reducers in shuffles.values():
        for place, (_, chunk) in enumerate(sorted(reducers)):
            host_of[chunk] = bisect_right(ends, place * ends[-1] / len(reducers))
    return host_of


def _rebuilt(
    graph: ChunkGraph, parts: Mapping[int, Mapping[int, Collection[int]]]
) -> tuple[ChunkGraph, list[int], dict[tuple[int, int], int]]:
    """Insert selections after their map outputs."""
    # Also return the new number of each chunk, and the selection for a map output and a host.
    selecting = len(graph.operands)
    operand = Operand("select", (select,), (Step(0, (0, 1), ()),), 1, 1)
    found = ChunkGraph(operands=[*graph.operands, operand], declared=graph.declared)

    def add(key: Any, operand: int, literals: tuple[Any, ...], inputs: tuple[int, ...]) -> int:
        found.keys.append(key)
        found.operand_of.append(operand)
        found.literals.append(literals)
        found.inputs.append(inputs)
        return len(found) - 1

    new: list[int] = []
    chunks: dict[tuple[int, int], int] = {}
    for chunk, key in enumerate(graph.keys):
        inputs = tuple([new[source] for source in graph.inputs[chunk]])
        here = add(key, graph.operand_of[chunk], graph.literals[chunk], inputs)
        new.append(here)
        for host, reducers in sorted(parts.get(chunk, {}).items()):
            literals = (tuple(sorted(reducers)),)
            chunks[here, host] = add(("mars-selection", key, host), selecting, literals, (here,))
    found.ids = {key: new[chunk] for key, chunk in graph.ids.items()}
    found.take_over(graph, new)
    return found, new, chunks
