"""Reads values from arenas and files, for which a process needs no arena of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from dask_mars.lazy_numpy import np
from dask_mars.protocol.object_ref import (
    ARRAY,
    ARRAYS,
    MAP_OUTPUT,
    SMALL,
    SPILLED,
    VALUE,
    Block,
    ObjectRef,
    blocks_of,
    extents,
    pickle_of,
    size_of,
    spilled_file,
    value_from_blocks,
)
from dask_mars.protocol.pickling import loads
from dask_mars.store.arena import Arena, Bytes
from dask_mars.store.array_memory import byte_bounds, copy_as_it_lies, raw
from dask_mars.store.map_output import MapOutput, with_checksums
from dask_mars.store.spill_files import SpilledBytes, SpillFiles


class StoreReader:
    """Reads the values in arenas, and writes them to files."""

    def __init__(self, arenas: list[Arena]) -> None:
        self.arenas = arenas

    def is_in_arena(self, array: np.ndarray[Any, Any]) -> bool:
        """Return whether any of an array's memory is in an arena."""
        low, high = byte_bounds(array)
        return any(low < arena.address + arena.capacity_bytes and arena.address < high for arena in self.arenas)

    def load(self, ref: ObjectRef, owners: list[tuple[Block, Bytes]] | None = None) -> Any:
        """Read a value without copying from arenas."""
        # `owners` receives a (block, array) pair for each block. While anything refers to the memory, the array
        # has more references than this list's: see `still_used`.
        kind = ref[0]
        if kind < ARRAY:
            return inline_value(ref)
        if kind == SPILLED:
            return _load_spilled(ref)
        value = value_from_blocks(ref, self._bases(ref, owners))
        return MapOutput(value) if kind == MAP_OUTPUT else value

    def _bases(self, ref: ObjectRef, owners: list[tuple[Block, Bytes]] | None) -> list[Bytes]:
        """Return the memory of each block of a value."""
        bases = []
        for block in ref[1]:
            arena, offset, size_bytes = block
            base = self.arenas[arena].view(offset, size_bytes)
            base.flags.writeable = False
            bases.append(base)
            if owners is not None:
                owners.append((block, base))
        return bases

    def load_pickle(self, ref: ObjectRef, owners: list[tuple[Block, Bytes]]) -> tuple[Any, list[memoryview]]:
        """Return an object's pickle in arenas, and its buffers, without copying them."""
        return pickle_of(ref, self._bases(ref, owners))

    def load_copy(self, ref: ObjectRef) -> Any:
        """Read a value into private, writable memory; the copy does not refer to the arena."""
        kind = ref[0]
        if kind == VALUE:
            return ref[1]
        if kind < ARRAY:
            return _owning(self.load(ref))
        if kind == SPILLED:
            return _load_spilled(ref)
        if kind == MAP_OUTPUT:
            return MapOutput(self.load(ref).data.copy())
        if kind == ARRAY:
            view = self.load(ref)
            copy = copy_as_it_lies(view)
            if not ref[6]:
                copy.flags.writeable = False
            return copy
        _, blocks, header, parts = ref
        copies = []
        for index, at, size in parts:
            arena, offset, _ = blocks[index]
            copies.append(bytearray(self.arenas[arena].view(offset + at, size)))
        if header is None:
            header = copies.pop()
        return loads(header, buffers=copies)

    def spill(self, ref: ObjectRef, name: str, files: SpillFiles) -> ObjectRef:
        """Write a value to a file."""
        if ref[0] in ARRAYS:
            views, there = self._needed_of_array(ref)
            if ref[0] == MAP_OUTPUT:
                views = with_checksums(views[0])
        else:
            views = []
            lows = []
            for (arena, offset, _), (low, high) in zip(blocks_of(ref), extents(ref), strict=True):
                views.append(self.arenas[arena].view(offset + low, high - low))
                lows.append(low)
            kind, blocks, header, parts = ref
            there = kind, blocks, header, tuple([(index, at - lows[index], size) for index, at, size in parts])
        return (SPILLED, (), files.write(name, views, in_parts=ref[0] == MAP_OUTPUT), there)

    def _needed_of_array(self, ref: ObjectRef) -> tuple[list[Bytes], ObjectRef]:
        """Return the memory that an array needs, and a reference as if that memory were its block."""
        kind, (block,), dtype, shape, strides, position, writeable = ref
        arena, offset, size = block
        ((low, high),) = extents(ref)
        if high - low <= size_of(ref):
            view = self.arenas[arena].view(offset + low, high - low)
            return [view], (kind, (block,), dtype, shape, strides, position - low, writeable)
        # A slice of columns does not need the rest of the rows.
        array = np.copy(value_from_blocks(ref, [self.arenas[arena].view(offset, size)]), order="K")
        view = raw(int(array.__array_interface__["data"][0]), array.nbytes, array)
        return [view], (kind, (block,), dtype, shape, array.strides, 0, writeable)


def still_used(owners: list[tuple[Block, Bytes]]) -> list[tuple[Block, Bytes]]:
    """Return the entries of a list filled by `Store.load` whose memory something else refers to."""
    return [entry for entry in owners if sys.getrefcount(entry[1]) > _UNUSED_COUNT]


def _unused_count() -> int:
    """Return the reference count of an array in an entry of `still_used` that nothing else refers to."""
    entry = ((0, 0, 0), object())
    return next(iter([sys.getrefcount(entry[1]) for entry in [entry]]))


_UNUSED_COUNT = _unused_count()


def inline_value(ref: ObjectRef) -> Any:
    """Return the value in a reference."""
    kind = ref[0]
    if kind == VALUE:
        return ref[1]
    return _load_small(*ref[1:]) if kind == SMALL else loads(ref[1])


def _load_spilled(ref: ObjectRef) -> Any:
    """Read a value from disk into private, writable memory."""
    original = ref[3]
    if original[0] == MAP_OUTPUT:
        return MapOutput(None, SpilledBytes(spilled_file(ref)))
    value = value_from_blocks(original, read_back(ref))
    if original[0] == ARRAY:
        value.flags.writeable = original[6]
    return value


def read_back(ref: ObjectRef, into: Sequence[Any] | None = None) -> Sequence[Any]:
    """Read the memory of each block of a value on disk."""
    file = spilled_file(ref)
    return SpillFiles(Path(file.path).parent).read(file, into)


def _load_small(
    dtype: str, shape: tuple[int, ...] | None, order: Literal["C", "F"], writeable: bool | None, data: bytes
) -> Any:
    if shape is None:
        return np.frombuffer(data, dtype)[0]
    array: Any = np.ndarray(shape, dtype, buffer=data if writeable is None else bytearray(data), order=order)
    if writeable is False:
        array.flags.writeable = False
    return array


def _owning(value: Any) -> Any:
    """Return a small array as one that owns its memory, so that it can be resized; other values unchanged."""
    # Arrays of the user stay views of their message, which identifies them.
    if type(value) is not np.ndarray or value.flags.owndata or not value.flags.writeable:
        return value
    return value.copy(order="K")
