"""The layers of a plan: chunks, operands and sizes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from dask_mars.graph.chunks import ChunkGraph
from dask_mars.labels import label_of
from dask_mars.observe.planning.sizes import Sizes

#: Most names of operands for a layer.
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
        Most memory of a chunk during its computation: its inputs, its temporaries and its result.
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


@dataclass(slots=True)
class _LayerSums:
    chunks: int = 0
    composed_of: int = 0
    operands: dict[str, None] = field(default_factory=dict)
    result_bytes: int = 0
    fresh_bytes: int = 0
    largest_bytes: int = 0
    needed_bytes: int = 0
    spilled_bytes: int = 0
    unknown: int = 0
    #: Chunks that the layer reads, by layer.
    reads: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))


def layers_of(graph: ChunkGraph, sizes: Sizes, spilled_by: Mapping[int, int]) -> list[PlannedLayer]:
    """Sum the costs of each layer's chunks, layers in the order of their first chunks."""
    found: defaultdict[str, _LayerSums] = defaultdict(_LayerSums)
    for chunk, operand in enumerate(graph.operand_of):
        if operand < 0:
            continue
        sums, result, size = found[graph.layer_of(chunk)], sizes.result_bytes[chunk], sizes(chunk)
        sums.chunks += 1
        sums.composed_of += max(len(sizes.computes[chunk]), 1)
        sums.operands[graph.operands[operand].name] = None
        sums.unknown += result is None
        sums.result_bytes += result or 0
        sums.fresh_bytes += size.fresh_bytes
        sums.largest_bytes = max(sums.largest_bytes, result or 0)
        inputs = sum([sizes.result_bytes[source] or 0 for source in set(graph.inputs[chunk])])
        sums.needed_bytes = max(sums.needed_bytes, inputs + size.working_bytes + (result or 0))
        sums.spilled_bytes += spilled_by.get(chunk, 0)
        for source in graph.inputs[chunk]:
            sums.reads[graph.layer_of(source)].add(source)
    rechunks = _rechunks(found, sizes)
    return [
        PlannedLayer(
            name,
            label_of(name),
            sums.chunks,
            sums.composed_of,
            tuple(sums.operands)[:_MOST_OPERANDS],
            sums.result_bytes,
            sums.largest_bytes,
            sums.needed_bytes,
            sums.spilled_bytes,
            sums.unknown,
            *rechunks.get(name, (0, 0)),
        )
        for name, sums in found.items()
    ]


def _rechunks(found: Mapping[str, _LayerSums], sizes: Sizes) -> dict[str, tuple[int, int]]:
    """Return the bytes that rechunks read and write, by the last layer of each."""
    totals: dict[str, tuple[int, int]] = {}
    inner: set[str] = set()
    for name, sums in found.items():
        if not name.startswith("rechunk"):
            continue
        reads, writes = 0, sums.fresh_bytes
        for source, chunks in sums.reads.items():
            if source in totals:
                inner.add(source)
                reads += totals[source][0]
                writes += totals[source][1]
            else:
                reads += sum([sizes.result_bytes[chunk] or 0 for chunk in chunks])
        totals[name] = reads, writes
    return {name: total for name, total in totals.items() if name not in inner}
