"""The layers of a plan: how many chunks, by which operands, and what they take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from dask_mars.diagnostics.planning.sizes import Sizes
from dask_mars.graph.chunks import ChunkGraph
from dask_mars.labels import label_of

#: Names of operands that are shown of a layer.
_MOST_OPERANDS = 3


@dataclass(frozen=True, slots=True)
class PlannedLayer:
    """What is to be computed of one layer.

    Attributes
    ----------
    name, label : str
        Dask's name of the layer, and what people call it.
    chunks : int
        How many chunks run.
    composed_of : int
        Of how many chunks of Dask's layers these are composed.
    operands : tuple of str
        What they compute.
    result_bytes, largest_bytes : int
        What their results take together, and the largest of them, as far as that is known.
    needed_bytes : int
        What a chunk takes at most while it is computed: its inputs, its temporaries and its result.
    spilled_bytes : int
        How much of it goes to disk.
    unknown : int
        Of how many chunks nothing says how large they are.
    rechunk_reads_bytes, rechunk_writes_bytes : int
        If it is the last of the layers of a rechunk: what these read, and what they write.
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
class _Sums:
    chunks: int = 0
    composed_of: int = 0
    operands: dict[str, None] = field(default_factory=dict)
    result_bytes: int = 0
    fresh_bytes: int = 0
    largest_bytes: int = 0
    needed_bytes: int = 0
    spilled_bytes: int = 0
    unknown: int = 0
    #: Bytes that the layer reads, by layer.
    reads: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))


def layers_of(graph: ChunkGraph, sizes: Sizes, spilled_by: Mapping[int, int]) -> list[PlannedLayer]:
    """Add up what the chunks of each layer take, layers in the order of their first chunks."""
    found: defaultdict[str, _Sums] = defaultdict(_Sums)
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


def _rechunks(found: Mapping[str, _Sums], sizes: Sizes) -> dict[str, tuple[int, int]]:
    """Return what rechunks read and write, by the last layer of each."""
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


__all__ = ["PlannedLayer", "layers_of"]
