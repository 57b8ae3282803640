"""References to values: plain tuples in messages, whose fields only this module and the store access.

* ``(VALUE, value)``: a scalar, as it is;
* ``(PICKLE, data)``: a small pickle, in the message itself;
* ``(HANDLE, data)``: the same for objects that may hold files open;
* ``(SMALL, dtype, shape, order, writeable, data)``: a small NumPy array, in the message itself; a NumPy scalar if
  its shape is None. ``writeable`` is None for an array of the user's that is read-only elsewhere;
* ``(ARRAY, blocks, dtype, shape, strides, position, writeable)``: one NumPy array in an arena;
* ``(MAP_OUTPUT, blocks, dtype, shape, strides, position, writeable)``: a map output, as the array of its bytes;
* ``(OBJECT, blocks, header, parts)``: a pickle whose buffers are in arenas; ``parts`` lists (block, position,
  size) of each, and ``header`` is the pickle itself, or None where it is the last part;
* ``(SPILLED, (), file, ref)``: on disk; the file has a part for each block of the other reference.

``blocks`` is a tuple of (arena, offset, size in bytes): the allocations that must stay while the value lives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dask_mars.lazy_numpy import np
from dask_mars.protocol.pickling import loads

VALUE, PICKLE, HANDLE, SMALL, ARRAY, MAP_OUTPUT, OBJECT, SPILLED = range(8)
#: Kinds with the fields of an array.
ARRAYS = (ARRAY, MAP_OUTPUT)

#: Arena, offset and size in bytes of an allocation.
Block = tuple[int, int, int]
ObjectRef = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class SpilledFile:
    """The description of a file, for reading it back."""

    path: str
    size_bytes: int
    checksum: int
    #: Name of the codec; empty for none.
    compression: str
    #: Size of each buffer.
    parts: tuple[int, ...]
    #: Size of each compressed block in the file.
    blocks: tuple[int, ...] = ()
    #: The owner's user id.
    owner: int = -1


def blocks_of(ref: ObjectRef) -> tuple[Block, ...]:
    """Return the blocks of a value."""
    return ref[1] if ref[0] >= ARRAY else ()


def is_stored(ref: ObjectRef) -> bool:
    """Return whether a value is in arenas or on disk, and not in the message itself."""
    return bool(ref[0] >= ARRAY)


def may_hold_files(ref: ObjectRef) -> bool:
    """Return whether a value that processes keep as an object may hold files open."""
    return bool(ref[0] == HANDLE)


def is_spilled(ref: ObjectRef) -> bool:
    """Return whether a value is on disk."""
    return bool(ref[0] == SPILLED)


def is_map_output(ref: ObjectRef) -> bool:
    """Return whether a value is a map output, of which readers read parts, in memory or on disk."""
    return bool(memory_ref(ref)[0] == MAP_OUTPUT)


def is_pickled(ref: ObjectRef) -> bool:
    """Return whether a value is in arenas as a pickle."""
    return bool(ref[0] == OBJECT)


def memory_ref(ref: ObjectRef) -> ObjectRef:
    """Return the reference in memory; for a spilled value the former one, whose blocks have been reused."""
    original: ObjectRef = ref[3] if ref[0] == SPILLED else ref
    return original


def array_type(ref: ObjectRef) -> tuple[Any, tuple[int, ...]] | None:
    """Return dtype and shape of an array in an arena, or of one spilled from there; None for other values."""
    original = memory_ref(ref)
    if original[0] != ARRAY:
        return None
    _, _, dtype, shape, *_ = original
    return np.dtype(dtype), tuple(shape)


def is_writeable_array(ref: ObjectRef) -> bool | None:
    """Return whether an array in an arena may be written to; None for other values."""
    if ref[0] != ARRAY:
        return None
    *_, writeable = ref
    return bool(writeable)


def extents(ref: ObjectRef) -> list[tuple[int, int]]:
    """Return the range of bytes that a value needs of each of its blocks."""
    if ref[0] in ARRAYS:
        _, ((_, _, block_bytes),), dtype, shape, strides, position, _ = ref
        item_bytes = np.dtype(dtype).itemsize
        if math.prod(shape) * item_bytes == block_bytes and 0 not in strides:
            return [(0, block_bytes)]
        steps = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
        low = position + sum([step for step in steps if step < 0])
        high = position + sum([step for step in steps if step > 0])
        return [(low, high + item_bytes)]
    found = [(size, 0) for _, _, size in blocks_of(ref)]
    for index, at, size in ref[3] if ref[0] == OBJECT else ():
        low, high = found[index]
        found[index] = min(low, at), max(high, at + size)
    return found


def needed_bytes(ref: ObjectRef) -> int:
    """Return the bytes that a value needs, without those of its blocks that only others need."""
    size = sum([high - low for low, high in extents(ref)])
    return min(size, size_of(ref)) if ref[0] in ARRAYS else size


def spilled_file(ref: ObjectRef) -> SpilledFile:
    """Return the file of a spilled value."""
    file = ref[2]
    assert isinstance(file, SpilledFile)
    return file


def value_from_blocks(ref: ObjectRef, blocks: Sequence[Any]) -> Any:
    """Return a value, or the bytes of a map output, given the memory of the reference's blocks."""
    if ref[0] in ARRAYS:
        _, _, dtype, shape, strides, position, _ = ref
        return np.ndarray(shape, dtype, buffer=blocks[0], offset=position, strides=strides)
    header, views = pickle_of(ref, blocks)
    return loads(header, buffers=views)


def pickle_of(ref: ObjectRef, blocks: Sequence[Any]) -> tuple[Any, list[memoryview]]:
    """Return the pickle of a value in arenas, and its buffers, given the memory of each block."""
    _, _, header, parts = ref
    views = [memoryview(blocks[index])[at : at + size] for index, at, size in parts]
    return (views.pop() if header is None else header), views


def size_of(ref: ObjectRef) -> int:
    """Return the approximate size of a value, in bytes."""
    kind = ref[0]
    if kind == VALUE:
        return 32
    if kind < ARRAY:
        return len(ref[-1])
    if kind == SPILLED:
        return size_of(ref[3])
    if kind in ARRAYS:
        return math.prod(ref[3]) * np.dtype(ref[2]).itemsize
    return sum(size for _, _, size in ref[3])


def relocated(ref: ObjectRef, own: int, moved: dict[int, tuple[int, int, int]]) -> ObjectRef:
    """Return the reference to a value after `InPlaceSealing.finish` has copied blocks of the own arena."""
    blocks = []
    shifts = []
    for arena, offset, size in ref[1]:
        copy, copied, first = moved.get(offset, (offset, size, 0)) if arena == own else (offset, size, 0)
        blocks.append((arena, copy, copied))
        shifts.append(first)
    if ref[0] in ARRAYS:
        *_, dtype, shape, strides, position, writeable = ref
        return (ref[0], tuple(blocks), dtype, shape, strides, position - shifts[0], writeable)
    _, _, header, parts = ref
    return (OBJECT, tuple(blocks), header, tuple((index, at - shifts[index], size) for index, at, size in parts))
