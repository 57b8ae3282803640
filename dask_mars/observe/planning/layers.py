"""The layers of a plan: chunks, operands and sizes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from dask_mars.graph.chunks import ChunkGraph
from dask_mars.labels import label_of
from dask_mars.observe.planning.sizes import Sizes

#: Maximum number of names of operands for a layer.
_MOST_OPERANDS = 3


@dataclass(frozen=True, slots=True)
class PlannedLayer:
    """The chunks to compute of one layer.

    Attributes
    ----------
    name, label : str
        Dask's name of the layer, and its label.
    chunks : int
        Number of chunks.
    composed_of : int
        Number of chunks of Dask's layers that they contain.
    operands : tuple of str
        Names of their operands.
    result_bytes, largest_bytes : int
        Total and largest size of their results, as far as known.
    needed_bytes : int
        Peak memory of a chunk during its computation: its inputs, its temporaries and its result.
    spilled_bytes : int
        Bytes of it that are spilled.
    unknown : int
        Number of chunks of unknown size.
    rechunk_reads_bytes, rechunk_writes_bytes : int
        If it is the last layer of a rechunk: the bytes that the rechunk reads, and writes.
    """

    name: str
    label: str
    chunks: int
    composed_of: int
    operands: tuple[str, ...]
    result_bytes: int
    largest_bytes: int
    needed_bytes: int
    spilled_bytes: int
    unknown: int
    rechunk_reads_bytes: int = 0
    rechunk_writes_bytes: int = 0


def layers_of(graph: ChunkGraph, sizes: Sizes, spilled_by: Mapping[int, int]) -> list[PlannedLayer]:
    """Sum the costs of each layer's chunks, layers in the order of their first chunks."""
    members: defaultdict[str, list[int]] = defaultdict(list)
    for chunk, operand in enumerate(graph.operand_of):
        if operand >= 0:
            members[graph.layer_of(chunk)].append(chunk)
    result_bytes = [size or 0 for size in sizes.result_bytes]
    rechunks = _rechunks(graph, members, sizes)
    return [
        PlannedLayer(
            name,
            label_of(name),
            chunks=len(chunks),
            composed_of=sum([max(len(sizes.computes[chunk]), 1) for chunk in chunks]),
            operands=tuple(dict.fromkeys([graph.operands[graph.operand_of[chunk]].name for chunk in chunks]))[
                :_MOST_OPERANDS
            ],
            result_bytes=sum([result_bytes[chunk] for chunk in chunks]),
            largest_bytes=max([result_bytes[chunk] for chunk in chunks]),
            needed_bytes=max(
                [
                    sum([result_bytes[source] for source in set(graph.inputs[chunk])])
                    + sizes(chunk).working_bytes
                    + result_bytes[chunk]
                    for chunk in chunks
                ]
            ),
            spilled_bytes=sum([spilled_by.get(chunk, 0) for chunk in chunks]),
            unknown=sum([sizes.result_bytes[chunk] is None for chunk in chunks]),
            rechunk_reads_bytes=rechunks.get(name, (0, 0))[0],
            rechunk_writes_bytes=rechunks.get(name, (0, 0))[1],
        )
        for name, chunks in members.items()
    ]


def _rechunks(graph: ChunkGraph, members: Mapping[str, list[int]], sizes: Sizes) -> dict[str, tuple[int, int]]:
    """Return the bytes that rechunks read and write, by the last layer of each."""
    totals: dict[str, tuple[int, int]] = {}
    inner: set[str] = set()
    for name, chunks in members.items():
        if not name.startswith("rechunk"):
            continue
        reads: defaultdict[str, set[int]] = defaultdict(set)
        for chunk in chunks:
            for source in graph.inputs[chunk]:
                reads[graph.layer_of(source)].add(source)
        read_bytes, written_bytes = 0, sum([sizes(chunk).fresh_bytes for chunk in chunks])
        for layer, sources in reads.items():
            if layer in totals:
                inner.add(layer)
                read_bytes += totals[layer][0]
                written_bytes += totals[layer][1]
            else:
                read_bytes += sum([sizes.result_bytes[source] or 0 for source in sources])
        totals[name] = read_bytes, written_bytes
    return {name: total for name, total in totals.items() if name not in inner}
