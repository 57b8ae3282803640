"""Targets of `da.store` and `to_zarr`, and proof that the written data are unchanged."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dask_mars.checkpointing.journal import FileProof
from dask_mars.checkpointing.locations import zarr_directory
from dask_mars.dask_api import is_gone
from dask_mars.dask_api.arrays import fuse_slice, load_store_chunk
from dask_mars.graph.chunks import ChunkGraph, Constant, Operand, Subprogram

#: Maximum number of files to check for one chunk.
_MOST_FILES = 1000
#: Stands for a value that is unknown before it is computed.
_UNKNOWN: Any = object()


class _Input(NamedTuple):
    place: int


class _Literal(NamedTuple):
    place: int


class _Found(NamedTuple):
    value: Any


class _StoreCall(NamedTuple):
    """The target, the index and the region of a store, as parts of an operand."""

    target: Any
    index: Any
    region: Any


def store_calls(operand: Operand) -> list[_StoreCall]:
    """Return the store steps of an operand."""
    found: list[_StoreCall] = []
    for step in operand.steps:
        function = operand.functions[step.function]
        if isinstance(function, Subprogram):
            for call in store_calls(function.operand):
                found.append(_StoreCall(*[_outside(operand, step.slots, function, part) for part in call]))
        elif function is load_store_chunk:
            split = len(step.slots) - len(step.keywords)
            names = ("x", "out", "index", "region")
            slots = dict(zip(names, step.slots[:split], strict=False))
            slots.update(zip(step.keywords, step.slots[split:], strict=True))
            parts = [_part(operand, slots[name]) if name in slots else _Found(None) for name in names[1:]]
            found.append(_StoreCall(*parts))
    return found


def target_slots(operand: Operand) -> tuple[frozenset[int], frozenset[int]]:
    """Return the places of the operand's inputs, and of its literals, that are targets of stores."""
    targets = [call.target for call in store_calls(operand)]
    inputs = frozenset([part.place for part in targets if isinstance(part, _Input)])
    return inputs, frozenset([part.place for part in targets if isinstance(part, _Literal)])


def _part(operand: Operand, slot: int) -> Any:
    if slot < operand.input_count:
        return _Input(slot)
    slot -= operand.input_count
    if slot < operand.literal_count:
        return _Literal(slot)
    function = operand.functions[operand.steps[slot - operand.literal_count].function]
    return _Found(function.value if isinstance(function, Constant) else _UNKNOWN)


def _outside(operand: Operand, slots: Sequence[int], inner: Subprogram, part: Any) -> Any:
    """Translate a part of an inner program's call to the calling program."""
    if isinstance(part, _Input):
        return _part(operand, slots[part.place])
    if isinstance(part, _Literal):
        return _Found(inner.literals[part.place])
    return part


class StoredRegion(NamedTuple):
    """The part of a target that a chunk writes."""

    target: Any
    index: Any

    def root(self) -> Path | None:
        """Return the directory of a Zarr array on a local disk, None of any other target."""
        return zarr_directory(self.target)

    def proof(self) -> tuple[FileProof, ...] | None:
        """Return size and time of the files of the region, None if they are unknown."""
        files = self._files()
        return None if files is None else tuple([proof_of(file) for file in files])

    def _files(self) -> list[str] | None:
        directory = self.root()
        if directory is None:
            return None
        target = self.target
        grid = getattr(target, "shards", None) or target.chunks
        along = [
            _covered(*each) for each in zip(_slices(self.index, target.shape), target.shape, grid, strict=True)
        ]
        if None in along or math.prod([len(blocks or ()) for blocks in along]) > _MOST_FILES:
            return None
        encode = getattr(getattr(target, "metadata", None), "encode_chunk_key", None)
        name = encode if encode is not None else getattr(target, "_chunk_key", None)
        if name is None:
            return None
        return [str(directory / name(block)) for block in itertools.product(*[blocks or () for blocks in along])]


def regions(graph: ChunkGraph, chunk: int, calls: Sequence[_StoreCall]) -> Iterator[StoredRegion | None]:
    """Yield the regions that a chunk writes, None for those unknown beforehand."""
    for call in calls:
        target, index, region = [_found(graph, chunk, part) for part in call]
        if target is _UNKNOWN or index is _UNKNOWN or region is _UNKNOWN:
            yield None
            continue
        if region and index and is_gone(fuse_slice):
            yield None
            continue
        if region:
            index = fuse_slice(region, index) if index else region
        yield StoredRegion(target, index)


def _found(graph: ChunkGraph, chunk: int, part: Any) -> Any:
    if isinstance(part, _Input):
        return graph.values.get(graph.inputs[chunk][part.place], _UNKNOWN)
    if isinstance(part, _Literal):
        return graph.literals[chunk][part.place]
    return part.value


def _slices(index: Any, shape: Sequence[int]) -> list[Any]:
    given = list(index) if isinstance(index, tuple) else [slice(None) if index is None else index]
    return [*given, *[slice(None)] * (len(shape) - len(given))]


def _covered(index: Any, length: int, block: int) -> range | None:
    """Return the blocks along one dimension that a slice covers."""
    if isinstance(index, int):
        return range(index // block, index // block + 1)
    if not isinstance(index, slice):
        return None
    covered = range(*index.indices(length))
    if not covered:
        return range(0)
    low, high = min(covered[0], covered[-1]), max(covered[0], covered[-1])
    return range(low // block, high // block + 1)


def proof_of(path: str) -> FileProof:
    """Return path, size and time of a file; size -1 if it does not exist."""
    # pathlib takes several times as long, and this runs for each chunk.
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return path, -1, 0
    return path, found.st_size, found.st_mtime_ns
