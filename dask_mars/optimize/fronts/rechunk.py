"""Rechunks in one step.

Dask cuts the array into pieces, each a value of its own, and uses intermediate chunks where there would be too
many pieces. Where memory has room for the whole array, the blocks of the result are assembled directly from the
blocks of the source, and nothing is stored in between.

Rechunks between Dask's workers ("p2p"), Dask's choice under a `Client`, run in the workers' own threads, with
buffers that no quota covers, and only on a cluster. As tasks they move pieces through the stores, in a quarter of
the time.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from dask_mars.graph.chunks import Key
from dask_mars.lazy_numpy import np
from dask_mars.optimize.fronts.base import ALIAS, ChunkRecord, LazyLayer, TaskCompiler
from dask_mars.optimize.fronts.parts import PartOperands, Residents


def is_between_workers(layer: Layer) -> bool:
    """Return whether a layer is an unmaterialised rechunk between Dask's workers."""
    # Only distributed has such layers.
    module = sys.modules.get("distributed.shuffle._rechunk")
    return module is not None and type(layer) is module.P2PRechunkLayer and not layer.is_materialized()


def as_tasks(layer: Any) -> dict[Key, Any]:
    """Return the tasks of a rechunk between Dask's workers, under the keys of its results."""
    # The plan of a rechunk depends on the item size, also that of an array that declares none.
    dtype = (layer.collection_annotations or {}).get("dtype") or np.dtype(float)
    blocks = itertools.product((layer.name_input,), *[range(len(sizes)) for sizes in layer.chunks_input])
    source = HighLevelGraph(
        {layer.name_input: MaterializedLayer(dict.fromkeys(blocks))}, {layer.name_input: set()}
    )
    # Graphs without arrays do not wait for this import.
    from dask.array import Array

    array = Array(source, layer.name_input, layer.chunks_input, dtype=dtype)
    rechunked = array.rechunk(layer.chunks, method="tasks")
    tasks: dict[Key, Any] = {}
    for name, made in rechunked.dask.layers.items():
        if name != layer.name_input:
            tasks.update(made)
    for block in itertools.product(*[range(len(sizes)) for sizes in layer.chunks]):
        key = (layer.name, *block)
        tasks[key] = tasks.pop((rechunked.name, *block)).substitute({}, key=key)
    return tasks


#: Prefix of the names of the layers of Dask's own rechunks.
_MERGE = "rechunk-merge-"
#: Minimum mean size of pieces, in bytes, where there are more of them than Dask would have tasks.
_PIECE_BYTES = 1 << 16

#: Sizes of an array's chunks along each axis.
Chunks = tuple[tuple[int, ...], ...]


class DirectRechunk(MaterializedLayer):  # type: ignore[misc]
    """The layers of one rechunk: a mapping of all their tasks, and the old and new chunks."""

    def __init__(self, mapping: Mapping[Key, Any], name: str, source: str, old: Chunks, new: Chunks) -> None:
        super().__init__(mapping)
        self.name, self.source, self.old, self.new = name, source, old, new

    def is_materialized(self) -> bool:
        """Return False: its blocks are compiled when needed."""
        return False


def with_direct_rechunks(graph: HighLevelGraph, wanted: Collection[Any], residents: Residents) -> HighLevelGraph:
    """Return a graph whose rechunks are single layers, where memory has room for the arrays."""
    names = [name for name in graph.layers if isinstance(name, str) and name.startswith(_MERGE)]
    if not names:
        return graph
    dependents: dict[str, list[str]] = {}
    for name, needed in graph.dependencies.items():
        for dependency in needed:
            dependents.setdefault(dependency, []).append(name)
    passed = {
        name
        for name in names
        if name not in wanted
        and len(dependents.get(name, ())) == 1
        and dependents[name][0].startswith(_MERGE)
        and _is_plain(graph, dependents[name][0])
    }
    direct: dict[str, DirectRechunk] = {}
    gone: set[str] = set()
    total_bytes = 0
    for name in names:
        if name in passed or not _is_plain(graph, name):
            continue
        chain = [name]
        (source,) = graph.dependencies[name]
        while source in passed and _is_plain(graph, source):
            chain.append(source)
            (source,) = graph.dependencies[source]
        layer = _direct(graph, chain, source)
        if layer is not None:
            total_bytes += _array_bytes(graph, name)
            direct[name] = layer
            gone.update(chain[1:])
    if not direct or not residents.reserve(total_bytes):
        return graph
    layers = {name: direct.get(name, layer) for name, layer in graph.layers.items() if name not in gone}
    dependencies = {
        name: {direct[name].source} if name in direct else needed
        for name, needed in graph.dependencies.items()
        if name not in gone
    }
    return HighLevelGraph(layers, dependencies)


def _is_plain(graph: HighLevelGraph, name: str) -> bool:
    """Return whether a layer is one of Dask's rechunks of a numeric array, without annotations."""
    layer = graph.layers[name]
    said = layer.collection_annotations or {}
    return (
        type(layer) is MaterializedLayer
        and not layer.annotations
        and len(graph.dependencies[name]) == 1
        and said.get("chunk_type") == "numpy.ndarray"
        and not getattr(said.get("dtype"), "hasobject", True)
    )


def _array_bytes(graph: HighLevelGraph, name: str) -> int:
    said = graph.layers[name].collection_annotations or {}
    return array_bytes(said["chunks"], said["dtype"])


def array_bytes(chunks: Chunks, dtype: np.dtype[Any]) -> int:
    """Return the size of an array in bytes."""
    return math.prod(map(sum, chunks)) * dtype.itemsize


def _direct(graph: HighLevelGraph, chain: list[str], source: str) -> DirectRechunk | None:
    """Merge the layers of a rechunk, the last one first; return None where that does not pay."""
    layer = graph.layers.get(source)
    said = {} if layer is None else layer.collection_annotations or {}
    old, new = said.get("chunks"), (graph.layers[chain[0]].collection_annotations or {})["chunks"]
    if old is None or not are_known(old, new):
        return None
    pieces = math.prod(
        len({*itertools.accumulate(before), *itertools.accumulate(after)})
        for before, after in zip(old, new, strict=True)
    )
    task_count = sum(len(graph.layers[name]) for name in chain)
    if pieces > task_count and _array_bytes(graph, chain[0]) < pieces * _PIECE_BYTES:
        return None
    tasks: dict[Key, Any] = {}
    for name in reversed(chain):
        tasks.update(graph.layers[name])
    return DirectRechunk(tasks, chain[0], source, old, new)


def are_known(old: Chunks, new: Chunks) -> bool:
    """Return whether chunks before and after a rechunk are of known sizes and none is empty."""
    if len(old) != len(new):
        return False
    # Unknown sizes (NaN) fail the comparison, and empty blocks have rules of their own.
    return all(
        all(size > 0 for size in (*before, *after)) and sum(before) == sum(after)
        for before, after in zip(old, new, strict=True)
    )


def lazy_rechunk(layer: Layer, residents: Residents | None = None) -> LazyLayer | None:
    """Return a rechunk as a layer that is compiled when needed."""
    if type(layer) is not DirectRechunk:
        return None
    return LazyLayer((layer.name,), partial(RechunkRecords, layer), partial(dict, layer))


class RechunkRecords:
    """The blocks of one rechunk, assembled from parts of the array's blocks."""

    def __init__(self, layer: DirectRechunk, compiler: TaskCompiler) -> None:
        self._source = layer.source
        self._operands = PartOperands(compiler, layer.name)
        #: For each axis and new block: the old blocks that it reads, the part of each, and whether that is all of
        #: it.
        self._parts = [
            [tuple(zip(*parts, strict=True)) for parts in _parts(old, new)]
            for old, new in zip(layer.old, layer.new, strict=True)
        ]

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        """Return whether a key with the layer's name is that of a block."""
        return len(key) == 1 + len(self._parts) and all(
            isinstance(at, int) and 0 <= at < len(parts) for at, parts in zip(key[1:], self._parts, strict=True)
        )

    def record(self, key: tuple[Any, ...]) -> ChunkRecord | None:
        """Return the record of a block."""
        if key not in self:
            return None
        blocks, slices, are_whole = zip(
            *[parts[at] for parts, at in zip(self._parts, key[1:], strict=True)], strict=True
        )
        input_keys: list[Key] = list(itertools.product((self._source,), *blocks))
        whole = list(map(all, itertools.product(*are_whole)))
        if whole == [True]:
            return ALIAS, (), (input_keys[0],)
        parts = zip(itertools.product(*slices), whole, strict=True)
        literals: list[Any] = [part for part, is_all in parts if not is_all]
        if len(whole) > 1:
            literals.append(list(map(len, blocks)))
        return self._operands.operand_id(whole), tuple(literals), input_keys


def _parts(old: tuple[int, ...], new: tuple[int, ...]) -> list[list[tuple[int, slice, bool]]]:
    """Return, for each new block along an axis, the old blocks that it overlaps, and where."""
    found: list[list[tuple[int, slice, bool]]] = []
    block, block_start, start = 0, 0, 0
    for size in new:
        stop = start + size
        parts = []
        while start < stop:
            end = min(stop, block_start + old[block])
            part = slice(start - block_start, end - block_start)
            parts.append((block, part, end - start == old[block]))
            if end == block_start + old[block]:
                block, block_start = block + 1, end
            start = end
        found.append(parts)
    return found
